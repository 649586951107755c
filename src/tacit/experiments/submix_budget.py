"""SubMix, Figure 4: perplexity over the number of queries that one budget is meant for.

The paper tunes the target "to obtain the desired budget", on the private ensemble itself: such a target
depends on every part, and what is charged then bounds nothing. Its lines are here beside those of the printed
target, epsilon / B, and of one that is calibrated on public text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from tacit.experiments.experiment import Conclusion, Experiment, Outcomes, Settings
from tacit.experiments.results import Chart, Finding, Outcome, Scale
from tacit.experiments.stages import Stage, Workshop
from tacit.experiments.submix_ground import Basis, GroundSettings, Shape, bigpatent, conditions, wikitext
from tacit.experiments.submix_rows import (
    PER_PART,
    PRINTED,
    Spec,
    calibrated,
    calibrated_specs,
    measured,
    spec,
)
from tacit.experiments.submix_tables import (
    Row,
    all_above,
    decided,
    estimate,
    falls,
    levels,
    line,
    only,
    table_of,
    those,
    together,
)
from tacit.report.words import estimate as told
from tacit.report.words import number
from tacit.statistics import Estimate

NAME: Final = "submix-budget"
_CLOSE: Final = 0.05
_TARGETS: Final = {
    "oracle": "tuned on the private ensemble, as in the paper: outside the guarantee",
    "heuristic": "printed: epsilon / B",
    "calibrated": "calibrated on public text",
}


def _settings(scale: Scale) -> Settings:
    tiny = scale == "tiny"
    return {
        "grounds": [wikitext(scale), *([bigpatent()] if scale == "paper" else [])],
        "parts": 2 if tiny else 8,
        "epsilons": [0.5, 32.0] if tiny else [0.5, 2.0, 8.0],
        "queries": [64, 128, 320] if tiny else [256, 512, 1024, 2560, 5120, 10_240],
        "moderate": 64 if tiny else 1024,
    }


def _stages(workshop: Workshop, settings: Settings) -> Sequence[Stage]:
    stages: list[Stage] = []
    for ground in settings["grounds"]:
        surrogate = ground["public"] is not None
        basis = Basis.of(ground, workshop, Shape(settings["parts"]), surrogate=surrogate)
        stages += basis.stages
        specs = _specs(settings, with_calibrated=surrogate)
        calibration = None
        if surrogate:
            calibration = calibrated(ground, workshop, calibrated_specs(specs), basis.shape, name=NAME)
            stages.append(calibration)
        stages.append(
            measured(
                ground,
                workshop,
                basis.asked,
                specs,
                name=NAME,
                said=basis.said,
                calibration=calibration,
            )
        )
    return stages


def _specs(settings: Settings, *, with_calibrated: bool) -> list[Spec]:
    kinds = [(PRINTED, "oracle"), (PRINTED, "heuristic")]
    if with_calibrated:
        kinds.append((PER_PART, "calibrated"))
    return [
        spec(variant, epsilon, queries, settings["parts"], source=source)
        for variant, source in kinds
        for epsilon in settings["epsilons"]
        for queries in settings["queries"]
    ]


def _conclude(settings: Settings, outcomes: Outcomes) -> Conclusion:
    tables, charts, findings = [], [], []
    said: list[str] = []
    for ground in settings["grounds"]:
        outcome = outcomes[f"{NAME}-{ground['name']}"]
        charts += _charts(ground, outcome, settings)
        tables.append(table_of(f"Figure 4: {ground['name']}", outcome["rows"], outcome["references"]))
        findings += _findings(ground, outcome, settings)
        said += conditions(ground)
    caveats = (
        "SubMix's bound holds for this corpus and partition only and has no (epsilon, delta); rows with a "
        "target tuned on the private ensemble have no bound at all and show what a good public choice could "
        "reach.",
        "Different B are measured on the same text, cut into more or fewer stretches; long ones are few, and "
        "their intervals too narrow.",
    )
    return Conclusion(tuple(said), tuple(tables), tuple(charts), tuple(findings), caveats)


def _charts(ground: GroundSettings, outcome: Mapping[str, Any], settings: Settings) -> list[Chart]:
    charts = []
    for source, words in _TARGETS.items():
        rows = those(outcome["rows"], source=source)
        if rows:
            charts.append(
                Chart(
                    name=f"figure-4-{ground['name']}-{source}",
                    title=f"{ground['name']}: target {words}",
                    x_label="B: queries that the budget is for",
                    y_label="perplexity",
                    series=tuple(
                        line(f"epsilon = {epsilon:g}", those(rows, epsilon=epsilon), "queries")
                        for epsilon in settings["epsilons"]
                    ),
                    levels=levels(outcome["references"]),
                    log_x=True,
                )
            )
    return charts


def _findings(ground: GroundSettings, outcome: Mapping[str, Any], settings: Settings) -> list[Finding]:
    rows, name = outcome["rows"], ground["name"]
    tuned = those(rows, source="oracle")
    moderate = those(tuned, queries=settings["moderate"])
    shares = [_kept(row) for row in moderate]
    found = [
        Finding(
            claim=f"{name}: the more queries, the higher is the perplexity at a given epsilon.",
            here=_first_to_last(rows, settings, "heuristic"),
            outcome=_grows(rows, settings, "heuristic"),
        ),
        Finding(
            claim=(
                f"{name}: with a tuned target, perplexity is low for a moderate number of queries at every "
                "epsilon (here: at least half of the ensemble's improvement is kept)."
            ),
            here=f"B = {settings['moderate']:,}: {', '.join(map(told, shares))}.",
            outcome=all_above(shares, 0.5),
        ),
    ]
    chosen = those(rows, source="calibrated")
    if chosen:
        pairs = [
            (_kept(row), _kept(only(tuned, epsilon=row["epsilon"], queries=row["queries"]))) for row in chosen
        ]
        behind = [
            theirs.value - ours.value for ours, theirs in pairs if ours is not None and theirs is not None
        ]
        found.append(
            Finding(
                claim=(
                    f"{name}, ours: a target calibrated on public text does as well as one tuned on the "
                    f"private ensemble (within {_CLOSE:g} of the ensemble's improvement)."
                ),
                here=f"At worst {number(max(behind, default=None))} behind, over all epsilons and B.",
                outcome=_does_as_well(pairs),
            )
        )
    return found


def _lines(rows: Sequence[Row], settings: Settings, source: str) -> list[list[Row]]:
    return [those(rows, source=source, epsilon=epsilon) for epsilon in settings["epsilons"]]


def _first_to_last(rows: Sequence[Row], settings: Settings, source: str) -> str:
    ends = [
        f"epsilon = {one[0]['epsilon']:g}: {told(_kept(one[0]))} to {told(_kept(one[-1]))}"
        for one in _lines(rows, settings, source)
    ]
    first, last = settings["queries"][0], settings["queries"][-1]
    return f"Of the ensemble's improvement, from B = {first:,} to {last:,}: {'; '.join(ends)}."


def _grows(rows: Sequence[Row], settings: Settings, source: str) -> Outcome:
    # By what is kept, which compares models on the same text: perplexities differ from text to text.
    return together([falls([_kept(row) for row in one]) for one in _lines(rows, settings, source)])


def _kept(row: Row) -> Estimate | None:
    return estimate(row, "share_of_ensemble")


def _does_as_well(pairs: Sequence[tuple[Estimate | None, Estimate | None]]) -> Outcome:
    known = [(ours, theirs) for ours, theirs in pairs if ours is not None and theirs is not None]
    return decided(
        holds=len(known) == len(pairs) and all(ours.low > theirs.high - _CLOSE for ours, theirs in known),
        fails=any(ours.high < theirs.low - _CLOSE for ours, theirs in known),
    )


BUDGET: Final = Experiment(
    name=NAME,
    title="How many queries a budget is for",
    shows="SubMix, Figure 4",
    settings=_settings,
    stages=_stages,
    conclude=_conclude,
    texts=("wikitext-2/train.txt", "wikitext-2/test.txt"),
)
