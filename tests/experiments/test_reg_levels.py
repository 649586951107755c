"""Equal perplexity: which Runs count, what lies between them, and when a claim is decided."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from tacit.experiments.reg_ground import DP_SGD, UNMITIGATED, Place, settings_of
from tacit.experiments.reg_levels import (
    Between,
    Level,
    Levels,
    above_zero,
    at,
    at_most,
    below_zero,
    best_first_part,
    levels_of,
    mean_over,
    perplexity_of,
    with_seeds,
    within,
)
from tacit.experiments.reg_words import findings_of_pairs
from tacit.statistics import Estimate


def outcome(perplexity: float, **more: Any) -> dict[str, Any]:
    measured = Estimate(perplexity, perplexity, perplexity, 0.95, "exact")
    return {"diverged": None, "perplexity": measured.to_json(), **more}


def estimate(value: float, low: float, high: float) -> Estimate:
    return Estimate(value, low, high, 0.95, "typed")


@pytest.mark.parametrize(
    ("perplexities", "kept"),
    [
        ([300, 200, 100, 150], [300, 200, 100]),
        ([100, 110, 150], [100]),
        ([180, 100, 105], [180, 100]),
        ([200, 220, 100], [220, 200, 100]),
        ([], []),
    ],
)
def test_what_learnt_too_long_or_from_too_little_noise_is_left_out(
    perplexities: list[float], kept: list[float]
) -> None:
    assert [perplexity_of(one) for one in best_first_part([outcome(one) for one in perplexities])] == kept


def test_between_two_runs_and_never_beyond_them() -> None:
    points = [outcome(400, exposure=[4.0, 8.0]), outcome(100, exposure=[8.0, 8.0])]
    between = at(points, 200)
    assert between is not None
    assert between.share == pytest.approx(0.5)
    assert between.values("exposure") == pytest.approx([6.0, 8.0])
    assert at(points, 401) is None
    assert at(points, 99) is None


def level_of(**methods: list[list[float]]) -> Level:
    """Two users with a canary of 1 and one of 20 repetitions each; a row of exposures for each seed."""
    placed = {
        method: [
            Between(one, one, 0.0)
            for one in (
                outcome(100, exposure=row, carriers=[1, 1, 0, 0], repetitions=[1, 20, 1, 20]) for row in rows
            )
        ]
        for method, rows in methods.items()
    }
    return Level("high", 100.0, placed)


def test_canaries_are_told_by_user_and_repetitions() -> None:
    level = level_of(triplet=[[1, 10, 3, 30], [2, 20, 4, 40]])
    assert level.of_canaries("triplet", "exposure", [20]).tolist() == [[30, 10], [40, 20]]
    assert level.of_canaries("triplet", "exposure", [1, 20]).tolist() == [[16.5, 5.5], [22, 11]]


def test_seeds_that_differ_widen_an_interval_and_equal_ones_do_not() -> None:
    users = estimate(5.0, 4.0, 7.0)
    assert with_seeds(users, [5.0, 5.0, 5.0]).low == users.low
    wide = with_seeds(users, [4.0, 5.0, 6.0])
    reach = 4.302653 / math.sqrt(3)  # Student's t with two degrees of freedom
    assert wide.low == pytest.approx(5 - math.hypot(1, reach))
    assert wide.high == pytest.approx(5 + math.hypot(2, reach))
    assert "one training" in with_seeds(users, [5.0]).method


def test_the_interval_of_a_mean_covers_it_with_few_seeds() -> None:
    """Users and seeds drawn from known laws: of 300 intervals for 0 about one in twenty may miss."""
    rng = np.random.default_rng(0)
    missed = 0
    for _ in range(300):
        values = rng.normal(0, 1, (3, 40)) + rng.normal(0, 0.5, (3, 1)) + rng.normal(0, 1, (1, 40))
        found = mean_over(values, least=-20, most=20, of="users")
        missed += not found.low <= 0 <= found.high
    assert missed <= 25


LOW, HIGH, ACROSS = estimate(-3, -4, -2), estimate(3, 2, 4), estimate(0, -1, 1)


@pytest.mark.parametrize(
    ("both", "word"),
    [
        ([LOW, LOW], "holds"),
        ([LOW, ACROSS], "undecided"),
        ([ACROSS, HIGH], "does not hold"),
        ([LOW, HIGH], "does not hold"),
        ([], "undecided"),
    ],
)
def test_a_claim_holds_at_both_perplexities_and_falls_at_one(both: list[Estimate], word: str) -> None:
    assert below_zero(both) == word
    assert above_zero([estimate(-one.value, -one.high, -one.low) for one in both]) == word


def test_claims_with_a_margin() -> None:
    small, less = estimate(0.2, -0.5, 0.9), estimate(0.5, 0.1, 0.9)
    assert at_most(1.0)([small, LOW]) == "holds"
    assert at_most(1.0)([estimate(0.2, -0.5, 1.2)]) == "undecided"
    assert at_most(1.0)([estimate(2, 1.1, 3)]) == "does not hold"
    assert at_most(1.0)([less]) == "holds", "surely a little worse, and surely by less than the margin"
    assert within(1.0)([small, less]) == "holds"
    assert within(1.0)([LOW]) == "does not hold"
    assert within(1.0)([estimate(0.5, -0.5, 1.5)]) == "undecided"


def test_both_perplexities_are_ones_that_all_methods_and_seeds_reach() -> None:
    settings = settings_of("tiny")
    outcomes = {}
    for seed in settings["seeds"]:
        for method in settings["methods"]:
            ends = (400.0, 100.0) if method != DP_SGD else (300.0 + seed, 150.0)
            outcomes[Place("customersim", seed).name_of(method)] = {"runs": [outcome(one) for one in ends]}
    levels = levels_of(settings, outcomes, "customersim", list(settings["methods"]))
    assert [level.name for level in levels] == ["high", "low"]
    assert levels[0].perplexity == pytest.approx(150 ** (1 / 4) * 301 ** (3 / 4))
    assert levels[1].perplexity == pytest.approx(150 ** (3 / 4) * 301 ** (1 / 4))
    assert all(len(level.methods[UNMITIGATED]) == len(settings["seeds"]) for level in levels)


def test_methods_without_a_common_perplexity_are_compared_where_two_have_one() -> None:
    settings = settings_of("tiny")
    outcomes: dict[str, Any] = {}
    for seed in settings["seeds"]:
        for method in settings["methods"]:
            ends = (400.0, 300.0) if method == DP_SGD else (200.0, 100.0)
            outcomes[Place("customersim", seed).name_of(method)] = {"runs": [outcome(one) for one in ends]}
    levels = Levels(settings, outcomes)
    assert levels.common == {"customersim": []}
    assert levels.of_pair("customersim", "triplet", DP_SGD) == []
    # One narrow frontier takes away what it is compared in, and no more.
    high, low = levels.of_pair("customersim", "triplet", UNMITIGATED)
    assert (high.told, low.told) == ("high perplexity (168)", "low perplexity (119)")
    assert set(high.methods) == {"triplet", UNMITIGATED}
    pairs = [("triplet", DP_SGD), ("triplet", UNMITIGATED)]
    one, other = findings_of_pairs(levels, pairs, "{} leaks less than {}.", lambda *_: LOW, "bits")
    assert (one.outcome, one.here) == ("undecided", "No perplexity is common to the two.")
    assert other.outcome == "holds"
    assert other.here.endswith("bits at the low perplexity (119).")
    lost = {"diverged": "the loss is not finite"}
    outcomes[Place("customersim", 1).name_of(DP_SGD)] = {"runs": [lost, lost]}
    assert levels_of(settings, outcomes, "customersim", list(settings["methods"])) == []
