"""How many canaries would show an epsilon, and what an audit of a given size could have shown.

An attacker whose every guess is right shows the most that an audit can show. So :func:`detectable` is what an
inconclusive audit could have found at best, and :func:`plan_audit` counts the canaries for an epsilon. Real
attacks are weaker; ``accuracy`` and ``power`` count for those.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from scipy import special, stats

from tacit.audit.bounds import (
    LIST_SIZES,
    EpsilonLowerBound,
    Neighbours,
    check_levels,
    exposure_bound,
    one_run_bound,
    one_run_p_value,
    separation_bound,
)
from tacit.audit.gaussian import gaussian_one_run_bound
from tacit.audit.trade_offs import gaussian_inverse, refutes
from tacit.errors import InputError
from tacit.privacy.gaussian import gaussian_mu

Design = Literal["one run", "one run, split", "in/out", "exposure", "gaussian", "gaussian exposure"]

MOST_CANARIES = 10**7
_MOST_BY_RECURSION = 10_000  # each takes as many steps as there are canaries


@dataclass(frozen=True)
class PlanRow:
    """One way to audit and how many canaries it takes; None where no number of them would do.

    ``rule`` is the rule of thumb beside the exact number, where there is one: 3 e^epsilon.
    """

    design: Design
    assumption: str
    canaries: int | None
    rule: int | None
    note: str

    def to_json(self) -> dict[str, Any]:
        """JSON form."""
        return asdict(self)


def detectable(
    design: Design,
    canaries: int,
    *,
    delta: float = 0.0,
    confidence: float = 0.95,
    candidates: int = 10**6,
    list_sizes: Sequence[int] = LIST_SIZES,
    neighbours: Neighbours | None = None,
    insertions: int = 1,
) -> EpsilonLowerBound:
    """The highest epsilon that an audit of this size could have shown: every guess right.

    ``canaries`` are coins (``one run``, ``gaussian``), trials of either world (``in/out``) or secrets with
    ``candidates`` values (``exposure``, ``gaussian exposure``). ``one run, split`` counts on half of the
    coins at half of the error, as :func:`~tacit.audit.thresholds.multi_split_bound` does.
    """
    if canaries < 1:
        raise InputError(f"Expected canaries={canaries} >= 1.")
    coin, secret = neighbours or "add/remove", neighbours or "replace"
    match design:
        case "one run" | "one run, split":
            half = design == "one run, split"
            counted = canaries - canaries // 2 if half else canaries
            return one_run_bound(
                correct=counted,
                guesses=counted,
                canaries=counted,
                delta=delta,
                confidence=1 - (1 - confidence) / 2 if half else confidence,
                neighbours=coin,
                insertions=insertions,
            )
        case "in/out":
            return separation_bound(
                true_positives=canaries,
                members=canaries,
                false_positives=0,
                non_members=canaries,
                delta=delta,
                confidence=confidence,
                neighbours=coin,
            )
        case "exposure":
            return exposure_bound(
                ranks=[1] * canaries,
                candidates=candidates,
                confidence=confidence,
                list_sizes=list_sizes,
                relation=secret,
                insertions=insertions,
                delta=delta,
            )
        case "gaussian" | "gaussian exposure":
            return gaussian_one_run_bound(
                correct=canaries,
                guesses=canaries,
                canaries=canaries,
                alphabet=2 if design == "gaussian" else candidates,
                delta=delta,
                confidence=confidence,
                neighbours=neighbours,
                insertions=insertions,
            )


def plan_audit(
    *,
    epsilon: float,
    delta: float = 0.0,
    confidence: float = 0.95,
    accuracy: float | None = None,
    power: float = 0.8,
    candidates: int = 10**6,
    list_sizes: Sequence[int] = LIST_SIZES,
) -> tuple[PlanRow, ...]:
    """How many canaries would show ``epsilon``, by each way of auditing.

    With ``accuracy``, also for a one-run attack whose guesses are right so often, each on its own: enough
    that it shows ``epsilon`` with probability ``power``.
    """
    check_levels(delta, confidence)
    if not 0 < epsilon <= 50 or not 0 < power < 1 or not (accuracy is None or 0.5 < accuracy <= 1):
        raise InputError(
            f"Expected 0 < epsilon={epsilon} <= 50, 0 < power={power} < 1 and 0.5 < accuracy={accuracy} <= 1."
        )
    rule = math.ceil(math.log(1 / (1 - confidence)) * math.exp(epsilon))

    def reaches(design: Design) -> Callable[[int], bool]:
        def enough(canaries: int) -> bool:
            found = detectable(
                design,
                canaries,
                delta=delta,
                confidence=confidence,
                candidates=candidates,
                list_sizes=list_sizes,
            )
            return found.epsilon >= epsilon

        return enough

    def one_run(canaries: int) -> bool:
        return one_run_p_value(epsilon, canaries, canaries, canaries, delta) <= 1 - confidence

    def one_run_split(canaries: int) -> bool:
        counted = canaries - canaries // 2
        return one_run_p_value(epsilon, counted, counted, counted, delta) <= (1 - confidence) / 2

    rows = [
        _row("one run", "every guess right, their number fixed beforehand", one_run, rule),
        _row("one run, split", "every guess right, their number chosen by splits", one_run_split),
    ]
    if accuracy is not None:
        rows.append(_row_of_accuracy(epsilon, delta, confidence, accuracy, power))
    rows += [
        _row("in/out", "perfect separation, so many independent trials of either world", reaches("in/out")),
        _row(
            "exposure",
            f"every secret first of {candidates:,}, corrected over {len(list_sizes)} list sizes",
            reaches("exposure"),
            most=MOST_CANARIES if delta == 0 else _MOST_BY_RECURSION,
        ),
    ]
    if delta > 0:
        mu = gaussian_mu(epsilon, delta)

        def gaussian(alphabet: int) -> Callable[[int], bool]:
            return lambda canaries: refutes(
                gaussian_inverse(mu),
                correct=canaries,
                guesses=canaries,
                canaries=canaries,
                alphabet=alphabet,
                error=1 - confidence,
            )

        of_family = "for mechanisms with a Gaussian trade-off"
        rows += [
            _row("gaussian", f"every coin right, {of_family}", gaussian(2), most=_MOST_BY_RECURSION),
            _row(
                "gaussian exposure",
                f"every secret first of {candidates:,}, {of_family}",
                gaussian(candidates),
                most=_MOST_BY_RECURSION,
            ),
        ]
    return tuple(rows)


def _row_of_accuracy(
    epsilon: float, delta: float, confidence: float, accuracy: float, power: float
) -> PlanRow:
    assumption = f"guesses right with probability {accuracy:g}, shown with probability {power:g}"
    if accuracy <= special.expit(epsilon):
        most = float(special.logit(accuracy))
        note = f"guesses that are right so often never show more than epsilon = {most:.2f}"
        return PlanRow("one run", assumption, None, None, note)

    def enough(canaries: int) -> bool:
        needed = _critical(epsilon, delta, canaries, 1 - confidence)
        return needed is not None and float(stats.binom.sf(needed - 1, canaries, accuracy)) >= power

    return _row("one run", assumption, enough)


def _critical(epsilon: float, delta: float, canaries: int, error: float) -> int | None:
    """How many of all guesses must be right to refute (epsilon, delta); None if all are too few."""
    low, high = int(stats.binom.isf(error, canaries, special.expit(epsilon))), canaries
    if one_run_p_value(epsilon, canaries, canaries, canaries, delta) > error:
        return None
    while high - low > 1:  # high refutes, low does not
        middle = (low + high) // 2
        refuted = one_run_p_value(epsilon, middle, canaries, canaries, delta) <= error
        low, high = (low, middle) if refuted else (middle, high)
    return high


def _row(
    design: Design,
    assumption: str,
    enough: Callable[[int], bool],
    rule: int | None = None,
    *,
    most: int = MOST_CANARIES,
) -> PlanRow:
    found = _fewest(enough, most)
    note = "" if found is not None else f"more than {most:,} canaries, or more than delta allows"
    return PlanRow(design, assumption, found, rule, note)


def _fewest(enough: Callable[[int], bool], most: int) -> int | None:
    """The fewest canaries that do. Steps of a quarter, because with delta > 0 too many do not do again."""
    low, high = 0, 1
    while not enough(high):
        if high >= most:
            return None
        low, high = high, min(most, max(high + 1, high * 5 // 4))
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high
