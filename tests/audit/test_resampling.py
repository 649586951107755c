"""Intervals over secrets: against a slow bootstrap, and coverage where secrets are shared."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
import pytest
from scipy import stats

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
    """150 groups of 10 out of 50 secrets a side; the truth is that of groups of 10 fresh secrets."""
    rng, runs, secrets, groups, size = np.random.default_rng(4), 120, 50, 150, 10
    true = float(stats.norm.cdf(shift * math.sqrt(size) / math.sqrt(2)))
    hits = independent_hits = 0
    for run in range(runs):
        designs = [rng.permuted(np.tile(np.arange(secrets), (groups, 1)), axis=1)[:, :size] for _ in range(2)]
        values = [rng.standard_normal(secrets) + shift, rng.standard_normal(secrets)]
        found = group_auc(
            *values, member_groups=designs[0], non_member_groups=designs[1], resamples=150, seed=run
        )
        sums = [v[d].sum(axis=1) for v, d in zip(values, designs, strict=True)]
        independent = auc(*sums)
        assert found.value == pytest.approx(independent.value)
        hits += found.low <= true <= found.high
        independent_hits += independent.low <= true <= independent.high
    assert hits / runs >= 0.87
    assert independent_hits / runs < 0.6


def test_no_resample_lacks_a_side() -> None:
    found = cluster_auc(
        [1.0, 3.0], [2.0, 2.5, 0.5], member_clusters=[0, 1], non_member_clusters=[2, 3, 4], resamples=500
    )
    assert found.value == pytest.approx(4 / 6)
    assert (found.low, found.high) == (0, 1)


def test_no_certainty_without_spread() -> None:
    groups = np.arange(40).reshape(4, 10)
    apart = group_auc(np.ones(40) + 1, np.ones(40), member_groups=groups, non_member_groups=groups)
    assert (apart.value, apart.high) == (1, 1)
    assert apart.low == pytest.approx(0.025 ** (1 / 4))
    names = np.arange(30) // 3
    separate = cluster_auc(np.ones(30), np.zeros(30), member_clusters=names, non_member_clusters=names + 100)
    assert separate.low == pytest.approx(0.025 ** (1 / 10))
    one = cluster_auc([1.0, 3.0], [2.0, 2.5], member_clusters=["a", "a"], non_member_clusters=["b", "c"])
    assert (one.low, one.high) == (0, 1)
    assert one.value == 0.5


def test_repeatable_and_in_blocks_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(5)
    values = rng.random(20), rng.random(20)
    groups = rng.integers(0, 20, (15, 4))
    whole = group_auc(*values, member_groups=groups, non_member_groups=groups, seed=1)
    assert whole == group_auc(*values, member_groups=groups, non_member_groups=groups, seed=1)
    assert whole != group_auc(*values, member_groups=groups, non_member_groups=groups, seed=2)
    monkeypatch.setattr("tacit.audit.resampling._CELLS", 70 * 333)
    blocks = group_auc(*values, member_groups=groups, non_member_groups=groups, seed=1)
    assert blocks.value == whole.value
    assert blocks.low == pytest.approx(whole.low, abs=0.03)
    assert blocks.high == pytest.approx(whole.high, abs=0.03)


def test_nonsense_is_refused() -> None:
    with pytest.raises(InputError, match="cluster"):
        cluster_auc([1.0], [2.0], member_clusters=[1, 2], non_member_clusters=[1])
    with pytest.raises(InputError, match="at least one"):
        cluster_auc([], [2.0], member_clusters=[], non_member_clusters=[1])
    wrong: list[Any] = [[[2]], [[-1]], [0], [[]]]
    for groups in wrong:
        with pytest.raises(InputError, match="groups"):
            group_auc([1.0, 2.0], [1.0], member_groups=groups, non_member_groups=[[0]])
