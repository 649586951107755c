"""How well scores tell members from non-members. A higher score means "more likely a member".

Everything here treats members and non-members as independent draws, decided before training by one random
split. Scores of groups that share secrets are not independent: see :mod:`tacit.audit.resampling`. What a
number is worth as evidence about epsilon is another question: see :mod:`tacit.audit.bounds`.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import special, stats

from tacit.errors import InputError
from tacit.statistics import Estimate, FloatArray, clopper_pearson


@dataclass(frozen=True)
class RocCurve:
    """Rates of "score >= threshold", from no alarm at all to an alarm always; ties share one point."""

    false_positive_rates: FloatArray = field(repr=False)
    true_positive_rates: FloatArray = field(repr=False)
    thresholds: FloatArray = field(repr=False)  # the first is infinite: nothing is called a member

    @property
    def area(self) -> float:
        """The area under the curve: P[member > non-member] + P[equal]/2."""
        return float(np.trapezoid(self.true_positive_rates, self.false_positive_rates))

    def to_json(self) -> dict[str, Any]:
        """JSON form, without the first threshold, which is infinite."""
        return {
            "false_positive_rates": self.false_positive_rates.tolist(),
            "true_positive_rates": self.true_positive_rates.tolist(),
            "thresholds": self.thresholds[1:].tolist(),
        }


@dataclass(frozen=True)
class TprAtFpr:
    """The true positive rate at a false positive rate of at most ``fpr``, or why it is not told.

    The threshold comes from calibration non-members alone. ``measured_fpr`` is what it gave on others.
    ``refused`` is empty where there is a number.
    """

    fpr: float
    threshold: float | None
    tpr: Estimate | None
    measured_fpr: Estimate | None
    refused: str = ""

    def to_json(self) -> dict[str, Any]:
        """JSON form."""
        return asdict(self) | {
            "tpr": None if self.tpr is None else self.tpr.to_json(),
            "measured_fpr": None if self.measured_fpr is None else self.measured_fpr.to_json(),
        }


@dataclass(frozen=True)
class ChosenAccuracy:
    """Accuracy on one half at the threshold that was best on the other; ``chance`` = always one answer."""

    accuracy: Estimate
    threshold: float
    chance: float

    def to_json(self) -> dict[str, Any]:
        """JSON form; a threshold beyond every score is null."""
        finite = self.threshold if math.isfinite(self.threshold) else None
        return {"accuracy": self.accuracy.to_json(), "threshold": finite, "chance": self.chance}


def roc_curve(members: npt.ArrayLike, non_members: npt.ArrayLike) -> RocCurve:
    """All pairs of rates that some threshold gives."""
    inside, outside = _scores("members", members), _scores("non-members", non_members)
    values = np.unique(np.concatenate([inside, outside]))[::-1]

    def at_least(scores: FloatArray) -> FloatArray:
        below = np.searchsorted(np.sort(scores), values, side="left")
        return np.concatenate([[0.0], 1 - below / len(scores)])

    return RocCurve(at_least(outside), at_least(inside), np.concatenate([[np.inf], values]))


def auc(members: npt.ArrayLike, non_members: npt.ArrayLike, *, confidence: float = 0.95) -> Estimate:
    """Area under the curve with DeLong's interval, made on the logit scale so that it stays within [0, 1].

    Where DeLong's variance is zero it would claim certainty. Then disjoint pairs are counted instead, which
    are independent: Clopper-Pearson if the scores separate fully, Hoeffding's inequality if they all tie.
    """
    inside, outside = _scores("members", members), _scores("non-members", non_members)
    value, variance = delong(inside, outside)
    tail = (1 - confidence) / 2
    if variance > 0 and 0 < value < 1:
        spread = stats.norm.isf(tail) * math.sqrt(variance) / (value * (1 - value))
        low, high = special.expit(special.logit(value) + np.array([-spread, spread]))
        method = f"DeLong, logit scale, {len(inside)} members and {len(outside)} non-members"
        return Estimate(value, min(float(low), value), max(float(high), value), confidence, method)
    pairs = min(len(inside), len(outside))
    if value in (0.0, 1.0):
        return separated(value, pairs, confidence)
    return tied(value, pairs, confidence, why="all scores tie")


def tied(value: float, pairs: int, confidence: float, *, why: str) -> Estimate:
    """A share without any spread to be seen, which is no certainty: what so many independent pairs show."""
    reach = math.sqrt(-math.log((1 - confidence) / 2) / (2 * pairs))
    method = f"Hoeffding, {pairs} disjoint pairs: {why}"
    return Estimate(value, max(0.0, value - reach), min(1.0, value + reach), confidence, method)


def separated(value: float, pairs: int, confidence: float) -> Estimate:
    """The area where scores separate fully: 0 or 1 in each of so many independent pairs."""
    exact = clopper_pearson(int(value) * pairs, pairs, confidence=confidence)
    method = f"Clopper-Pearson, {pairs} disjoint pairs: the scores separate fully"
    return Estimate(value, exact.low, exact.high, confidence, method)


def delong(members: FloatArray, non_members: FloatArray) -> tuple[float, float]:
    """Area and its variance (DeLong et al. 1988), by midranks (Sun and Xu 2014); variance 0 if undefined."""
    inside, outside = len(members), len(non_members)
    ranks = stats.rankdata(np.concatenate([members, non_members]))
    beaten = (ranks[:inside] - stats.rankdata(members)) / outside  # per member: share of non-members below
    losing = 1 - (ranks[inside:] - stats.rankdata(non_members)) / inside
    if min(inside, outside) < 2:
        return float(beaten.mean()), 0.0
    return float(beaten.mean()), float(beaten.var(ddof=1) / inside + losing.var(ddof=1) / outside)


_FEW = 20
_MOST_EXACT = 2000
_PERMUTATIONS = 9999
_CELLS_AT_ONCE = 1_000_000


def separation_p_value(members: npt.ArrayLike, non_members: npt.ArrayLike) -> float:
    """How likely members score so much higher if the two are exchangeable (Mann-Whitney, one-sided)."""
    inside, outside = _scores("members", members), _scores("non-members", non_members)
    # Where one side is small the normal limit is too sure, and where scores tie it can be so at any size.
    if len(np.unique(np.concatenate([inside, outside]))) < len(inside) + len(outside):
        return _by_permutations(inside, outside)
    few = min(len(inside), len(outside)) <= _FEW and len(inside) + len(outside) <= _MOST_EXACT
    method = "exact" if few else "asymptotic"
    return float(stats.mannwhitneyu(inside, outside, alternative="greater", method=method).pvalue)


def _by_permutations(inside: FloatArray, outside: FloatArray) -> float:
    """The same for any scores; at least one in the number of permutations."""
    ranks = stats.rankdata(np.concatenate([inside, outside]))
    found, size = ranks[: len(inside)].sum(), len(ranks)
    if math.comb(size, len(inside)) <= _PERMUTATIONS:
        sums = np.array([sum(chosen) for chosen in itertools.combinations(ranks, len(inside))])
        return float(np.mean(sums >= found))
    # How many of each tied group are members is drawn: the same law, and quick where ties are heavy.
    values, counts = np.unique(ranks, return_counts=True)
    generator = np.random.default_rng(0)
    as_much = 0
    for begin in range(0, _PERMUTATIONS, step := max(1, _CELLS_AT_ONCE // len(values))):
        many = min(step, _PERMUTATIONS - begin)
        drawn = generator.multivariate_hypergeometric(counts, len(inside), size=many, method="count")
        as_much += int((drawn @ values >= found).sum())
    return (1 + as_much) / (1 + _PERMUTATIONS)


def tpr_at_fpr(
    members: npt.ArrayLike,
    non_members: npt.ArrayLike,
    calibration: npt.ArrayLike,
    *,
    fpr: float,
    confidence: float = 0.95,
) -> TprAtFpr:
    """True positives at a false positive rate of at most ``fpr``.

    The threshold is the ceil((n+1)(1-fpr))-th smallest of n calibration non-members, and only a score above
    it is called a member: a new non-member is so with probability at most ``fpr``, in finite samples and with
    ties. ``non_members`` are others, on which the rate is measured. With fewer than 3/fpr calibration scores
    even no false alarm at all would not show the rate, and the answer is refused.
    """
    if not 0 < fpr < 1:
        raise InputError(f"Expected 0 < fpr={fpr} < 1, e.g. 0.01.")
    inside, outside = _scores("members", members), _scores("non-members", non_members)
    known = np.sort(_scores("calibration non-members", calibration))
    needed = math.ceil(3 / fpr - 1e-9)
    if len(known) < needed:
        reason = (
            f"a false positive rate of {fpr:g} needs {needed:,} calibration non-members, not {len(known):,}"
        )
        return TprAtFpr(fpr, None, None, None, reason)
    place = math.ceil((len(known) + 1) * (1 - fpr) - 1e-9)
    threshold = float(known[place - 1])

    def above(scores: FloatArray) -> Estimate:
        return clopper_pearson(int((scores > threshold).sum()), len(scores), confidence=confidence)

    return TprAtFpr(fpr, threshold, above(inside), above(outside))


def chosen_accuracy(
    members: npt.ArrayLike, non_members: npt.ArrayLike, *, confidence: float = 0.95, seed: int = 0
) -> ChosenAccuracy:
    """Accuracy of "score >= threshold" on a random half, at the threshold that was best on the other half."""
    rng = np.random.default_rng(seed)
    inside, outside = _scores("members", members), _scores("non-members", non_members)
    if min(len(inside), len(outside)) < 2:
        raise InputError("Expected at least 2 members and 2 non-members, to choose on one half of each.")
    inside, outside = rng.permutation(inside), rng.permutation(outside)
    half_in, half_out = len(inside) // 2, len(outside) // 2
    curve = roc_curve(inside[:half_in], outside[:half_out])
    right = curve.true_positive_rates * half_in + (1 - curve.false_positive_rates) * half_out
    best = int(np.argmax(right))
    # Halfway to the next lower score: at a member's own score, the next member would often fall below.
    lower = min(best + 1, len(right) - 1)
    threshold = float(curve.thresholds[[best, lower]].mean())
    rest_in, rest_out = inside[half_in:], outside[half_out:]
    hits = int((rest_in >= threshold).sum() + (rest_out < threshold).sum())
    total = len(rest_in) + len(rest_out)
    accuracy = clopper_pearson(hits, total, confidence=confidence)
    return ChosenAccuracy(accuracy, threshold, max(len(rest_in), len(rest_out)) / total)


def _scores(name: str, values: npt.ArrayLike) -> FloatArray:
    scores = np.asarray(values, dtype=np.float64)
    if scores.ndim != 1 or len(scores) == 0 or np.isnan(scores).any():
        raise InputError(f"Expected at least one score for {name}, and each a number.")
    return scores
