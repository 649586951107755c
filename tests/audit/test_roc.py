"""ROC, AUC, TPR at a low FPR and accuracy: oracles over all pairs, coverage, and refusals."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from tacit.audit import auc, chosen_accuracy, roc_curve, separation_p_value, tpr_at_fpr
from tacit.audit.roc import delong
from tacit.errors import InputError

SCORES = st.lists(st.integers(0, 6).map(float), min_size=1, max_size=12)


def area_of_pairs(members: list[float], non_members: list[float]) -> float:
    return float(np.mean([(a > b) + (a == b) / 2 for a in members for b in non_members]))


@given(SCORES, SCORES)
def test_curve_and_area_against_all_pairs(members: list[float], non_members: list[float]) -> None:
    curve = roc_curve(members, non_members)
    assert curve.area == pytest.approx(area_of_pairs(members, non_members))
    for false, true, threshold in zip(
        curve.false_positive_rates, curve.true_positive_rates, curve.thresholds, strict=True
    ):
        assert false == pytest.approx(np.mean(np.array(non_members) >= threshold))
        assert true == pytest.approx(np.mean(np.array(members) >= threshold))
    assert (curve.false_positive_rates[-1], curve.true_positive_rates[-1]) == (1, 1)
    assert len(curve.thresholds) == len({*members, *non_members}) + 1
    estimate = auc(members, non_members)
    assert estimate.value == pytest.approx(curve.area)
    assert 0 <= estimate.low <= estimate.value <= estimate.high <= 1
    assert json.dumps(curve.to_json(), allow_nan=False)


@given(SCORES.filter(lambda s: len(s) > 1), SCORES.filter(lambda s: len(s) > 1))
def test_delong_variance_against_its_definition(members: list[float], non_members: list[float]) -> None:
    wins = np.array([[(a > b) + (a == b) / 2 for b in non_members] for a in members])
    expected = wins.mean(axis=1).var(ddof=1) / len(members) + wins.mean(axis=0).var(ddof=1) / len(non_members)
    area, variance = delong(np.array(members), np.array(non_members))
    assert area == pytest.approx(wins.mean())
    assert variance == pytest.approx(expected, abs=1e-14)


@pytest.mark.parametrize("shift", [0.0, 0.5, 2.0])
@pytest.mark.parametrize("rounded", [False, True])
def test_auc_covers_near_its_level(shift: float, rounded: bool) -> None:
    rng, runs = np.random.default_rng(1), 500
    large = rng.standard_normal(10**6)
    true = float(stats.norm.cdf(shift / math.sqrt(2)))
    if rounded:
        a, b = np.round(large[: 10**5] + shift), np.round(large[10**5 : 2 * 10**5])
        true = delong(a, b)[0]
    hits = narrow = 0
    for _ in range(runs):
        members, others = rng.standard_normal(40) + shift, rng.standard_normal(60)
        if rounded:
            members, others = np.round(members), np.round(others)
        found = auc(members, others)
        hits += found.low <= true <= found.high
        narrow += abs(found.value - true) <= (found.high - found.low) / 4
    assert hits / runs >= 0.92
    assert narrow / runs < 0.85  # half the width would be noticed


def test_no_certainty_where_the_variance_is_zero() -> None:
    apart = auc(np.arange(50) + 100.0, np.arange(80))
    assert apart.value == apart.high == 1
    assert apart.low == pytest.approx(0.025 ** (1 / 50))
    assert auc([0.0], [1.0]).high == pytest.approx(0.975)
    tied = auc(np.zeros(50), np.zeros(50))
    assert tied.low < 0.35 < 0.65 < tied.high
    assert auc([1.0], [1.0]).low == 0


def test_p_value_is_calibrated() -> None:
    rng = np.random.default_rng(2)
    null = [separation_p_value(rng.random(30), rng.random(30)) <= 0.05 for _ in range(800)]
    assert np.mean(null) <= 0.05 + 4 * math.sqrt(0.05 / 800)
    assert separation_p_value(rng.random(30) + 0.5, rng.random(30)) < 0.01
    assert separation_p_value(rng.random(30) - 0.5, rng.random(30)) > 0.9


def test_tpr_at_a_low_rate_is_refused_where_the_negatives_do_not_allow_it() -> None:
    rng = np.random.default_rng(3)
    members, others = rng.standard_normal(500) + 3, rng.standard_normal(2000)
    refused = tpr_at_fpr(members, others, rng.standard_normal(2999), fpr=0.001)
    assert refused.tpr is None
    assert refused.threshold is None
    assert "3,000 calibration non-members, not 2,999" in refused.refused
    assert json.loads(json.dumps(refused.to_json()))["tpr"] is None
    allowed = tpr_at_fpr(members, others, rng.standard_normal(3000), fpr=0.001)
    assert allowed.refused == ""
    assert allowed.tpr is not None
    assert allowed.measured_fpr is not None
    assert allowed.tpr.low <= stats.norm.sf(3.09 - 3) <= allowed.tpr.high
    assert allowed.measured_fpr.low <= 0.001 <= allowed.measured_fpr.high
    assert allowed.to_json()["measured_fpr"]["confidence"] == 0.95


@pytest.mark.parametrize("rounded", [False, True])
def test_the_conformal_threshold_keeps_the_false_positive_rate(rounded: bool) -> None:
    rng, runs, fpr = np.random.default_rng(4), 1500, 0.1
    alarms, thresholds = [], []
    for _ in range(runs):
        known, fresh = rng.standard_normal(35), rng.standard_normal(1)
        if rounded:
            known, fresh = np.round(known * 2), np.round(fresh * 2)
        found = tpr_at_fpr([0.0], fresh, known, fpr=fpr)
        assert found.measured_fpr is not None
        alarms.append(found.measured_fpr.value)
        thresholds.append(found.threshold)
        assert found.threshold == np.sort(known)[math.ceil(36 * 0.9) - 1]
    assert np.mean(alarms) <= fpr + 4 * math.sqrt(fpr / runs)
    if not rounded:
        # The wrong side: one order statistic lower is too low on average.
        assert np.mean(stats.norm.sf(thresholds)) == pytest.approx(1 - 33 / 36, abs=0.01)


def test_accuracy_is_counted_on_the_other_half() -> None:
    rng, runs = np.random.default_rng(5), 300
    values, covered, optimistic = [], 0, []
    for run in range(runs):
        members, others = rng.random(40), rng.random(40)
        found = chosen_accuracy(members, others, seed=run)
        values.append(found.accuracy.value)
        covered += found.accuracy.low <= 0.5 <= found.accuracy.high
        curve = roc_curve(members, others)
        optimistic.append((curve.true_positive_rates + 1 - curve.false_positive_rates).max() / 2)
    assert abs(np.mean(values) - 0.5) < 0.02
    assert covered / runs >= 0.95
    assert np.mean(optimistic) > 0.55  # a threshold chosen on what is counted finds leaks on null data
    apart = chosen_accuracy(rng.random(100) + 2, rng.random(50))
    assert apart.accuracy.value == 1
    assert apart.chance == pytest.approx(50 / 75)
    assert json.dumps(apart.to_json(), allow_nan=False)


@settings(max_examples=30)
@given(SCORES, SCORES, st.floats(-3, 3))
def test_only_the_order_of_scores_matters(a: list[float], b: list[float], shift: float) -> None:
    bent = [np.expm1(np.array(scores) / 3) * 2 + shift for scores in (a, b)]
    assert auc(a, b) == auc(*bent)


def test_nonsense_is_refused() -> None:
    for scores in ([], [math.nan], [[1.0]]):
        with pytest.raises(InputError, match="score"):
            auc(scores, [1.0])
        with pytest.raises(InputError, match="non-members"):
            roc_curve([1.0], scores)
    with pytest.raises(InputError, match="fpr"):
        tpr_at_fpr([1.0], [1.0], [1.0], fpr=0.0)
    with pytest.raises(InputError, match="at least 2"):
        chosen_accuracy([1.0], [1.0, 2.0])


@pytest.mark.parametrize(("members", "others"), [(40, 3), (2, 40), (100, 5)])
def test_few_on_one_side_give_no_false_alarms(members: int, others: int) -> None:
    """DeLong's interval called three to ten times as many null sets separate."""
    rng, level = np.random.default_rng(7), 0.02
    found = [
        separation_p_value(rng.normal(size=members), rng.normal(size=others)) <= level for _ in range(2000)
    ]
    assert sum(found) <= stats.binom.ppf(0.9999, len(found), level)
    assert separation_p_value(np.arange(members) + 1000.0, -np.arange(others, dtype=float)) < level


@pytest.mark.parametrize("few", [2, 3, 4, 5])
def test_ties_among_few_leave_the_test_exact(few: int) -> None:
    """All members at one value and all others at another: one of C(2n, n) ways, and not half of that."""
    found = separation_p_value([1.0] * few, [0.0] * few)
    assert found == pytest.approx(1 / math.comb(2 * few, few), rel=1e-9)
    assert separation_p_value([1.0] * few, [1.0] * few) == 1.0


def test_tied_scores_of_few_give_no_false_alarms() -> None:
    rng, level = np.random.default_rng(8), 0.05
    found = [separation_p_value(rng.random(4) < 0.5, rng.random(12) < 0.5) <= level for _ in range(600)]
    assert sum(found) <= stats.binom.ppf(0.9999, len(found), level)
    assert separation_p_value([1.0] * 4, [0.0] * 12) < level


@pytest.mark.parametrize(("members", "others", "share"), [(25, 400, 0.03), (30, 1000, 0.01)])
def test_heavy_ties_give_no_false_alarms_among_many_either(members: int, others: int, share: float) -> None:
    """The normal limit called 1.4% of these significant at 0.3%, and 0.8% at 0.1%."""
    rng, level, runs = np.random.default_rng(9), 0.01, 400
    drawn = rng.random((runs, members + others)) < share
    found = [separation_p_value(one[:members].astype(float), one[members:].astype(float)) for one in drawn]
    assert np.mean(np.array(found) <= level) <= level + 3 * math.sqrt(level / runs)
    assert separation_p_value([1.0] * members, [0.0] * others) == pytest.approx(1e-4)
    assert separation_p_value([0.0] * members, [1.0] * others) == 1.0
