"""The experiments on privacy regularisation: shape, invariants, and that all three share their Runs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tacit.errors import InputError
from tacit.experiments import Result, Workshop, experiment_called
from tacit.experiments.reg_ground import SHAKESPEARE, settings_of, stages_of
from tacit.experiments.reg_overhead import median_of
from tacit.statistics import Estimate

SHARED = ("reg-exposure", "reg-tab", "reg-disparity")


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    return Workshop(tmp_path_factory.mktemp("work"))


@pytest.fixture(scope="module")
def results(shop: Workshop) -> dict[str, Result]:
    return {name: experiment_called(name).run(shop, "tiny") for name in SHARED}


def test_all_three_rest_on_the_same_runs(shop: Workshop, results: dict[str, Result]) -> None:
    stages = {tuple(result.provenance.stages) for result in results.values()}
    assert len(stages) == 1
    settings = settings_of("tiny")
    assert len(next(iter(stages))) == len(settings["seeds"]) * len(settings["methods"])
    for name in SHARED:
        assert all(stage.done for stage in experiment_called(name).planned(shop, "tiny"))


def test_every_run_tells_of_every_canary_user_and_author(shop: Workshop, results: dict[str, Result]) -> None:
    assert results
    settings = settings_of("tiny")
    for stage in stages_of(shop, settings):
        kept = shop.kept(stage)
        assert kept is not None
        method = stage.name.split("-", 3)[3]
        found = kept.outcome
        assert len(found["runs"]) == len(settings["methods"][method]["values"])
        for run in found["runs"]:
            users = len(run["documents"])
            canaries = users * len(settings["ladder"])
            assert [len(run[name]) for name in ("exposure", "completed")] == [canaries] * 2
            assert [len(run[name]) for name in ("own_texts", "named", "change")] == [users] * 3
            assert len(found["carriers"]) == len(found["repetitions"]) == canaries
            assert sorted(set(found["carriers"])) == list(range(users))
            assert (run["promise"] is None) == (method != "dp-sgd")


def test_training_longer_remembers_what_is_repeated(shop: Workshop, results: dict[str, Result]) -> None:
    """Perplexity is not compared: so small a model has learnt what it can of unseen text in one epoch."""
    assert results
    settings = settings_of("tiny")
    stages = {stage.name: stage for stage in stages_of(shop, settings)}
    for seed in settings["seeds"]:
        stage = shop.done(stages[f"reg-customersim-{seed}-unmitigated"]).outcome
        repeated = np.array(stage["repetitions"]) > 1
        short, long = (np.array(run["exposure"]) for run in stage["runs"])
        assert set(stage["runs"][-1]["change"]) == {0.0}, "it is what all are compared with"
        assert long[repeated].mean() > long[~repeated].mean() + 2
        assert long[repeated].mean() > short[repeated].mean() + 0.5


@pytest.mark.parametrize("name", SHARED)
def test_what_is_measured_has_an_interval_and_claims_are_told(name: str, results: dict[str, Result]) -> None:
    result = results[name]
    assert len(result.conditions) == 5
    assert result.findings
    settings = settings_of("tiny")
    if "none is common" in result.conditions[0]:  # as processors round; then nothing is compared
        assert {finding.outcome for finding in result.findings} == {"undecided"}
        return
    (compared, *_) = result.tables
    assert len(compared.rows) >= 2 * len(settings["methods"]) - 2
    assert any(isinstance(cell, Estimate) for row in compared.rows for cell in row)
    assert [chart.name for chart in result.charts] == ["customersim-high", "customersim-low"]
    assert all(len(chart.series) == len(settings["methods"]) for chart in result.charts)


@pytest.mark.parametrize("scale", ["small", "paper"])
def test_larger_scales_plan_without_text_and_ask_for_it(scale: str, tmp_path: Path) -> None:
    shop = Workshop(tmp_path)
    assert scale in ("small", "paper")
    for name in SHARED:
        experiment = experiment_called(name)
        planned = experiment.planned(shop, "small" if scale == "small" else "paper")
        assert len({stage.name for stage in planned}) == len(planned) == 42
        assert not any(stage.done for stage in planned)
    text = SHAKESPEARE if scale == "small" else "avocado-1.0.2/data/text"
    with pytest.raises(InputError, match=f"This experiment reads {text}; say with --data"):
        experiment_called("reg-exposure").run(shop, "small" if scale == "small" else "paper")


def test_a_step_of_every_method_is_timed(tmp_path: Path) -> None:
    result = experiment_called("reg-overhead").run(Workshop(tmp_path), "tiny")
    (table,) = result.tables
    assert table.columns == ("model", "adversarial", "triplet, batch", "triplet, second", "DP-SGD")
    assert len(table.rows) == 3
    for row in table.rows[1:]:
        ratios = [cell for cell in row if isinstance(cell, Estimate)]
        assert len(ratios) == 4
        assert all(0 < one.low <= one.value <= one.high for one in ratios)
    assert experiment_called("reg-overhead").planned(Workshop(tmp_path), "paper")


def test_the_interval_of_a_median_is_exact() -> None:
    values = np.arange(1.0, 16.0)
    found = median_of(values)  # of 15: the 4th and the 12th, at 96.5%
    assert (found.low, found.value, found.high) == (4.0, 8.0, 12.0)
    assert median_of(values[:5]).high == float("inf")
