"""From the distributions of one query to what a ledger must know of it: charges, and a token for either case.

A private token and a public one are drawn for every query, whatever is left of the budget. Which of the two
leaves is the ledger's decision, and the work is the same for both.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tacit.errors import InputError
from tacit.mechanisms import Certified, Individual, sample
from tacit.mechanisms.choice import Mechanism, MechanismChoice, needs_halves
from tacit.mechanisms.mixture import Mixture
from tacit.mechanisms.pmfs import floored_public
from tacit.mechanisms.sampling import RandBelow


def check_halves(mechanism: Mechanism, halves: int) -> None:
    """Refuse SubMix for an ensemble that has nothing to compare."""
    if needs_halves(mechanism) and halves != 2:
        raise InputError(
            "SubMix compares the two halves of each part, and this ensemble has one model per part; "
            "use mechanism certified, or train with ensemble.halves: true."
        )


def mixed(mechanism: Mechanism, members: Tensor, public: Tensor, left: Any = None) -> Mixture:
    """Members [parts, halves, n] and public [n] through a mechanism; ``left`` limits individual budgets."""
    given: Any = members if needs_halves(mechanism) else members.mean(1)
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
    """Draws for a ledger, by one mechanism."""

    def __init__(
        self,
        choice: MechanismChoice,
        *,
        parts: int,
        halves: int,
        randbelow: RandBelow = secrets.randbelow,
    ) -> None:
        """``randbelow`` is replaced only by tests."""
        self.mechanism = choice.build(parts)
        check_halves(self.mechanism, halves)
        self._parts = parts
        self._randbelow = randbelow

    @property
    def within_what_is_left(self) -> bool:
        """Whether :meth:`draw` must be told what every part has left."""
        return isinstance(self.mechanism, Individual)

    def draw(self, members: Tensor, public: Tensor, left: Sequence[float] | None = None) -> Drawn:
        """One query from members [parts, halves, n] and public [n]; ``left`` is nats per part."""
        if self.within_what_is_left and left is None:
            raise InputError("Individual budgets need to know what is left of them.")
        remaining = None if left is None else torch.tensor(left, dtype=torch.float64)
        return self._drawn(mixed(self.mechanism, members, public, remaining), public)

    def draw_lazily(self, part: Tensor, public: Tensor) -> Drawn:
        """One certified query from the part of a secret slot [n] and public [n]."""
        if not isinstance(self.mechanism, Certified):
            raise InputError("Only certified mixing can answer from one part; use another executor.")
        mixture = self.mechanism.slot(part, public, parts=self._parts)
        return self._drawn(mixture, public, charges=(self.mechanism.target,) * self._parts)

    def secret_slot(self) -> int:
        """Which slot answers a lazy query: uniform, and never to be shown."""
        return self._randbelow(self._parts)

    def _drawn(self, mixture: Mixture, public: Tensor, charges: tuple[float, ...] | None = None) -> Drawn:
        return Drawn(
            charges=tuple(mixture.charges.tolist()) if charges is None else charges,
            private=sample(mixture.pmf, self._randbelow),
            public=sample(floored_public(public), self._randbelow),
            weights=tuple(mixture.weights.tolist()),
            alarms=int((~mixture.sound).sum()),
        )
