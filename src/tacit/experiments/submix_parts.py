"""SubMix, Figure 5: into how many parts to divide the text.

Few parts have much text each, and one of them less changes the answer much; many parts the other way round.
Every ensemble is trained anew on the same text, read once by all of its members together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tacit.experiments.experiment import Conclusion, Experiment, Outcomes, Settings
from tacit.experiments.results import Chart, Finding, Level, Outcome, Scale
from tacit.experiments.stages import Stage, Workshop
from tacit.experiments.submix_ground import (
    GroundSettings,
    Shape,
    conditions,
    kept,
    members,
    trained,
    wikitext,
)
from tacit.experiments.submix_rows import PER_PART, PRINTED, Spec, measured, spec
from tacit.experiments.submix_tables import (
    Row,
    decided,
    estimate,
    line,
    only,
    perplexity,
    table_of,
    those,
)
from tacit.report.words import estimate as told

NAME: Final = "submix-parts"
_SHOWN: Final = {PRINTED: "printed", PER_PART: "per-part"}


def _settings(scale: Scale) -> Settings:
    tiny = scale == "tiny"
    return {
        "ground": wikitext(scale),
        "parts": {"tiny": [2, 4], "small": [2, 4, 8, 16], "paper": [4, 8, 16, 32]}[scale],
        "around": [2, 4] if tiny else [8, 16, 32],  # what counts as about 16
        "queries": 64 if tiny else 1024,
        "measured_queries": {"tiny": 320, "small": 4096, "paper": 204_800}[scale],
        "epsilons": [0.5, 128.0] if tiny else [0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0],
    }


def _stages(workshop: Workshop, settings: Settings) -> Sequence[Stage]:
    ground = settings["ground"]
    stages: list[Stage] = []
    for parts in settings["parts"]:
        shape = Shape(parts)
        asked = kept(ground, workshop, shape, _to_keep(ground, parts, settings))
        rows = measured(
            ground,
            workshop,
            asked,
            _specs(settings, parts),
            name=f"{NAME}-{parts}",
            queries=settings["measured_queries"],
        )
        stages += [trained(ground, workshop, members(ground, shape)), asked, rows]
    return stages


def _to_keep(ground: GroundSettings, parts: int, settings: Settings) -> int:
    """What the other experiments keep, where they keep it; elsewhere no more than is measured."""
    shared = 2 if ground["model"] is None else 8
    kept_queries: int = ground["queries"] if parts == shared else settings["measured_queries"]
    return kept_queries


def _specs(settings: Settings, parts: int) -> list[Spec]:
    return [
        spec(variant, epsilon, settings["queries"], parts)
        for variant in _SHOWN
        for epsilon in settings["epsilons"]
    ]


def _conclude(settings: Settings, outcomes: Outcomes) -> Conclusion:
    ground = settings["ground"]
    found = {parts: outcomes[f"{NAME}-{parts}-{ground['name']}"] for parts in settings["parts"]}
    rows = [row for outcome in found.values() for row in outcome["rows"]]
    references = [
        one for outcome in found.values() for one in outcome["references"] if one["parts"] is not None
    ]
    public = found[settings["parts"][0]]["references"][0]
    charts = tuple(
        Chart(
            name=f"figure-5-{short}",
            title=f"{variant}, B = {settings['queries']:,}",
            x_label="epsilon (order 2)",
            y_label="perplexity",
            series=tuple(
                line(f"k = {parts}", those(rows, variant=variant, parts=parts), "epsilon")
                for parts in settings["parts"]
            ),
            levels=(Level(name="public", value=perplexity(public).value),),
            log_x=True,
        )
        for variant, short in _SHOWN.items()
    )
    return Conclusion(
        conditions=conditions(ground),
        tables=(table_of("Figure 5", rows, [public, *references]),),
        charts=charts,
        findings=_findings(those(rows, variant=PRINTED), settings),
        caveats=(
            f"Targets are epsilon / B, as printed; {settings['measured_queries']:,} queries at most: few "
            "stretches, whose intervals are too narrow.",
            "SubMix's bound holds for this corpus and partition only and has no (epsilon, delta).",
        ),
    )


def _findings(rows: Sequence[Row], settings: Settings) -> tuple[Finding, ...]:
    lowest = settings["epsilons"][0]
    few, many = settings["parts"][0], settings["parts"][-1]
    kept_by = {
        parts: estimate(only(rows, parts=parts, epsilon=lowest), "share_of_ensemble") for parts in (few, many)
    }
    by_few, by_many = kept_by[few], kept_by[many]
    known = by_few is not None and by_many is not None
    return (
        Finding(
            claim="As epsilon falls, perplexity rises more rapidly for fewer parts.",
            here=(
                f"At epsilon = {lowest:g}, {few} parts keep {told(by_few)} of their ensemble's improvement, "
                f"{many} parts {told(by_many)}."
            ),
            outcome=decided(
                holds=known and by_few.high < by_many.low,  # type: ignore[union-attr]
                fails=known and by_few.low > by_many.high,  # type: ignore[union-attr]
            ),
        ),
        Finding(
            claim="About 16 parts are best at every epsilon of interest.",
            here=f"{'; '.join(_told_best(rows, epsilon) for epsilon in settings['epsilons'])}.",
            outcome=_best_is_around(rows, settings),
        ),
    )


def _told_best(rows: Sequence[Row], epsilon: float) -> str:
    best = min(those(rows, epsilon=epsilon), key=lambda row: perplexity(row).value)
    return f"epsilon = {epsilon:g}: {best['parts']} parts ({told(perplexity(best))})"


def _best_is_around(rows: Sequence[Row], settings: Settings) -> Outcome:
    """Whether parts around the paper's optimum beat all others, or others beat them, beyond the intervals."""
    holds, fails = [], []
    for epsilon in settings["epsilons"]:
        shown = those(rows, epsilon=epsilon)
        near = [perplexity(row) for row in shown if row["parts"] in settings["around"]]
        far = [perplexity(row) for row in shown if row["parts"] not in settings["around"]]
        holds.append(all(min(one.high for one in near) < other.low for other in far))
        fails.append(any(other.high < min(one.low for one in near) for other in far))
    return decided(holds=all(holds), fails=any(fails))


PARTS: Final = Experiment(
    name=NAME,
    title="Into how many parts",
    shows="SubMix, Figure 5",
    settings=_settings,
    stages=_stages,
    conclude=_conclude,
    texts=("wikitext-2/train.txt",),
)
