"""Lower bounds on epsilon: golden values, slow oracles, and error rates by exact enumeration."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from tacit.audit import EpsilonLowerBound, exposure_bound, one_run_bound, separation_bound, strongest
from tacit.audit.bounds import one_run_p_value
from tacit.errors import InputError

LEVEL = 0.05


def odds_to_share(epsilon: float, listed: int = 1, candidates: int = 2) -> float:
    """How often the best list holds the secret of K-ary randomised response."""
    return listed * math.exp(epsilon) / (listed * math.exp(epsilon) + candidates - listed)


def first_of(hits: int, total: int, size: int, candidates: int) -> list[int]:
    return [size] * hits + [candidates] * (total - hits)


@pytest.mark.parametrize(
    ("canaries", "one_run", "in_out"),
    [(10, 1.05, 0.81), (50, 2.78, 2.57), (100, 3.49, 3.28), (1000, 5.81, 5.60), (10_000, 8.11, 7.90)],
)
def test_perfect_guesses_have_the_published_bounds(canaries: int, one_run: float, in_out: float) -> None:
    """research/audit.md 4.2; the one-run row is -log(0.05^(-1/m) - 1)."""
    all_right = one_run_bound(correct=canaries, guesses=canaries, canaries=canaries)
    assert all_right.epsilon == pytest.approx(one_run, abs=0.005)
    assert all_right.epsilon == pytest.approx(-math.log(0.05 ** (-1 / canaries) - 1), rel=1e-9)
    apart = separation_bound(
        true_positives=canaries, members=canaries, false_positives=0, non_members=canaries
    )
    assert apart.epsilon == pytest.approx(in_out, abs=0.005)


@pytest.mark.parametrize(
    ("hits", "total", "size", "epsilon"),
    [
        (10, 10, 1, 14.87),
        (5, 10, 1, 12.56),
        (1, 10, 1, 8.55),
        (1, 100, 1, 6.24),
        (3, 10, 1000, 4.56),
        (10, 10, 1000, 7.96),
    ],
)
def test_exposure_has_the_published_bounds(hits: int, total: int, size: int, epsilon: float) -> None:
    """research/audit.md 4.2, K = 10^6, one list size."""
    ranks = first_of(hits, total, size, 10**6)
    found = exposure_bound(ranks=ranks, candidates=10**6, list_sizes=(size,))
    assert found.epsilon == pytest.approx(epsilon, abs=0.005)
    masked = exposure_bound(ranks=ranks, candidates=10**6, list_sizes=(size,), relation="mask", insertions=3)
    assert masked.epsilon == pytest.approx(found.epsilon / 6)
    corrected = exposure_bound(ranks=ranks, candidates=10**6)
    assert 0 < corrected.epsilon < found.epsilon


def test_two_candidates_are_one_run_without_abstention() -> None:
    for hits in range(41):
        by_rank = exposure_bound(ranks=[1] * hits + [2] * (40 - hits), candidates=2)
        by_coin = one_run_bound(correct=hits, guesses=40, canaries=40)
        assert by_rank.epsilon == pytest.approx(by_coin.epsilon, abs=1e-12)


@pytest.mark.parametrize("epsilon", [0.0, 0.3, 2.0])
@pytest.mark.parametrize(
    ("correct", "guesses", "canaries"), [(9, 10, 30), (25, 25, 25), (1, 4, 4), (0, 3, 9)]
)
def test_one_run_p_value_against_the_formula_term_by_term(
    epsilon: float, correct: int, guesses: int, canaries: int
) -> None:
    delta, share = 1e-3, odds_to_share(epsilon)
    law = [math.comb(guesses, w) * share**w * (1 - share) ** (guesses - w) for w in range(guesses + 1)]
    between = [
        sum(law[w] for w in range(guesses + 1) if correct - i <= w < correct) / i
        for i in range(1, canaries + 1)
    ]
    expected = sum(law[correct:]) + 2 * canaries * delta * max(between)
    assert one_run_p_value(epsilon, correct, guesses, canaries, delta) == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize(
    ("correct", "guesses"), [(5_000, 9_000), (4_750, 9_000), (4_650, 9_000), (9_000, 9_000)]
)
def test_one_run_p_value_of_many_guesses_looks_at_every_step(correct: int, guesses: int) -> None:
    delta = 1e-4
    for epsilon in (0.0, 0.1):
        law = stats.binom(guesses, odds_to_share(epsilon))
        steps = np.arange(1, correct + 1)
        between = (law.cdf(correct - 1) - law.cdf(correct - steps - 1)) / steps
        expected = law.sf(correct - 1) + 2 * guesses * delta * between.max()
        assert one_run_p_value(epsilon, correct, guesses, guesses, delta) == pytest.approx(expected, rel=1e-9)


@cache
def one_run_bounds(canaries: int, delta: float) -> np.ndarray:
    return np.array(
        [
            one_run_bound(correct=v, guesses=canaries, canaries=canaries, delta=delta).epsilon
            for v in range(canaries + 1)
        ]
    )


def leaking_laws(canaries: int, epsilon: float, delta: float) -> dict[str, np.ndarray]:
    """Laws of the number of right guesses of mechanisms that are exactly (epsilon, delta)-DP."""
    counts = np.arange(canaries + 1)
    share = odds_to_share(epsilon)
    response = stats.binom.pmf(counts, canaries, share)
    everything = (1 - delta) * response
    everything[-1] += delta
    # Each coin is told on its own with probability delta, and answered by randomised response otherwise.
    one_by_one = stats.binom.pmf(counts, canaries, delta + (1 - delta) * share)
    return {"all at once": everything, "one by one": one_by_one}


@pytest.mark.parametrize("epsilon", [0.0, 0.5, 1.0, 3.0])
@pytest.mark.parametrize("delta", [0.0, 1e-4, 0.01])
def test_one_run_is_wrong_at_most_as_often_as_it_says(epsilon: float, delta: float) -> None:
    for canaries in (5, 40, 100):
        exceeded = one_run_bounds(canaries, delta) > epsilon
        for law in leaking_laws(canaries, epsilon, delta).values():
            assert law[exceeded].sum() <= LEVEL
        if epsilon and not delta and canaries == 100:
            stronger = stats.binom.pmf(np.arange(101), 100, odds_to_share(1.5 * epsilon + 0.5))
            assert stronger[exceeded].sum() > 0.5


def test_leaving_delta_out_would_be_noticed() -> None:
    canaries, delta = 40, 0.2
    law = leaking_laws(canaries, 1.0, delta)["all at once"]
    assert law[one_run_bounds(canaries, 0.0) > 1.0].sum() > LEVEL
    assert law[one_run_bounds(canaries, delta) > 1.0].sum() <= LEVEL


@pytest.mark.parametrize("delta", [0.0, 0.02])
def test_separation_is_wrong_at_most_as_often_as_it_says(delta: float) -> None:
    trials, epsilon = 25, 1.0
    counts = np.arange(trials + 1)
    bounds = np.array(
        [
            [
                separation_bound(
                    true_positives=int(hits),
                    members=trials,
                    false_positives=int(alarms),
                    non_members=trials,
                    delta=delta,
                ).epsilon
                for alarms in counts
            ]
            for hits in counts
        ]
    )
    worst = 0.0
    for alarm in np.concatenate([[0.0], np.linspace(0.001, 0.6, 60)]):
        # On the edge of (epsilon, delta), in either direction: the most that the mechanism allows.
        for hit in (delta + math.exp(epsilon) * alarm, 1 - math.exp(-epsilon) * (1 - delta - alarm)):
            if (
                not 0 <= hit <= 1
                or hit
                > min(delta + math.exp(epsilon) * alarm, 1 - math.exp(-epsilon) * (1 - delta - alarm)) + 1e-12
            ):
                continue
            law = np.outer(stats.binom.pmf(counts, trials, hit), stats.binom.pmf(counts, trials, alarm))
            worst = max(worst, law[bounds > epsilon].sum())
    assert 0 < worst <= LEVEL
    # The wrong side: with the point estimates for bounds, the level is missed by far.
    share = counts / trials
    with np.errstate(divide="ignore", invalid="ignore"):
        naive = np.log((share[:, None] - delta) / share[None, :])
    law = np.outer(
        stats.binom.pmf(counts, trials, math.e * 0.1 + delta), stats.binom.pmf(counts, trials, 0.1)
    )
    assert law[naive > epsilon].sum() > 0.2
    strong = np.outer(stats.binom.pmf(counts, trials, 0.9), stats.binom.pmf(counts, trials, 0.05))
    assert strong[bounds > epsilon].sum() > 0.5


@pytest.mark.parametrize(("hits", "alarms"), [(30, 1), (39, 15), (40, 40), (3, 2)])
def test_separation_against_the_formula_in_either_direction(hits: int, alarms: int) -> None:
    delta = 0.03
    low = stats.beta.ppf(0.025, hits, 41 - hits)
    high = stats.beta.ppf(0.975, alarms + 1, 40 - alarms) if alarms < 40 else 1.0
    expected = max(
        math.log((low - delta) / high) if low > delta else 0.0,
        math.log((1 - high - delta) / (1 - low)) if 1 - high > delta else 0.0,
        0.0,
    )
    found = separation_bound(
        true_positives=hits, members=40, false_positives=alarms, non_members=40, delta=delta
    )
    assert found.epsilon == pytest.approx(expected, abs=1e-12)


def ranks_of_randomised_response(
    rng: np.random.Generator, runs: int, total: int, candidates: int, epsilon: float, delta: float = 0.0
) -> np.ndarray:
    """[runs, total] ranks: the answer is the secret or, each as likely, one of the others."""
    told = rng.random((runs, total)) < delta + (1 - delta) * odds_to_share(epsilon, 1, candidates)
    return np.where(told, 1, rng.integers(2, candidates + 1, (runs, total)))


@pytest.mark.parametrize(
    ("candidates", "sizes", "epsilon"), [(10, (1,), 1.0), (1000, (1, 10, 100), 6.0), (10**6, (1, 10), 13.0)]
)
def test_exposure_on_randomised_response_at_exactly_epsilon(
    candidates: int, sizes: tuple[int, ...], epsilon: float
) -> None:
    rng, runs, total = np.random.default_rng(3), 1000, 12

    def exceeding(true: float) -> float:
        ranks = ranks_of_randomised_response(rng, runs, total, candidates, true)
        return float(
            np.mean(
                [
                    exposure_bound(ranks=row, candidates=candidates, list_sizes=sizes).epsilon > epsilon
                    for row in ranks
                ]
            )
        )

    # Four standard errors of a rate at the level.
    assert exceeding(epsilon) <= LEVEL + 4 * math.sqrt(LEVEL * (1 - LEVEL) / runs)
    assert exceeding(1.5 * epsilon + 2) > 0.5


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("epsilon", [0.0, 1.0, 3.0])
def test_exposure_by_lists_is_exact_for_the_mechanism_that_answers_with_lists(
    size: int, epsilon: float
) -> None:
    """A mechanism that names s values, the secret among them as often as epsilon allows."""
    candidates, total = 20, 15
    counts = np.arange(total + 1)
    law = stats.binom.pmf(counts, total, odds_to_share(epsilon, size, candidates))
    bounds = np.array(
        [
            exposure_bound(
                ranks=first_of(int(k), total, size, candidates), candidates=candidates, list_sizes=(size,)
            ).epsilon
            for k in counts
        ]
    )
    assert law[bounds > epsilon].sum() <= LEVEL
    # Tight: the bound of one hit fewer than the first that refutes epsilon is allowed by more than the level.
    first = int(np.argmax(bounds > epsilon))
    assert law[first - 1 :].sum() > LEVEL


def test_choosing_the_best_list_size_without_correction_would_be_noticed() -> None:
    """The best of many lists, each at the full level, exceeds it on null ranks; the correction does not."""
    rng, runs, total, candidates = np.random.default_rng(5), 1500, 10, 1000
    sizes = tuple(range(1, 1000, 30))
    ranks = rng.integers(1, candidates + 1, (runs, total))
    hits = (ranks[:, :, None] <= np.array(sizes)).sum(axis=1)
    p_values = stats.binom.sf(hits - 1, total, np.array(sizes) / candidates)
    assert (p_values.min(axis=1) <= LEVEL).mean() > 2 * LEVEL
    corrected = [
        exposure_bound(ranks=row, candidates=candidates, list_sizes=sizes).epsilon > 0 for row in ranks[:150]
    ]
    assert np.mean(corrected) <= LEVEL


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 60), st.integers(0, 60), st.integers(0, 60), st.sampled_from([0.0, 1e-6, 1e-3]))
def test_bounds_grow_with_success_and_fall_with_confidence(
    guesses: int, correct: int, abstained: int, delta: float
) -> None:
    correct = min(correct, guesses)
    canaries = guesses + abstained

    def bound(right: int, confidence: float = 0.95, lost: float = delta) -> float:
        return one_run_bound(
            correct=right, guesses=guesses, canaries=canaries, delta=lost, confidence=confidence
        ).epsilon

    found = bound(correct)
    perfect = one_run_bound(correct=guesses, guesses=guesses, canaries=canaries).epsilon
    assert 0 <= found <= perfect
    assert correct == 0 or bound(correct - 1) <= found + 1e-8
    assert bound(correct, 0.99) <= found + 1e-8
    assert found <= bound(correct, lost=0.0) + 1e-8
    # The p-value grows with epsilon up to where it passes the level: the bound is where it first does.
    grid = np.linspace(0, found, 20)
    values = [one_run_p_value(float(e), correct, guesses, canaries, delta) for e in grid]
    if found > 0:
        assert max(values) <= 0.05 + 1e-9
        assert one_run_p_value(found + 1e-4, correct, guesses, canaries, delta) > 0.05


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 50), min_size=1, max_size=12), st.sampled_from([0.0, 1e-5, 1e-2]))
def test_better_ranks_never_lower_the_bound(ranks: list[int], delta: float) -> None:
    def bound(found: list[int], confidence: float = 0.95) -> float:
        return exposure_bound(ranks=found, candidates=50, confidence=confidence, delta=delta).epsilon

    found = bound(ranks)
    better = [max(1, rank // 2) for rank in ranks]
    assert 0 <= found <= bound(better) + 1e-6 <= bound([1] * len(ranks)) + 2e-6
    assert bound(ranks, 0.99) <= found + 1e-6


@pytest.mark.parametrize("delta", [1e-6, 1e-3])
def test_repeated_canaries_are_a_group(delta: float) -> None:
    """n insertions: a bound epsilon for one means (n epsilon, sum e^(i epsilon) delta) for all of them."""
    alone = one_run_bound(correct=38, guesses=40, canaries=40)
    assert one_run_bound(correct=38, guesses=40, canaries=40, insertions=4).epsilon == pytest.approx(
        alone.epsilon / 4
    )
    together = one_run_bound(correct=38, guesses=40, canaries=40, insertions=4, delta=delta).epsilon
    whole = sum(delta * math.exp(i * together) for i in range(4))
    assert one_run_p_value(4 * together, 38, 40, 40, whole) == pytest.approx(0.05, abs=1e-6)


def test_the_strongest_of_several_pays_for_all() -> None:
    bounds = [one_run_bound(correct=v, guesses=20, canaries=20, confidence=0.99) for v in (15, 20, 11)]
    found = strongest(bounds)
    assert found.epsilon == bounds[1].epsilon
    assert found.confidence == pytest.approx(0.97)
    assert "highest of 3" in found.method
    assert strongest(bounds[:1]).method == bounds[0].method
    with pytest.raises(InputError, match="same delta"):
        strongest([bounds[0], bounds[1].per("user")])
    with pytest.raises(InputError, match="same delta"):
        strongest([])
    with pytest.raises(InputError, match="raise each confidence"):
        strongest([one_run_bound(correct=2, guesses=2, canaries=2, confidence=0.7)] * 2)


def test_a_bound_is_a_value_and_refuses_nonsense() -> None:
    found = one_run_bound(correct=9, guesses=10, canaries=20, delta=1e-6, neighbours="replace")
    assert EpsilonLowerBound.from_json(found.to_json()) == found
    assert found.unit is None
    assert EpsilonLowerBound.from_json(found.per("part").to_json()).unit == "part"
    assert found.estimate.low == found.epsilon
    assert found.estimate.high == math.inf
    assert not found.shows_nothing
    assert one_run_bound(correct=5, guesses=10, canaries=10).shows_nothing
    assert separation_bound(true_positives=0, members=0, false_positives=0, non_members=0).shows_nothing
    for wrong in ((11, 10, 20), (5, 10, 9), (-1, 10, 10)):
        with pytest.raises(InputError, match="correct"):
            one_run_bound(correct=wrong[0], guesses=wrong[1], canaries=wrong[2])
    with pytest.raises(InputError, match="delta"):
        one_run_bound(correct=1, guesses=1, canaries=1, delta=1.0)
    with pytest.raises(InputError, match="confidence"):
        one_run_bound(correct=1, guesses=1, canaries=1, confidence=0.3)
    for ranks in ([], [0], [11], [[1]]):
        with pytest.raises(InputError, match="rank"):
            exposure_bound(ranks=ranks, candidates=10)
    with pytest.raises(InputError, match="list sizes"):
        exposure_bound(ranks=[1], candidates=10, list_sizes=(0,))
    with pytest.raises(InputError, match="insertions"):
        exposure_bound(ranks=[1], candidates=10, insertions=0)
    for epsilon in (-0.1, math.inf, math.nan):
        with pytest.raises(ValueError, match="epsilon"):
            EpsilonLowerBound(epsilon, 0.0, 0.95, "m")
