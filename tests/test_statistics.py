"""Intervals: golden values, exact coverage, and the wrong side of every bound."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from tacit.errors import InputError
from tacit.statistics import (
    FEW_USERS,
    Estimate,
    Side,
    bootstrap_over_users,
    bounded_mean,
    clopper_pearson,
    percentile_interval,
)


def test_clopper_pearson_matches_published_values() -> None:
    # Clopper and Pearson (1934), and the "rule of three": 0 of n gives an upper bound near 3/n.
    assert clopper_pearson(0, 200, side="upper").high == pytest.approx(0.014867, abs=1e-6)
    two_sided = clopper_pearson(4, 20)
    assert two_sided.low == pytest.approx(0.057334, abs=1e-6)
    assert two_sided.high == pytest.approx(0.436614, abs=1e-6)
    assert clopper_pearson(0, 100, side="upper").high == pytest.approx(0.029513, abs=1e-6)


@pytest.mark.parametrize("side", ["two-sided", "upper", "lower"])
def test_clopper_pearson_covers_at_least_its_level_and_no_narrower_interval_does(side: str) -> None:
    trials = 30
    for share in np.linspace(0.01, 0.99, 25):
        weights = stats.binom.pmf(np.arange(trials + 1), trials, share)
        intervals = [clopper_pearson(hits, trials, confidence=0.9, side=side) for hits in range(trials + 1)]  # type: ignore[arg-type]
        covered = sum(w for w, i in zip(weights, intervals, strict=True) if i.low <= share <= i.high)
        assert covered >= 0.9 - 1e-12
    # The wrong side: pulling the upper bound in by a tenth loses the coverage somewhere.
    if side == "upper":
        shares = np.linspace(0.01, 0.99, 200)
        worst = min(
            sum(
                stats.binom.pmf(hits, trials, share)
                for hits in range(trials + 1)
                if share <= clopper_pearson(hits, trials, confidence=0.9, side="upper").high * 0.9
            )
            for share in shares
        )
        assert worst < 0.9


@given(
    st.integers(0, 200),
    st.integers(0, 200),
    st.floats(0.001, 0.999),
    st.sampled_from(["two-sided", "upper", "lower"]),
)
def test_clopper_pearson_holds_its_value(hits: int, misses: int, confidence: float, side: Side) -> None:
    estimate = clopper_pearson(hits, hits + misses, confidence=confidence, side=side)
    assert 0 <= estimate.low <= estimate.value <= estimate.high <= 1
    assert side != "upper" or estimate.low == 0
    assert side != "lower" or estimate.high == 1


def test_edge_cases_of_shares() -> None:
    assert clopper_pearson(0, 0).low == 0
    assert clopper_pearson(0, 0).high == 1
    assert clopper_pearson(5, 5).high == 1
    for hits, trials in ((-1, 5), (6, 5), (0, -1)):
        with pytest.raises(InputError, match="hits"):
            clopper_pearson(hits, trials)
    with pytest.raises(InputError, match="confidence"):
        clopper_pearson(1, 2, confidence=1.0)


def ratio(totals: np.ndarray) -> np.ndarray:
    return np.asarray(totals[..., 0] / totals[..., 1])


def test_bootstrap_resamples_users_and_not_documents() -> None:
    # Ten users of 100 identical documents each: the interval must be that of 10 values, not of 1000.
    values = np.arange(10.0)
    sums = np.stack([values * 100, np.full(10, 100.0)], axis=1)
    estimate = bootstrap_over_users(sums, ratio)
    assert estimate.value == pytest.approx(4.5)
    spread = stats.sem(values) * math.sqrt(9 / 10)
    assert estimate.high - estimate.low == pytest.approx(2 * 1.96 * spread, rel=0.1)
    assert "10 users" in estimate.method


def test_bootstrap_covers_near_its_level_and_a_wrong_one_would_be_noticed() -> None:
    generator = np.random.default_rng(1)
    hits = narrow_hits = 0
    runs = 300
    for run in range(runs):
        sums = np.stack([generator.exponential(1.0, 60), np.ones(60)], axis=1)
        estimate = bootstrap_over_users(sums, ratio, resamples=400, seed=run)
        hits += estimate.low <= 1 <= estimate.high
        half = (estimate.high - estimate.low) / 4  # half as wide as it should be
        narrow_hits += abs(estimate.value - 1) <= half
    assert 0.88 <= hits / runs <= 0.98
    assert narrow_hits / runs < 0.8


def test_bootstrap_is_repeatable_and_in_blocks_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    sums = np.random.default_rng(0).random((50, 2)) + 0.5
    whole = bootstrap_over_users(sums, ratio, seed=3)
    assert bootstrap_over_users(sums, ratio, seed=3) == whole
    assert bootstrap_over_users(sums, ratio, seed=4) != whole
    seen: list[int] = []

    def counting(totals: np.ndarray) -> np.ndarray:
        seen.append(len(totals) if totals.ndim == 2 else 0)
        return ratio(totals)

    monkeypatch.setattr("tacit.statistics._RESAMPLE_CELLS", 50 * 700)
    assert bootstrap_over_users(sums, counting, seed=3) == whole
    assert seen == [0, 700, 700, 600]


def test_bootstrap_edge_cases() -> None:
    one = bootstrap_over_users([[2.0, 4.0]], ratio)
    assert (one.value, one.low, one.high) == (0.5, -math.inf, math.inf)
    constant = bootstrap_over_users([[2.0, 1.0]] * 5, ratio)
    assert constant.low == constant.high == 2.0
    for bad in ([], [[math.nan, 1.0]], [1.0, 2.0]):
        with pytest.raises(InputError, match="sums"):
            bootstrap_over_users(bad, ratio)


@pytest.mark.parametrize(("count", "most_misses"), [(1, 0.05), (3, 0.05), (10, 0.05), (FEW_USERS, 0.12)])
def test_bounded_means_cover_with_few_values(count: int, most_misses: float) -> None:
    # Exposures among 100 where nothing is memorised: skewed, and with an end that is reached.
    ranks = np.arange(1, 101)
    bits = math.log2(100) - np.log2(ranks)
    generator = np.random.default_rng(4)
    missed = 0
    for _ in range(400):
        drawn = bits[generator.integers(0, 100, count)]
        found = bounded_mean(drawn, least=0, most=math.log2(100), of="canaries")
        assert 0 <= found.low <= found.value <= found.high <= math.log2(100)
        missed += not found.low <= bits.mean() <= found.high
    assert missed / 400 <= most_misses


def test_bounded_means_of_equal_values_claim_no_certainty() -> None:
    for count in (1, 3, 200):
        found = bounded_mean([13.3] * count, least=0, most=13.3, of="canaries")
        assert found.value == pytest.approx(13.3)
        assert found.high == pytest.approx(13.3)
        assert found.low == pytest.approx(max(0, 13.3 - 13.3 * math.sqrt(math.log(40) / 2 / count)))
        assert f"Hoeffding, {count} canaries" in found.method
    # One value that counts for almost everything is almost alone.
    heavy = bounded_mean([0.0, 1.0, 1.0], weights=[98, 1, 1], least=0, most=1, of="users")
    assert heavy.value == pytest.approx(0.02)
    assert heavy.high == 1
    spread = bounded_mean(np.linspace(0, 1, 50), least=0, most=1, of="canaries")
    assert spread.method == "bootstrap over 50 canaries"
    with pytest.raises(InputError, match="most=1"):
        bounded_mean([2.0], least=0, most=1, of="users")
    with pytest.raises(InputError, match="at least one value"):
        bounded_mean([], least=0, most=1, of="users")


def test_a_percentile_interval_holds_its_value_and_claims_nothing_from_nothing() -> None:
    draws = np.append(np.linspace(0, 1, 101), [math.nan, math.inf])
    middle = percentile_interval(0.5, draws, confidence=0.9, method="m")
    assert (middle.low, middle.high) == pytest.approx((0.05, 0.95))
    assert percentile_interval(2.0, draws, confidence=0.9, method="m").high == 2
    nothing = percentile_interval(2.0, np.array([math.nan]), confidence=0.9, method="m")
    assert (nothing.low, nothing.high) == (-math.inf, math.inf)


def test_an_estimate_survives_json_and_refuses_nonsense() -> None:
    for estimate in (Estimate(1.0, 0.5, 2.0, 0.95, "m"), Estimate(1.0, -math.inf, math.inf, 0.9, "m")):
        assert Estimate.from_json(estimate.to_json()) == estimate
    assert str(Estimate(12.345678, 11.0, 13.0, 0.95, "m")) == "12.35 [11, 13]"
    for value, low, high in ((3.0, 0.0, 2.0), (math.nan, 0.0, 1.0), (0.5, 1.0, 0.0)):
        with pytest.raises(ValueError, match="low <= value <= high"):
            Estimate(value, low, high, 0.95, "m")
