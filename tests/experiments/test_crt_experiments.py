"""CRT's frontier and attacks at scale tiny: shape, invariants, and what the two share."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from tacit.errors import InputError
from tacit.experiments import Result, Workshop, experiment_called
from tacit.experiments.crt_attacks import cells_of as attack_cells
from tacit.experiments.crt_frontier import cells_of as frontier_cells
from tacit.experiments.crt_ground import (
    CRT,
    DP_SGD,
    MASKED,
    NONPRIVATE,
    REDACTED,
    SELECTIVE,
    Cell,
    stage_of,
)
from tacit.experiments.crt_settings import settings_of
from tacit.experiments.experiment import Outcomes
from tacit.statistics import Estimate

SETTINGS = settings_of("tiny")
CORPUS = "simulated"
MODELS = ("lstm", "transformer")
Results = dict[str, Result]


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    return Workshop(tmp_path_factory.mktemp("work"))


@pytest.fixture(scope="module")
def results(shop: Workshop) -> Results:
    return {name: experiment_called(name).run(shop, "tiny") for name in ("crt-frontier", "crt-attacks")}


@pytest.fixture(scope="module")
def outcomes(shop: Workshop, results: Results) -> Outcomes:
    assert results
    cells = {*frontier_cells(SETTINGS), *attack_cells(SETTINGS)}
    found = {}
    for cell in cells:
        kept = shop.kept(stage_of(shop, SETTINGS, cell))
        assert kept is not None
        found[cell.stage] = kept.outcome
    return found


def runs(outcomes: Outcomes, model: str, method: str, *rest: Any) -> list[dict[str, Any]]:
    return list(outcomes[Cell(CORPUS, model, method, *rest).stage]["runs"])


def test_what_both_need_is_trained_once(shop: Workshop, results: Results) -> None:
    names = [{stage.name for stage in result.provenance.stages} for result in results.values()]
    shared = names[0] & names[1]
    assert len(shared) > len(names[1]) / 2
    for name in results:
        assert all(stage.done for stage in experiment_called(name).planned(shop, "tiny"))


def test_every_run_has_a_promise_a_perplexity_and_what_leaks(outcomes: Outcomes) -> None:
    canaries = SETTINGS["canaries"]
    for stage in outcomes.values():
        assert len(stage["runs"]) == len(SETTINGS["seeds"])
        for run in stage["runs"]:
            assert run["diverged"] is None
            assert 1 < run["perplexity"] < SETTINGS["vocabulary"] * 10
            assert len(run["exposure"]) == canaries["number"]
            assert all(0 <= bits <= math.log2(run["candidates"]) for bits in run["exposure"])
            assert sum(run["asked"]) == 2 * run["members"]
            accuracy = sum(run["right"]) / sum(run["asked"])
            assert accuracy == pytest.approx(run["membership"]["accuracy"])


@pytest.mark.parametrize("model", MODELS)
def test_non_private_training_leaks(model: str, outcomes: Outcomes) -> None:
    for run in runs(outcomes, model, NONPRIVATE):
        assert sum(run["exposure"]) / len(run["exposure"]) > 1.44 + 1


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(("method", "level"), [(MASKED, None), (CRT, 1)])
def test_where_the_policy_misses_nothing_no_canary_is_seen(
    model: str, method: str, level: int | None, outcomes: Outcomes
) -> None:
    found = [bits for run in runs(outcomes, model, method, 0.0, level) for bits in run["exposure"]]
    # Of eight canaries that were never seen, the mean is beyond 4 bits in less than one case of 5,000.
    assert sum(found) / len(found) < 4


@pytest.mark.parametrize("model", MODELS)
def test_noise_costs_and_buys(model: str, outcomes: Outcomes) -> None:
    gamma = SETTINGS["frontier_gamma"]
    for method, rest in ((DP_SGD, None), (CRT, gamma)):
        noisy, quiet = (runs(outcomes, model, method, rest, level) for level in (0, 1))
        for one, other in zip(noisy, quiet, strict=True):
            assert one["promise"]["epsilon"] < other["promise"]["epsilon"]
            assert one["perplexity"] > 0.9 * other["perplexity"], "more noise never helps, beyond chance"
    for plain, protected in zip(
        runs(outcomes, model, REDACTED, gamma), runs(outcomes, model, CRT, gamma, 0), strict=True
    ):
        assert protected["perplexity"] > 0.9 * plain["perplexity"]


def test_promises_are_of_the_method_and_the_policy(outcomes: Outcomes) -> None:
    gamma = SETTINGS["frontier_gamma"]
    for model in MODELS:
        assert all(run["promise"]["epsilon"] is None for run in runs(outcomes, model, NONPRIVATE))
        assert all(run["promise"]["epsilon"] == 0 for run in runs(outcomes, model, MASKED, 0.0))
        assert all(run["promise"]["epsilon"] is None for run in runs(outcomes, model, MASKED, gamma))
        for run in runs(outcomes, model, CRT, gamma, 1):
            told = run["promise"]
            assert told["epsilon"] <= told["one_point"] <= told["training"]
            assert told["paper_epsilon"] <= told["epsilon"], "the authors' account understates"
        assert all(run["promise"]["epsilon"] == 0 for run in runs(outcomes, model, CRT, 0.0, 1))
    assert all(run["promise"]["epsilon"] > 0 for run in runs(outcomes, "lstm", SELECTIVE, 0.0, 1))
    assert all(run["promise"]["epsilon"] is None for run in runs(outcomes, "lstm", SELECTIVE, gamma, 1))


def test_a_table_has_every_way_of_training_and_its_intervals(results: Results) -> None:
    frontier, accounts, prices = results["crt-frontier"].tables
    assert len(frontier.rows) == len(frontier_cells(SETTINGS))
    assert all(isinstance(row[-1], Estimate) for row in frontier.rows)
    assert len(accounts.rows) == len(MODELS) * len(SETTINGS["levels"])
    assert len(prices.rows) == len(MODELS)
    infinite = [row for row in frontier.rows if row[5] == "infinite"]
    assert "selective DP-SGD" in {row[2] for row in infinite}
    for table in results["crt-attacks"].tables:
        assert len(table.columns) == 3 + len(SETTINGS["gammas"])
        assert len(table.rows) == 6 + 5  # only the LSTM is trained selectively


def test_figures_have_a_line_for_each_method(results: Results) -> None:
    charts = {chart.name: chart for chart in results["crt-frontier"].charts}
    assert set(charts) == {f"{CORPUS}-paper", f"{CORPUS}-replace-one"}
    for chart in charts.values():
        assert len(chart.series) == 5
        assert len(chart.levels) == 4
    attacks = results["crt-attacks"].charts
    assert len(attacks) == 3 * len(MODELS)
    assert all(len(chart.series) == (5 if chart.name.endswith("lstm") else 4) for chart in attacks)


def test_every_claim_is_told_beside_what_was_seen(results: Results) -> None:
    for result in results.values():
        assert result.findings
        assert all(finding.claim.endswith((".", ")")) for finding in result.findings)
        assert not any("Nothing to compare" in finding.here for finding in result.findings)
        assert len(result.conditions) >= 6
    (understated,) = [one for one in results["crt-frontier"].findings if "account" in one.claim]
    assert understated.outcome == "does not hold"


@pytest.mark.parametrize("name", ["crt-frontier", "crt-attacks"])
def test_larger_scales_plan_without_text_and_ask_for_it(name: str, tmp_path: Path) -> None:
    shop = Workshop(tmp_path)
    for scale in ("small", "paper"):
        planned = experiment_called(name).planned(shop, "small" if scale == "small" else "paper")
        assert len({stage.name for stage in planned}) == len(planned)
        assert not any(stage.done for stage in planned)
    with pytest.raises(InputError, match="say with --data"):
        experiment_called(name).run(shop, "small")
