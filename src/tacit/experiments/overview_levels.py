"""The overview's frontiers: every method from the public model to the end of its dial, over all seeds.

Methods meet at two perplexities, a quarter and half of the way from the public model's to the best that
training without protection reaches, by logarithms. Whoever reaches one with every seed is interpolated
there between two Runs (`reg_levels`); of others it is told that they do not, and how far they come. Intervals
are of who carries codes and of training.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from tacit.experiments.experiment import Outcomes, Settings
from tacit.experiments.overview_ground import PREDICTED, PUBLIC, UNMITIGATED, stage_name
from tacit.experiments.reg_levels import (
    Between,
    Level,
    Outcome,
    at,
    best_first_part,
    mean_over,
    perplexity_of,
    with_seeds,
)
from tacit.statistics import Estimate

LEVELS: Final = {"a quarter of the way": 0.25, "half of the way": 0.5}
NULL: Final = math.log2(math.e)  # bits, on average, of a code that was never seen


def methods_of(settings: Settings) -> tuple[str, ...]:
    """All methods, in the order of the tables."""
    return (*settings["methods"], *PREDICTED)


def bits(settings: Settings) -> float:
    """The most exposure there is."""
    return float(settings["canaries"]["digits"] * math.log2(10))


@dataclass(frozen=True)
class Place:
    """One place of a method's dial: the same Run with every seed."""

    method: str
    dial: float | None
    runs: Sequence[Outcome] = field(repr=False)

    @property
    def perplexity(self) -> Estimate:
        """Per token of held-out users' turns."""
        each = [Estimate.from_json(one["perplexity"]) for one in self.runs]
        return _by(math.exp, _over_seeds([_by(math.log, one) for one in each]))

    @property
    def membership(self) -> Estimate:
        """Area under the curve."""
        return _within(_over_seeds([Estimate.from_json(one["auc"]) for one in self.runs]), 1.0)

    @property
    def level(self) -> Level:
        """The place as a level at which nothing is interpolated."""
        return Level("", 0.0, {self.method: [Between(one, one, 0.0) for one in self.runs]})


def places_of(settings: Settings, outcomes: Outcomes, method: str) -> list[Place]:
    """The dial's places at which training diverged with no seed."""
    stages = [outcomes[stage_name(method, seed)]["runs"] for seed in settings["seeds"]]
    together = [Place(method, runs[0].get("dial"), runs) for runs in zip(*stages, strict=True)]
    return [one for one in together if all(run.get("diverged") is None for run in one.runs)]


def levels_of(settings: Settings, outcomes: Outcomes) -> list[Level]:
    """Both perplexities with the methods that reach them with every seed; none if training learns nothing."""
    frontiers = {
        (method, seed): best_first_part(_points(outcomes, method, seed))
        for method in methods_of(settings)
        for seed in settings["seeds"]
    }
    plain = [frontiers[UNMITIGATED, seed] for seed in settings["seeds"]]
    least = max(perplexity_of(points[-1]) for points in plain)
    most = min(perplexity_of(points[0]) for points in plain)
    if least >= most:
        return []
    found = []
    for name, share in LEVELS.items():
        perplexity = most ** (1 - share) * least**share
        places = {
            method: [at(frontiers[method, seed], perplexity) for seed in settings["seeds"]]
            for method in methods_of(settings)
        }
        reached = {
            method: [one for one in each if one is not None]
            for method, each in places.items()
            if None not in each
        }
        found.append(Level(name, perplexity, reached))
    return found


def _points(outcomes: Outcomes, method: str, seed: int) -> list[Mapping[str, Any]]:
    """From the public model on: what no training and no budget come to."""
    runs = [*outcomes[stage_name(PUBLIC, seed)]["runs"], *outcomes[stage_name(method, seed)]["runs"]]
    return [one for one in runs if one.get("diverged") is None]


def exposure(settings: Settings, level: Level, method: str, rungs: Sequence[int] | None = None) -> Estimate:
    """Mean bits over the users who carry codes, of all their codes or of some."""
    values = level.of_canaries(method, "exposure", rungs or settings["canaries"]["ladder"])
    return _within(mean_over(values, least=0.0, most=bits(settings), of="users"), bits(settings))


def exposure_change(settings: Settings, level: Level, one: str, other: str) -> Estimate:
    """The same of one method minus the other's, user by user and seed by seed."""
    ladder, most = settings["canaries"]["ladder"], bits(settings)
    change = level.of_canaries(one, "exposure", ladder) - level.of_canaries(other, "exposure", ladder)
    return mean_over(change, least=-most, most=most, of="users")


def completed(settings: Settings, level: Level, method: str) -> Estimate:
    """Share of codes that the tab key writes."""
    values = level.of_canaries(method, "completed", settings["canaries"]["ladder"])
    return _within(mean_over(values, least=0.0, most=1.0, of="users"), 1.0)


def membership(level: Level, method: str) -> Estimate:
    """Area under the curve, between two Runs of each seed."""
    return _within(_over_seeds([_between(one) for one in level.methods[method]]), 1.0)


def _between(one: Between) -> Estimate:
    left, right = (Estimate.from_json(end["auc"]) for end in (one.left, one.right))
    value, low, high = (
        float((1 - one.share) * first + one.share * second)
        for first, second in zip(
            (left.value, left.low, left.high), (right.value, right.low, right.high), strict=True
        )
    )
    return Estimate(value, low, high, left.confidence, left.method)


def _by(function: Callable[[float], float], one: Estimate) -> Estimate:
    """On another scale: a perplexity's logarithm is what is averaged."""
    return replace(one, value=function(one.value), low=function(one.low), high=function(one.high))


def _within(one: Estimate, most: float) -> Estimate:
    """An interval without what no value can be."""
    return replace(one, low=max(0.0, one.low), high=min(most, one.high))


def _over_seeds(each: Sequence[Estimate]) -> Estimate:
    """Their mean; a seed's own interval is kept, which is rather too wide, and their spread is added."""
    value, low, high = (
        float(np.mean([getattr(one, name) for one in each])) for name in ("value", "low", "high")
    )
    first = each[0]
    method = first.method.partition(",")[0]
    return with_seeds(
        Estimate(value, min(low, value), max(high, value), first.confidence, method),
        [one.value for one in each],
    )
