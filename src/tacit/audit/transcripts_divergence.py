"""How far apart the laws of transcripts are in two worlds: exactly, or by simulation with an interval.

Exact where it can be. Questions that are fixed have answers that are independent of each other, so that
divergences add up. Questions that adapt are enumerated where there are few enough transcripts.

Otherwise by simulation. With p and q the two worlds' distributions of an answer, a the order, and
``Z = sum_v p_v^a q_v^(1-a)`` (the exponential of (a-1) D_a of that answer), let transcripts be drawn from the
*tilted* law ``p^a q^(1-a) / Z``, answer by answer. Along transcript y the product of the Z is X, and

    E[X] = sum_y prod_t p_t^a q_t^(1-a) / Z_t * Z_t = sum_y P(y)^a Q(y)^(1-a) = exp((a-1) D_a(P || Q)).

X varies only as far as losses differ between transcripts (not at all for fixed questions), while the plain
estimate E_P[(P/Q)^(a-1)] has a variance of order 2a-1. X is at least 1. Its expectation is bounded from below
by that of min(X, b), with b from a pilot, and that by the empirical Bernstein bound (Maurer and Pontil 2009,
Theorem 4), which needs no assumption. From above nothing is claimed: a rare transcript may be worse.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from tacit.audit.transcripts_worlds import Budgets, Questions, Step, TwoWorlds, Written
from tacit.privacy import renyi_divergence
from tacit.progress import Progress
from tacit.statistics import Estimate, FloatArray

Law = Literal["with", "without", "tilted", "tilted back"]
# Transcripts that are enumerated at most.
MOST_ENUMERATED: Final = 20_000
_TOGETHER: Final = 8
_LARGEST_EXPONENT: Final = 700.0


@dataclass(frozen=True, eq=False)
class Simulated:
    """Of transcripts of one law: the log-likelihood ratio, and the logarithm of X where the law is tilted."""

    ratios: FloatArray
    exponents: FloatArray


@dataclass(frozen=True, eq=False)
class _Group:
    """Transcripts that have met the same places."""

    written: Written
    budgets: Budgets
    members: dict[Law, np.ndarray[tuple[int], np.dtype[np.intp]]]


def simulate(
    worlds: TwoWorlds,
    questions: Questions,
    counts: dict[Law, int],
    *,
    seed: int,
    progress: Progress,
) -> dict[Law, Simulated]:
    """Draw so many transcripts of each law, all in one pass: every place is mixed once in either world.

    The ratio of a transcript is ``sum_t ln p_t(y_t) / q_t(y_t)``: by Neyman and Pearson no statistic of the
    transcript tells the worlds apart better.
    """
    rng = np.random.default_rng(seed)
    found = {law: Simulated(np.zeros(n), np.zeros(n)) for law, n in counts.items()}
    progress.phase("simulating transcripts", questions.queries)
    groups = [_Group((), worlds.begin(), {law: np.arange(n) for law, n in counts.items()})]
    for _ in range(questions.queries):
        following: list[_Group] = []
        for number, group in enumerate(groups):
            if questions.ahead is not None and number % _TOGETHER == 0:
                questions.ahead([one.written for one in groups[number : number + _TOGETHER]])
            step = worlds.step(group.budgets, questions.place(group.written))
            if step is not None:
                following.extend(_advance(group, step, questions, worlds.order, found, rng))
        groups = following
        progress.advance(1)
    return found


def _advance(
    group: _Group,
    step: Step,
    questions: Questions,
    order: float,
    found: dict[Law, Simulated],
    rng: np.random.Generator,
) -> Iterator[_Group]:
    ratio = np.log(step.with_part) - np.log(step.without)
    next_members: dict[int, dict[Law, np.ndarray[tuple[int], np.dtype[np.intp]]]] = {}
    for law, members in group.members.items():
        pmf, exponent = _law(step, ratio, law, order)
        tokens = _draw(pmf, len(members), rng)
        found[law].ratios[members] += ratio[tokens]
        found[law].exponents[members] += exponent
        if not questions.adaptive:
            next_members.setdefault(0, {})[law] = members
            continue
        by_token = np.argsort(tokens, kind="stable")
        drawn, starts = np.unique(tokens[by_token], return_index=True)
        for token, some in zip(drawn.tolist(), np.split(members[by_token], starts[1:]), strict=True):
            next_members.setdefault(token, {})[law] = some
    for token, laws in next_members.items():
        yield _Group((*group.written, token), step.after, laws)


def _law(step: Step, ratio: FloatArray, law: Law, order: float) -> tuple[FloatArray, float]:
    if law == "with":
        return step.with_part, 0.0
    if law == "without":
        return step.without, 0.0
    near, sign = (step.with_part, 1) if law == "tilted" else (step.without, -1)
    weights = np.log(near) + (order - 1) * sign * ratio  # p^a q^(1-a)
    tilted = np.exp(weights - weights.max())
    # Z by the divergence itself, which does not cancel where the worlds are close.
    far = step.without if law == "tilted" else step.with_part
    return tilted / tilted.sum(), (order - 1) * float(renyi_divergence(near, far, order))


def _draw(pmf: FloatArray, count: int, rng: np.random.Generator) -> np.ndarray[tuple[int], np.dtype[np.intp]]:
    cumulative = np.cumsum(pmf)
    tokens = np.searchsorted(cumulative, rng.random(count) * cumulative[-1], side="right")
    return np.asarray(np.minimum(tokens, len(pmf) - 1))


def exact_divergence(
    worlds: TwoWorlds, questions: Questions, *, vocabulary: int, most: int = MOST_ENUMERATED
) -> Estimate | None:
    """The larger of both directions of D_a between whole transcripts; None where there are more than most."""
    if not questions.adaptive:
        return _exactly(_of_fixed_questions(worlds, questions), "exact: fixed questions add up")
    if vocabulary**questions.queries > most:
        return None
    laws = np.array(list(_leaves(worlds, questions, (), worlds.begin(), 1.0, 1.0)))
    divergence = max(
        float(renyi_divergence(one, other, worlds.order)) for one, other in (laws.T, laws.T[::-1])
    )
    return _exactly(divergence, f"exact: {len(laws):,} transcripts enumerated")


def _of_fixed_questions(worlds: TwoWorlds, questions: Questions) -> float:
    there = back = 0.0
    written: Written = ()
    budgets = worlds.begin()
    for _ in range(questions.queries):
        step = worlds.step(budgets, questions.place(written))
        if step is None:
            break
        there += float(renyi_divergence(step.with_part, step.without, worlds.order))
        back += float(renyi_divergence(step.without, step.with_part, worlds.order))
        written, budgets = (*written, 0), step.after  # whatever was drawn
    return max(there, back)


def _leaves(
    worlds: TwoWorlds, questions: Questions, written: Written, budgets: Budgets, here: float, there: float
) -> Iterator[tuple[float, float]]:
    """Probabilities of every transcript in both worlds; those that end early are one with all their ends."""
    step = None
    if len(written) < questions.queries:
        step = worlds.step(budgets, questions.place(written))
    if step is None:
        yield here, there
        return
    for token in range(len(step.with_part)):
        yield from _leaves(
            worlds,
            questions,
            (*written, token),
            step.after,
            here * float(step.with_part[token]),
            there * float(step.without[token]),
        )


def simulated_divergence(
    tilted: dict[Law, Simulated], *, pilot: int, order: float, confidence: float
) -> Estimate:
    """D_a from tilted transcripts, the first ``pilot`` of each direction choosing where X is cut off.

    Both directions share the error; the value is the larger of both.
    """
    each = 1 - (1 - confidence) / 2
    found = [_one_direction(tilted[law].exponents, pilot, order, each) for law in ("tilted", "tilted back")]
    transcripts = len(tilted["tilted"].exponents) - pilot
    return Estimate(
        max(value for value, _ in found),
        max(low for _, low in found),
        math.inf,
        confidence,
        f"{transcripts:,} tilted transcripts a direction, empirical Bernstein from below",
    )


def _one_direction(exponents: FloatArray, pilot: int, order: float, confidence: float) -> tuple[float, float]:
    cut = min(float(exponents[:pilot].max()), _LARGEST_EXPONENT)
    counted = exponents[pilot:]
    n = len(counted)
    peak = float(counted.max())
    value = (peak + math.log(float(np.mean(np.exp(counted - peak))))) / (order - 1)
    if cut <= 0:
        return max(0.0, value), 0.0
    # (min(X, b) - 1) / (b - 1), which lies in [0, 1].
    share = np.expm1(np.minimum(counted, cut)) / math.expm1(cut)
    tail = math.log(2 / (1 - confidence))
    least = (
        float(share.mean()) - math.sqrt(2 * float(share.var(ddof=1)) * tail / n) - 7 * tail / (3 * (n - 1))
    )
    low = math.log1p(max(0.0, least) * math.expm1(cut)) / (order - 1)
    return max(0.0, value), min(low, max(0.0, value))


def _exactly(value: float, method: str) -> Estimate:
    return Estimate(value, value, value, 1 - 1e-12, method)
