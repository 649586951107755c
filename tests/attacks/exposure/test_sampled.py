"""Sampled ranks: their intervals cover at least as often as they say, and their p-values are honest."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from tacit.attacks.exposure.ranking import Rule, branch_and_bound, ranks, walk
from tacit.attacks.exposure.sampled import better_among, sampled_ranks
from tacit.attacks.exposure.states import ModelScorer
from tacit.errors import InputError
from tests.attacks.exposure.toys import toy_model, trie_of

_SIMULATIONS = 400


@pytest.mark.parametrize("share", [0.0, 0.0004, 0.03, 0.5, 0.999, 1.0])
def test_the_interval_covers(share: float) -> None:
    """Simulated hits; at most 5 % of intervals may miss, with room for the simulation's own noise."""
    others, samples = 10_000, 500
    true = round(share * others)
    draw = np.random.default_rng(int(share * 1e4))
    missed = 0
    for hits in draw.binomial(samples, true / others, size=_SIMULATIONS).tolist():
        low, high = better_among(others, hits, hits, samples, 0.95)
        assert 0 <= low <= high <= others
        missed += not low <= true <= high
    assert stats.binomtest(missed, _SIMULATIONS, 0.05, alternative="greater").pvalue > 1e-3


def test_half_the_confidence_misses_often() -> None:
    """The other side: intervals that cover half the time would not pass the test above."""
    others, samples, true = 10_000, 500, 3_000
    draw = np.random.default_rng(0)
    bounds = [
        better_among(others, hits, hits, samples, 0.5)
        for hits in draw.binomial(samples, true / others, size=_SIMULATIONS).tolist()
    ]
    missed = sum(not low <= true <= high for low, high in bounds)
    assert stats.binomtest(missed, _SIMULATIONS, 0.05, alternative="greater").pvalue < 1e-6


def test_sampled_ranks_cover_the_exact_ones() -> None:
    """On a model, with ties' band, other secrets and repeated draws; one set of draws for three targets."""
    model = toy_model("gpt2", 1)
    sequences = [(a, b, c) for a in range(1, 7) for b in range(1, 7) for c in range(1, 7)]
    trie = trie_of(sequences, [5, 100, 190])
    inserted = [True, False, True]
    scorer = ModelScorer(model)
    root = scorer.root(trie.prefix)
    rule = Rule.of("logprob", root)
    walked = walk(scorer, trie, root, rule)
    everything = branch_and_bound(scorer, trie, root, rule)
    exact = [one.rank for one in ranks(trie, rule, walked, everything, inserted, range(3))]
    missed = np.zeros(3)
    repeats = 60
    for seed in range(repeats):
        drawn = sampled_ranks(
            scorer,
            trie,
            root,
            rule,
            walked,
            inserted,
            range(3),
            samples=40,
            confidence=0.9,
            generator=np.random.default_rng(seed),
        )
        assert drawn.positions <= trie.internal + 40
        for place, (one, true) in enumerate(zip(drawn.ranks, exact, strict=True)):
            assert one.rank.candidates == 216
            assert one.rank.alone_candidates == true.alone_candidates
            held = one.rank.low <= true.low <= true.high <= one.rank.high
            held &= one.rank.alone_low <= true.alone_low <= true.alone_high <= one.rank.alone_high
            missed[place] += not held
    for count in missed.tolist():
        assert stats.binomtest(int(count), repeats, 0.1, alternative="greater").pvalue > 1e-3


def test_p_values_of_unseen_secrets_are_honest() -> None:
    """(1 + hits) / (1 + n) for a secret whose rank is uniform: P(p <= x) <= x, and close to it."""
    draw = np.random.default_rng(3)
    others, samples, simulations = 1_000, 99, 20_000
    better = draw.integers(0, others + 1, size=simulations)
    p_values = (1 + draw.binomial(samples, better / others)) / (1 + samples)
    for level in (0.01, 0.05, 0.25):
        found = int((p_values <= level).sum())
        assert stats.binomtest(found, simulations, level * 1.02, alternative="greater").pvalue > 1e-4
        assert found > 0.9 * level * simulations


def test_no_samples_are_refused() -> None:
    trie = trie_of([(1,), (2,)], [0])
    scorer = ModelScorer(toy_model("gpt2", 1))
    root = scorer.root(trie.prefix)
    rule = Rule.of("logprob", root)
    walked = walk(scorer, trie, root, rule)
    with pytest.raises(InputError, match="samples=0"):
        sampled_ranks(
            scorer,
            trie,
            root,
            rule,
            walked,
            [True],
            [0],
            samples=0,
            confidence=0.9,
            generator=np.random.default_rng(0),
        )


def test_ties_are_counted_both_ways() -> None:
    """A model that cannot tell candidates apart: no draw is better, and all are not worse."""
    model = toy_model("gpt2", 0).__class__(toy_model("gpt2", 0).config).eval().double()
    torch.nn.init.zeros_(model.transformer.wte.weight)  # tied: all logits are zero
    trie = trie_of([(a, b) for a in range(1, 6) for b in range(1, 6)], [0])
    scorer = ModelScorer(model)
    root = scorer.root(trie.prefix)
    rule = Rule.of("logprob", root)
    drawn = sampled_ranks(
        scorer,
        trie,
        root,
        rule,
        walk(scorer, trie, root, rule),
        [True],
        [0],
        samples=200,
        confidence=0.95,
        generator=np.random.default_rng(0),
    )
    assert (drawn.ranks[0].rank.low, drawn.ranks[0].rank.high) == (1, 25)
    assert drawn.ranks[0].p_value == 1
