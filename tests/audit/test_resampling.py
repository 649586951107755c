"""Intervals over secrets: against a slow bootstrap, and coverage where secrets are shared."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest
from scipy import stats

from tacit.attacks.groups import GroupPlan, draw_groups
from tacit.audit import auc, cluster_auc, group_auc
from tacit.audit.roc import delong
from tacit.errors import InputError


def slow_resamples(
    members: np.ndarray, others: np.ndarray, in_clusters: np.ndarray, out_clusters: np.ndarray, runs: int
) -> np.ndarray:
    """Draw clusters, copy their scores, compute the area anew."""
    rng, found = np.random.default_rng(0), []
    for _ in range(runs):
        sides = []
        for scores, clusters in ((members, in_clusters), (others, out_clusters)):
            names = np.unique(clusters)
            drawn = rng.choice(names, len(names))
            sides.append(np.concatenate([scores[clusters == name] for name in drawn]))
        found.append(delong(*sides)[0])
    return np.array(found)


def test_weighted_resamples_are_those_of_copied_scores() -> None:
    rng = np.random.default_rng(1)
    in_clusters, out_clusters = rng.integers(0, 25, 120), rng.integers(100, 130, 90)
    effect_in, effect_out = rng.standard_normal(25), rng.standard_normal(130)
    members = np.round(effect_in[in_clusters] + rng.standard_normal(120) * 0.3 + 0.7, 1)
    others = np.round(effect_out[out_clusters] + rng.standard_normal(90) * 0.3, 1)
    found = cluster_auc(
        members, others, member_clusters=in_clusters, non_member_clusters=out_clusters, resamples=4000
    )
    assert found.value == pytest.approx(delong(members, others)[0])
    slow = slow_resamples(members, others, in_clusters, out_clusters, 1500)
    low, high = np.quantile(slow, [0.025, 0.975])
    assert found.low == pytest.approx(low, abs=0.02)
    assert found.high == pytest.approx(high, abs=0.02)
    independent = auc(members, others)
    assert found.high - found.low > 1.5 * (independent.high - independent.low)


def test_clusters_that_hold_both_sides_are_drawn_whole() -> None:
    """A canary and its twin share their place: what they share cancels, and the interval is narrower."""
    rng = np.random.default_rng(2)
    place = rng.standard_normal(60) * 3
    planted, twins = place + 1 + 0.1 * rng.standard_normal(60), place + 0.1 * rng.standard_normal(60)
    names = np.arange(60)
    together = cluster_auc(planted, twins, member_clusters=names, non_member_clusters=names)
    apart = cluster_auc(planted, twins, member_clusters=names, non_member_clusters=names + 1000)
    assert together.value == apart.value
    assert together.high - together.low < 0.7 * (apart.high - apart.low)


def test_cluster_intervals_cover_where_independent_ones_do_not() -> None:
    rng, runs, secrets, each = np.random.default_rng(3), 200, 40, 10
    names = np.repeat(np.arange(secrets), each)
    cluster = partial(cluster_auc, member_clusters=names, non_member_clusters=names + 1000, resamples=300)
    hits = independent_hits = 0
    for run in range(runs):
        sides = [
            rng.standard_normal(secrets)[names] + 0.3 * rng.standard_normal(len(names)) for _ in range(2)
        ]
        found, independent = cluster(*sides, seed=run), auc(*sides)
        hits += found.low <= 0.5 <= found.high
        independent_hits += independent.low <= 0.5 <= independent.high
    assert hits / runs >= 0.89
    assert independent_hits / runs < 0.7


@pytest.mark.parametrize("shift", [0.0, 0.15])
def test_group_intervals_cover_where_independent_ones_do_not(shift: float) -> None:
    """50 groups of 10 out of 50 secrets a side; the truth is that of groups of 10 fresh secrets."""
    rng, runs, secrets, size = np.random.default_rng(4), 40, 50, 10
    true = float(stats.norm.cdf(shift * math.sqrt(size) / math.sqrt(2)))
    labels, names = np.arange(2 * secrets) < secrets, [f"s{number}" for number in range(2 * secrets)]
    hits = independent_hits = 0
    for run in range(runs):
        groups = draw_groups(labels, names, GroupPlan(groups=100, size=size), seed=run)
        values = rng.standard_normal(2 * secrets) + shift * labels
        found = group_auc(groups, {"x": values}, resamples=50, seed=run)["x"].area
        sums = groups.sums(values)
        independent = auc(sums[groups.is_member], sums[~groups.is_member])
        assert found.value == pytest.approx(independent.value)
        hits += found.low <= true <= found.high
        independent_hits += independent.low <= true <= independent.high
    assert hits / runs >= 0.85
    assert independent_hits / runs < 0.6


def test_secrets_with_many_texts_weigh_as_much_as_they_do_in_the_pool() -> None:
    """A secret that stands in half of all texts decides the interval, as it decides the area."""
    names = ["often"] * 20 + [f"s{number}" for number in range(20)] + [f"t{number}" for number in range(40)]
    labels = np.arange(80) < 40
    values = np.where(np.arange(80) < 20, 3.0, 0.0) + np.random.default_rng(0).standard_normal(80)
    groups = draw_groups(labels, names, GroupPlan(groups=60, size=5))
    found = group_auc(groups, {"x": values}, resamples=100)["x"].area
    alone = [*(f"u{number}" for number in range(20)), *names[20:]]
    apart = group_auc(draw_groups(labels, alone, GroupPlan(groups=60, size=5)), {"x": values}, resamples=100)
    assert found.value > 0.9
    assert found.low < apart["x"].area.low - 0.15  # without it, little is left


def test_no_resample_lacks_a_side() -> None:
    found = cluster_auc(
        [1.0, 3.0], [2.0, 2.5, 0.5], member_clusters=[0, 1], non_member_clusters=[2, 3, 4], resamples=500
    )
    assert found.value == pytest.approx(4 / 6)
    assert (found.low, found.high) == (0, 1)


def test_no_certainty_without_spread() -> None:
    labels, texts = np.arange(80) < 40, [f"s{number}" for number in range(80)]
    groups = draw_groups(labels, texts, GroupPlan(groups=20, size=10))
    apart = group_auc(groups, {"x": labels.astype(float)}, resamples=5)["x"]
    for one in (apart.area, apart.at_median):
        assert (one.value, one.high) == (1, 1)
        assert one.low == pytest.approx(0.025 ** (1 / 4))  # four groups share no secret
    names = np.arange(30) // 3
    separate = cluster_auc(np.ones(30), np.zeros(30), member_clusters=names, non_member_clusters=names + 100)
    assert separate.low == pytest.approx(0.025 ** (1 / 10))
    # Every text and its look-alike tie: no resample differs from another.
    tied = cluster_auc(names[::3], names[::3], member_clusters=names[::3], non_member_clusters=names[::3])
    assert tied.value == 0.5
    assert tied.high - 0.5 == pytest.approx(math.sqrt(-math.log(0.025) / 20))
    assert "Hoeffding" in tied.method
    equal = group_auc(groups, {"x": np.zeros(80)}, resamples=5)["x"]
    for one in (equal.area, equal.at_median):
        assert (one.value, one.low) == (0.5, 0)
    one = cluster_auc([1.0, 3.0], [2.0, 2.5], member_clusters=["a", "a"], non_member_clusters=["b", "c"])
    assert (one.low, one.high) == (0, 1)
    assert one.value == 0.5


def test_groups_are_repeatable_and_scores_share_their_draws() -> None:
    values = np.random.default_rng(5).random(40)
    groups = draw_groups(
        np.arange(40) < 20, [f"s{number}" for number in range(40)], GroupPlan(groups=20, size=4)
    )
    first = group_auc(groups, {"x": values, "twice": 2 * values}, resamples=40, seed=1)
    assert first == group_auc(groups, {"x": values, "twice": 2 * values}, resamples=40, seed=1)
    assert first["x"] == first["twice"]
    assert first != group_auc(groups, {"x": values, "twice": 2 * values}, resamples=40, seed=2)
    # Half of the groups are above the median of all: as many members are missed as others are taken for them.
    sums = groups.sums(values)
    members_above = int((sums > np.median(sums))[groups.is_member].sum())
    assert first["x"].at_median.value == pytest.approx(2 * members_above / 20)


def test_nonsense_is_refused() -> None:
    with pytest.raises(InputError, match="cluster"):
        cluster_auc([1.0], [2.0], member_clusters=[1, 2], non_member_clusters=[1])
    with pytest.raises(InputError, match="at least one"):
        cluster_auc([], [2.0], member_clusters=[], non_member_clusters=[1])


@pytest.mark.parametrize(("clusters", "few"), [(5, True), (19, True), (20, False)])
def test_too_few_clusters_are_told_of(clusters: int, few: bool) -> None:
    rng = np.random.default_rng(3)
    names = np.repeat(np.arange(clusters), 4)
    sides = rng.standard_normal((2, 4 * clusters))
    found = cluster_auc(*sides, member_clusters=names, non_member_clusters=names, resamples=50)
    assert ("too narrow" in found.method) == few
