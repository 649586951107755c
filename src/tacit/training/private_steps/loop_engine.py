"""One example at a time through ordinary autograd: the oracle, and the engine for examples of many rows.

It works for every model, holds the activations of one example and one extra copy of the gradients, and on a
CPU with small models it is often the fastest as well: a hundred tokens keep a core busy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from tacit.training.encoding import Batch, IntArray
from tacit.training.private_steps.clipping import GradientSum, clip_factors, norm_of
from tacit.training.private_steps.engine import StepTally
from tacit.training.private_steps.objective import Objective, labels_per_row
from tacit.training.private_steps.settings import StepPrivacy


class LoopEngine:
    """Per-example gradients by one backward pass each."""

    name = "loop"

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        objective: Objective,
        make_batch: Callable[[IntArray], Batch],
        privacy: StepPrivacy,
        *,
        rows_at_once: int = 16,
    ) -> None:
        self._parameters = list(parameters)
        self._objective = objective
        self._make_batch = make_batch
        self._privacy = privacy
        self._rows_at_once = rows_at_once

    def add_rows(self, rows: IntArray, into: GradientSum, tally: StepTally) -> None:
        """Every row is an example of its own."""
        for row in rows:
            self.add_whole(np.array([row]), np.zeros(1, np.int64), into, tally)

    def add_whole(
        self, rows: IntArray, example_of_row: IntArray, into: GradientSum, tally: StepTally
    ) -> None:
        """All these rows are clipped as one: an example, or a group whose examples are averaged."""
        gradients, loss = self.gradients(rows, example_of_row)
        norm = norm_of(gradients)
        factors = clip_factors(norm[None], self._privacy)
        if float(factors[0]):
            for parameter, gradient in zip(self._parameters, gradients, strict=True):
                into[parameter].add_scaled(gradient, float(factors[0]))
        tally.note(norm[None], factors, loss if math.isfinite(loss) else 0.0)

    def gradients(self, rows: IntArray, example_of_row: IntArray) -> tuple[list[Tensor], float]:
        """Gradient of the mean over examples of their losses, and that mean."""
        batches = [
            self._make_batch(rows[begin : begin + self._rows_at_once])
            for begin in range(0, len(rows), self._rows_at_once)
        ]
        weights = self._weights(batches, example_of_row)
        # By backward() into .grad, which adds up over batches and allows any gradient checkpointing.
        for parameter in self._parameters:
            parameter.grad = None
        loss = 0.0
        for batch, own in zip(
            batches, torch.split(weights, [len(batch.labels) for batch in batches]), strict=True
        ):
            value = self._objective.weighted(batch, own)
            loss += float(value.detach())
            if value.requires_grad:
                value.backward()  # type: ignore[no-untyped-call]
        gradients = []
        for parameter in self._parameters:
            gradients.append(torch.zeros_like(parameter) if parameter.grad is None else parameter.grad)
            parameter.grad = None
        return gradients, loss

    def _weights(self, batches: Sequence[Batch], example_of_row: IntArray) -> Tensor:
        """How much a label of each row counts: its example's share of the mean over examples."""
        labels = torch.cat([labels_per_row(batch) for batch in batches]).float()
        own = torch.from_numpy(np.unique(example_of_row, return_inverse=True)[1]).to(labels.device)
        examples = int(own.max()) + 1
        if self._privacy.loss == "sum":
            return torch.full_like(labels, 1.0 / examples)
        of_example = torch.zeros(examples, device=labels.device).index_add_(0, own, labels)
        return 1.0 / (of_example[own].clamp(min=1) * examples)
