"""Who the members of an ensemble are, and what each of them learns in which step.

Formal guarantee: a member's rows, order, length of training and random numbers are functions of the text of
its own users, of the run's seed, of its own number, and of public settings. What other members hold, or
whether they hold anything, enters nowhere.

In joint training a member without text takes part like any other, with rows of padding; trained one by one,
it is saved as it starts.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from tacit.corpus import Partition
from tacit.errors import PublicModelWarning
from tacit.progress import Progress
from tacit.recipes import EnsembleSection, Recipe, TrainingSection
from tacit.runs import EnsembleRecord
from tacit.training.encoding import NO_ROW, IntArray, Rows, lay_out
from tacit.training.preparation import Materials
from tacit.training.schedule import learning_rate

_HALVES = 2
_NAMES_SHOWN = 5


@dataclass(frozen=True)
class Member:
    """One model of the ensemble: its name in the Run, and the rows of its own half (or part)."""

    number: int
    name: str
    users: int
    rows: Rows


def section_of(recipe: Recipe) -> EnsembleSection:
    """The ensemble that a recipe of method ``submix`` describes."""
    return recipe.ensemble or EnsembleSection()


def remark_on_epochs(recipe: Recipe, progress: Progress) -> None:
    """Tell an operator who asked for epochs that the number of steps is public and another."""
    if recipe.training.epochs != TrainingSection().epochs:
        progress.remark(
            f"training.epochs={recipe.training.epochs} is not used: every member takes training.max_steps="
            f"{recipe.training.max_steps} steps, a public number"
        )


def members_of(materials: Materials, partition: Partition) -> list[Member]:
    """The members in order, each with the pieces of its own users laid out apart from all others."""
    recipe, encoded = materials.recipe, materials.encoded
    section = section_of(recipe)
    slots = [partition.slot_of(user) for user in encoded.users]
    numbers = [slot.part * _HALVES + slot.half if section.halves else slot.part for slot in slots]
    names = EnsembleRecord(parts=section.parts, halves=section.halves).names
    users = np.bincount(np.asarray(numbers, dtype=np.int64), minlength=len(names))
    of_piece = np.asarray(numbers, dtype=np.int64)[encoded.piece_user]
    order = np.argsort(of_piece, kind="stable")  # stable: a member's pieces stay in the corpus' order
    bounds = np.searchsorted(of_piece[order], np.arange(len(names) + 1))
    return [
        Member(
            number,
            name,
            int(users[number]),
            lay_out(
                encoded,
                block_size=recipe.training.block_size,
                packing=materials.packing,
                pieces=order[bounds[number] : bounds[number + 1]],
            ),
        )
        for number, name in enumerate(names)
    ]


def warn_of_empty_members(members: Sequence[Member]) -> None:
    """Say how many members hold no text."""
    empty = [member.name for member in members if not len(member.rows)]
    if empty:
        more = len(empty) - _NAMES_SHOWN
        shown = ", ".join(empty[:_NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")
        warnings.warn(
            f"{len(empty)} of {len(members)} members hold no text and will answer as the public model: "
            f"{shown}.",
            PublicModelWarning,
            stacklevel=2,
        )


def stream_of(seed: int, member: int) -> int:
    """The seed of everything random about one member, unrelated to that of any other."""
    return int(np.random.SeedSequence([seed, member]).generate_state(1, np.uint64)[0] >> np.uint64(1))


@dataclass(frozen=True)
class MemberSchedule:
    """A member's steps: always ``max_steps`` of ``batch_size`` rows, over its own rows again and again."""

    rows: Rows
    training: TrainingSection
    seed: int  # the member's own stream
    _current: dict[int, IntArray] = field(default_factory=dict, compare=False, repr=False)

    @property
    def steps(self) -> int:
        """Optimiser steps in all: a public number."""
        assert self.training.max_steps is not None, "a recipe of method submix has it"  # noqa: S101
        return self.training.max_steps

    def learning_rate(self, step: int) -> float:
        """Rate of a 0-based step, the same for every member."""
        return learning_rate(self.training, self.steps, step)

    def batches_of(self, step: int) -> list[IntArray]:
        """The rows of each forward pass of a 0-based step; NO_ROW throughout for a member without text."""
        size, passes = self.training.batch_size, self.training.accumulate
        if not len(self.rows):
            return [np.full(size, NO_ROW) for _ in range(passes)]
        places = step * passes * size + np.arange(passes * size)
        chosen = [self._order(place // len(self.rows))[place % len(self.rows)] for place in places.tolist()]
        return list(np.asarray(chosen, dtype=np.int64).reshape(passes, size))

    def tokens_of(self, step: int) -> int:
        """Tokens that a 0-based step predicts; 0 for a member without text."""
        if not len(self.rows):
            return 0
        return sum(int(self.rows.lengths[rows].sum()) for rows in self.batches_of(step))

    def _order(self, epoch: int) -> IntArray:
        if epoch not in self._current:
            self._current.clear()
            self._current[epoch] = np.random.default_rng([self.seed, epoch]).permutation(len(self.rows))
        return self._current[epoch]
