"""Book-keeping: one forward and one backward pass for many examples, and nobody's gradient on its own."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from tacit.errors import ModelError
from tacit.training.encoding import Batch, IntArray
from tacit.training.private_steps.book_keeping.attaching import BookKeeper
from tacit.training.private_steps.book_keeping.ghost import Grams
from tacit.training.private_steps.book_keeping.head import BookedHeadLoss
from tacit.training.private_steps.clipping import GradientSum, clip_factors
from tacit.training.private_steps.engine import StepTally
from tacit.training.private_steps.objective import NextTokenObjective, Objective, labels_per_row
from tacit.training.private_steps.settings import StepPrivacy


class BookKeepingEngine:
    """Clipped sums without per-example gradients; ``grams`` say how norms are found.

    Raises:
        ModelError: the model has a trained layer without a rule, or uses a parameter outside of its layer.
    """

    name = "book-keeping"

    def __init__(
        self,
        model: nn.Module,
        objective: Objective,
        make_batch: Callable[[IntArray], Batch],
        privacy: StepPrivacy,
        grams: Grams | None = None,
    ) -> None:
        self._parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._objective = objective
        self._make_batch = make_batch
        self._privacy = privacy
        head = objective.head if isinstance(objective, NextTokenObjective) else None
        if head is not None and not any(own.requires_grad for own in head.parameters()):
            head = None  # the ordinary loss gives a frozen head no gradient anyway
        self._keeper = BookKeeper(model, head, grams)
        self._head_loss = None if head is None else BookedHeadLoss(self._keeper.books, len(head.weight))

    def add_rows(self, rows: IntArray, into: GradientSum, tally: StepTally) -> None:
        """Every row is an example of its own."""
        if not len(rows):
            return
        batch = self._make_batch(rows)
        if len(rows) > 1 and self._head_loss is not None and not self._head_loss.has_room_for(batch.labels):
            half = len(rows) // 2
            self.add_rows(rows[:half], into, tally)
            self.add_rows(rows[half:], into, tally)
            return
        labels = labels_per_row(batch)
        weights = torch.ones_like(labels, dtype=torch.float32)
        if self._privacy.loss == "mean":
            weights /= labels.clamp(min=1)
        books = self._keeper.books
        try:
            loss = self._backward(batch, weights)
            norms = books.norms()
            finite = torch.isfinite(norms)
            if not bool(finite.all()):
                # What is not finite would spoil the products for all. The others are computed without it.
                bad = norms[~finite]
                tally.note(bad, torch.zeros_like(bad), 0.0)
                books.close()
                self.add_rows(rows[finite.cpu().numpy()], into, tally)
                return
            factors = clip_factors(norms, self._privacy)
            books.add_to(into, factors)
            tally.note(norms, factors, loss)
        finally:
            books.close()

    def _backward(self, batch: Batch, weights: torch.Tensor) -> float:
        for parameter in self._parameters:
            parameter.grad = None
        with self._keeper.attached() as books:
            books.open(len(batch.labels))
            if isinstance(self._objective, NextTokenObjective):
                self._objective.head_loss = self._head_loss
            try:
                loss = self._objective.weighted(batch, weights)
                if loss.requires_grad:
                    loss.backward()  # type: ignore[no-untyped-call]
            finally:
                if isinstance(self._objective, NextTokenObjective):
                    self._objective.head_loss = None
        if any(parameter.grad is not None for parameter in self._parameters):
            raise ModelError(
                "A trained parameter is used outside of its layer, where book-keeping does not see it; "
                "choose the loop engine."
            )
        return float(loss.detach())
