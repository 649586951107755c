"""Runs of privacy regularisation at equal perplexity: what each method leaks where all predict equally well.

Between two Runs of a method everything is interpolated over log(perplexity), as `tacit compare` does. Of Runs
that learnt for longer than was best for the method's perplexity, and of noise that made it better, nothing is
used. The two perplexities lie a quarter and three quarters of the way through what all methods reach with
every seed. Where there is no such perplexity, two methods are compared at two that both of them reach.

Intervals are of two parts, added as independent: one for who the users (the authors) are, from resampling
them with all seeds together; one for training, canaries and first weights, which every seed has of its own,
from the spread of the seeds by Student's t. The first has something of the second in it, so that the whole is
rather too wide. Methods are compared user by user and seed by seed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, Final

import numpy as np
from scipy import stats

from tacit.audit.disparity import Disparity, measure_disparity
from tacit.experiments.experiment import Outcomes, Settings
from tacit.experiments.reg_ground import Place
from tacit.experiments.results import Outcome as Word
from tacit.statistics import Estimate, FloatArray, bounded_mean

LEVELS: Final = {"high": 0.75, "low": 0.25}
_CONFIDENCE: Final = 0.95
Outcome = Mapping[str, Any]


@dataclass(frozen=True)
class Between:
    """A method at a perplexity that lies between two of its Runs, with one seed."""

    left: Outcome = field(repr=False)
    right: Outcome = field(repr=False)
    share: float

    def values(self, name: str) -> FloatArray:
        """One number for each canary, user or author."""
        one, other = (np.asarray(end[name], dtype=np.float64) for end in (self.left, self.right))
        return (1 - self.share) * one + self.share * other


@dataclass(frozen=True, eq=False)  # each is itself alone, so that what is told of it can be kept by it
class Level:
    """One perplexity, and every method there: a :class:`Between` for each seed."""

    name: str
    perplexity: float
    methods: Mapping[str, Sequence[Between]] = field(repr=False)

    @property
    def told(self) -> str:
        """As a sentence has it."""
        return f"{self.name} perplexity ({self.perplexity:.0f})"

    def of_canaries(self, method: str, name: str, rungs: Iterable[int]) -> FloatArray:
        """Of each seed and user, the mean over the user's canaries with some numbers of repetitions."""
        return np.stack([_by_carrier(one.left, one.values(name), set(rungs)) for one in self.methods[method]])

    def of_each(self, method: str, name: str) -> FloatArray:
        """Of each seed, one number for each user or author."""
        return np.stack([one.values(name) for one in self.methods[method]])

    def disparity(self, method: str, other: str | None = None) -> Disparity:
        """Who pays for a method, beside the unmitigated model or beside another method."""
        own, documents = self.of_each(method, "change"), self.methods[method][0].left["documents"]
        beside = np.zeros_like(own) if other is None else self.of_each(other, "change")
        each = [measure_disparity(one, two, documents) for one, two in zip(own, beside, strict=True)]
        whole = measure_disparity(own.mean(axis=0), beside.mean(axis=0), documents)
        parts: dict[str, Any] = {}
        for name in ("mean", "most", "fewest", "gap", "slope"):
            found = [getattr(one, name) for one in (whole, *each)]
            # No slope where all wrote as much.
            parts[name] = None if None in found else with_seeds(found[0], [one.value for one in found[1:]])
        return replace(whole, **parts)


def _by_carrier(outcome: Outcome, values: FloatArray, rungs: set[int]) -> FloatArray:
    carriers, repetitions = np.asarray(outcome["carriers"]), np.asarray(outcome["repetitions"])
    chosen = np.isin(repetitions, list(rungs))
    return np.asarray(
        np.bincount(carriers[chosen], values[chosen]) / np.bincount(carriers[chosen]), dtype=np.float64
    )


@dataclass(frozen=True)
class Levels:
    """Every corpus's two perplexities."""

    settings: Settings = field(repr=False)
    outcomes: Outcomes = field(repr=False)

    @cached_property
    def common(self) -> dict[str, list[Level]]:
        """Those that all methods reach, by corpus; one narrow frontier may leave none."""
        return {corpus: self._of(corpus, tuple(self.settings["methods"])) for corpus in self.corpora}

    @property
    def corpora(self) -> list[str]:
        """All of them."""
        return list(self.settings["corpora"])

    def of_pair(self, corpus: str, one: str, other: str) -> list[Level]:
        """The common ones; where there are none, those that both of these methods reach."""
        return self.common[corpus] or self._of(corpus, (one, other))

    def _of(self, corpus: str, methods: Sequence[str]) -> list[Level]:
        return levels_of(self.settings, self.outcomes, corpus, methods)


def levels_of(settings: Settings, outcomes: Outcomes, corpus: str, methods: Sequence[str]) -> list[Level]:
    """Two perplexities of a corpus that these methods reach with every seed; none where there are none."""
    frontiers = {
        (method, seed): frontier(outcomes, corpus, seed, method)
        for method in methods
        for seed in settings["seeds"]
    }
    if not all(frontiers.values()):
        return []
    least = max(perplexity_of(points[-1]) for points in frontiers.values())
    most = min(perplexity_of(points[0]) for points in frontiers.values())
    if least >= most:
        return []
    return [_level(name, least ** (1 - share) * most**share, frontiers) for name, share in LEVELS.items()]


def _level(name: str, perplexity: float, frontiers: Mapping[tuple[str, int], Sequence[Outcome]]) -> Level:
    methods: dict[str, list[Between]] = {}
    for (method, _), points in frontiers.items():
        found = at(points, perplexity)
        assert found is not None  # noqa: S101 - the perplexity is one that all reach
        methods.setdefault(method, []).append(found)
    return Level(name, perplexity, methods)


def frontier(outcomes: Outcomes, corpus: str, seed: int, method: str) -> list[Outcome]:
    """A method's Runs from the most protection to its best perplexity."""
    stage = outcomes[Place(corpus, seed).name_of(method)]
    whose = {name: part for name, part in stage.items() if name != "runs"}
    return best_first_part([{**whose, **one} for one in stage["runs"] if one["diverged"] is None])


def best_first_part(points: Sequence[Outcome]) -> list[Outcome]:
    """Points in the order of less protection, up to the best perplexity: what follows learnt too long."""
    if not points:
        return []
    best = min(range(len(points)), key=lambda place: perplexity_of(points[place]))
    return sorted(points[: best + 1], key=lambda one: -perplexity_of(one))


def perplexity_of(outcome: Outcome) -> float:
    """On held-out text."""
    return float(outcome["perplexity"]["value"])


def at(points: Sequence[Outcome], perplexity: float) -> Between | None:
    """Between which Runs a perplexity lies; None beyond them."""
    for left, right in pairwise(points):
        worse, better = perplexity_of(left), perplexity_of(right)
        if better <= perplexity <= worse and better < worse:
            return Between(left, right, math.log(worse / perplexity) / math.log(worse / better))
    return None


def mean_over(values: FloatArray, *, least: float, most: float, of: str) -> Estimate:
    """The mean of what each seed (rows) and each user or author (columns) has."""
    each = values.mean(axis=1)
    return with_seeds(
        bounded_mean(values.mean(axis=0), least=least, most=most, of=of, confidence=_CONFIDENCE), each
    )


def with_seeds(users: Estimate, of_seeds: Sequence[float] | FloatArray) -> Estimate:
    """An interval for who the users are, widened by how far the seeds are apart."""
    many = len(of_seeds)
    if many < 2:
        return replace(users, method=f"{users.method}; one training alone")
    t = float(stats.t.ppf((1 + users.confidence) / 2, many - 1))
    reach = t * float(np.std(of_seeds, ddof=1)) / math.sqrt(many)
    return Estimate(
        users.value,
        users.value - math.hypot(users.value - users.low, reach),
        users.value + math.hypot(users.high - users.value, reach),
        users.confidence,
        f"{users.method}, and Student's t over {many} trainings",
    )


Verdict = Callable[[Sequence[Estimate]], Word]


def below_zero(differences: Sequence[Estimate]) -> Word:
    """A claim that all differences are below 0: it holds where all intervals say so, and falls with one."""
    return _judged(differences, lambda one: one.high < 0, lambda one: one.low > 0)


def above_zero(differences: Sequence[Estimate]) -> Word:
    """The opposite claim."""
    return _judged(differences, lambda one: one.low > 0, lambda one: one.high < 0)


def at_most(limit: float) -> Verdict:
    """A claim that no difference is above a limit."""
    return lambda found: _judged(found, lambda one: one.high <= limit, lambda one: one.low > limit)


def within(limit: float) -> Verdict:
    """A claim that all differences are small; it falls with one that surely is not."""
    return lambda found: _judged(
        found, lambda one: max(-one.low, one.high) <= limit, lambda one: one.low > limit or one.high < -limit
    )


def _judged(
    found: Sequence[Estimate], holds: Callable[[Estimate], bool], falls: Callable[[Estimate], bool]
) -> Word:
    if any(falls(one) for one in found):
        return "does not hold"
    return "holds" if found and all(holds(one) for one in found) else "undecided"
