"""Losses of examples, each from its own text alone.

A transformers model's own ``.loss`` divides by the labels of the whole batch, so that one example's labels
change another's gradient. Here every row's labels count with that row's weight and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

import torch
from torch import Tensor, nn

from tacit.models.likelihood import NO_LABEL, NextTokenLoss
from tacit.training.encoding import Batch

HeadLoss = Callable[[Tensor, nn.Linear, Tensor, Tensor], Tensor]
"""Hidden states, the head, labels and a weight for each label: the weighted sum of the losses."""


class Objective(Protocol):
    """What an engine differentiates."""

    def weighted(self, batch: Batch, row_weights: Tensor) -> Tensor:
        """Sum over rows of weight times the sum of the row's losses; no row's loss depends on another row."""
        ...


class NextTokenObjective:
    """Next-token losses of a causal language model, with the head run in blocks (`models.likelihood`).

    Args:
        model: the causal language model, or PEFT's wrapper of it.
        forward: logits of a batch; by default the model's own. A task with a cached trunk brings its own.
        autocast: compute in bf16 what autocast takes.
        inputs_suffice: whether ``forward`` needs nothing but a batch's inputs, so that made-up rows will do
            to measure it. A cached trunk knows only its own rows.
    """

    def __init__(
        self,
        model: nn.Module,
        forward: Callable[[Batch], Tensor] | None = None,
        *,
        autocast: bool = False,
        inputs_suffice: bool | None = None,
    ) -> None:
        self.model = model
        self._forward = forward or self._own_logits
        self._autocast = autocast
        self.inputs_suffice = forward is None if inputs_suffice is None else inputs_suffice
        self._loss = NextTokenLoss(model)
        self.head_loss: HeadLoss | None = None  # set by an engine that keeps books of the head

    @property
    def head(self) -> nn.Linear | None:
        """The output layer, where it is run on hidden states outside of the model."""
        return self._loss.head

    def weighted(self, batch: Batch, row_weights: Tensor) -> Tensor:
        """Sum over rows of weight times the sum of the row's losses."""
        weights = row_weights[:, None].expand(batch.labels.shape)
        run = partial(self._forward, batch)
        with torch.autocast(batch.labels.device.type, torch.bfloat16, enabled=self._autocast):
            head = self._loss.head
            if self.head_loss is None or head is None:
                return self._loss.summed(run, batch.labels, weights)
            return self.head_loss(self._loss.hidden_states(run), head, batch.labels, weights)

    def _own_logits(self, batch: Batch) -> Tensor:
        logits: Tensor = self.model(**batch.inputs).logits
        return logits


def labels_per_row(batch: Batch) -> Tensor:
    """How many labels each row has."""
    return (batch.labels != NO_LABEL).sum(dim=1)
