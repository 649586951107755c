"""Batches that know their authors: which rows stand side by side, and which are set against them.

Every row is seen once in an epoch, and an epoch has as many batches as plain fine-tuning's. Everything is a
function of (seed, epoch, step), so that a resumed run takes the same batches.

    user    rows of an author follow one another and are cut into batches, so that a batch has as few authors
            as possible. With ``two_authors`` half of a batch is taken from the first half of that chain and
            half from the second
    mixed   pairs of rows of one author, in any order, cut into batches

With ``two_authors`` a batch has rows of two authors or more, except where there are fewer rows of other
authors than batches: a batch of one author is legal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from tacit.training.authors import Authors
from tacit.training.encoding import IntArray
from tacit.training.schedule import Schedule

_SORTED_TOGETHER = 32  # batches; as in the plain schedule
_PAIR = 2


@dataclass(frozen=True)
class AuthorSchedule(Schedule):
    """The plain schedule's steps and learning rate, over batches composed by author."""

    authors: Authors | None = None
    batches: Literal["user", "mixed"] = "user"
    two_authors: bool = False

    @cached_property
    def row_authors(self) -> IntArray:
        """The author of each row."""
        assert self.authors is not None  # noqa: S101 - only dataclass inheritance makes it optional
        return self.authors.of_piece[[pieces[0] for pieces in self.rows.pieces]]

    @cached_property
    def _own_rows(self) -> list[IntArray]:
        """The rows of each author who has any."""
        order = np.argsort(self.row_authors, kind="stable")
        return np.split(order, np.flatnonzero(np.diff(self.row_authors[order])) + 1)

    def auxiliary_of(self, step: int) -> list[IntArray]:
        """For each row of each batch of a step another row: of the same author and of others by turns.

        An author without a second row is set against others only.
        """
        generator = np.random.default_rng([self.seed, 1, step])
        return [
            np.array([self._other(int(row), place, generator) for place, row in enumerate(batch)])
            for batch in self.batches_of(step)
        ]

    def _other(self, row: int, place: int, generator: np.random.Generator) -> int:
        own = self._own_rows_of[int(self.row_authors[row])]
        if place % 2 == 0 and len(own) > 1:
            at = int(np.searchsorted(own, row))
            return int(own[(at + 1 + generator.integers(len(own) - 1)) % len(own)])
        # Uniform over the rows of all others: those before and behind this author's own.
        begin, end = self._places[int(self.row_authors[row])]
        drawn = int(generator.integers(len(self.rows) - (end - begin)))
        return int(self._by_author[drawn if drawn < begin else drawn + end - begin])

    @cached_property
    def _by_author(self) -> IntArray:
        return np.concatenate(self._own_rows)

    @cached_property
    def _own_rows_of(self) -> dict[int, IntArray]:
        return {int(self.row_authors[own[0]]): own for own in self._own_rows}

    @cached_property
    def _places(self) -> dict[int, tuple[int, int]]:
        ends = np.cumsum([len(own) for own in self._own_rows])
        return {
            author: (int(end) - len(own), int(end))
            for (author, own), end in zip(self._own_rows_of.items(), ends, strict=True)
        }

    def _shuffled(self, epoch: int) -> list[IntArray]:
        generator = np.random.default_rng([self.seed, epoch])
        if self.batches == "mixed":
            units = [
                own[begin : begin + _PAIR]
                for author in self._own_rows
                for own in [generator.permutation(author)]
                for begin in range(0, len(own), _PAIR)
            ]
        else:
            units = [self._within(author, generator) for author in self._own_rows]
        chain: IntArray = np.concatenate([units[unit] for unit in generator.permutation(len(units))])
        size = self.training.batch_size
        if self.two_authors and self.batches == "user":
            batches = _halves(chain, size)
        else:
            batches = [chain[begin : begin + size] for begin in range(0, len(chain), size)]
        if self.two_authors:
            if len(batches) > 1 and len(batches[-1]) < _PAIR <= size:
                batches = np.array_split(chain, len(batches))  # a row on its own is of one author
            _mend(batches, self.row_authors)
        return [batches[index] for index in generator.permutation(len(batches))]

    def _within(self, own: IntArray, generator: np.random.Generator) -> IntArray:
        """One author's rows in a random order, in which those of one batch are about equally long."""
        order: IntArray = generator.permutation(own)
        if self.rows.packed:
            return order
        together = self.training.batch_size * _SORTED_TOGETHER
        groups = [order[begin : begin + together] for begin in range(0, len(order), together)]
        return np.concatenate(
            [group[np.argsort(self.rows.lengths[group], kind="stable")] for group in groups]
        )


def _halves(chain: IntArray, size: int) -> list[IntArray]:
    """Batches of a half from the first half of the chain and a half from the second; ``size`` >= 2."""
    number = -(-len(chain) // size)
    first, second = np.split(chain, [len(chain) - len(chain) // 2])
    # The longer ones among the second halves stand beside the shorter first halves: none is beyond the size.
    later = len(first) % number
    pairs = zip(np.array_split(first, number), np.roll(np.arange(number), later).tolist(), strict=True)
    halves = np.array_split(second, number)
    return [np.concatenate([one, halves[other]]) for one, other in pairs]


def _mend(batches: Sequence[IntArray], authors: IntArray) -> None:
    """Give batches of one author a row of another, from batches that keep two authors, in place."""
    donor = 0
    in_vain: set[int] = set()
    for batch in batches:
        author = int(authors[batch[0]])
        if len(batch) < _PAIR or author in in_vain or (authors[batch] != author).any():
            continue
        for _ in batches:
            place = _spare(authors[batches[donor]], author)
            if place is not None:
                batch[-1], batches[donor][place] = batches[donor][place], batch[-1]
                break
            donor = (donor + 1) % len(batches)
        else:
            in_vain.add(author)


def _spare(authors: IntArray, taken_for: int) -> int | None:
    """A place whose row another batch may have: two authors stay, one of whom is the one that comes."""
    others = np.flatnonzero(authors != taken_for)
    return int(others[0]) if len(others) >= _PAIR else None
