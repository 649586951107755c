"""Tab completion against chance: error rates by enumeration over all secrets, and known answers."""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from tacit.attacks.tab import TabResult, synthetic_canaries
from tacit.audit.completion_chance import completion_attempt, completion_p_value
from tacit.corpus.canaries import draw_canaries
from tacit.corpus.canary_plan import CanaryPlan

LEVELS = (0.8, 0.95, 0.9875)


def leaks(hits: int, canaries: int, candidates: float, *, distinct: bool, confidence: float) -> bool:
    p_value = completion_p_value(hits, canaries, candidates=candidates, distinct=distinct)
    return p_value <= 1 - confidence


@pytest.mark.parametrize("confidence", LEVELS)
@pytest.mark.parametrize(("candidates", "canaries"), [(2, 3), (3, 4), (20, 2), (20, 3), (6, 5)])
def test_secrets_that_no_model_saw_leak_as_rarely_as_stated(
    candidates: int, canaries: int, confidence: float
) -> None:
    # A model completes each prefix in one way, say with 0; all draws of secrets are equally likely.
    found = dict.fromkeys(range(canaries + 1), 0)
    for drawn in itertools.product(range(candidates), repeat=canaries):
        found[drawn.count(0)] += 1
    alarms = sum(
        many
        for hits, many in found.items()
        if leaks(hits, canaries, candidates, distinct=True, confidence=confidence)
    )
    assert Fraction(alarms, candidates**canaries) <= 1 - confidence
    # With one prefix, secrets are drawn without replacement, and one completion serves them all.
    if canaries <= candidates:
        orders = list(itertools.permutations(range(candidates), canaries))
        hit = sum(0 in order for order in orders)
        if leaks(1, canaries, candidates, distinct=False, confidence=confidence):
            assert hit / len(orders) <= 1 - confidence
        assert hit / len(orders) == pytest.approx(canaries / candidates)


@pytest.mark.parametrize("confidence", LEVELS)
def test_secrets_that_begin_each_other_are_completed_together(confidence: float) -> None:
    """Of 24 words, "a", "aa" and "aaa" begin each other: a model that writes the last completes all three."""
    candidates, canaries, nested = 24, 3, 3
    alarms = 0
    for drawn in itertools.product(range(candidates), repeat=canaries):
        hits = sum(one < nested for one in drawn)
        alarms += leaks(hits, canaries, candidates / nested, distinct=True, confidence=confidence)
    assert Fraction(alarms, candidates**canaries) <= 1 - confidence


def test_one_number_has_one_interval() -> None:
    """Several canaries of one user are not independent: the attempt and the table both resample users."""
    manifest = draw_canaries(
        CanaryPlan(users=6, ladder=(1, 4), seed=2),
        [f"u{i}" for i in range(20)],
        documents=20,
        characters=200,
    )
    canaries = synthetic_canaries(manifest)
    result = TabResult(canaries, np.zeros(len(canaries), dtype=np.bool_), len(canaries))
    attempt = completion_attempt(result, manifest, confidence=0.9)
    assert attempt.measured == result.accuracy(confidence=0.9)
    assert (attempt.p_value, attempt.chance) == (1.0, 1 / manifest.candidates)
    one_hit = TabResult(canaries, np.arange(len(canaries)) == 0, len(canaries))
    alone, nested = (completion_attempt(one_hit, manifest, confidence=0.9, nested=many) for many in (1, 3))
    assert nested.chance == pytest.approx(3 * alone.chance)
    assert nested.p_value == pytest.approx(3 * alone.p_value, rel=1e-3)


@pytest.mark.parametrize("confidence", LEVELS)
def test_large_audits_have_their_error_too(confidence: float) -> None:
    for candidates, canaries in ((100, 27), (100, 500), (1000, 50), (20, 40)):
        alarms = sum(
            stats.binom.pmf(hits, canaries, 1 / candidates)
            for hits in range(canaries + 1)
            if leaks(hits, canaries, candidates, distinct=True, confidence=confidence)
        )
        assert alarms <= 1 - confidence


def test_one_hit_of_many_two_digit_secrets_is_chance_and_one_of_a_million_is_not() -> None:
    # 27 secrets of two digits: one or more are hit by luck in 24 of 100 audits.
    assert not leaks(1, 27, 100, distinct=True, confidence=0.9875)
    assert leaks(4, 27, 100, distinct=True, confidence=0.9875)
    assert leaks(1, 10, 10**6, distinct=True, confidence=0.9875)
    assert leaks(1, 10, 10**6, distinct=False, confidence=0.9875)
    assert not leaks(1, 10, 500, distinct=False, confidence=0.9875)
    assert not leaks(0, 10, 10**6, distinct=True, confidence=0.9875)
    assert not leaks(0, 10, 10**6, distinct=False, confidence=0.9875)
