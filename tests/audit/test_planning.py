"""How many canaries: the exact answers, the rule of thumb, and the edges of each answer."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special, stats

from tacit.audit import (
    Design,
    PlanRow,
    detectable,
    gaussian_one_run_bound,
    multi_split_bound,
    one_run_bound,
    plan_audit,
)
from tacit.audit.bounds import Neighbours
from tacit.audit.planning import Needed
from tacit.audit.thresholds import CoinScores
from tacit.errors import InputError


def rows_of(**asked: Any) -> dict[str, PlanRow]:
    return {row.design: row for row in plan_audit(**asked)}


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 4.0, 8.0])
def test_perfect_guesses_need_what_the_closed_form_says(epsilon: float) -> None:
    """0.05^(1/m) <= e^epsilon/(1 + e^epsilon); about 3 e^epsilon."""
    row = rows_of(epsilon=epsilon)["one run"]
    assert row.contradict.canaries == math.ceil(math.log(20) / math.log1p(math.exp(-epsilon)) - 1e-9)
    assert row.contradict == Needed(row.contradict.canaries, row.contradict.canaries)
    more = math.ceil(math.log(20) / math.log1p(math.exp(-1.5 * epsilon)) - 1e-9)
    assert row.support == Needed(more, more)
    assert row.rule == math.ceil(math.log(20) * math.exp(epsilon))
    if epsilon >= 4:
        assert row.contradict.canaries == pytest.approx(row.rule, rel=0.02)
        assert row.rule == pytest.approx(3 * math.exp(epsilon), rel=0.01)
    assert json.dumps(row.to_json())


@pytest.mark.parametrize("delta", [0.0, 1e-6])
@pytest.mark.parametrize("epsilon", [1.0, 4.0])
@pytest.mark.parametrize("neighbours", ["add/remove", "replace"])
def test_the_planned_number_suffices_and_one_fewer_does_not(
    epsilon: float, delta: float, neighbours: Neighbours
) -> None:
    """Ranks and splits have half of the error each, as in an audit."""
    rows = plan_audit(epsilon=epsilon, delta=delta, neighbours=neighbours)
    designs = ["exposure", "one run, split", "one run", "in/out"]
    assert [row.design for row in rows] == [*designs, *(["gaussian", "gaussian exposure"] if delta else [])]
    for row in rows:
        sharing = row.design in ("exposure", "one run, split")

        def shown(canaries: int, row: PlanRow = row, sharing: bool = sharing) -> float:
            return detectable(
                row.design,
                canaries,
                delta=delta,
                confidence=0.975 if sharing else 0.95,
                neighbours=neighbours,
            ).epsilon

        for claimed, needed in ((epsilon, row.contradict), (1.5 * epsilon, row.support)):
            assert row.neighbours == neighbours
            assert needed.canaries is not None
            assert shown(needed.canaries) >= claimed - 1e-5
            if needed.canaries > 2:
                assert shown(needed.canaries - (2 if row.design == "one run, split" else 1)) < claimed
    by_design = {row.design: row.contradict.canaries for row in rows}
    assert by_design["one run, split"] > by_design["one run"]  # type: ignore[operator]


def test_the_plan_is_for_what_an_audit_judges() -> None:
    """What one canary shows of one secret in another's place takes dozens for one that comes or goes."""
    # 1 canary shows 4.72 under add/remove, 10 show 7.21, 30 show 7.83 and 100 show 8.46, at all of the error.
    for many, shown in ((1, 4.72), (10, 7.21), (30, 7.83), (100, 8.46)):
        assert detectable("exposure", many, neighbours="add/remove").epsilon == pytest.approx(
            shown, abs=0.005
        )
    needed = rows_of(epsilon=8.0)["exposure"].contradict
    assert needed.canaries == 48
    # Without a coin nothing is shared: (log(K - 1) + logit(0.0125^(1/m))) / 2 >= 8, over four list sizes.
    alone = next(m for m in range(1, 100) if np.log(999_999) + special.logit(0.0125 ** (1 / m)) >= 16)
    assert rows_of(epsilon=8.0, include=1.0)["exposure"].contradict == Needed(alone, alone)
    assert rows_of(epsilon=8.0, neighbours="replace")["exposure"].contradict.canaries == 1
    # Enough are in with probability 95%, and with one planted fewer they are not.
    assert needed.planted is not None
    assert stats.binom.sf(47, needed.planted, 0.5) >= 0.95 > stats.binom.sf(47, needed.planted - 1, 0.5)


def test_coins_that_are_not_fair_are_no_evidence() -> None:
    assert set(rows_of(epsilon=2.0, include=0.9, delta=1e-6)) == {"exposure", "in/out", "gaussian exposure"}


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
    row = rows_of(epsilon=5.0, delta=0.01)["one run"]
    assert row.contradict == row.support == Needed(None, None)
    assert "delta" in row.note
    # In between, delta costs canaries but does not forbid.
    costly = rows_of(epsilon=5.0, delta=1e-5)["one run"].contradict.canaries
    free = rows_of(epsilon=5.0)["one run"].contradict.canaries
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
    row = plan_audit(epsilon=epsilon, accuracy=accuracy, power=0.8)[3]
    many = row.contradict.canaries
    assert many is not None
    assert 0.8 <= power_of(many, epsilon, accuracy, 0.0) < 0.9
    assert row.support == plan_audit(epsilon=1.5 * epsilon, accuracy=accuracy)[3].contradict
    with_delta = plan_audit(epsilon=epsilon, accuracy=accuracy, delta=2e-3)[3].contradict.canaries
    assert with_delta is not None
    assert with_delta > many
    assert 0.8 <= power_of(with_delta, epsilon, accuracy, 2e-3) < 0.9
    hopeless = plan_audit(epsilon=2.0, accuracy=0.85)[3]
    assert hopeless.contradict.canaries is None
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
    for name, value in (("include", 0.0), ("include", 1.5), ("candidates", 1), ("neighbours", "near")):
        with pytest.raises(InputError, match=f"{name}="):
            rows_of(epsilon=1.0, **{name: value})
    with pytest.raises(InputError, match="canaries"):
        detectable("one run", 0)
