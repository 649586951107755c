"""Lower bounds on epsilon: how much privacy loss an attack's success proves.

A bound says: "a mechanism with less loss than this would let an attacker do so well with probability at most
1 - confidence". It never says that there is no more loss. Zero means that the attack shows nothing.

What each bound assumes
    :func:`separation_bound`  every trial is independent of the others: transcripts drawn anew, models trained
                              anew. The canaries of *one* model are not; for those there is the next.
    :func:`one_run_bound`     fair and independent coins decided which canaries the one model saw; the number
                              of guesses was fixed without looking at them (:mod:`tacit.audit.thresholds`).
    :func:`exposure_bound`    every secret is uniform over its candidates and independent of the others, and
                              its guess list depends on the model only, not on the other secrets.

``neighbours`` says which two corpora are told apart: with and without a record (``add/remove``), with one
text or another (``replace``), with a text or a mask in its place (``mask``). A bound for one kind does not
speak about a claim for another.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from scipy import optimize, special, stats

from tacit.audit.trade_offs import approximate_inverse, iterated, refutes
from tacit.errors import InputError
from tacit.privacy import Unit
from tacit.statistics import Estimate, clopper_pearson

Neighbours = Literal["add/remove", "replace", "mask"]
Family = Literal["any", "gaussian"]

LIST_SIZES = (1, 10, 100, 1000)
_HIGHEST = 500.0  # nats: beyond any secret that is ever enumerated
_STEP = 1e-9  # by which a root is pulled to its safe side


@dataclass(frozen=True)
class EpsilonLowerBound:
    """At this confidence, the mechanism is not (epsilon', delta)-private for any epsilon' < ``epsilon``.

    neighbours  what kind of neighbours the attack told apart
    family      ``any``: holds for every mechanism. ``gaussian``: holds only for mechanisms whose trade-off
                is that of a Gaussian, and contradicts no other claim
    mu          the Gaussian parameter behind ``epsilon``, in the Gaussian family
    unit        whose text the neighbours differ in; None until the caller says so with :meth:`per`
    """

    epsilon: float
    delta: float
    confidence: float
    method: str
    neighbours: Neighbours = "add/remove"
    family: Family = "any"
    mu: float | None = None
    unit: Unit | None = None

    def __post_init__(self) -> None:
        """Refuse what is no bound: it would be shown as evidence."""
        if not 0 <= self.epsilon < math.inf:
            raise ValueError(f"Expected 0 <= epsilon={self.epsilon} < infinity.")
        if not 0 <= self.delta < 1 or not 0 < self.confidence < 1:
            raise ValueError(
                f"Expected 0 <= delta={self.delta} < 1 and 0 < confidence={self.confidence} < 1."
            )

    @property
    def shows_nothing(self) -> bool:
        """Whether even a perfectly private mechanism could have looked like this."""
        return self.epsilon == 0

    def per(self, unit: Unit) -> EpsilonLowerBound:
        """The same bound, said to be about neighbours that differ in the text of one such unit."""
        return replace(self, unit=unit)

    @property
    def estimate(self) -> Estimate:
        """The same as a measured number: at least ``epsilon``, and nothing is said of how much more."""
        return Estimate(self.epsilon, self.epsilon, math.inf, self.confidence, self.method)

    def to_json(self) -> dict[str, Any]:
        """JSON form."""
        return asdict(self)

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> EpsilonLowerBound:
        """Inverse of :meth:`to_json`."""
        return cls(**fields)


def separation_bound(
    *,
    true_positives: int,
    members: int,
    false_positives: int,
    non_members: int,
    delta: float = 0.0,
    confidence: float = 0.95,
    neighbours: Neighbours = "add/remove",
) -> EpsilonLowerBound:
    """From how often a test says "member" in independent trials of either world.

    epsilon >= max( log((TPR - delta)/FPR), log((TNR - delta)/FNR) ), with TPR at its lower and FPR at its
    upper one-sided Clopper-Pearson bound, at half of the error each. Both directions need these two events
    only (TNR = 1 - FPR, FNR = 1 - TPR), so that the joint error is at most 1 - confidence without another
    split. The test itself, threshold included, must have been fixed on other trials.
    """
    check_levels(delta, confidence)
    half = 1 - (1 - confidence) / 2
    hit = clopper_pearson(true_positives, members, confidence=half, side="lower").low
    alarm = clopper_pearson(false_positives, non_members, confidence=half, side="upper").high
    odds = max(_ratio(hit - delta, alarm), _ratio(1 - alarm - delta, 1 - hit))
    method = (
        f"Clopper-Pearson in/out: {true_positives} of {members} members and {false_positives} of "
        f"{non_members} non-members"
    )
    epsilon = max(0.0, math.log(odds)) if odds > 0 else 0.0
    return EpsilonLowerBound(epsilon, delta, confidence, method, neighbours)


def one_run_bound(
    *,
    correct: int,
    guesses: int,
    canaries: int,
    delta: float = 0.0,
    confidence: float = 0.95,
    neighbours: Neighbours = "add/remove",
    insertions: int = 1,
) -> EpsilonLowerBound:
    """From guesses about the coins of one trained model (Steinke, Nasr and Jagielski 2023, Theorem 5.2).

    Of ``canaries`` fair coins, ``guesses`` were guessed and ``correct`` of those rightly. Under
    (epsilon, delta) and with W ~ Binomial(guesses, e^epsilon/(1 + e^epsilon)), so many are right with
    probability at most

        P[W >= v] + 2 m delta max_i P[v - i <= W < v] / i,      v = correct, m = canaries.

    The bound is the largest epsilon at which this is at most 1 - confidence. With ``insertions`` = n, a
    canary stood in the corpus n times and the unit is one of them: the coin changes a group of n.
    """
    check_levels(delta, confidence)
    check_guesses(correct, guesses, canaries)
    check_insertions(insertions)
    error = 1 - confidence
    method = f"one run (Steinke et al. 2023): {correct} of {guesses} guesses right, {canaries} canaries"
    pure = _pure_log_odds(correct, guesses, error)

    def p_value(log_odds: float) -> float:
        together = _group_delta(log_odds / insertions, delta, insertions)
        return one_run_p_value(log_odds, correct, guesses, canaries, together)

    together = pure if delta == 0 else _first_accepted(p_value, error, pure)
    return EpsilonLowerBound(together / insertions, delta, confidence, method, neighbours)


def one_run_p_value(epsilon: float, correct: int, guesses: int, canaries: int, delta: float) -> float:
    """At most how likely ``correct`` or more right guesses are under (epsilon, delta)."""
    share = special.expit(epsilon)
    tail = 1.0 if correct == 0 else float(special.betainc(correct, guesses - correct + 1, share))
    if delta == 0 or correct == 0:
        return tail
    most = float(stats.binom.cdf(correct - 1, guesses, share))
    best, begin, width = 0.0, 1, 64
    # P[...]/i is at most 1/i: once that is below the best, no later i can be better.
    while begin <= correct and best * begin < most:
        steps = np.arange(begin, min(begin + width, correct + 1))
        between = most - stats.binom.cdf(correct - steps - 1, guesses, share)
        best = max(best, float((between / steps).max()))
        begin, width = begin + width, 2 * width
    return tail + 2 * canaries * delta * best


def exposure_bound(
    *,
    ranks: npt.ArrayLike,
    candidates: int,
    confidence: float = 0.95,
    list_sizes: Sequence[int] = LIST_SIZES,
    relation: Neighbours = "replace",
    insertions: int = 1,
    delta: float = 0.0,
) -> EpsilonLowerBound:
    """From the ranks of planted secrets among their K candidates (1 = the likeliest).

    Why it holds (delta = 0). Fix what the model is, t, and reveal the secrets one after another. For the next
    secret u and any two values a, b, replace-one epsilon-DP and the uniform draw give
    P[u = a | t, revealed]/P[u = b | t, revealed] <= e^epsilon: the sum over what is not yet revealed keeps
    the ratio. So a list of s values that depends on t alone holds u with probability at most
    q = s e^epsilon/(s e^epsilon + K - s), whatever was revealed, and the number of secrets within their lists
    is stochastically at most Binomial(m, q). With delta > 0 the same lists go through the recursion of
    :func:`tacit.audit.trade_offs.refutes`.

    ``list_sizes`` must be fixed beforehand; the error is shared equally among those below K. Each list may
    depend on the model only: use canaries with distinct prefixes, or raw ranks. Ranks from which other
    planted secrets were struck out are a description and not an input here. Secrets that were drawn without
    replacement are uniform over K - m + 1 values given the others: give that as ``candidates``. Where a rank
    is an interval, give its upper end.

    ``relation``: two values of a secret are one step apart under ``replace``; under ``mask`` and
    ``add/remove`` the step leads over the mask or the absence, so there are two and epsilon is half.
    ``insertions``: a secret that stood in n records of the unit takes n times as many steps.
    """
    check_levels(delta, confidence)
    check_insertions(insertions)
    found = np.asarray(ranks)
    if found.ndim != 1 or len(found) == 0 or not ((found >= 1) & (found <= candidates)).all():
        raise InputError(f"Expected at least one rank, each from 1 to candidates={candidates}.")
    sizes = sorted({size for size in list_sizes if size < candidates})
    if not sizes or sizes[0] < 1:
        raise InputError(f"Expected list sizes from 1 to below candidates={candidates}, not {list_sizes}.")
    steps = insertions * (1 if relation == "replace" else 2)
    error = (1 - confidence) / len(sizes)
    total = len(found)

    def bound(size: int) -> float:
        hits = int((found <= size).sum())
        if delta == 0:
            return max(0.0, _pure_log_odds(hits, total, error, prior=size / candidates)) / steps

        def refuted(epsilon: float) -> bool:
            inverse = iterated(approximate_inverse(epsilon, delta), steps)
            return refutes(
                inverse,
                correct=hits,
                guesses=total,
                canaries=total,
                alphabet=candidates,
                list_size=size,
                error=error,
            )

        return last_refuted(refuted)

    bounds = [bound(size) for size in sizes]
    best = int(np.argmax(bounds))
    hits = int((found <= sizes[best]).sum())
    method = (
        f"k-ary exposure: {hits} of {total} secrets among the first {sizes[best]:,} of {candidates:,}, "
        f"corrected over {len(sizes)} list sizes"
    )
    return EpsilonLowerBound(bounds[best], delta, confidence, method, relation)


def strongest(bounds: Sequence[EpsilonLowerBound]) -> EpsilonLowerBound:
    """The highest of several bounds on one thing, at what is left of the confidence when their errors add
    up."""
    if len({(one.delta, one.neighbours, one.family, one.unit) for one in bounds}) != 1:
        raise InputError(
            "Expected at least one bound, and all for the same delta, neighbours, family and unit."
        )
    error = sum(1 - one.confidence for one in bounds)
    if error > 0.5:
        raise InputError(f"Expected errors that add up to at most 0.5, not {error:g}; raise each confidence.")
    best = max(bounds, key=lambda one: one.epsilon)
    among = f"; the highest of {len(bounds)} bounds" if len(bounds) > 1 else ""
    return replace(best, confidence=1 - error, method=best.method + among)


def last_refuted(
    refuted: Callable[[float], bool], *, highest: float = _HIGHEST, width: float = 1e-7
) -> float:
    """The end of the refuted range [0, x] by bisection, at most ``width`` too low; 0 if nothing is
    refuted."""
    low, high = 0.0, 1.0
    if not refuted(low):
        return 0.0
    while high < highest and refuted(high):
        low, high = high, 2 * high
    while high - low > width:
        middle = (low + high) / 2
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low


def _first_accepted(p_value: Callable[[float], float], error: float, highest: float) -> float:
    """Where the p-value first exceeds the error, between 0 and a point at which it does; errs downwards."""
    if highest <= 0 or p_value(0.0) > error:
        return 0.0
    if p_value(highest) <= error:
        return highest
    root = float(optimize.brentq(lambda epsilon: p_value(epsilon) - error, 0.0, highest, xtol=_STEP / 4))
    while root > 0 and p_value(root) > error:
        root -= _STEP
    return max(0.0, root)


def _pure_log_odds(correct: int, guesses: int, error: float, *, prior: float = 0.5) -> float:
    """The largest epsilon >= 0 with P[Binomial(guesses, q) >= correct] <= error, for delta = 0.

    log(q/(1-q)) = epsilon + log(prior/(1-prior)): the Clopper-Pearson lower bound in another form.
    """
    if correct == 0:
        return 0.0
    # log q and log(1-q) apart: 1 - q is tiny where all guesses are right.
    right = stats.beta.ppf(error, correct, guesses - correct + 1)
    wrong = stats.beta.isf(error, guesses - correct + 1, correct)
    if right <= 0:
        return 0.0
    return max(0.0, float(np.log(right) - np.log(wrong) - special.logit(prior)))


def _group_delta(epsilon: float, delta: float, size: int) -> float:
    """The delta of ``size`` units that change together, each (epsilon, delta)."""
    if size == 1 or delta == 0:
        return delta
    return min(1.0, delta * float(np.exp(np.arange(size) * min(epsilon, _HIGHEST / size)).sum()))


def _ratio(above: float, below: float) -> float:
    if above <= 0:
        return 0.0
    if below <= 0:
        raise ValueError("a Clopper-Pearson bound of 0 or 1 on the wrong side")
    return above / below


def check_levels(delta: float, confidence: float) -> None:
    """Refuse a delta or a confidence that no bound is made for."""
    if not 0 <= delta < 1:
        raise InputError(f"Expected 0 <= delta={delta} < 1, e.g. 1e-5.")
    if not 0.5 <= confidence < 1:
        raise InputError(f"Expected 0.5 <= confidence={confidence} < 1, e.g. 0.95.")


def check_guesses(correct: int, guesses: int, canaries: int) -> None:
    """Refuse more right guesses than guesses, or more guesses than canaries."""
    if not 0 <= correct <= guesses <= canaries:
        raise InputError(f"Expected 0 <= correct={correct} <= guesses={guesses} <= canaries={canaries}.")


def check_insertions(insertions: int) -> None:
    """Refuse a canary that never stood anywhere."""
    if insertions < 1:
        raise InputError(f"Expected insertions={insertions} >= 1: how often a canary stood in the corpus.")
