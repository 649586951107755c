"""From the distributions of one query to what a ledger must know of it: charges, and a token for either case.

A private token and a public one are drawn for every query, whatever is left of the budget. Which of the two
leaves is the ledger's decision, and the work is the same for both.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tacit.errors import InputError, TacitError
from tacit.mechanisms import Certified, Individual, sample
from tacit.mechanisms.choice import Mechanism, MechanismChoice, needs_halves
from tacit.mechanisms.mixture import Mixture
from tacit.mechanisms.pmfs import floored_public
from tacit.mechanisms.sampling import RandBelow
from tacit.privacy.filter import NANO, nano

# Queries are mixed together up to so many probabilities; more would wait for memory (measured).
_ELEMENTS_TOGETHER = 2**20


def check_halves(mechanism: Mechanism, halves: int) -> None:
    """Refuse SubMix for an ensemble that has nothing to compare."""
    if needs_halves(mechanism) and halves != 2:
        raise InputError(
            "SubMix compares the two halves of each part, and this ensemble has one model per part; "
            "use mechanism certified, or train with ensemble.halves: true."
        )


def mixed(mechanism: Mechanism, members: Tensor, public: Tensor, left: Any = None) -> Mixture:
    """Members [..., parts, halves, n] and public [..., n] through a mechanism.

    ``left`` limits individual budgets.
    """
    given: Any = members if needs_halves(mechanism) else members.mean(-2)
    if isinstance(mechanism, Individual):  # its weights depend on what is left
        return mechanism.mix(given, public, left)
    return mechanism.mix(given, public)


@dataclass(frozen=True, repr=False)
class Drawn:
    """One query before it is paid for. Charges and weights are functions of private text."""

    charges: tuple[float, ...]
    private: int
    public: int
    weights: tuple[float, ...]
    alarms: int  # members that were not finite


class Drawing:
    """Draws for a ledger, by one mechanism.

    ``lazy``: from the part of a secret slot instead of all members; certified mixing only.
    """

    def __init__(
        self,
        choice: MechanismChoice,
        *,
        parts: int,
        halves: int,
        lazy: bool = False,
        randbelow: RandBelow = secrets.randbelow,
    ) -> None:
        """``randbelow`` is replaced only by tests."""
        self.mechanism = choice.build(parts)
        check_halves(self.mechanism, halves)
        if lazy and not isinstance(self.mechanism, Certified):
            raise InputError("Only certified mixing can answer from one part; use another executor.")
        self._parts, self._halves, self._lazy = parts, halves, lazy
        self._randbelow = randbelow

    def secret_slot(self) -> int:
        """Which slot answers a lazy query: uniform, and never to be shown."""
        return self._randbelow(self._parts)

    def draw(self, queries: Iterable[Tensor], left: Sequence[int]) -> list[Drawn | TacitError]:
        """One answer for each query, in order; what is wrong with a query stands in its place.

        A query is [1 + members, n], or [2, n] where lazy, the public model in row 0; it is asked for when its
        turn comes. ``left`` is what every part has, in billionths: a query of individual budgets has what
        the one before it leaves.
        """
        if isinstance(self.mechanism, Individual):
            return self._one_after_the_other(queries, list(left))
        answers: list[Drawn | TacitError] = []
        for group in _alike(queries):
            try:
                answers += self._together(group)
            except TacitError:  # whose it is shows one by one
                answers += map(self._alone, group)
        return answers

    def _one_after_the_other(self, queries: Iterable[Tensor], left: list[int]) -> list[Drawn | TacitError]:
        answers = []
        for query in queries:
            answer = self._alone(query, left)
            if isinstance(answer, Drawn):
                left = [had - nano(paid) for had, paid in zip(left, answer.charges, strict=True)]
            answers.append(answer)
        return answers

    def _alone(self, query: Tensor, left: Sequence[int] | None = None) -> Drawn | TacitError:
        try:
            return self._together([query], left)[0]
        except TacitError as problem:
            return problem

    def _together(self, queries: Sequence[Tensor], left: Sequence[int] | None = None) -> list[Drawn]:
        """Queries with as many outcomes each, in one go."""
        rows = queries[0].unsqueeze(0) if len(queries) == 1 else torch.stack(list(queries))
        public, others = rows[:, 0], rows[:, 1:]
        if self._lazy:
            assert isinstance(self.mechanism, Certified)  # noqa: S101 - since it was made
            mixture = self.mechanism.slot(others[:, 0], public, parts=self._parts)
            charges = [(self.mechanism.target,) * self._parts] * len(queries)
        else:
            members = others.reshape(len(queries), self._parts, self._halves, -1)
            nats = (
                None
                if left is None
                else torch.tensor([max(0, had) / NANO for had in left], dtype=torch.float64)
            )
            mixture = mixed(self.mechanism, members, public, nats)
            charges = [tuple(row) for row in mixture.charges.tolist()]
        instead = floored_public(public)
        return [
            Drawn(
                charges=charges[i],
                private=sample(mixture.pmf[i], self._randbelow),
                public=sample(instead[i], self._randbelow),
                weights=tuple(mixture.weights[i].tolist()),
                alarms=int((~mixture.sound[i]).sum()),
            )
            for i in range(len(queries))
        ]


def _alike(queries: Iterable[Tensor]) -> Iterator[list[Tensor]]:
    """Successive queries with equally many outcomes, in groups that stay in a processor's cache.

    How many outcomes there are is a function of the public model and the request.
    """
    group: list[Tensor] = []
    for query in queries:
        if group and query.shape != group[0].shape:
            yield group
            group = []
        group.append(query)
        if (len(group) + 1) * query.numel() > _ELEMENTS_TOGETHER:
            yield group
            group = []
    if group:
        yield group
