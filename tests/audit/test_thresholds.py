"""The number of guesses: chosen honestly it keeps the level, chosen on what is counted it does not."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from tacit.audit import (
    CoinScores,
    multi_split_bound,
    one_run_bound,
    preregistered_bound,
    split_bound,
)
from tacit.errors import InputError

LEVEL = 0.05


def margin(runs: int) -> float:
    """The level and four standard errors of a rate at the level."""
    return LEVEL + 4 * math.sqrt(LEVEL * (1 - LEVEL) / runs)


def coin_scores(rng: np.random.Generator, canaries: int, epsilon: float) -> CoinScores:
    """A mechanism that is exactly epsilon-DP in every coin: randomised response on half of them, else
    nothing.

    Its scores tell on which it answered, so that abstaining pays.
    """
    coins = rng.random(canaries) < 0.5
    truthful = rng.random(canaries) < 1 / (1 + math.exp(-epsilon))
    answered = rng.random(canaries) < 0.5
    said = np.where(truthful, coins, ~coins)
    size = np.where(answered, 1 + rng.random(canaries), rng.random(canaries))
    sign = np.where(answered, said, rng.random(canaries) < 0.5)
    return CoinScores.of(np.where(sign, size, -size), coins)


def uncorrected_alarms(rng: np.random.Generator, runs: int, canaries: int, epsilon: float) -> float:
    """How often the best of all numbers of guesses exceeds a true epsilon, each taken at the full level."""
    share = 1 / (1 + math.exp(-epsilon))
    right = np.cumsum(rng.random((runs, canaries)) < share, axis=1)
    p_values = stats.binom.sf(right - 1, np.arange(1, canaries + 1), share)
    return float((p_values.min(axis=1) <= LEVEL).mean())


def test_the_uncorrected_maximum_alarms_far_too_often() -> None:
    """research/audit.md 4.3: 20 % with 100 canaries and 36 % with 1000, for thresholds on one side."""
    rng = np.random.default_rng(1)
    hundred = uncorrected_alarms(rng, 2000, 100, 0.0)
    thousand = uncorrected_alarms(rng, 1000, 1000, 0.0)
    assert hundred > 0.15
    assert thousand > 0.25
    assert thousand > hundred


@pytest.mark.parametrize("epsilon", [0.0, 1.0])
def test_honest_choices_keep_their_level(epsilon: float) -> None:
    rng, runs = np.random.default_rng(2), 600
    alarms = np.zeros(3)
    for run in range(runs):
        coins = coin_scores(rng, 80, epsilon)
        alarms += [
            preregistered_bound(coins, (20, 40, 80), seed=run).epsilon > epsilon,
            split_bound(coins, seed=run).epsilon > epsilon,
            multi_split_bound(coins, splits=5, seed=run).epsilon > epsilon if run < 200 else False,
        ]
    rates = alarms / [runs, runs, 200]
    assert rates[0] <= margin(runs)
    assert rates[1] <= margin(runs)
    assert rates[2] <= margin(200)


def test_honest_choices_see_what_is_there_and_abstaining_pays() -> None:
    coins = coin_scores(np.random.default_rng(3), 2000, 3.0)
    all_guessed = preregistered_bound(coins, (2000,)).epsilon
    half_guessed = preregistered_bound(coins, (1000,)).epsilon
    assert all_guessed < 2 < half_guessed <= 3.2
    split = split_bound(coins)
    median = multi_split_bound(coins, splits=21)
    assert 2 < split.epsilon < 3.2
    assert 2 < median.epsilon < 3.2
    assert "chosen on the other 1000" in split.method
    assert "21 splits" in median.method
    assert (split.confidence, median.confidence) == (0.95, 0.95)


def test_several_numbers_and_many_splits_by_hand() -> None:
    coins = coin_scores(np.random.default_rng(5), 120, 2.0)
    right = np.cumsum(coins.right_by_confidence(0))
    by_hand = max(
        one_run_bound(
            correct=int(right[n - 1]), guesses=n, canaries=120, confidence=1 - LEVEL / 3, delta=1e-4
        ).epsilon
        for n in (30, 60, 120)
    )
    assert preregistered_bound(coins, (30, 60, 120), delta=1e-4).epsilon == pytest.approx(by_hand)
    for splits in (6, 7):
        seeds = np.random.default_rng(9).integers(0, 2**63, splits)
        found = sorted(split_bound(coins, confidence=1 - LEVEL / 2, seed=int(one)).epsilon for one in seeds)
        median = multi_split_bound(coins, splits=splits, seed=9).epsilon
        assert median == found[2 if splits == 6 else 3]
        assert found[0] < median < found[-1]


def test_pairs_and_ties() -> None:
    rng = np.random.default_rng(4)
    # Planted texts that always score higher: every guess is right.
    twins = rng.random(50)
    pairs = CoinScores.of_pairs(twins + 1 + rng.random(50), twins)
    assert pairs.neighbours == "replace"
    assert pairs.right_by_confidence(0).all()
    perfect = one_run_bound(correct=50, guesses=50, canaries=50).epsilon
    assert preregistered_bound(pairs, (50,)).epsilon == pytest.approx(perfect)
    # All equal: right by lot, whichever way the caller ordered them.
    for tied in (
        CoinScores.of_pairs(np.ones(4000), np.ones(4000)),
        CoinScores.of(np.ones(4000), np.arange(4000) < 2000),
        CoinScores.of(np.ones(4000), np.arange(4000) < 2000, sides="in"),
    ):
        assert 0.45 < tied.right_by_confidence(1)[:2000].mean() < 0.55


def test_guesses_are_made_at_both_ends_in_turn() -> None:
    scores = [5.0, 4.0, 3.0, 2.0, 1.0]
    coins = CoinScores.of(scores, [True, True, False, False, False])
    assert coins.right_by_confidence(0).tolist() == [True, True, True, True, False]
    # 5 in, 1 out, 4 in, 2 out, 3 in (wrong)
    wrong_end = CoinScores.of(scores, [False, True, True, True, True])
    assert wrong_end.right_by_confidence(0).tolist() == [False, False, True, False, True]
    top = CoinScores.of(scores, [True, False, True, False, False], sides="in")
    assert top.right_by_confidence(0).tolist() == [True, False, True, False, False]


@settings(max_examples=25, deadline=None)
@given(st.integers(2, 60), st.integers(0, 2**32), st.sampled_from([0.0, 1e-4]))
def test_never_more_than_perfect_guesses_and_repeatable(canaries: int, seed: int, delta: float) -> None:
    coins = coin_scores(np.random.default_rng(seed), canaries, 2.0)
    perfect = one_run_bound(correct=canaries, guesses=canaries, canaries=canaries).epsilon
    fixed = preregistered_bound(coins, (1, canaries), delta=delta, seed=seed)
    split = split_bound(coins, delta=delta, seed=seed)
    assert 0 <= fixed.epsilon <= perfect
    assert 0 <= split.epsilon <= perfect
    assert split == split_bound(coins, delta=delta, seed=seed)
    # A monotone change of the scores changes no guess.
    bent = CoinScores.of(np.exp(coins.scores), coins.included)
    assert split_bound(bent, delta=delta, seed=seed) == split


def test_nonsense_is_refused() -> None:
    coins = CoinScores.of([1.0, 2.0], [True, False])
    for guesses in ((), (0,), (3,)):
        with pytest.raises(InputError, match="guesses"):
            preregistered_bound(coins, guesses)
    with pytest.raises(InputError, match="splits"):
        multi_split_bound(coins, splits=0)
    with pytest.raises(InputError, match="2 canaries"):
        split_bound(CoinScores.of([1.0], [True]))
    with pytest.raises(InputError, match="numbers"):
        CoinScores.of([math.nan], [True])
    with pytest.raises(InputError, match="one coin"):
        CoinScores.of([1.0, 2.0], [True])
