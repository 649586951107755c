"""The two regularisers as the optimisation loop sees them: an objective, and what happens beside each step.

A step's loss is L_CE + lambda * L_P: the mean loss per token of the step, and the mean over its forward
passes of the privacy loss of each. One pass of the model serves both. The discriminator takes its step after
the model's, on the states that the model had before it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from tacit.errors import TrainingDiverged
from tacit.recipes import RegularisationSection
from tacit.training.author_guesses import AuthorGuesses
from tacit.training.author_losses import (
    Discriminator,
    last_positions,
    paired_triplet_loss,
    triplet_loss,
)
from tacit.training.author_schedule import AuthorSchedule
from tacit.training.authors import Authors
from tacit.training.encoding import Batch, IntArray
from tacit.training.next_token import NextTokenTask
from tacit.training.schedule import Schedule, Steps

_STEEPNESS = 10.0  # of the sigmoid schedule, as Ganin et al. (2016) have it


def weight_at(section: RegularisationSection, step: int, steps: int) -> float:
    """lambda at a 0-based step of so many."""
    if section.schedule == "linear":
        return section.weight * min(1.0, step / max(1.0, section.ramp * steps))
    if section.schedule == "sigmoid":
        return section.weight * math.tanh(_STEEPNESS / 2 * step / max(1, steps - 1))
    return section.weight


class Regulariser(Protocol):
    """A companion of the model that also is its objective."""

    module: nn.Module
    optimisers: list[torch.optim.Optimizer]

    def begin(self, step: int) -> None:
        """A step of the model is about to be taken."""
        ...

    def objective(self, batch: Batch) -> Tensor:
        """What the loop divides by the step's tokens and minimises."""
        ...

    def finish(self) -> None:
        """The model has taken its step."""
        ...

    @property
    def seen(self) -> Mapping[str, Any]:
        """What its steps saw, for the operator alone."""
        ...

    def go_on_from(self, seen: Mapping[str, Any]) -> None:
        """Go on behind the steps that saw this."""
        ...


class Sequences:
    """The last states of a batch's sequences with their authors, in the order of rows."""

    def __init__(self, batch: Batch, states: Tensor, authors: Authors) -> None:
        positions = last_positions(batch.pieces)
        pieces = batch.pieces.flatten()[positions].numpy()
        taught = torch.from_numpy(np.flatnonzero(authors.teaches[pieces]))
        positions = positions[taught]
        self.pieces: IntArray = pieces[taught.numpy()]
        self.rows: IntArray = (positions // batch.pieces.shape[1]).numpy()
        self.states = states.flatten(0, 1)[positions.to(states.device)]
        self.authors = torch.from_numpy(authors.of_piece[self.pieces]).to(states.device)


class _Weighted:
    """The weight of the privacy loss within the current step."""

    def __init__(
        self, task: NextTokenTask, authors: Authors, section: RegularisationSection, schedule: Steps
    ) -> None:
        self._task, self._authors, self._section, self._schedule = task, authors, section, schedule
        self._step = 0
        self._factor = 0.0  # the loop divides by the step's tokens, and means are over its passes

    def begin(self, step: int) -> None:
        self._step = step
        weight = weight_at(self._section, step, self._schedule.steps)
        passes = len(self._schedule.batches_of(step))
        self._factor = weight * self._schedule.tokens_of(step) / passes


class Adversary(_Weighted):
    """A discriminator that learns to tell authors, and a model that learns to leave it guessing."""

    def __init__(
        self,
        task: NextTokenTask,
        authors: Authors,
        section: RegularisationSection,
        schedule: Schedule,
        *,
        width: int,
        device: torch.device,
    ) -> None:
        super().__init__(task, authors, section, schedule)
        self.discriminator = Discriminator(width, authors.count, section.hidden).to(device)
        self.module: nn.Module = self.discriminator
        rate = section.discriminator_rate
        self.optimisers: list[torch.optim.Optimizer] = [
            torch.optim.AdamW(self.discriminator.parameters(), lr=rate, weight_decay=0.0, fused=True)
        ]
        self.guesses = AuthorGuesses(authors, schedule.steps_per_epoch)
        self._seen: list[Sequences] = []

    @property
    def seen(self) -> Mapping[str, Any]:
        """How often the discriminator was right."""
        return self.guesses.seen

    def go_on_from(self, seen: Mapping[str, Any]) -> None:
        """Count on behind these."""
        self.guesses.go_on_from(seen)

    def objective(self, batch: Batch) -> Tensor:
        """The summed loss of the tokens, and the uniform loss of the batch's sequences."""
        found = self._task.loss_and_states(batch)
        own = Sequences(batch, found.states, self._authors)
        if not len(own.pieces):
            return found.loss
        loss = found.loss
        if self._factor:
            loss = loss + self._factor * self.discriminator.uniform_loss(own.states)
        own.states = own.states.detach()
        self._seen.append(own)
        return loss

    def finish(self) -> None:
        """One step of the discriminator on the states of the model's step."""
        seen, self._seen = self._seen, []
        if not seen:
            return
        (optimiser,) = self.optimisers
        optimiser.zero_grad(set_to_none=True)
        authors = torch.cat([own.authors for own in seen])
        logits = self.discriminator.guess(torch.cat([own.states for own in seen]))
        self.guesses.add(self._step, logits, authors)
        loss = self.discriminator.loss(logits, authors)
        if not torch.isfinite(loss):
            raise TrainingDiverged(
                "The discriminator's loss is not finite; lower regularisation.discriminator_rate or "
                "regularisation.lambda."
            )
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()


class Triplet(_Weighted):
    """Different authors' states nearer to each other, one author's farther; nothing learns beside it."""

    def __init__(
        self,
        task: NextTokenTask,
        authors: Authors,
        section: RegularisationSection,
        schedule: AuthorSchedule,
    ) -> None:
        super().__init__(task, authors, section, schedule)
        self._author_schedule = schedule
        self.module: nn.Module = nn.Module()
        self.optimisers: list[torch.optim.Optimizer] = []
        self._auxiliary: list[IntArray] = []

    def begin(self, step: int) -> None:
        super().begin(step)
        wanted = self._section.pairs == "second" and self._factor
        self._auxiliary = self._author_schedule.auxiliary_of(step) if wanted else []

    def objective(self, batch: Batch) -> Tensor:
        """The summed loss of the tokens, and the triplet loss of the batch's pairs."""
        if not self._factor:
            return self._task.summed_loss(batch)
        found = self._task.loss_and_states(batch)
        own = Sequences(batch, found.states, self._authors)
        margin, paper_eq4 = self._section.margin, self._section.paper_eq4
        if self._section.pairs == "batch":
            return found.loss + self._factor * triplet_loss(
                own.states, own.authors, margin=margin, paper_eq4=paper_eq4
            )
        beside = self._task.make_batch(self._auxiliary.pop(0))
        other = Sequences(beside, self._task.states_of(beside), self._authors)
        first, second = corresponding(own.rows, other.rows)
        if not len(first):
            return found.loss
        privacy = paired_triplet_loss(
            own.states[first],
            other.states[second],
            own.authors[first] == other.authors[second],
            margin=margin,
            paper_eq4=paper_eq4,
        )
        return found.loss + self._factor * privacy

    def finish(self) -> None:
        """Nothing else learns."""

    @property
    def seen(self) -> Mapping[str, Any]:
        """Nothing that anybody asks for."""
        return {}

    def go_on_from(self, seen: Mapping[str, Any]) -> None:
        """Nothing is counted."""


def corresponding(rows: IntArray, others: IntArray) -> tuple[IntArray, IntArray]:
    """Indices of sequences that stand in the same place of the same row, where both rows have that place."""

    def places(numbers: IntArray) -> dict[tuple[int, int], int]:
        found: dict[tuple[int, int], int] = {}
        counts: dict[int, int] = {}
        for index, row in enumerate(numbers.tolist()):
            found[row, counts.get(row, 0)] = index
            counts[row] = counts.get(row, 0) + 1
        return found

    own, other = places(rows), places(others)
    shared = [place for place in own if place in other]
    return (
        np.array([own[place] for place in shared], dtype=np.int64),
        np.array([other[place] for place in shared], dtype=np.int64),
    )
