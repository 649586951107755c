"""What the regularisation experiments say of outcomes that are typed here, with levels in common."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tacit.experiments import Workshop, experiment_called
from tacit.experiments.experiment import Conclusion
from tacit.experiments.reg_ground import (
    BATCHES,
    DP_SGD,
    PAIRED_BATCHES,
    SECOND,
    TRIPLET,
    UNMITIGATED,
    Place,
    settings_of,
    stages_of,
)
from tacit.experiments.reg_words import _training, caveats
from tacit.experiments.results import Finding
from tacit.statistics import Estimate

USERS = 30
# Bits of exposure that a method takes from canaries that are repeated often, at the same perplexity.
LESS = {
    UNMITIGATED: 0.0,
    TRIPLET: 0.0,
    DP_SGD: 1.0,
    "adversarial": 3.0,
    SECOND: 3.0,
    BATCHES: 3.0,
    PAIRED_BATCHES: 1.0,
}


def outcomes() -> dict[str, Any]:
    """Both Runs of every method and seed; all but exposure and disparity are alike for all methods."""
    settings, found = settings_of("tiny"), {}
    for seed in settings["seeds"]:
        for method in settings["methods"]:
            noise = np.random.default_rng([seed, len(method)])
            stage = {
                "carriers": [user for user in range(USERS) for _ in settings["ladder"]],
                "repetitions": settings["ladder"] * USERS,
                "candidates": 1e9,
                "runs": [_run(method, perplexity, noise) for perplexity in (400.0, 100.0)],
            }
            found[Place("customersim", seed).name_of(method)] = stage
    return found


def _run(method: str, perplexity: float, noise: np.random.Generator) -> dict[str, Any]:
    learnt = 400 / perplexity
    exposure = [
        level + noise.normal(scale=0.2)
        for _ in range(USERS)
        for level in (2 + learnt, 8 + learnt - LESS[method])
    ]
    paid = 20.0 if method == DP_SGD else 5.0  # by who wrote little
    return {
        "diverged": None,
        "perplexity": Estimate(perplexity, perplexity, perplexity, 0.95, "typed").to_json(),
        "exposure": exposure,
        "completed": [0, 0] * USERS,
        "own_texts": [0] * USERS,
        "named": [float(one) for one in noise.random(USERS) < 0.1],
        "documents": [10 + user for user in range(USERS)],
        "change": [paid * (USERS - user) / USERS + noise.normal(scale=0.1) for user in range(USERS)],
        "tokens": 1000,
        "promise": {"epsilon": "inf", "mu": "8653655.79"} if method == DP_SGD else None,
    }


def concluded(name: str) -> Conclusion:
    return experiment_called(name).conclude(settings_of("tiny"), outcomes())


def words_of(findings: tuple[Finding, ...], beginning: str) -> list[str]:
    return [one.outcome for one in findings if one.claim.startswith(f"On customersim, {beginning}")]


def test_claims_about_exposure_follow_the_outcomes_and_batches_get_their_due() -> None:
    found = concluded("reg-exposure").findings
    often = "training exposes canaries that are repeated more than 9 times less than DP-SGD"
    assert words_of(found, f"adversarial {often}") == ["holds"]
    assert words_of(found, f"triplet {often}") == ["does not hold"]
    assert words_of(found, "batches by user alone, without any privacy loss, expose canaries less") == [
        "holds"
    ]
    alone = "paired batches alone, without any privacy loss, expose canaries less"
    assert words_of(found, alone) == ["holds"]
    # What batches do alone is not the loss's doing; pairs within the batch have batches of another kind.
    within = "triplet training exposes canaries less than paired batches alone"
    assert words_of(found, within) == ["does not hold"]
    assert not words_of(found, "triplet training exposes canaries less than batches by user alone")
    for method in ("adversarial", "triplet, second batch"):
        own = words_of(found, f"{method} training exposes canaries less than batches by user alone")
        assert own == ["undecided"]
    assert words_of(found, "triplet training with pairs within the batch is as private") == ["does not hold"]


def test_what_nobody_completes_decides_nothing() -> None:
    assert {one.outcome for one in concluded("reg-tab").findings} == {"undecided"}


def test_who_pays_is_told() -> None:
    found = concluded("reg-disparity").findings
    assert words_of(found, "adversarial training leaves less between users") == ["holds"]
    assert words_of(found, "DP-SGD costs users with fewest texts more") == ["holds"]


@pytest.mark.parametrize("name", ["reg-exposure", "reg-tab", "reg-disparity"])
def test_tables_and_charts_have_every_method_at_both_levels(name: str) -> None:
    conclusion, methods = concluded(name), len(settings_of("tiny")["methods"])
    assert "compared at perplexities 283 (high) and 141 (low)" in conclusion.conditions[0]
    assert [chart.name for chart in conclusion.charts] == ["customersim-high", "customersim-low"]
    assert all(len(chart.series) == methods for chart in conclusion.charts)
    assert any(len(table.rows) == 2 * methods for table in conclusion.tables)


def test_a_control_differs_from_its_regulariser_in_lambda_alone() -> None:
    """Also in the schedule of its batches; the product's defaults may change, and these stay."""
    for scale in ("tiny", "small", "paper"):
        recipes = {name: one["recipe"] for name, one in settings_of(scale)["methods"].items()}
        for method, control in ((TRIPLET, PAIRED_BATCHES), ("adversarial", BATCHES)):
            weight = recipes[method]["regularisation"]["lambda"]
            with_loss = {**recipes[control]["regularisation"], "lambda": weight}
            assert recipes[control]["regularisation"]["lambda"] == 0
            assert {**recipes[control], "regularisation": with_loss} == recipes[method]
        assert [recipes[one]["regularisation"]["pairs"] for one in (TRIPLET, SECOND)] == ["batch", "second"]


def test_dp_sgd_learns_at_the_rate_of_all_but_where_it_would_not_reach_them(tmp_path: Path) -> None:
    rates = {
        (name, recipe["training"]["learning_rate"])
        for stage in stages_of(Workshop(tmp_path), settings_of("small"))
        for name in [stage.name.split("-")[1] + (" dp-sgd" if stage.name.endswith(DP_SGD) else "")]
        for recipe in stage.key["recipes"]
    }
    assert rates == {
        ("shakespeare", 0.003),
        ("shakespeare dp-sgd", 0.003),
        ("customersim", 0.003),
        ("customersim dp-sgd", 0.01),
    }
    assert "at 0.01 on customersim" in _training(settings_of("small"))
    told = [one for one in caveats(settings_of("small")) if one.startswith("On customersim DP-SGD learns at")]
    assert len(told) == 1
    assert len(caveats(settings_of("tiny"))) == len(caveats(settings_of("small"))) - 1
