"""Whole transcripts in two worlds: with a part of an ensemble and without it, answered by one mechanism.

Both worlds are made by definition. Without the part, the mechanism mixes anew what is left: one part less for
SubMix, a part that answers as the public model for certified, individual and guarded mixing. Nothing is taken
from the real world's weights, so that a mechanism whose weights depend on other parts shows.

Budgets. SubMix's promise is about transcripts that are cut at one stopping time: the real world's filter
stops both. Individual budgets fade in each world by itself. A certified counter is public and ends in both.
After the end both worlds answer publicly and nothing more can be told: transcripts end there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from tacit.attacks.places import Place
from tacit.audit.realised_loss import Spending, neighbours_of
from tacit.errors import InputError
from tacit.mechanisms import Certified, Individual, Mixture, SubMix
from tacit.mechanisms.choice import Mechanism, needs_halves
from tacit.mechanisms.pmfs import floored_public
from tacit.prediction.drawing import mixed
from tacit.statistics import FloatArray

Written = tuple[int, ...]
Ask = Callable[[Written], Place]  # what all models predict after a prompt and some tokens


@dataclass(frozen=True, eq=False)
class _Always:
    """One place, whatever was written."""

    place: Place

    def __call__(self, written: Written) -> Place:
        return self.place


@dataclass(frozen=True)
class Questions:
    """What an attacker asks: some prompts, each continued by ``tokens`` answers.

    With one answer to each prompt the questions are fixed. With more they adapt: each answer is part of the
    next question. ``ahead`` is told what will have been written where answers are drawn next, some
    transcripts at a time, so that models may run them together.
    """

    prompts: tuple[Ask, ...]
    tokens: int = 1
    ahead: Callable[[Sequence[Written]], object] | None = None

    def __post_init__(self) -> None:
        if not self.prompts:
            raise InputError("No prompt to ask about; give at least one.")
        if self.tokens < 1:
            raise InputError(f"tokens={self.tokens}: a prompt gets at least one answer.")

    @classmethod
    def fixed(cls, places: Sequence[Place]) -> Questions:
        """One answer at each place, whatever the others were."""
        return cls(tuple(_Always(place) for place in places))

    @property
    def queries(self) -> int:
        """Answers of a whole transcript."""
        return len(self.prompts) * self.tokens

    @property
    def adaptive(self) -> bool:
        """Whether a question depends on earlier answers."""
        return self.tokens > 1

    def place(self, written: Written) -> Place:
        """Where the next answer is drawn, after all answers so far."""
        prompt = len(written) // self.tokens
        return self.prompts[prompt](written[prompt * self.tokens :])

    def path(self, written: Written) -> Hashable:
        """The same for transcripts that have met, and will meet next, the same places."""
        return written if self.adaptive else len(written)


@dataclass(frozen=True, eq=False)
class Step:
    """One answer's distributions [V] in both worlds, and the budgets after it."""

    with_part: FloatArray
    without: FloatArray
    after: Budgets


@dataclass(frozen=True, eq=False)
class Budgets:
    """What is left in the world with the part, and in the world without it."""

    here: Spending
    there: Spending


class TwoWorlds:
    """A mechanism over an ensemble, with and without one part, under a budget."""

    def __init__(self, mechanism: Mechanism, *, parts: int, part: int, epsilon: float) -> None:
        self._neighbours = neighbours_of(mechanism)
        if not 0 <= part < parts:
            raise InputError(f"part={part}: this ensemble has parts 0 to {parts - 1}.")
        self.mechanism, self.parts, self.part, self.epsilon = mechanism, parts, part, epsilon
        self._latest: tuple[Place, Mixture, Mixture | None] | None = None

    @property
    def order(self) -> float:
        """The Renyi order of the claim."""
        found: float = self.mechanism.order  # type: ignore[union-attr] # what neighbours_of accepts has one
        return found

    @property
    def instance_specific(self) -> bool:
        """Whether the claim is about this corpus and a common stop only."""
        return isinstance(self.mechanism, SubMix)

    @property
    def neighbours(self) -> str:
        """What the world without the part is."""
        return self._neighbours

    def claim(self, queries: int) -> float:
        """Nats at the order that transcripts of so many queries may differ by, as the mechanism claims."""
        if isinstance(self.mechanism, Certified):
            return min(queries, self.mechanism.queries(self.epsilon)) * self.mechanism.target
        most = math.inf
        if isinstance(self.mechanism, Individual):
            most = queries * self.mechanism.target
        elif isinstance(self.mechanism, SubMix) and self.mechanism.guard is not None:
            most = queries * self.mechanism.guard
        return min(self.epsilon, most)

    def begin(self) -> Budgets:
        """Full budgets in both worlds."""
        return Budgets(*(Spending(self.mechanism, parts=self.parts, epsilon=self.epsilon) for _ in range(2)))

    def step(self, budgets: Budgets, place: Place) -> Step | None:
        """The next answer in both worlds; None where both answer publicly from here on."""
        if len(place.members) != self.parts:
            raise InputError(f"{len(place.members)} parts answered; this audit is of {self.parts}.")
        here, there = self._mixtures(budgets, place)
        after = Budgets(budgets.here.copied(), budgets.there.copied())
        if not after.here.pays(here.charges):
            return None
        if there is None:
            return Step(_numpy(here.pmf), _numpy(floored_public(place.public)), after)
        if isinstance(self.mechanism, Individual):  # others stop with the real world
            after.there.pays(there.charges)
        return Step(_numpy(here.pmf), _numpy(there.pmf), after)

    def _mixtures(self, budgets: Budgets, place: Place) -> tuple[Mixture, Mixture | None]:
        """Both worlds at a place; None where no part is left. A question that is repeated is mixed once."""
        if self._latest is not None and self._latest[0] is place:
            return self._latest[1:]
        here = mixed(self.mechanism, place.members, place.public, budgets.here.left)
        without, there = self._without(place), None
        if len(without):
            # Another tensor for the same numbers: mechanisms that remember know a place by its public pmf.
            there = mixed(self.mechanism, without, place.public.clone(), budgets.there.left)
        if not isinstance(self.mechanism, Individual):  # whose answers depend on what is left
            self._latest = (place, here, there)
        return here, there

    def _without(self, place: Place) -> Tensor:
        if self._neighbours == "null part":
            silent = place.members.clone()
            silent[self.part] = place.public
            return silent
        return torch.cat([place.members[: self.part], place.members[self.part + 1 :]])


def check_halves_of(mechanism: Mechanism, place: Place) -> None:
    """Refuse SubMix over one model per part before anything long begins."""
    if needs_halves(mechanism) and place.members.shape[1] != 2:
        raise InputError("SubMix compares the two halves of each part, and this ensemble has one model each.")


def _numpy(pmf: Tensor) -> FloatArray:
    values = pmf.double().numpy()
    normalised: FloatArray = values / np.sum(values)
    return normalised
