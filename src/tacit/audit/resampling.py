"""Intervals for scores that share secrets: the secret is resampled, not the score.

A paper's 2,000 groups of 20 sentences come from far fewer secrets. They overlap, and an interval that takes
them for independent is much too narrow. Two shapes:

- :func:`cluster_auc`: several scores of one secret (its sentences, its canary and its twin). A resample gives
  every cluster a count; the area of weighted scores needs no new sorting.
- :func:`group_auc`: a group's score is the sum over its secrets' values. A resample puts a drawn secret into
the
  place of each secret, in every group in which it stands.

Both are percentile bootstraps: approximate, and too narrow with fewer than some twenty secrets on a side.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from scipy import stats

from tacit.audit.roc import separated
from tacit.errors import InputError
from tacit.statistics import Estimate, FloatArray, percentile_interval

IntArray = npt.NDArray[np.int64]
_CELLS = 4_000_000  # of one block of resamples: bounds memory at some tens of MB


def cluster_auc(
    members: npt.ArrayLike,
    non_members: npt.ArrayLike,
    *,
    member_clusters: npt.ArrayLike,
    non_member_clusters: npt.ArrayLike,
    confidence: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> Estimate:
    """Area under the curve; the interval resamples clusters.

    Clusters with members only, with non-members only and with both are resampled apart, so that no resample
    lacks a side by chance alone.
    """
    inside, outside = (np.asarray(side, dtype=np.float64) for side in (members, non_members))
    labels_in, labels_out = np.asarray(member_clusters), np.asarray(non_member_clusters)
    if inside.ndim != 1 or outside.ndim != 1 or not len(inside) or not len(outside):
        raise InputError("Expected at least one member score and one non-member score.")
    if labels_in.shape != inside.shape or labels_out.shape != outside.shape:
        raise InputError("Expected one cluster for every score.")
    _, labels = np.unique(np.concatenate([labels_in, labels_out]), return_inverse=True)
    cluster_in, cluster_out = labels[: len(inside)], labels[len(inside) :]
    clusters = int(labels.max()) + 1
    kind = np.isin(np.arange(clusters), cluster_in) + 2 * np.isin(np.arange(clusters), cluster_out)
    falling = np.argsort(outside, kind="stable")
    ordered, cluster_out = outside[falling], cluster_out[falling]
    low, high = (np.searchsorted(ordered, inside, side=side) for side in ("left", "right"))

    def weighted(counts_RC: FloatArray) -> FloatArray:
        weight_in, weight_out = counts_RC[:, cluster_in], counts_RC[:, cluster_out]
        below = np.concatenate([np.zeros((len(counts_RC), 1)), np.cumsum(weight_out, axis=1)], axis=1)
        wins = (weight_in * (below[:, low] + below[:, high])).sum(axis=1) / 2
        return np.asarray(wins / (weight_in.sum(axis=1) * weight_out.sum(axis=1)))

    def draw(rng: np.random.Generator, rows: int) -> FloatArray:
        counts = np.zeros((rows, clusters))
        for one in np.unique(kind):
            (which,) = np.nonzero(kind == one)
            counts[:, which] = rng.multinomial(len(which), np.full(len(which), 1 / len(which)), size=rows)
        return weighted(counts)

    value = float(weighted(np.ones((1, clusters)))[0])
    fewest = min(len(np.unique(cluster_in)), len(np.unique(cluster_out)))
    if value in (0.0, 1.0) or fewest == 1:
        return _without_spread(value, fewest, confidence)
    draws = _in_blocks(draw, resamples, len(inside) + len(outside), seed)
    method = f"bootstrap over {clusters} clusters, {resamples} resamples"
    return percentile_interval(value, draws, confidence=confidence, method=method)


def group_auc(
    member_values: npt.ArrayLike,
    non_member_values: npt.ArrayLike,
    *,
    member_groups: npt.ArrayLike,
    non_member_groups: npt.ArrayLike,
    confidence: float = 0.95,
    resamples: int = 1000,
    seed: int = 0,
) -> Estimate:
    """Area under the curve of groups' sums; the interval resamples secrets.

    Args:
        member_values: one value for every member secret (higher = more likely a member).
        non_member_values: the same for non-members.
        member_groups: ``[groups, size]``, for each group the positions of its secrets in ``member_values``.
        non_member_groups: the same for non-members.
        confidence: nominal coverage.
        resamples: how many times the secrets are drawn anew.
        seed: of the resampling.
    """
    sides = [
        (np.asarray(values, dtype=np.float64), _counts(groups, np.asarray(values).shape[0]))
        for values, groups in ((member_values, member_groups), (non_member_values, non_member_groups))
    ]
    groups_in = len(sides[0][1])
    groups = groups_in + len(sides[1][1])

    def areas(sums_RG: FloatArray) -> FloatArray:
        ranks = stats.rankdata(sums_RG, axis=1)
        wins = ranks[:, :groups_in].sum(axis=1) - groups_in * (groups_in + 1) / 2
        return np.asarray(wins / (groups_in * (groups - groups_in)))

    def draw(rng: np.random.Generator, rows: int) -> FloatArray:
        sums = [
            values[rng.integers(0, len(values), size=(rows, len(values)))] @ design.T
            for values, design in sides
        ]
        return areas(np.concatenate(sums, axis=1))

    value = float(areas(np.concatenate([design @ values for values, design in sides])[None])[0])
    secrets = sum(len(values) for values, _ in sides)
    fewest = min(int(len(values) // design[0].sum()) for values, design in sides)
    if value in (0.0, 1.0) or min(len(values) for values, _ in sides) == 1:
        return _without_spread(value, max(1, fewest), confidence)
    draws = _in_blocks(draw, resamples, groups + secrets, seed)
    method = f"bootstrap over {secrets} secrets in {groups} groups, {resamples} resamples"
    return percentile_interval(value, draws, confidence=confidence, method=method)


def _without_spread(value: float, pairs: int, confidence: float) -> Estimate:
    """Where resampling would find no spread and claim certainty: what independent pairs show."""
    if value in (0.0, 1.0):
        return separated(value, pairs, confidence)
    return Estimate(value, 0.0, 1.0, confidence, "one secret on a side: no interval")


def _counts(groups: npt.ArrayLike, secrets: int) -> FloatArray:
    """[groups, secrets]: how often each secret stands in each group."""
    positions: IntArray = np.asarray(groups, dtype=np.int64)
    if positions.ndim != 2 or not positions.size or positions.min() < 0 or positions.max() >= secrets:
        raise InputError(f"Expected groups of shape [groups, size] with positions below {secrets}.")
    design = np.zeros((len(positions), secrets))
    np.add.at(design, (np.arange(len(positions))[:, None], positions), 1.0)
    return design


def _in_blocks(
    draw: Callable[[np.random.Generator, int], FloatArray], resamples: int, width: int, seed: int
) -> FloatArray:
    rng = np.random.default_rng(seed)
    rows = max(1, min(resamples, _CELLS // width))
    return np.concatenate([draw(rng, min(rows, resamples - start)) for start in range(0, resamples, rows)])
