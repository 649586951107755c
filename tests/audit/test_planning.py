"""How many canaries: the exact answers, the rule of thumb, and the edges of each answer."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from tacit.audit import (
    Design,
    detectable,
    gaussian_one_run_bound,
    multi_split_bound,
    one_run_bound,
    plan_audit,
)
from tacit.audit.thresholds import CoinScores
from tacit.errors import InputError


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 4.0, 8.0])
def test_perfect_guesses_need_what_the_closed_form_says(epsilon: float) -> None:
    """0.05^(1/m) <= e^epsilon/(1 + e^epsilon); about 3 e^epsilon."""
    row = plan_audit(epsilon=epsilon)[0]
    assert row.design == "one run"
    assert row.canaries == math.ceil(math.log(20) / math.log1p(math.exp(-epsilon)) - 1e-9)
    assert row.rule == math.ceil(math.log(20) * math.exp(epsilon))
    if epsilon >= 4:
        assert row.canaries == pytest.approx(row.rule, rel=0.02)
        assert row.rule == pytest.approx(3 * math.exp(epsilon), rel=0.01)
    assert json.dumps(row.to_json())


@pytest.mark.parametrize("delta", [0.0, 1e-6])
@pytest.mark.parametrize("epsilon", [1.0, 6.0])
def test_the_planned_number_suffices_and_one_fewer_does_not(epsilon: float, delta: float) -> None:
    rows = plan_audit(epsilon=epsilon, delta=delta)
    designs = ["one run", "one run, split", "in/out", "exposure"]
    assert [row.design for row in rows] == [*designs, *(["gaussian", "gaussian exposure"] if delta else [])]
    for row in rows:
        assert row.canaries is not None
        assert detectable(row.design, row.canaries, delta=delta).epsilon >= epsilon - 1e-5
        if row.canaries > 1:
            fewer = row.canaries - (2 if row.design == "one run, split" else 1)
            assert detectable(row.design, fewer, delta=delta).epsilon < epsilon
    by_design = {row.design: row.canaries for row in rows}
    assert by_design["exposure"] == (1 if epsilon < 9 else 2)  # research/audit.md: a few digits see further
    assert by_design["one run, split"] > by_design["one run"]  # type: ignore[operator]


def test_published_limits() -> None:
    """research/audit.md 4.2."""
    goldens: list[tuple[Design, int, float]] = [
        ("one run", 100, 3.49),
        ("in/out", 100, 3.28),
        ("exposure", 10, 14.87),
        ("one run", 10_000, 8.11),
    ]
    for design, canaries, epsilon in goldens:
        assert detectable(design, canaries, list_sizes=(1,)).epsilon == pytest.approx(epsilon, abs=0.005)
    gaussian = detectable("gaussian exposure", 10, delta=1e-5)
    assert gaussian == gaussian_one_run_bound(correct=10, guesses=10, canaries=10, alphabet=10**6)
    assert gaussian.mu == pytest.approx(4.20, abs=0.005)
    assert detectable("exposure", 10, neighbours="mask", insertions=2).epsilon == pytest.approx(
        detectable("exposure", 10).epsilon / 4
    )


def test_too_much_delta_is_said() -> None:
    row = plan_audit(epsilon=5.0, delta=0.01)[0]
    assert row.canaries is None
    assert "delta" in row.note
    # In between, delta costs canaries but does not forbid.
    costly = plan_audit(epsilon=5.0, delta=1e-5)[0].canaries
    free = plan_audit(epsilon=5.0)[0].canaries
    assert costly is not None
    assert free is not None
    assert free < costly < 1.3 * free


def power_of(canaries: int, epsilon: float, accuracy: float, delta: float) -> float:
    """How often guesses that are right with this probability show epsilon, by enumeration."""
    counts = np.arange(canaries + 1)
    bounds = [
        one_run_bound(correct=int(v), guesses=canaries, canaries=canaries, delta=delta).epsilon
        for v in counts
    ]
    return float(stats.binom.pmf(counts, canaries, accuracy)[np.array(bounds) >= epsilon].sum())


def test_an_attack_of_some_accuracy_shows_it_as_often_as_planned() -> None:
    epsilon, accuracy = 1.0, 0.85
    row = plan_audit(epsilon=epsilon, accuracy=accuracy, power=0.8)[2]
    assert row.canaries is not None
    assert 0.8 <= power_of(row.canaries, epsilon, accuracy, 0.0) < 0.9
    with_delta = plan_audit(epsilon=epsilon, accuracy=accuracy, delta=2e-3)[2].canaries
    assert with_delta is not None
    assert with_delta > row.canaries
    assert 0.8 <= power_of(with_delta, epsilon, accuracy, 2e-3) < 0.9
    hopeless = plan_audit(epsilon=2.0, accuracy=0.85)[2]
    assert hopeless.canaries is None
    assert "epsilon = 1.73" in hopeless.note


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 200), st.sampled_from([0.0, 1e-6]), st.sampled_from(["one run", "in/out", "exposure"]))
def test_more_canaries_see_further(canaries: int, delta: float, design: Design) -> None:
    found = detectable(design, canaries, delta=delta).epsilon
    assert found <= detectable(design, canaries + 1, delta=delta).epsilon + 1e-6
    assert found >= detectable(design, canaries, delta=delta, confidence=0.99).epsilon - 1e-6


def test_a_split_audit_cannot_show_more_than_is_said_to_be_detectable() -> None:
    """Scores that separate fully: the median of splits is the detectable bound itself."""
    coins = np.random.default_rng(1).random(101) < 0.5
    found = multi_split_bound(CoinScores.of_pairs(np.ones(101), np.zeros(101)), splits=5)
    limit = detectable("one run, split", 101)
    assert found.epsilon == pytest.approx(limit.epsilon)
    assert multi_split_bound(CoinScores.of(coins.astype(float), coins), splits=5).epsilon <= limit.epsilon


def test_nonsense_is_refused() -> None:
    for wrong in ({"epsilon": 0.0}, {"epsilon": 1.0, "power": 1.0}, {"epsilon": 1.0, "accuracy": 0.5}):
        with pytest.raises(InputError, match="epsilon"):
            plan_audit(**wrong)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="canaries"):
        detectable("one run", 0)
