"""In which order rows are seen, and at which learning rate: functions of the seed and the step alone.

Only the order of the current epoch is remembered, for speed. A resumed run asks the same functions for the
same step and gets the same answer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from tacit.recipes import TrainingSection
from tacit.training.encoding import IntArray, Rows

_BATCHES_SORTED_TOGETHER = 32


class Steps(Protocol):
    """What the optimisation loop asks of a schedule."""

    @property
    def training(self) -> TrainingSection:
        """The recipe's settings."""
        ...

    @property
    def seed(self) -> int:
        """Of what is random in the model itself, such as dropout."""
        ...

    @property
    def steps(self) -> int:
        """Optimiser steps in all."""
        ...

    def learning_rate(self, step: int) -> float:
        """Rate of a 0-based step."""
        ...

    def batches_of(self, step: int) -> list[IntArray]:
        """The rows of each forward pass of a 0-based step."""
        ...

    def tokens_of(self, step: int) -> int:
        """Tokens that a 0-based step predicts."""
        ...


def learning_rate(training: TrainingSection, steps: int, step: int) -> float:
    """Rate of a 0-based step: linear warm-up to the full rate, then linear decay towards zero."""
    warmup = round(training.warmup * steps)
    if step < warmup:
        return training.learning_rate * (step + 1) / warmup
    return training.learning_rate * (steps - step) / max(1, steps - warmup)


@dataclass(frozen=True)
class Schedule:
    """Steps of a whole training run."""

    rows: Rows
    training: TrainingSection
    seed: int
    _current: dict[int, list[IntArray]] = field(default_factory=dict, compare=False, repr=False)

    @property
    def batches_per_epoch(self) -> int:
        """Forward passes in an epoch."""
        return math.ceil(len(self.rows) / self.training.batch_size)

    @property
    def steps_per_epoch(self) -> int:
        """Optimiser steps in an epoch."""
        return math.ceil(self.batches_per_epoch / self.training.accumulate)

    @property
    def steps(self) -> int:
        """Optimiser steps in all."""
        steps = self.training.epochs * self.steps_per_epoch
        return steps if self.training.max_steps is None else min(steps, self.training.max_steps)

    def learning_rate(self, step: int) -> float:
        """Rate of a 0-based step: linear warm-up to the full rate, then linear decay towards zero."""
        return learning_rate(self.training, self.steps, step)

    def batches_of(self, step: int) -> list[IntArray]:
        """The rows of each forward pass of a 0-based step."""
        epoch, place = divmod(step, self.steps_per_epoch)
        first = place * self.training.accumulate
        return self._epoch(epoch)[first : first + self.training.accumulate]

    def tokens_of(self, step: int) -> int:
        """Tokens that a 0-based step predicts; a step of masks alone counts as one, and changes nothing."""
        return max(1, sum(int(self.rows.labels[rows].sum()) for rows in self.batches_of(step)))

    def _epoch(self, epoch: int) -> list[IntArray]:
        if epoch not in self._current:
            self._current.clear()
            self._current[epoch] = self._shuffled(epoch)
        return self._current[epoch]

    def _shuffled(self, epoch: int) -> list[IntArray]:
        generator = np.random.default_rng([self.seed, epoch])
        order: IntArray = generator.permutation(len(self.rows))
        size = self.training.batch_size
        if self.rows.packed:
            return [order[begin : begin + size] for begin in range(0, len(order), size)]
        # Unpacked rows differ in length: sorting within large random groups saves most of the padding.
        batches: list[IntArray] = []
        for begin in range(0, len(order), size * _BATCHES_SORTED_TOGETHER):
            group = order[begin : begin + size * _BATCHES_SORTED_TOGETHER]
            group = group[np.argsort(self.rows.lengths[group], kind="stable")]
            batches += [group[at : at + size] for at in range(0, len(group), size)]
        return [batches[index] for index in generator.permutation(len(batches))]
