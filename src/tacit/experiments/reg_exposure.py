"""Privacy regularisation, Figure 2: exposure of canaries by how often each was repeated, at equal perplexity.

The paper finds the unmitigated model most exposed, regularised ones as exposed as DP-SGD up to nine
repetitions, and less beyond. Its regularisers see batches of one user, so that these are tried alone, too,
and so are the paired ones that triplets within the batch need: what they do is not the privacy loss's doing.
Here is also what regularisers work on, whether a state tells its author, and what decides the default of
triplet training: pairs within the batch beside a second batch as printed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Final

from tacit.experiments.experiment import Conclusion, Experiment, Outcomes, Settings
from tacit.experiments.reg_ground import (
    BATCHES,
    DP_SGD,
    PAIRED_BATCHES,
    REGULARISED,
    SECOND,
    SHAKESPEARE,
    TRIPLET,
    UNMITIGATED,
    settings_of,
    stages_of,
)
from tacit.experiments.reg_levels import Level, Levels, at_most, mean_over, within
from tacit.experiments.reg_words import (
    METHODS,
    OFTEN,
    Difference,
    caveats,
    conditions,
    findings_of_pairs,
    rungs_of,
    runs_table,
)
from tacit.experiments.results import Chart, Finding, Point, Series, Table
from tacit.experiments.results import Level as Line
from tacit.statistics import Estimate

_NAME: Final = "reg-exposure"
_BIT: Final = (
    1.0  # by how much exposures that are called comparable may differ, and pairs in the batch be worse
)
_NULL: Final = 1.44  # bits, of a canary that was never seen
# Each with the batches that it has, without its loss.
_WITH_CONTROL: Final = (("adversarial", BATCHES), (SECOND, BATCHES), (TRIPLET, PAIRED_BATCHES))
_COMPARED: Final = (
    *((one, DP_SGD) for one in REGULARISED),
    *((one, UNMITIGATED) for one in (*REGULARISED, DP_SGD, BATCHES, PAIRED_BATCHES)),
    *_WITH_CONTROL,
    (TRIPLET, SECOND),
)


def exposure(level: Level, method: str, rungs: Iterable[int]) -> Estimate:
    """Mean exposure over users of their canaries with some numbers of repetitions."""
    values = level.of_canaries(method, "exposure", rungs)
    return mean_over(values, least=0.0, most=_most(level, method), of="users")


def exposure_difference(level: Level, one: str, other: str, rungs: Iterable[int]) -> Estimate:
    """The same of one method minus the other's, user by user."""
    chosen = list(rungs)
    change = level.of_canaries(one, "exposure", chosen) - level.of_canaries(other, "exposure", chosen)
    most = _most(level, one)
    return mean_over(change, least=-most, most=most, of="users")


def named(level: Level, method: str) -> Estimate:
    """Share of an author's held-out texts that a fresh probe names."""
    return mean_over(level.of_each(method, "named"), least=0.0, most=1.0, of="authors")


def _named_difference(level: Level, one: str, other: str) -> Estimate:
    change = level.of_each(one, "named") - level.of_each(other, "named")
    return mean_over(change, least=-1.0, most=1.0, of="authors")


def _most(level: Level, method: str) -> float:
    return math.log2(level.methods[method][0].left["candidates"])


def _conclude(settings: Settings, outcomes: Outcomes) -> Conclusion:
    levels = Levels(settings, outcomes)
    return Conclusion(
        conditions=conditions(settings, outcomes, levels),
        tables=(
            _differences(settings, levels),
            _exposures(settings, levels),
            _linkability(levels),
            runs_table(settings, outcomes),
        ),
        charts=tuple(_charts(settings, levels)),
        findings=tuple(_findings(settings, levels)),
        caveats=(
            *caveats(settings),
            "Where a probe names no more authors from the unmitigated model's states than chance, there is "
            "nothing for a regulariser to hide, and none can be better.",
        ),
    )


def _findings(settings: Settings, levels: Levels) -> Iterator[Finding]:
    ladder = sorted({rung for corpus in settings["corpora"] for rung in rungs_of(settings, corpus)})
    often, seldom = [one for one in ladder if one > OFTEN], [one for one in ladder if one <= OFTEN]

    def over(rungs: list[int]) -> Difference:
        return lambda level, one, other: exposure_difference(level, one, other, rungs)

    yield from findings_of_pairs(
        levels,
        [(one, DP_SGD) for one in REGULARISED],
        f"{{}} training exposes canaries that are repeated more than {OFTEN} times less than {{}}.",
        over(often),
        "bits",
    )
    yield from findings_of_pairs(
        levels,
        [(one, DP_SGD) for one in REGULARISED],
        f"{{}} training and {{}} are comparable (within {_BIT:g} bit) up to {OFTEN} repetitions.",
        over(seldom),
        "bits",
        within(_BIT),
    )
    yield from findings_of_pairs(
        levels,
        [(one, UNMITIGATED) for one in (*REGULARISED, DP_SGD)],
        "{} exposes canaries less than the {} model of the same perplexity.",
        over(ladder),
        "bits",
    )
    yield from findings_of_pairs(
        levels,
        [(BATCHES, UNMITIGATED), (PAIRED_BATCHES, UNMITIGATED)],
        "{}, without any privacy loss, expose canaries less than the {} model of the same perplexity.",
        over(ladder),
        "bits",
    )
    yield from findings_of_pairs(
        levels,
        _WITH_CONTROL,
        "{} training exposes canaries less than {}: its loss does something beside its batches.",
        over(ladder),
        "bits",
    )
    yield from findings_of_pairs(
        levels,
        [(TRIPLET, SECOND)],
        "triplet training with pairs within the batch is as private as with a second batch "
        f"(at most {_BIT:g} bit worse).",
        over(ladder),
        "bits",
        at_most(_BIT),
    )
    yield from findings_of_pairs(
        levels,
        [(one, UNMITIGATED) for one in REGULARISED],
        "a fresh probe names fewer authors from the states of {} training than from those of the {} model.",
        _named_difference,
        "of an author's texts",
    )


def _exposures(settings: Settings, levels: Levels) -> Table:
    ladder = sorted({rung for corpus in settings["corpora"] for rung in rungs_of(settings, corpus)})
    rows = [
        (
            corpus,
            level.name,
            METHODS[method],
            *(
                exposure(level, method, [one]) if one in rungs_of(settings, corpus) else None
                for one in ladder
            ),
        )
        for corpus, found in levels.common.items()
        for level in found
        for method in METHODS
    ]
    return Table(
        title="Mean exposure in bits, by repetitions",
        columns=("corpus", "perplexity", "method", *(f"{one}x" for one in ladder)),
        rows=tuple(rows),
    )


def _differences(settings: Settings, levels: Levels) -> Table:
    rows = []
    for corpus in levels.corpora:
        rungs = rungs_of(settings, corpus)
        parts = [[one for one in rungs if one <= OFTEN], [one for one in rungs if one > OFTEN]]
        for one, other in _COMPARED:
            for level in levels.of_pair(corpus, one, other):
                told = [exposure_difference(level, one, other, part) for part in parts]
                rows.append((corpus, level.told, f"{METHODS[one]} − {METHODS[other]}", *told))
    return Table(
        title="Differences of exposure in bits",
        columns=("corpus", "perplexity", "", f"up to {OFTEN}x", f"more than {OFTEN}x"),
        rows=tuple(rows),
    )


def _linkability(levels: Levels) -> Table:
    return Table(
        title="Share of an author's held-out texts that a fresh probe names",
        columns=("corpus", "perplexity", *METHODS.values(), "one of all authors"),
        rows=tuple(
            (
                corpus,
                level.name,
                *(named(level, method) for method in METHODS),
                1 / level.of_each(UNMITIGATED, "named").shape[1],
            )
            for corpus, found in levels.common.items()
            for level in found
        ),
    )


def _charts(settings: Settings, levels: Levels) -> Iterator[Chart]:
    for corpus, found in levels.common.items():
        for level in found:
            yield Chart(
                name=f"{corpus}-{level.name}",
                title=f"Exposure by repetitions, {corpus}, {level.name} perplexity ({level.perplexity:.0f})",
                x_label="how often a user's canary is in the training text",
                y_label="mean exposure, bits",
                series=tuple(
                    Series(
                        name=shown,
                        points=tuple(
                            Point(x=rung, y=exposure(level, method, [rung]))
                            for rung in rungs_of(settings, corpus)
                        ),
                    )
                    for method, shown in METHODS.items()
                ),
                levels=(Line(name="never seen", value=_NULL),),
                log_x=True,
            )


EXPOSURE: Final = Experiment(
    name=_NAME,
    title="What regularised training leaks of repeated secrets",
    shows="Privacy Regularization, Figure 2",
    settings=settings_of,
    stages=stages_of,
    conclude=_conclude,
    texts=(SHAKESPEARE,),
)
