"""How many canaries would show an epsilon, and what an audit of a given size could have shown.

An attacker whose every guess is right shows the most that an audit can show. So :func:`detectable` is what an
inconclusive audit could have found at best, and :func:`plan_audit` counts the canaries for an epsilon, for
the neighbours, the coins and the shared error of `tacit audit`. Real attacks are weaker; ``accuracy`` and
``power`` count for those.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, Literal, get_args

from scipy import special, stats

from tacit.audit.bounds import (
    LIST_SIZES,
    EpsilonLowerBound,
    Neighbours,
    check_levels,
    exposure_bound,
    last_refuted,
    one_run_bound,
    one_run_p_value,
    separation_bound,
)
from tacit.audit.gaussian import gaussian_one_run_bound
from tacit.audit.trade_offs import approximate_inverse, gaussian_inverse, iterated, refutes
from tacit.audit.verdicts import DELTA, POWER
from tacit.corpus.canary_plan import OwnerKind
from tacit.errors import InputError
from tacit.privacy.gaussian import gaussian_mu

Design = Literal["one run", "one run, split", "in/out", "exposure", "gaussian", "gaussian exposure"]

_Enough = Callable[[float, int], bool]  # whether so many canaries show a claimed epsilon
FAIR = 0.5  # the coin that one-run bounds are for
SURE = 0.95  # that coins leave enough of what is planted in
MOST_CANARIES = 10**7
_MOST_WITH_DELTA = 20_000  # of guesses that may be wrong: each number takes many p-values
_MOST_BY_RECURSION = 10_000  # each takes as many steps as there are canaries


@dataclass(frozen=True)
class Needed:
    """So many canaries must count, and so many are to be planted; None where no number of them would do.

    A coin leaves some of what is planted out. Guesses about coins count all of them, ranks only what is in:
    then so many are planted that enough are in with probability :data:`SURE`.
    """

    canaries: int | None
    planted: int | None


@dataclass(frozen=True)
class PlanRow:
    """One way to audit and how many canaries it takes.

    contradict  to show the epsilon itself: more than that contradicts it
    support     to show :data:`~tacit.audit.verdicts.POWER` times as much, which an audit must be able to do
                before it supports the claim
    rule        the rule of thumb beside the exact number, where there is one: 3 e^epsilon
    """

    design: Design
    assumption: str
    neighbours: Neighbours
    contradict: Needed
    support: Needed
    rule: int | None
    note: str

    def to_json(self) -> dict[str, Any]:
        """JSON form."""
        return asdict(self)

    def cells(self) -> dict[str, Any]:
        """The row as a person reads it."""
        return {
            "design": self.design,
            "to_contradict": self.contradict.canaries,
            "to_plant": self.contradict.planted,
            "to_support": self.support.canaries,
            "then_to_plant": self.support.planted,
            "rule": self.rule,
            "assumption": self.assumption,
            "note": self.note,
        }


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
            found = one_run_bound(
                correct=counted,
                guesses=counted,
                canaries=counted,
                delta=delta,
                confidence=1 - (1 - confidence) / 2 if half else confidence,
                neighbours=coin,
                insertions=insertions,
            )
            return replace(found, confidence=confidence)
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
    delta: float = DELTA,
    confidence: float = 0.95,
    accuracy: float | None = None,
    power: float = 0.8,
    candidates: int = 10**6,
    list_sizes: Sequence[int] = LIST_SIZES,
    neighbours: Neighbours = "add/remove",
    include: float = 0.5,
    owner: OwnerKind = "existing",
) -> tuple[PlanRow, ...]:
    """How many canaries would contradict a claim of ``epsilon``, or let an audit support it, by each way.

    ``neighbours`` are the claim's: `tacit audit` judges ``add/remove``, under which a rank shows half of what
    it shows for one secret in another's place. ``include`` is the coin of what is planted and ``owner`` whose
    text it is, by default as `tacit corpus plant` has them. Coins are evidence too where a fair one decides
    about all text of a user, so with new owners of one canary each, and under ``add/remove``; ranks and
    splits then share the error, as in `tacit audit`. Elsewhere ranks have all of it.

    ``delta`` is the claim's, and by default the audit's own. It limits what can be shown however many
    canaries there are; where that is less than needed, a row's note says how much it is and what helps.

    With ``accuracy``, also for a one-run attack whose guesses are right so often, each on its own: enough
    that it shows ``epsilon`` with probability ``power``.
    """
    check_levels(delta, confidence)
    if not 0 < epsilon <= 50:
        raise InputError(f"Expected 0 < epsilon={epsilon} <= 50, e.g. 8.")
    if not 0 < power < 1:
        raise InputError(f"Expected 0 < power={power} < 1, e.g. 0.8.")
    if not (accuracy is None or 0.5 < accuracy <= 1):
        raise InputError(f"Expected 0.5 < accuracy={accuracy} <= 1, e.g. 0.9.")
    if not 0 < include <= 1 or candidates < 2 or neighbours not in get_args(Neighbours):
        raise InputError(
            f"Expected 0 < include={include} <= 1, candidates={candidates} >= 2 and neighbours="
            f"{neighbours!r} to be {', '.join(get_args(Neighbours))}."
        )
    if owner not in get_args(OwnerKind):
        raise InputError(f"Expected owner={owner!r} to be {' or '.join(get_args(OwnerKind))}.")
    error = 1 - confidence
    coins = include == FAIR and owner == "new" and neighbours == "add/remove"
    if accuracy is not None and not coins:
        raise InputError(
            "accuracy is that of guesses about coins, which speak only with owner='new', include=0.5 and "
            "neighbours='add/remove'; give these, or leave accuracy out."
        )
    together = error / 2 if coins else error  # what ranks and splits have where both are made
    sizes = [size for size in list_sizes if size < candidates]
    steps = 1 if neighbours == "replace" else 2
    sharing = ", half of the error each for coins and ranks" if coins else ""

    def one_run(claimed: float, canaries: int) -> bool:
        return _coins_refute(claimed, canaries, delta, error)

    def one_run_split(claimed: float, canaries: int) -> bool:
        return _coins_refute(claimed, canaries - canaries // 2, delta, together / 2)

    def in_out(claimed: float, canaries: int) -> bool:
        found = detectable("in/out", canaries, delta=delta, confidence=confidence)
        return found.epsilon >= claimed

    def exposure(claimed: float, canaries: int) -> bool:
        if delta == 0:
            found = exposure_bound(
                ranks=[1] * canaries,
                candidates=candidates,
                confidence=1 - together,
                list_sizes=list_sizes,
                relation=neighbours,
            )
            return found.epsilon >= claimed
        return refutes(  # of perfect ranks the shortest list says most
            iterated(approximate_inverse(claimed, delta), steps),
            correct=canaries,
            guesses=canaries,
            canaries=canaries,
            alphabet=candidates,
            list_size=min(sizes),
            error=together / len(sizes),
        )

    def gaussian(alphabet: int) -> _Enough:
        over = 1 if alphabet == 2 else steps

        def enough(claimed: float, canaries: int) -> bool:
            return refutes(
                gaussian_inverse(over * gaussian_mu(claimed, delta)),
                correct=canaries,
                guesses=canaries,
                canaries=canaries,
                alphabet=alphabet,
                error=together if alphabet == 2 else together / len(sizes),
            )

        return enough

    def row(
        design: Design,
        assumption: str,
        enough: _Enough,
        *,
        ranks: bool = False,
        rule: int | None = None,
        most: int = MOST_CANARIES,
        helps: Callable[[float], str] = lambda shown: "a smaller delta raises that",
    ) -> PlanRow:
        needed = []
        for claimed in (epsilon, POWER * epsilon):
            found = _fewest(partial(enough, claimed), most)
            needed.append(Needed(found, _to_plant(found, include) if ranks else found))
        note = ""
        if None in (one.canaries for one in needed):
            shown = _most_shown(enough, most) if delta else None
            note = _too_many(most, delta=delta, shown=shown)
            if shown is not None:
                note += f"; {helps(shown)}"
            elif ranks:
                note += "; secrets with more values take fewer"
        return PlanRow(design, assumption, neighbours, needed[0], needed[1], rule, note)

    recursion = MOST_CANARIES if delta == 0 else _MOST_BY_RECURSION
    rows = [
        row(
            "exposure",
            f"every secret first of {candidates:,}, corrected over {len(sizes)} list sizes{sharing}",
            exposure,
            ranks=True,
            most=recursion,
            helps=partial(_helps_ranks, epsilon, delta, together / len(sizes), steps),
        )
    ]
    if coins:  # others are no evidence by these ways
        rows += [
            row(
                "one run, split",
                f"every guess right, their number chosen by splits{sharing}",
                one_run_split,
            ),
            row(
                "one run",
                "every guess right, their number fixed beforehand",
                one_run,
                rule=math.ceil(math.log(1 / error) * math.exp(epsilon)),
            ),
        ]
        if accuracy is not None:
            rows.append(_row_of_accuracy(epsilon, delta, confidence, accuracy, power, neighbours))
    rows.append(row("in/out", "perfect separation, so many independent trials of either world", in_out))
    if delta > 0:
        family = "for mechanisms with a Gaussian trade-off"
        if coins:
            described = f"every coin right, {family}: shown, and contradicts nothing{sharing}"
            rows.append(row("gaussian", described, gaussian(2), most=_MOST_BY_RECURSION))
        rows.append(
            row(
                "gaussian exposure",
                f"every secret first of {candidates:,}, {family}, as DP-SGD's whole curve nearly is, "
                f"corrected over {len(sizes)} list sizes{sharing}",
                gaussian(candidates),
                ranks=True,
                most=_MOST_BY_RECURSION,
            )
        )
    return tuple(rows)


def _coins_refute(epsilon: float, canaries: int, delta: float, error: float) -> bool:
    """Whether guesses that are all right refute (epsilon, delta).

    With canaries the chance of that falls, and what delta adds to it grows: where the first is far below the
    error, more of them do not help.
    """
    if delta > 0 and canaries > 10 * math.log(1 / error) * (1 + math.exp(epsilon)):
        return False
    return one_run_p_value(epsilon, canaries, canaries, canaries, delta) <= error


def _row_of_accuracy(
    epsilon: float, delta: float, confidence: float, accuracy: float, power: float, neighbours: Neighbours
) -> PlanRow:
    assumption = f"guesses right with probability {accuracy:g}, shown with probability {power:g}"
    limit = MOST_CANARIES if delta == 0 else _MOST_WITH_DELTA
    needed, notes = [], []
    for claimed in (epsilon, POWER * epsilon):
        if accuracy <= special.expit(claimed):
            most = float(special.logit(accuracy))
            notes.append(f"guesses that are right so often never show more than epsilon = {most:.2f}")
            needed.append(Needed(None, None))
            continue

        def enough(canaries: int, claimed: float = claimed) -> bool:
            least = _critical(claimed, delta, canaries, 1 - confidence)
            return least is not None and float(stats.binom.sf(least - 1, canaries, accuracy)) >= power

        found = _fewest(enough, limit)
        needed.append(Needed(found, found))
        if found is None:
            notes.append(_too_many(limit, delta=delta))
    return PlanRow(
        "one run", assumption, neighbours, needed[0], needed[1], None, "; ".join(dict.fromkeys(notes))
    )


def _to_plant(inserted: int | None, include: float) -> int | None:
    """The fewest to plant so that, by their coins, enough are in with probability :data:`SURE`."""
    if inserted is None or include == 1:
        return inserted
    return _fewest(
        lambda many: float(stats.binom.sf(inserted - 1, many, include)) >= SURE, 100 * MOST_CANARIES
    )


def _too_many(most: int, *, delta: float, shown: float | None = None) -> str:
    """Why there is no number; ``shown`` is what so many canaries or fewer show at the most."""
    if shown is None:
        or_delta = f", or more than delta = {delta:g} allows" if delta else ""
        return f"where there is no number: more than {most:,} canaries{or_delta}"
    return f"at delta = {delta:g} they never show more than epsilon = {shown:.2f}, up to {most:,} canaries"


def _most_shown(enough: _Enough, most: int) -> float:
    """The highest epsilon for which some number of canaries, up to ``most``, is enough."""
    return last_refuted(lambda claimed: _fewest(partial(enough, claimed), most) is not None, width=1e-3)


def _helps_ranks(epsilon: float, delta: float, error: float, steps: int, shown: float) -> str:
    """What lets ranks show more than they do at a delta that is too large.

    Over two steps nothing is refuted unless (error - delta) e^-epsilon > delta, whatever the number of
    canaries and of their values: so epsilon is below log(error/delta - 1) at this delta, and to show it takes
    one below error/(1 + e^epsilon).
    """
    if steps == 1:
        return "secrets with more values raise that, and so does a smaller delta"
    limit = max(0.0, math.log(max(1.0, error / delta - 1)))
    values = (
        f"secrets with more values raise that, but never above {limit:.2f}"
        if limit > shown + 0.01
        else "neither more of them nor more values raise that"
    )
    below = [error / (1 + math.exp(claimed)) for claimed in (epsilon, POWER * epsilon)]
    return (
        f"{values}: the claim must hold at a delta below {below[0]:.2g} to be contradicted, and below "
        f"{below[1]:.2g} to be supported"
    )


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
