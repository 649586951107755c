"""What is evaluated: mechanisms under budgets, one by one or swept.

A :class:`Setting` is one row of the result. A :class:`Sweep` is the product of what was asked for; options
that mean nothing for a mechanism (mixing for anything but SubMix, say) do not multiply its rows.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

from tacit.errors import InputError
from tacit.mechanisms.choice import MechanismChoice, MechanismName
from tacit.mechanisms.submix import Mixing, Weights
from tacit.prediction import Answering, Budget
from tacit.privacy import Guarantee

TargetSource = Literal["heuristic", "given", "calibrated", "oracle"]
TARGET_LABELS: dict[TargetSource, str] = {
    "heuristic": "epsilon / queries",
    "given": "given",
    "calibrated": "calibrated on a public surrogate",
    "oracle": "oracle-tuned, outside the guarantee",
}
_CAPPED = ("submix", "certified", "individual")


@dataclass(frozen=True)
class Setting:
    """One mechanism over the first ``parts`` parts of an ensemble, under one budget per stretch."""

    choice: MechanismChoice
    budget: Budget
    parts: int
    source: TargetSource = "heuristic"

    def answering(self, halves: int, outside: tuple[str, ...] = ()) -> Answering:
        """What would answer so; refuses what cannot."""
        if self.source == "oracle":
            outside += ("the target, which was tuned on the private ensemble's own spending",)
        return Answering(self.choice, parts=self.parts, halves=halves, budget=self.budget, outside=outside)

    def guarantee(self, halves: int, outside: tuple[str, ...] = ()) -> Guarantee:
        """What would hold for all answers of a stretch together."""
        return self.answering(halves, outside).guarantee

    def with_target(self, target: float, cap: float | None, source: TargetSource) -> Setting:
        """The same with another target, and another cap where one is given."""
        cap = self.choice.cap if cap is None else cap
        return replace(self, choice=replace(self.choice, target=target, cap=cap), source=source)


@dataclass(frozen=True)
class Sweep:
    """Every combination of these. ``target`` None is the paper's heuristic, epsilon / queries."""

    mechanisms: tuple[MechanismName, ...]
    epsilons: tuple[float, ...] = (2.0,)
    queries: tuple[int, ...] = (1024,)
    orders: tuple[float, ...] = (2.0,)
    mixings: tuple[Mixing, ...] = ("per_part",)
    weights: tuple[Weights, ...] = ("symmetric",)
    guards: tuple[float | None, ...] = (None,)
    caps: tuple[float | None, ...] = (None,)
    parts: tuple[int, ...] = ()
    target: float | None = None

    def settings(self, parts: int) -> tuple[Setting, ...]:
        """The rows for an ensemble of ``parts``; each is checked."""
        for name in ("mechanisms", "epsilons", "queries", "orders", "mixings", "weights", "guards", "caps"):
            if not getattr(self, name):
                raise InputError(f"{name} is empty: a sweep needs at least one of each.")
        counts = self.parts or (parts,)
        for count in counts:
            if not 1 <= count <= parts:
                raise InputError(f"parts={count}: the ensemble has {parts}, so choose 1 to {parts}.")
        source: TargetSource = "heuristic" if self.target is None else "given"
        rows = []
        for name, count, order, epsilon, queries in itertools.product(
            self.mechanisms, counts, self.orders, self.epsilons, self.queries
        ):
            budget = Budget(epsilon, queries)
            target = budget.target if self.target is None else self.target
            for choice in self._choices(name, order, target):
                rows.append(Setting(choice, budget, count, source))
        return tuple(dict.fromkeys(rows))

    def _choices(self, name: MechanismName, order: float, target: float) -> Iterator[MechanismChoice]:
        if not 1 < order < math.inf:
            raise InputError(f"order={order}: private prediction needs a finite Renyi order above 1, e.g. 2.")
        submix = name == "submix"
        for mixing, weights in itertools.product(
            self.mixings if submix else ("per_part",), self.weights if submix else ("symmetric",)
        ):
            guarded = submix and mixing == "per_part"
            for guard, cap in itertools.product(
                self.guards if guarded else (None,), self.caps if name in _CAPPED else (None,)
            ):
                choice = MechanismChoice(name, order, target, mixing, weights, guard, cap)
                choice.build(2)  # whatever it refuses is refused now, not after an hour
                yield choice


@dataclass(frozen=True)
class Grid:
    """Where a target is looked for: multiples of epsilon / queries, and caps for certified mixing.

    Certified mixing pays the target for every answer, so that more than the heuristic runs out before the
    last query; only its cap and a doubled target are tried.
    """

    multipliers: tuple[float, ...] = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
    certified_multipliers: tuple[float, ...] = (1.0, 2.0)
    certified_caps: tuple[float | None, ...] = (None, 0.5, 0.7, 0.8, 0.9, 0.95, 0.99)  # None: by its own rule

    def candidates(self, setting: Setting, source: TargetSource) -> tuple[Setting, ...]:
        """The settings that one of them is chosen from."""
        if setting.choice.name in ("public", "nonprivate"):  # these have no target
            return (setting,)
        heuristic = setting.budget.target
        caps: tuple[float | None, ...] = (None,)
        multipliers: Iterable[float] = self.multipliers
        if setting.choice.name == "certified":
            multipliers = self.certified_multipliers
            if setting.choice.cap is None:
                caps = self.certified_caps
        # A price above the whole budget pays for nothing.
        multipliers = [m for m in multipliers if m <= setting.budget.queries] or [1.0]
        return tuple(
            setting.with_target(heuristic * multiplier, cap, source)
            for multiplier, cap in itertools.product(multipliers, caps)
        )
