"""Which steps of a run are public and which are private: a function of public numbers alone.

Algorithm 1 of CRT: in every epoch one pass over the public data points, then the number of Poisson steps that
in expectation sees every private one once. A step is wholly public or wholly private.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Literal, Self

from tacit.recipes import TrainingSection
from tacit.training.privacy_plan import PrivacyPlan, steps_until

Kind = Literal["public", "private"]


@dataclass(frozen=True)
class Place:
    """One step: of which kind, and which one of its kind, counted from 0."""

    kind: Kind
    number: int


@dataclass(frozen=True)
class Phases:
    """The public and the private steps of every epoch, in this order."""

    epochs: tuple[tuple[int, int], ...]

    @classmethod
    def private_only(cls, plan: PrivacyPlan) -> Self:
        """DP-SGD alone."""
        return cls(((0, plan.steps),))

    @classmethod
    def alternating(cls, training: TrainingSection, plan: PrivacyPlan, public_steps: int) -> Self:
        """Per epoch so many public steps, then its share of the private ones."""
        until = [steps_until(training, plan.population, epoch) for epoch in range(training.epochs + 1)]
        return cls(tuple((public_steps, after - before) for before, after in pairwise(until)))

    @cached_property
    def _ends(self) -> list[int]:
        ends, total = [], 0
        for public, private in self.epochs:
            ends += [total + public, total + public + private]
            total = ends[-1]
        return ends

    @property
    def steps(self) -> int:
        """In all."""
        return self._ends[-1]

    def total(self, kind: Kind) -> int:
        """Steps of one kind."""
        return sum(public if kind == "public" else private for public, private in self.epochs)

    def at(self, step: int) -> Place:
        """The kind of a 0-based step, and its number among those of its kind."""
        phase = bisect_right(self._ends, step)
        begin = self._ends[phase - 1] if phase else 0
        epoch, is_private = divmod(phase, 2)
        before = sum(self.epochs[earlier][is_private] for earlier in range(epoch))
        return Place("private" if is_private else "public", before + step - begin)
