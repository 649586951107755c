"""Intervals for scores that share secrets: the secret is resampled, not the score.

A paper's 2,000 groups of 20 sentences come from far fewer secrets. They overlap, and an interval that takes
them for independent is much too narrow. Two shapes:

- :func:`cluster_auc`: several scores of one secret (its sentences, its canary and its twin). A resample gives
  every cluster a count; the area of weighted scores needs no new sorting.
- :func:`group_auc`: a group's score is the sum over its texts. A resample draws secrets with all their texts,
  and new groups from these.

Both are percentile bootstraps: approximate, and too narrow with fewer than twenty secrets on a side,
which their method says then.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from tacit.audit.exchange import group_area
from tacit.audit.roc import separated, tied
from tacit.errors import InputError
from tacit.statistics import Estimate, FloatArray, percentile_interval, told_narrow

if TYPE_CHECKING:  # attacks bring torch, and the arithmetic does without
    from tacit.attacks.groups import Groups

_CELLS = 4_000_000  # of one block of resamples: bounds memory at some tens of MB


@dataclass(frozen=True)
class GroupAreas:
    """How well groups are told apart: over all thresholds, and at the median of all, as in the paper."""

    area: Estimate
    at_median: Estimate


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
    method = told_narrow(f"bootstrap over {clusters} clusters, {resamples} resamples", fewest)
    return _of_draws(value, draws, fewest, confidence, method)


def group_auc(
    groups: Groups,
    values: Mapping[str, FloatArray],
    *,
    confidence: float = 0.95,
    resamples: int = 500,
    seed: int = 0,
) -> dict[str, GroupAreas]:
    """For each score, area under the curve of groups' sums, and how many are told apart at their median.

    ``values`` are what each text adds to its groups. A resample draws secrets, and groups from their texts,
    anew; all scores see the same ones.
    """
    rng = np.random.default_rng(seed)
    seen = {name: (group_area(groups, one), _at_median(groups, one)) for name, one in values.items()}
    draws: dict[str, list[tuple[float, float]]] = {name: [] for name in values}
    for _ in range(resamples):
        again = groups.redrawn(rng)
        for name, one in values.items():
            draws[name].append((group_area(again, one), _at_median(again, one)))
    secrets = [len(np.unique(groups.secrets[pool])) for pool in groups.pools]
    method = told_narrow(
        f"bootstrap over {secrets[0]} + {secrets[1]} secrets in {len(groups.texts)} groups", min(secrets)
    )
    # So many groups share no secret: what groups that separate fully show at least.
    apart = max(1, min(secrets) // groups.texts.shape[1])
    found = {}
    for name, (area, accuracy) in seen.items():
        sampled = np.array(draws[name])
        if area in (0.0, 1.0) or min(secrets) == 1:
            between = _without_spread(area, apart, confidence)
        else:
            between = _of_draws(area, sampled[:, 0], apart, confidence, method)
        told = _of_draws(accuracy, sampled[:, 1], apart, confidence, method)
        if accuracy in (0.0, 1.0):
            told = _without_spread(accuracy, apart, confidence)
        found[name] = GroupAreas(between, told)
    return found


def _at_median(groups: Groups, values: FloatArray) -> float:
    """The share of groups on their side of the median of all, which is the paper's threshold."""
    sums = groups.sums(values)
    return float(((sums > np.median(sums)) == groups.is_member).mean())


def _of_draws(value: float, draws: FloatArray, pairs: int, confidence: float, method: str) -> Estimate:
    """A percentile interval; where no resample differs from another it would claim certainty."""
    if np.ptp(draws) == 0:
        return tied(value, pairs, confidence, why="no resample differs from another")
    return percentile_interval(value, draws, confidence=confidence, method=method)


def _without_spread(value: float, pairs: int, confidence: float) -> Estimate:
    """Where resampling would find no spread and claim certainty: what independent pairs show."""
    if value in (0.0, 1.0):
        return separated(value, pairs, confidence)
    return Estimate(value, 0.0, 1.0, confidence, "one secret on a side: no interval")


def _in_blocks(
    draw: Callable[[np.random.Generator, int], FloatArray], resamples: int, width: int, seed: int
) -> FloatArray:
    rng = np.random.default_rng(seed)
    rows = max(1, min(resamples, _CELLS // width))
    return np.concatenate([draw(rng, min(rows, resamples - start)) for start in range(0, resamples, rows)])
