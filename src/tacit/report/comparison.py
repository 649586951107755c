"""Runs side by side: what each gives away, at what perplexity.

A method that leaks less because it learned less has shown nothing. So Runs are compared at equal perplexity,
and those that are not comparable are drawn hollow and say why.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tacit.errors import InputError
from tacit.report.audit_file import ComparisonRow, parse
from tacit.report.charts_of_cost import Place, frontier
from tacit.report.rendering import render
from tacit.report.sections import Figure, Section, Table, plain
from tacit.report.words import estimate, methods, number, percent, plural, share
from tacit.statistics import Estimate

_CHANCE_EXPOSURE = 1.4427  # bits: 1 / ln 2, the mean of one canary where nothing is memorised


@dataclass(frozen=True)
class _Measure:
    """A way to leak, and what it is where nothing does."""

    id: str
    title: str
    label: str
    of: Callable[[ComparisonRow], Estimate | None]
    reference: tuple[float, str]
    number: Callable[[float], str] = number
    measured: Callable[[Estimate], str] = estimate


_MEASURES = (
    _Measure(
        "exposure",
        "Perplexity and exposure",
        "mean exposure (bits)",
        lambda row: row.exposure_mean,
        (_CHANCE_EXPOSURE, "mean by chance: 1.44 bits"),
    ),
    _Measure(
        "auc", "Perplexity and membership", "membership AUC", lambda row: row.auc, (0.5, "guessing: 0.5")
    ),
    _Measure(
        "tab",
        "Perplexity and extraction",
        "secrets completed",
        lambda row: row.tab,
        (0.0, "none"),
        percent,
        share,
    ),
)


def render_comparison(rows: Sequence[Mapping[str, Any]]) -> str:
    """One HTML file for ``tacit compare``."""
    if not rows:
        raise InputError("There is nothing to compare; give two Runs or more that were audited.")
    found = [parse(ComparisonRow, row, origin=f"comparison, row {at}") for at, row in enumerate(rows, 1)]
    return render("comparison.html", rows=found, section_content=frontier_section(found))


def frontier_section(rows: Sequence[ComparisonRow]) -> Section:
    """The frontier of every measure that some Run has, and all Runs in one table."""
    figures = []
    for measure in _MEASURES:
        places = [
            Place(row.name, row.perplexity, value, row.comparable)
            for row in rows
            if row.perplexity is not None and (value := measure.of(row)) is not None
        ]
        if not places:
            continue
        figures.append(
            Figure(
                f"frontier-{measure.id}",
                measure.title,
                frontier(
                    f"frontier-{measure.id}",
                    measure.title,
                    places,
                    label=measure.label,
                    reference=measure.reference,
                    text=measure.number,
                ),
                Table(
                    measure.title,
                    ("Run", "perplexity", measure.label, "comparable"),
                    tuple(
                        (
                            place.name,
                            estimate(place.perplexity),
                            measure.measured(place.leakage),
                            "yes" if place.comparable else "no",
                        )
                        for place in places
                    ),
                    methods([place.leakage for place in places] + [place.perplexity for place in places]),
                ),
                [
                    {
                        "name": place.name,
                        "perplexity": plain(place.perplexity),
                        "leakage": plain(place.leakage),
                        "comparable": place.comparable,
                    }
                    for place in places
                ],
                "Further down leaks less, further left is more useful.",
            )
        )
    unlike = [row for row in rows if not row.comparable]
    sentence = f"{plural(len(rows), 'Run')} side by side" + (
        f"; {plural(len(unlike), 'is', 'are')} not comparable."
        if unlike
        else ", at perplexities that can be compared."
    )
    warnings = tuple(f"{row.name}: {row.why or 'not comparable with the others'}" for row in unlike)
    missing = "" if figures else "No Run was attacked: run `tacit audit` on each, then compare."
    return Section(
        "frontier", "Utility and leakage", (sentence,), tuple(figures), (overview(rows),), warnings, missing
    )


def overview(rows: Sequence[ComparisonRow]) -> Table:
    """All Runs with all that was measured."""
    return Table(
        "Runs side by side",
        (
            "Run",
            "method",
            "perplexity",
            "largest exposure",
            "mean exposure",
            "AUC",
            "completed",
            "gap between users",
        ),
        tuple(
            (
                row.name + ("" if row.comparable else " *"),
                row.method,
                estimate(row.perplexity),
                number(row.exposure_max),
                estimate(row.exposure_mean),
                estimate(row.auc),
                share(row.tab),
                estimate(row.disparity_gap),
            )
            for row in rows
        ),
        ("* not comparable",) if any(not row.comparable for row in rows) else (),
    )
