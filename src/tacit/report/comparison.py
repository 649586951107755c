"""Runs side by side: what each gives away, at what perplexity.

A method that leaks less because it learned less has shown nothing. So Runs are compared at equal perplexity,
and those that are not comparable are drawn hollow and say why.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tacit.audit.audit_file import Audit, ComparisonRow, MethodRow, parse
from tacit.errors import InputError
from tacit.report.charts_of_cost import Place, frontier
from tacit.report.rendering import render
from tacit.report.sections import Figure, Section, Table, plain
from tacit.report.words import NOTHING, estimate, methods, number, percent, plural, share
from tacit.statistics import Estimate

_CHANCE_EXPOSURE = 1.4427  # bits: 1 / ln 2, the mean of one canary where nothing is memorised


@dataclass(frozen=True)
class _Measure:
    """A way to leak, and what it is where nothing does."""

    id: str
    title: str
    label: str
    of: Callable[[ComparisonRow], Estimate | None]
    reference: Callable[[Sequence[ComparisonRow]], tuple[float, str]]
    number: Callable[[float], str] = number
    measured: Callable[[Estimate], str] = estimate
    reading: str = "Further down leaks less, further left is more useful."


def _most_frequent_author(rows: Sequence[ComparisonRow]) -> tuple[float, str]:
    chance = next((row.linkability_chance for row in rows if row.linkability_chance is not None), 0.0)
    return chance, f"most frequent author: {percent(chance)}"


_MEASURES = (
    _Measure(
        "exposure",
        "Perplexity and exposure",
        "mean exposure (bits)",
        lambda row: row.exposure_mean,
        lambda rows: (_CHANCE_EXPOSURE, "mean by chance: 1.44 bits"),
    ),
    _Measure(
        "auc",
        "Perplexity and membership",
        "membership AUC",
        lambda row: row.auc,
        lambda rows: (0.5, "guessing: 0.5"),
    ),
    _Measure(
        "tab",
        "Perplexity and extraction",
        "secrets completed",
        lambda row: row.tab,
        lambda rows: (0.0, "none"),
        percent,
        share,
    ),
    _Measure(
        "linkability",
        "Perplexity and linkability",
        "authors named",
        lambda row: row.linkability,
        _most_frequent_author,
        percent,
        share,
        "Further down, states tell less of who wrote a text, which is a proxy and no leak by itself; further "
        "left is more useful.",
    ),
)


def render_comparison(rows: Sequence[Mapping[str, Any]], methods: Sequence[Mapping[str, Any]] = ()) -> str:
    """One HTML file for ``tacit compare``; ``methods`` are those of the Runs, at one perplexity."""
    if not rows:
        raise InputError("There is nothing to compare; give two Runs or more that were audited.")
    found = [parse(ComparisonRow, row, origin=f"comparison, row {at}") for at, row in enumerate(rows, 1)]
    equal = [parse(MethodRow, row, origin=f"methods, row {at}") for at, row in enumerate(methods, 1)]
    return render("comparison.html", rows=found, section_content=frontier_section(found, equal))


def frontier_section(rows: Sequence[ComparisonRow], equal: Sequence[MethodRow] = ()) -> Section:
    """The frontier of every measure that some Run has, all Runs, and methods at equal perplexity."""
    figures = []
    at = equal[0].perplexity if equal else None
    for measure in _MEASURES:
        places = [
            Place(row.name, row.perplexity, value, row.comparable, row.method)
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
                    reference=measure.reference(rows),
                    text=measure.number,
                    at=at,
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
                measure.reading,
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
    tables = (*([methods_table(equal)] if equal else []), overview(rows))
    sentences = (sentence, *_about_methods(equal))
    return Section("frontier", "Utility and leakage", sentences, tuple(figures), tables, warnings, missing)


def _about_methods(equal: Sequence[MethodRow]) -> tuple[str, ...]:
    if not equal:
        return ()
    there = [row for row in equal if row.how]
    where = number(equal[0].perplexity)
    told = f"At perplexity {where}, {len(there)} of {plural(len(equal), 'method')} can be compared."
    return (told, *(f"{row.method}: {row.why}." for row in equal if not row.how))


def methods_table(equal: Sequence[MethodRow]) -> Table:
    """What each method leaks at the same perplexity."""
    return Table(
        f"Methods at perplexity {number(equal[0].perplexity)}",
        ("method", "Runs", "mean exposure", "AUC", "completed", "authors named", "gap between users", "how"),
        tuple(
            (
                row.method,
                f"{len(row.runs)}",
                estimate(row.exposure_mean),
                estimate(row.auc),
                share(row.tab),
                share(row.linkability),
                estimate(row.disparity_gap),
                row.how or "not comparable",
            )
            for row in equal
        ),
        (
            "Between two Runs of a method, linear over log(perplexity); if both intervals hold, so does the "
            "interpolated one. Perplexities are taken as measured.",
        ),
    )


def own_frontier(audit: Audit) -> Section | None:
    """One Run between the public model, which saw nothing, and one that nothing protects, where known."""
    utility, exposure = audit.utility, audit.exposure
    if utility is None or exposure is None or exposure.mean is None:
        return None
    control = None if exposure.control is None else exposure.control.mean
    known = (
        ("public model", utility.public, exposure.public_mean, False),
        ("this Run", utility.run, exposure.mean, True),
        ("without protection", utility.unmitigated, control, False),
    )
    places = [
        Place(name, perplexity, leakage, own)
        for name, perplexity, leakage, own in known
        if perplexity is not None and leakage is not None
    ]
    if len(places) < 2:
        return None
    measure = _MEASURES[0]
    figure = Figure(
        "frontier-own",
        measure.title,
        frontier(
            "frontier-own",
            measure.title,
            places,
            label=measure.label,
            reference=measure.reference(()),
            filled="this Run",
            hollow="beside it",
        ),
        Table(
            measure.title,
            ("model", "perplexity", measure.label),
            tuple((one.name, estimate(one.perplexity), estimate(one.leakage)) for one in places),
            methods([one.leakage for one in places] + [one.perplexity for one in places]),
        ),
        [
            {"name": one.name, "perplexity": plain(one.perplexity), "leakage": plain(one.leakage)}
            for one in places
        ],
        "Further down leaks less, further left is more useful. `tacit compare` shows several Runs.",
    )
    sentence = (
        f"This Run has perplexity {estimate(utility.run)} and a mean exposure of {estimate(exposure.mean)} "
        "bits; protection is what keeps the second low where the first is as low as without it."
    )
    return Section("frontier", "Utility and leakage", (sentence,), (figure,))


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
            "authors named",
            "gap between users",
            "verdict",
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
                share(row.linkability),
                estimate(row.disparity_gap),
                row.standing or NOTHING,
            )
            for row in rows
        ),
        ("* not comparable",) if any(not row.comparable for row in rows) else (),
    )
