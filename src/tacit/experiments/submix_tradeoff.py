"""SubMix, Figures 2, 3 and 7: what privacy costs, by mechanism and by epsilon.

Figure 2 sets four mechanisms side by side at order 2 and epsilon 2, for one query and for 1,024; DP-SGD's
weights answer any number. Here DP-SGD has the (epsilon, delta) that this Renyi bound converts to. Figure 3 is
SubMix over epsilon for three numbers of queries, Figure 7 the noisy baselines over epsilon and the number of
parts, each query with a budget of its own, which flatters them most.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from tacit.experiments.experiment import Conclusion, Experiment, Outcomes, Settings
from tacit.experiments.results import Chart, Finding, Outcome, Scale
from tacit.experiments.stages import Stage, Workshop
from tacit.experiments.submix_ground import (
    Basis,
    GroundSettings,
    Shape,
    bigpatent,
    by_dpsgd,
    conditions,
    patents,
    said_by,
    trained,
    wikitext,
)
from tacit.experiments.submix_rows import (
    AGGREGATE,
    GNMAX,
    PER_PART,
    PRINTED,
    Spec,
    calibrated,
    calibrated_specs,
    compared,
    measured,
    spec,
)
from tacit.experiments.submix_tables import (
    Row,
    all_above,
    all_below,
    clearly_above,
    decided,
    estimate,
    levels,
    line,
    only,
    perplexity,
    table_of,
    those,
    together,
    weights_table,
)
from tacit.privacy import Guarantee
from tacit.privacy.guarantee import DELTA
from tacit.report.words import estimate as told
from tacit.report.words import number

NAME: Final = "submix-tradeoff"
_PAPERS_SHARE: Final = 0.61  # (37.5 - 26.9) / (37.5 - 20.0): of the fine-tuned model's improvement, Figure 2
_BASELINES: Final = (AGGREGATE, GNMAX)


def _settings(scale: Scale) -> Settings:
    tiny, small = scale == "tiny", scale == "small"
    return {
        "grounds": [wikitext(scale), *([] if tiny else [patents() if small else bigpatent()])],
        "parts": 2 if tiny else 8,
        "epsilon": 2.0,
        "delta": DELTA,
        "epsilons": [0.5, 8.0, 128.0] if tiny else [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0],
        "queries": [64, 128] if tiny else [1024, 2560, 10_240],
        "few_queries": 64 if tiny else 1024,
        "dpsgd_epochs": {"tiny": [1, 2], "small": [1, 2], "paper": [1, 10]}[scale],
        "baseline_epsilons": [8.0, 512.0] if tiny else [1.0, 8.0, 64.0, 512.0],
        "baseline_parts": [2] if tiny else [2, 4, 8],
        "baseline_queries": {"tiny": 192, "small": 1024, "paper": 2048}[scale],
    }


def dp_epsilon(settings: Settings) -> float:
    """What the Renyi bound of order 2 converts to."""
    converted = Guarantee.certified(order=2.0, epsilon=settings["epsilon"]).to_dp(settings["delta"]).epsilon
    assert converted is not None  # noqa: S101 - a Renyi bound always converts
    return float(converted)


def _stages(workshop: Workshop, settings: Settings) -> Sequence[Stage]:
    first = settings["grounds"][0]
    stages: list[Stage] = []
    calibration = None
    for ground in settings["grounds"]:
        # Stretches of the longest budget must fit what is asked of a ground.
        specs = _specs(ground, settings, with_calibrated=first["public"] is not None)
        basis = Basis.of(ground, workshop, Shape(settings["parts"]), surrogate=ground["public"] is not None)
        stages += basis.stages
        chosen = calibrated_specs(specs)
        if chosen:
            calibration = calibrated(first, workshop, chosen, basis.shape, name=f"{NAME}-of-{ground['name']}")
            stages.append(calibration)
        stages.append(
            measured(
                ground,
                workshop,
                basis.asked,
                specs,
                name=NAME,
                said=basis.said,
                calibration=calibration if chosen else None,
            )
        )
        if ground is first:
            stages += _others(ground, workshop, settings, basis)
    return stages


def _others(ground: GroundSettings, workshop: Workshop, settings: Settings, basis: Basis) -> list[Stage]:
    """DP-SGD and the noisy baselines, on the first ground."""
    stages = []
    said = {"fine-tuned, not private": basis.said}
    for epochs in settings["dpsgd_epochs"]:
        learner = by_dpsgd(ground, dp_epsilon(settings), settings["delta"], epochs)
        said[_dpsgd_name(epochs)] = said_by(ground, workshop, learner, basis.asked)
        stages += [trained(ground, workshop, learner), said[_dpsgd_name(epochs)]]
    stages.append(compared(ground, workshop, basis.asked, said, best="fine-tuned, not private"))
    stages.append(
        measured(
            ground,
            workshop,
            basis.asked,
            _baseline_specs(settings),
            name=f"{NAME}-baselines",
            said=basis.said,
            queries=settings["baseline_queries"],
        )
    )
    return stages


def _specs(ground: GroundSettings, settings: Settings, *, with_calibrated: bool) -> list[Spec]:
    parts = settings["parts"]
    fitting = [queries for queries in settings["queries"] if queries <= ground["queries"]]
    specs = [
        spec(variant, epsilon, queries, parts)
        for variant in (PRINTED, PER_PART)
        for epsilon in settings["epsilons"]
        for queries in fitting
    ]
    specs += [spec(variant, settings["epsilon"], 1, parts) for variant in (PRINTED, PER_PART)]
    wanted = {(one["epsilon"], one["queries"]) for one in specs}
    few = (settings["epsilon"], settings["few_queries"])
    if few not in wanted:
        specs += [spec(variant, *few, parts) for variant in (PRINTED, PER_PART)]
    if with_calibrated:
        specs += [{**one, "source": "calibrated"} for one in specs if one["queries"] > 1]
    return specs


def _baseline_specs(settings: Settings) -> list[Spec]:
    sweep = [
        spec(variant, epsilon, 1, parts)
        for variant in _BASELINES
        for parts in settings["baseline_parts"]
        for epsilon in settings["baseline_epsilons"]
    ]
    side_by_side = [
        spec(variant, settings["epsilon"], queries, settings["parts"])
        for variant in _BASELINES
        for queries in (1, settings["few_queries"])
    ]
    return sweep + side_by_side


def _dpsgd_name(epochs: int) -> str:
    return f"DP-SGD, {epochs} {'epoch' if epochs == 1 else 'epochs'}"


def _conclude(settings: Settings, outcomes: Outcomes) -> Conclusion:
    first, *others = settings["grounds"]
    main = outcomes[f"{NAME}-{first['name']}"]
    baselines = outcomes[f"{NAME}-baselines-{first['name']}"]["rows"]
    models = outcomes[f"compare-{first['name']}"]["rows"]
    rows = main["rows"]
    side_by_side = _side_by_side(rows, baselines, settings)
    tables = [
        table_of(f"Figure 2: epsilon = {settings['epsilon']:g}", side_by_side, main["references"]),
        weights_table(models),
    ]
    charts, findings = [], _of_figure_2(side_by_side, models, settings)
    for ground in settings["grounds"]:
        outcome = outcomes[f"{NAME}-{ground['name']}"]
        charts += _figure_3(ground, outcome, settings)
        tables.append(table_of(f"Figure 3: {ground['name']}", outcome["rows"], outcome["references"]))
        findings += _of_figure_3(ground, outcome, settings)
    charts += _figure_7(baselines, main["references"], settings)
    tables.append(table_of("Figure 7: noisy baselines", _sweep(baselines)))
    findings += _of_figure_7(baselines, settings)
    said = list(conditions(first))
    for ground in others:
        said += conditions(ground)
    return Conclusion(tuple(said), tuple(tables), tuple(charts), tuple(findings), _caveats(settings))


def _side_by_side(rows: Sequence[Row], baselines: Sequence[Row], settings: Settings) -> list[Row]:
    every = [*rows, *baselines[-2 * len(_BASELINES) :]]
    found: list[Row] = []
    for queries in (1, settings["few_queries"]):
        found += those(every, epsilon=settings["epsilon"], queries=queries)
    return found


def _sweep(baselines: Sequence[Row]) -> list[Row]:
    """Those of Figure 7; those of Figure 2 come last."""
    return list(baselines[: -2 * len(_BASELINES)])


def _figure_3(ground: GroundSettings, outcome: Mapping[str, Any], settings: Settings) -> list[Chart]:
    charts = []
    for variant, source, words in (
        (PRINTED, "heuristic", "as printed, target epsilon / B"),
        (PER_PART, "calibrated", "per part, target calibrated on public text"),
    ):
        rows = those(outcome["rows"], variant=variant, source=source)
        series = [
            line(f"B = {queries:,}", shown, "epsilon")
            for queries in settings["queries"]
            if (
                shown := [
                    one for one in those(rows, queries=queries) if one["epsilon"] in settings["epsilons"]
                ]
            )
        ]
        if series:
            charts.append(
                Chart(
                    name=f"figure-3-{ground['name']}-{source}",
                    title=f"{ground['name']}: SubMix {words}",
                    x_label="epsilon (order 2)",
                    y_label="perplexity",
                    series=tuple(series),
                    levels=levels(outcome["references"]),
                    log_x=True,
                )
            )
    return charts


def _figure_7(baselines: Sequence[Row], references: Sequence[Row], settings: Settings) -> list[Chart]:
    return [
        Chart(
            name=f"figure-7-{'gnmax' if variant == GNMAX else 'aggregate'}",
            title=f"{variant}, one query with the whole budget",
            x_label="epsilon (order 2)",
            y_label="perplexity",
            series=tuple(
                line(
                    f"k = {parts}",
                    those(_sweep(baselines), variant=variant, parts=parts),
                    "epsilon",
                )
                for parts in settings["baseline_parts"]
            ),
            levels=tuple(one for one in levels(references) if one.name == "public"),
            log_x=True,
            log_y=True,
        )
        for variant in _BASELINES
    ]


def _of_figure_2(side: Sequence[Row], models: Mapping[str, Row], settings: Settings) -> list[Finding]:
    few = settings["few_queries"]
    printed = only(side, variant=PRINTED, queries=few, source="heuristic")
    share = estimate(printed, "share_of_nonprivate")
    noisy = [estimate(row, "share_of_nonprivate") for row in side if row["variant"] in _BASELINES]
    once, often = settings["dpsgd_epochs"]
    by_once, by_often = (
        estimate(models[_dpsgd_name(epochs)], "share_of_nonprivate") for epochs in (once, often)
    )
    return [
        Finding(
            claim=(
                f"SubMix as printed realises {_PAPERS_SHARE:.0%} of the fine-tuned model's improvement at "
                f"epsilon = 2 and B = 1,024."
            ),
            here=f"With B = {few:,}: {told(share)}; perplexity {told(perplexity(printed))}.",
            outcome=all_above([share], _PAPERS_SHARE),
        ),
        Finding(
            claim="Subsample-and-aggregate and GNMax do not improve on the public model, even for one query.",
            here=f"Of the fine-tuned model's improvement: {', '.join(map(told, noisy))}.",
            outcome=all_below(noisy, 0.0),
        ),
        Finding(
            claim="After one epoch, DP-SGD hardly improves on the public model (here: by less than a tenth).",
            here=f"Of the fine-tuned model's improvement: {told(by_once)}.",
            outcome=all_below([by_once], 0.1),
        ),
        Finding(
            claim="More epochs let DP-SGD improve modestly (ten in the paper).",
            here=f"After {often} epochs, of the fine-tuned model's improvement: {told(by_often)}.",
            outcome=all_above([by_often], 0.0),
        ),
    ]


def _of_figure_3(ground: GroundSettings, outcome: Mapping[str, Any], settings: Settings) -> list[Finding]:
    rows = [row for row in outcome["rows"] if row["epsilon"] in settings["epsilons"] and row["queries"] > 1]
    printed = those(rows, variant=PRINTED, source="heuristic")
    longest = max(row["queries"] for row in printed)
    at_longest = those(printed, queries=longest, epsilon=settings["epsilons"][-1])
    shares = [estimate(row, "share_of_ensemble") for row in those(printed, queries=longest)]
    single = next(one for one in outcome["references"] if one["name"].startswith("single"))
    best = [perplexity(row) for row in at_longest]
    alone = perplexity(single)
    name = ground["name"]
    found = [
        Finding(
            claim=f"{name}: SubMix improves on the public model at every epsilon, even for the largest B.",
            here=f"B = {longest:,}, of the ensemble's improvement: {', '.join(map(told, shares))}.",
            outcome=all_above(shares, 0.0),
        ),
        Finding(
            claim=f"{name}: at high epsilon SubMix is better than a single model without privacy.",
            here=(
                f"epsilon = {settings['epsilons'][-1]:g}, B = {longest:,}: "
                f"{', '.join(map(told, best))}; a single model {told(alone)}."
            ),
            outcome=decided(
                holds=all(one.high < alone.low for one in best),
                fails=any(one.low > alone.high for one in best),
            ),
        ),
    ]
    chosen = those(rows, variant=PER_PART, source="calibrated", queries=longest)
    if chosen:
        gained = [estimate(row, "share_of_ensemble") for row in chosen]
        found.append(
            Finding(
                claim=f"{name}, ours: a target calibrated on public text keeps more than the printed one.",
                here=f"B = {longest:,}, of the ensemble's improvement: {', '.join(map(told, gained))}.",
                outcome=_gains(chosen, those(printed, queries=longest)),
            )
        )
    return found


def _gains(chosen: Sequence[Row], printed: Sequence[Row]) -> Outcome:
    outcomes = [
        clearly_above(
            estimate(one, "share_of_ensemble"),
            estimate(only(printed, epsilon=one["epsilon"]), "share_of_ensemble"),
        )
        for one in chosen
    ]
    return together(outcomes)


def _of_figure_7(baselines: Sequence[Row], settings: Settings) -> list[Finding]:
    sweep = _sweep(baselines)
    shares = [estimate(row, "share_of_ensemble") for row in those(sweep, variant=GNMAX)]
    best = min((perplexity(row) for row in those(sweep, variant=GNMAX)), key=lambda one: one.value)
    improving = [
        row["epsilon"]
        for row in those(sweep, variant=AGGREGATE)
        if (share := estimate(row, "share_of_ensemble")) is not None and share.low > 0
    ]
    return [
        Finding(
            claim="At its best epsilon GNMax is still worse than the public model.",
            here=f"Its lowest perplexity, a lower bound, is {told(best)}.",
            outcome=all_below(shares, 0.0),
        ),
        Finding(
            claim="Subsample-and-aggregate needs an extremely large epsilon to improve on the public model.",
            here=(
                f"It improves from epsilon = {number(min(improving))} for one query."
                if improving
                else f"It does not up to epsilon = {settings['baseline_epsilons'][-1]:g} for one query."
            ),
            outcome=decided(
                holds=not improving or min(improving) > settings["epsilon"],
                fails=bool(improving) and min(improving) <= settings["epsilon"],
            ),
        ),
    ]


def _caveats(settings: Settings) -> tuple[str, ...]:
    return (
        "SubMix's and GNMax' bounds hold for this corpus and partition only and have no (epsilon, delta); "
        "what one part less changes is charged. DP-SGD protects a block, the others a whole part.",
        "Fewer parts of Figure 7 are the first ones of the ensemble: each has as much text as before.",
        f"Noisy baselines are measured on {settings['baseline_queries']:,} queries at most, with one draw of "
        "noise each; the mass of tokens that are not among the likeliest is spread over them evenly.",
        "Where fewer than twenty stretches are told, intervals are too narrow.",
    )


TRADEOFF: Final = Experiment(
    name=NAME,
    title="What privacy costs in perplexity",
    shows="SubMix, Figures 2, 3 and 7",
    settings=_settings,
    stages=_stages,
    conclude=_conclude,
    texts=("wikitext-2/train.txt", "wikitext-2/test.txt", "patents/abstracts.jsonl"),
)
