"""The overview: every method is measured in one way on one text, beside what it promises and costs."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from tacit.experiments import Result, Workshop, experiment_called
from tacit.experiments.overview_cost import COST, answering_cost, cost_stage, training_cost
from tacit.experiments.overview_ground import (
    CERTIFIED,
    CRT,
    DP_SGD,
    PREDICTED,
    PUBLIC,
    settings_of,
    stage_name,
)
from tacit.experiments.overview_levels import LEVELS, bits, levels_of, methods_of
from tacit.experiments.overview_promises import METHODS, promise
from tacit.experiments.overview_texts import SPANS, TEXT, USER, ground_of, turns_of
from tacit.experiments.plots import svg_of
from tacit.statistics import Estimate

SETTINGS = settings_of("tiny")


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    return Workshop(tmp_path_factory.mktemp("overview"))


@pytest.fixture(scope="module")
def result(shop: Workshop) -> Result:
    return experiment_called("overview").run(shop, "tiny")


def outcomes_of(shop: Workshop) -> dict[str, Any]:
    stages = experiment_called("overview").stages(shop, SETTINGS)
    return {stage.name: shop.done(stage).outcome for stage in stages}


def test_turns_are_documents_with_their_own_spans() -> None:
    rows = list(turns_of(2, 2, 5))
    assert len({row[USER] for row in rows}) == 2
    assert all("\n" not in row[TEXT] for row in rows)
    found = [(row[TEXT], span) for row in rows for span in row[SPANS]]
    assert {span["label"] for _, span in found} == {"NAME", "ADDRESS", "PHONE", "ORDER", "TRACKING"}
    for text, span in found:
        assert 0 <= span["start"] < span["end"] <= len(text)
        assert text[span["start"] : span["end"]].strip() == text[span["start"] : span["end"]]


@pytest.mark.slow
def test_codes_are_planted_where_their_spans_say_and_masked_but_for_a_share(
    shop: Workshop, result: Result
) -> None:
    assert result
    ground = ground_of(shop, SETTINGS, 1)
    planted = [json.loads(line) for line in ground.planted.read_text().splitlines()]
    codes = planted[ground.manifest.cost.corpus_documents :]
    secrets = {one.secret for one in ground.manifest.canaries}
    assert len(codes) == SETTINGS["canaries"]["users"] * sum(SETTINGS["canaries"]["ladder"])
    for row in codes:
        (span,) = row[SPANS]
        assert row[TEXT][span["start"] : span["end"]] in secrets
    held_out = {row[USER] for row in ground.held_out()}
    assert held_out.isdisjoint({row[USER] for row in planted})
    masked, screened = (
        [json.loads(line) for line in path.read_text().splitlines()]
        for path in (ground.masked, ground.screened)
    )
    assert len(masked) == len(screened) == len(planted), "a data point for every turn"
    kept = sum(any(char.isdigit() for char in row["text"]) for row in masked[-len(codes) :])
    assert 0 < kept < len(codes) / 2, "a tenth is missed"
    bare = sum(row["text"] == "<MASK>" for row in screened)
    assert bare > len(codes) / 2, "repeats are masks to CRT"


@pytest.mark.slow
def test_every_method_is_told_with_its_promise_and_its_cost(shop: Workshop, result: Result) -> None:
    near, far, along = result.tables
    names = [METHODS[method] for method in methods_of(SETTINGS)]
    assert {row[0] for row in along.rows} == {*names, PUBLIC}
    for equal in (near, far):
        assert [row[0] for row in equal.rows] == names
        for row in equal.rows:
            measured = [cell for cell in row if isinstance(cell, Estimate)]
            assert len(measured) >= 3 or str(row[1]).startswith("not reached; ")
            assert all(one.low <= one.value <= one.high for one in measured)
    (picture,) = result.charts
    assert [series.name for series in picture.series] == names
    assert all(series.note for series in picture.series), "what is promised stands beside every line"
    drawn = svg_of(picture)
    assert all(series.note in drawn for series in picture.series)
    assert "prefers-color-scheme:dark" in drawn
    assert len(result.summary) == 4
    assert len(result.findings) == 1 + 4 + len(names) - 1


@pytest.mark.slow
def test_the_public_model_knows_nothing_and_training_learns(shop: Workshop, result: Result) -> None:
    assert result
    found = outcomes_of(shop)
    public = found[stage_name(PUBLIC, 1)]["runs"][0]
    count = SETTINGS["canaries"]["users"] * len(SETTINGS["canaries"]["ladder"])
    for method in methods_of(SETTINGS):
        run = found[stage_name(method, 1)]["runs"][-1]
        assert len(run["exposure"]) == len(run["completed"]) == count
        assert all(0 <= one <= bits(SETTINGS) + 1e-9 for one in run["exposure"])
        assert run["perplexity"]["value"] < public["perplexity"]["value"], method
    assert sum(public["completed"]) == 0
    often = [place for place, many in enumerate(public["repetitions"]) if many > 1]
    plain = found[stage_name("unmitigated", 1)]["runs"][-1]
    gained = [plain["exposure"][place] - public["exposure"][place] for place in often]
    assert sum(gained) / len(gained) > 1, "without protection repeated codes leak"
    certified = found[stage_name(CERTIFIED, 1)]["runs"][-1]
    assert certified["answers"] == pytest.approx(SETTINGS["prediction"]["queries"]), "exactly its budget"


@pytest.mark.slow
def test_methods_meet_at_perplexities_that_they_reach(shop: Workshop, result: Result) -> None:
    assert result
    found = outcomes_of(shop)

    def best(method: str) -> float:
        return float(min(run["perplexity"]["value"] for run in found[stage_name(method, 1)]["runs"]))

    public = found[stage_name(PUBLIC, 1)]["runs"][0]["perplexity"]["value"]
    for level, share in zip(levels_of(SETTINGS, found), LEVELS.values(), strict=True):
        logs = (1 - share) * math.log(public) + share * math.log(best("unmitigated"))
        assert math.log(level.perplexity) == pytest.approx(logs)
        assert set(level.methods) == {one for one in methods_of(SETTINGS) if best(one) <= level.perplexity}
        assert "unmitigated" in level.methods


def test_a_method_that_does_not_come_so_far_is_left_out_of_a_level() -> None:
    measured = Estimate(100.0, 90.0, 110.0, 0.95, "m").to_json()

    def run(perplexity: float, **more: Any) -> dict[str, Any]:
        return {"perplexity": {**measured, "value": perplexity}, "diverged": None, **more}

    found: dict[str, Any] = {stage_name(method, 1): {"runs": [run(10.0)]} for method in methods_of(SETTINGS)}
    found[stage_name(PUBLIC, 1)] = {"runs": [run(100.0)]}
    # A third of the way, by logarithms: beyond a quarter and short of half.
    found[stage_name(DP_SGD, 1)] = {"runs": [run(100 / 10 ** (1 / 3))]}
    found[stage_name(CRT, 1)] = {"runs": [run(120.0)]}
    near, far = levels_of(SETTINGS, found)
    assert set(methods_of(SETTINGS)) - set(near.methods) == {CRT}
    assert set(methods_of(SETTINGS)) - set(far.methods) == {CRT, DP_SGD}
    found[stage_name("unmitigated", 1)] = {"runs": [run(120.0)]}
    assert levels_of(SETTINGS, found) == []


@pytest.mark.slow
def test_costs_are_ratios_and_crts_follows_from_its_turns(shop: Workshop, result: Result) -> None:
    assert result
    outcome = shop.done(cost_stage(SETTINGS)).outcome
    training, answering = training_cost(outcome), answering_cost(outcome)
    assert set(training) == set(answering) == set(methods_of(SETTINGS))
    private, turns = training[DP_SGD], outcome["turns"]
    assert isinstance(private, Estimate)
    own = training[CRT]
    assert isinstance(own, Estimate)
    assert own.value == pytest.approx((turns["private"] * private.value + turns["public"]) / turns["all"])
    assert turns["private"] + turns["public"] <= turns["all"]
    for method in PREDICTED:
        token = answering[method]
        assert isinstance(token, Estimate)
        assert token.low > 1
    assert COST in {stage.name for stage in result.provenance.stages}


def test_promises_say_what_they_are() -> None:
    said = {method: promise(SETTINGS, method, 256.0, None) for method in methods_of(SETTINGS)}
    assert said["unmitigated"] == "none"
    assert said["adversarial"] == said["triplet"] == "empirical, no guarantee"
    assert said["masked"].startswith("none: 10% of secrets")
    assert "not DP" in said["submix-guarded"]
    assert "1e-05)-DP of a part's text" in said["certified"]


@pytest.mark.parametrize("scale", ["small", "paper"])
def test_larger_scales_are_planned_without_any_text(scale: Any, tmp_path: Path) -> None:
    experiment = experiment_called("overview")
    planned = experiment.planned(Workshop(tmp_path), scale)
    settings = experiment.settings(scale)
    assert len(planned) == len(settings["seeds"]) * (1 + len(methods_of(settings))) + 1
    assert len(settings["seeds"]) >= 3
    assert not list(tmp_path.iterdir())
