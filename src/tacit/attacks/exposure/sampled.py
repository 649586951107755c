"""The rank of a secret that was hardly memorised, from uniform draws among the candidates.

The share of candidates that are better is a binomial proportion: draws are independent and uniform over the
candidates that are not known ones. Clopper-Pearson bounds it at the stated confidence whatever the share;
known candidates are compared one by one and added, without error. Ties count against the lower bound of the
rank and for its upper bound, so that the interval holds every way of breaking them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tacit.attacks.exposure.candidates import CandidateTree, CandidateTrie
from tacit.attacks.exposure.packed import enumerate_all
from tacit.attacks.exposure.ranking import Rank, Rule, Walked, rank_among
from tacit.attacks.exposure.states import Root, Scorer
from tacit.attacks.exposure.token_tree import TokenRows
from tacit.errors import InputError
from tacit.statistics import clopper_pearson


@dataclass(frozen=True)
class SampledRank:
    """An interval for a rank, and the p-value (1 + draws that are not worse) / (1 + draws).

    If the secret had been drawn like the draws and the model knew none of them, all orders would be equally
    likely: the chance that the p-value is at most x is at most x.
    """

    rank: Rank
    p_value: float


@dataclass(frozen=True)
class Sampled:
    """The ranks of the targets, in their order, and the places at which the model was asked."""

    ranks: tuple[SampledRank, ...]
    positions: int


def sampled_ranks(
    scorer: Scorer,
    tree: CandidateTree,
    root: Root,
    rule: Rule,
    walked: Walked,
    inserted: Sequence[bool],
    targets: Sequence[int],
    *,
    samples: int,
    confidence: float,
    generator: np.random.Generator,
    rows: int | None = None,
) -> Sampled:
    """Rank known candidates among ``samples`` draws; one set of draws serves all targets."""
    if samples < 1:
        raise InputError(f"Expected samples={samples} >= 1, e.g. 2000.")
    drawn = tree.sample(samples, generator)
    tokens, counts = np.unique(drawn.tokens, axis=0, return_counts=True)
    sub = CandidateTrie(tree.prefix, TokenRows(tokens, (tokens >= 0).sum(1)), (), nesting=tree.nested > 1)
    found = enumerate_all(scorer, sub, root, rule, rows=rows)
    times = counts[sub.tree.order[sub.tree.first_row[found.nodes]]]
    others = tree.candidates - len(tree.known)
    results = []
    for target in targets:
        value = walked.values[target]
        better = int(times[found.values > value + walked.band].sum())
        not_worse = int(times[found.values >= value - walked.band].sum())
        low, high = better_among(others, better, not_worse, samples, confidence)
        rank = rank_among(tree, walked, inserted, target, low, high)
        results.append(SampledRank(rank, (1 + not_worse) / (1 + samples)))
    return Sampled(tuple(results), found.positions)


def better_among(
    others: int, better: int, not_worse: int, samples: int, confidence: float
) -> tuple[int, int]:
    """Bounds for how many of ``others`` are better (low) and not worse (high), from counts among draws.

    Each bound misses with at most half of what the confidence leaves.
    """
    low = clopper_pearson(better, samples, confidence=confidence).low
    high = clopper_pearson(not_worse, samples, confidence=confidence).high
    # The share is a whole number over ``others``; what rounding took is given back.
    return math.ceil(low * others * (1 - 1e-12)), min(others, math.floor(high * others * (1 + 1e-12)))
