"""Privacy regularisation, Figure 3 a and b: which texts the tab attack completes, at equal perplexity.

The first word of a text goes in, and greedy completion has to write the rest. The texts are the canaries, and
each user's strangest training text to the unmitigated model, which the paper calls real canaries. The paper
finds fewer completions with its regularisers than with DP-SGD, above all of the canaries.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Final

import numpy as np

from tacit.experiments.experiment import Conclusion, Experiment, Outcomes, Settings
from tacit.experiments.reg_ground import (
    DP_SGD,
    REGULARISED,
    SHAKESPEARE,
    UNMITIGATED,
    settings_of,
    stages_of,
)
from tacit.experiments.reg_levels import Level, Levels, mean_over
from tacit.experiments.reg_words import (
    METHODS,
    OFTEN,
    caveats,
    conditions,
    findings_of_pairs,
    rungs_of,
)
from tacit.experiments.results import Chart, Finding, Point, Series, Table
from tacit.statistics import Estimate, FloatArray

_NAME: Final = "reg-tab"


def completed(level: Level, method: str, rungs: Iterable[int] | None) -> Estimate:
    """Share that is completed: of canaries with some numbers of repetitions, or of users' own texts."""
    return mean_over(_shares(level, method, rungs), least=0.0, most=1.0, of="users")


def _shares(level: Level, method: str, rungs: Iterable[int] | None) -> FloatArray:
    if rungs is None:
        return level.of_each(method, "own_texts")
    return level.of_canaries(method, "completed", rungs)


def _difference(rungs: Sequence[int] | None, level: Level, one: str, other: str) -> Estimate:
    change = np.subtract(_shares(level, one, rungs), _shares(level, other, rungs))
    return mean_over(change, least=-1.0, most=1.0, of="users")


def _conclude(settings: Settings, outcomes: Outcomes) -> Conclusion:
    levels = Levels(settings, outcomes)
    return Conclusion(
        conditions=conditions(settings, outcomes, levels),
        tables=(_table(settings, levels),),
        charts=tuple(_charts(settings, levels)),
        findings=tuple(_findings(settings, levels)),
        caveats=(
            *caveats(settings),
            "A completion of a canary has to guess four words in a row; where hardly any is completed, no "
            "method can be better than another.",
            "The unmitigated model picks the texts of users that it finds strangest, as in the paper: it is "
            "the only one that picked its own.",
        ),
    )


def _findings(settings: Settings, levels: Levels) -> Iterator[Finding]:
    often = [one for corpus in settings["corpora"] for one in rungs_of(settings, corpus) if one > OFTEN]
    for other in (DP_SGD, UNMITIGATED):
        for rungs, what in (
            (often, f"canaries that were repeated more than {OFTEN} times"),
            (None, "users' own texts"),
        ):
            yield from findings_of_pairs(
                levels,
                [(one, other) for one in REGULARISED],
                f"the tab attack completes fewer {what} after {{}} training than with {{}}.",
                partial(_difference, rungs),
                "of them",
            )


def _table(settings: Settings, levels: Levels) -> Table:
    ladder = sorted({rung for corpus in settings["corpora"] for rung in rungs_of(settings, corpus)})
    rows = []
    for corpus, found in levels.common.items():
        own = rungs_of(settings, corpus)
        for level in found:
            for method, shown in METHODS.items():
                shares = [completed(level, method, [one]) if one in own else None for one in ladder]
                rows.append((corpus, level.name, shown, *shares, completed(level, method, None)))
    return Table(
        title="Share completed, by repetitions",
        columns=("corpus", "perplexity", "method", *(f"{one}x" for one in ladder), "users' own texts"),
        rows=tuple(rows),
    )


def _charts(settings: Settings, levels: Levels) -> Iterator[Chart]:
    for corpus, found in levels.common.items():
        for level in found:
            yield Chart(
                name=f"{corpus}-{level.name}",
                title=f"Completed by tab, {corpus}, {level.name} perplexity ({level.perplexity:.0f})",
                x_label="how often a user's canary is in the training text",
                y_label="share of canaries completed",
                series=tuple(
                    Series(
                        name=shown,
                        points=tuple(
                            Point(x=rung, y=completed(level, method, [rung]))
                            for rung in rungs_of(settings, corpus)
                        ),
                    )
                    for method, shown in METHODS.items()
                ),
                log_x=True,
            )


TAB: Final = Experiment(
    name=_NAME,
    title="What a tab key writes after regularised training",
    shows="Privacy Regularization, Figure 3 a and b",
    settings=settings_of,
    stages=stages_of,
    conclude=_conclude,
    texts=(SHAKESPEARE,),
)
