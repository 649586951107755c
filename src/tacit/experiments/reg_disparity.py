"""Privacy regularisation, Figure 3 c: what protection costs who wrote little and who wrote much.

For each user, the perplexity of held-out text minus that of the model that learnt longest without protection.
The paper compares the five users with most text and the five with fewest, and finds 29 points between them
with DP-SGD and 7 with its regularisers. All methods are at the same perplexity here, the unmitigated model,
which learnt for less, among them: it tells what a higher perplexity alone does.
"""

from __future__ import annotations

from collections.abc import Iterator
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
from tacit.experiments.reg_levels import Level, Levels, above_zero, with_seeds
from tacit.experiments.reg_words import METHODS, NO_LEVEL, caveats, conditions, findings_of_pairs
from tacit.experiments.results import Chart, Finding, Point, Series, Table
from tacit.report.words import estimate
from tacit.statistics import Estimate, bootstrap_over_users

_NAME: Final = "reg-disparity"
_GROUPS: Final = 4
_PAPER: Final = {"regularised": 7.0, DP_SGD: 29.0}  # section 3, points of perplexity


def _conclude(settings: Settings, outcomes: Outcomes) -> Conclusion:
    levels = Levels(settings, outcomes)
    return Conclusion(
        conditions=conditions(settings, outcomes, levels),
        tables=(_table(levels), _differences(levels)),
        charts=tuple(_charts(levels)),
        findings=tuple(_findings(levels)),
        caveats=(
            *caveats(settings),
            "Five users on each side are few, and their intervals too narrow; the slope over all users rests "
            "on more.",
            "Points of perplexity grow with the perplexity itself: 29 and 7 were points at the paper's 69 to "
            "97, and are not to be compared with points at others.",
        ),
    )


def _gap(level: Level, one: str, other: str) -> Estimate:
    return level.disparity(one, other).gap


def _findings(levels: Levels) -> Iterator[Finding]:
    yield from findings_of_pairs(
        levels,
        [(one, DP_SGD) for one in REGULARISED],
        f"{{}} training leaves less between users with fewest and most text ({_PAPER['regularised']:g} "
        f"points in the paper) than {{}} ({_PAPER[DP_SGD]:g}).",
        _gap,
        "points",
    )
    for corpus in levels.corpora:
        gaps = {level: level.disparity(DP_SGD).gap for level in levels.of_pair(corpus, DP_SGD, UNMITIGATED)}
        told = "; ".join(f"{estimate(gap)} at the {level.told}" for level, gap in gaps.items())
        yield Finding(
            claim=f"On {corpus}, DP-SGD costs users with fewest texts more than users with most.",
            here=f"The gap is {told}." if told else NO_LEVEL,
            outcome=above_zero(list(gaps.values())),
        )
    yield from findings_of_pairs(
        levels,
        [(DP_SGD, UNMITIGATED)],
        "{} leaves more between them than the {} model of the same perplexity, which learnt for less.",
        lambda level, one, other: _gap(level, other, one),
        "points (unmitigated minus DP-SGD)",
    )


def _table(levels: Levels) -> Table:
    rows = []
    for corpus, found in levels.common.items():
        for level in found:
            for method, shown in METHODS.items():
                one = level.disparity(method)
                rows.append((corpus, level.name, shown, one.fewest, one.most, one.gap, one.slope))
    return Table(
        title="Perplexity minus that of the model that learnt longest without protection",
        columns=(
            "corpus",
            "perplexity",
            "method",
            "five with fewest texts",
            "five with most",
            "gap",
            "slope (e times as many texts)",
        ),
        rows=tuple(rows),
    )


def _differences(levels: Levels) -> Table:
    pairs = [
        (one, other) for other in (DP_SGD, UNMITIGATED) for one in (*REGULARISED, DP_SGD) if one != other
    ]
    rows = []
    for corpus in levels.corpora:
        for one, other in pairs:
            for level in levels.of_pair(corpus, one, other):
                both = level.disparity(one, other)
                rows.append((corpus, level.told, f"{METHODS[one]} − {METHODS[other]}", both.gap, both.slope))
    return Table(
        title="Differences at the same perplexity, user by user",
        columns=("corpus", "perplexity", "", "gap", "slope"),
        rows=tuple(rows),
    )


def _charts(levels: Levels) -> Iterator[Chart]:
    for corpus, found in levels.common.items():
        for level in found:
            yield Chart(
                name=f"{corpus}-{level.name}",
                title=f"Who pays, {corpus}, {level.name} perplexity ({level.perplexity:.0f})",
                x_label="training texts of a quarter of the users, on average",
                y_label="perplexity above the model that learnt longest",
                series=tuple(
                    Series(name=shown, points=tuple(_quarters(level, method)))
                    for method, shown in METHODS.items()
                ),
                log_x=True,
            )


def _quarters(level: Level, method: str) -> Iterator[Point]:
    change = level.of_each(method, "change")
    documents = np.asarray(level.methods[method][0].left["documents"], dtype=np.float64)
    for users in np.array_split(np.argsort(documents, kind="stable"), _GROUPS):
        some = change[:, users]
        sums = np.stack([some.mean(axis=0), np.ones(len(users))], axis=1)
        mean = bootstrap_over_users(sums, lambda totals: totals[..., 0] / totals[..., 1])
        yield Point(x=float(documents[users].mean()), y=with_seeds(mean, some.mean(axis=1)))


DISPARITY: Final = Experiment(
    name=_NAME,
    title="Who pays for regularised training",
    shows="Privacy Regularization, Figure 3 c",
    settings=settings_of,
    stages=stages_of,
    conclude=_conclude,
    texts=(SHAKESPEARE,),
)
