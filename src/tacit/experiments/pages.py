"""Results as Markdown: a page for one, and `docs/results.md` for all that were made.

The pages are functions of the results and of nothing else; a test makes them again and compares.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path

from tacit.errors import InputError
from tacit.experiments.results import Cell, Finding, Result, Table
from tacit.report.words import NOTHING, clean, duration, estimate, methods, number
from tacit.statistics import Estimate

_MARKS = {"holds": "holds here", "does not hold": "does not hold here", "undecided": "undecided here"}


def page_of(result: Result, *, level: int = 1, figures: str = "") -> str:
    """One result; ``figures`` is the folder of its figures as seen from the page."""
    head, sub = "#" * level, "#" * (level + 1)
    parts = [f"{head} {result.title}", f"`tacit experiment {result.experiment}` ({result.shows})."]
    parts.append(_bullets(result.conditions))
    if result.findings:
        parts += [f"{sub} What it says", _bullets(_finding(one) for one in result.findings)]
    parts += [f"![{_escaped(chart.title)}]({figures}{chart.name}.svg)" for chart in result.charts]
    for table in result.tables:
        parts += [f"{sub} {table.title}", _table(table)]
    measured = [cell for table in result.tables for row in table.rows for cell in row]
    told = methods(cell for cell in measured if isinstance(cell, Estimate))
    if told:
        parts.append("; ".join(told) + ".")
    if result.caveats:
        parts += [f"{sub} To be read with", _bullets(result.caveats)]
    parts.append(_provenance(result))
    return "\n\n".join(parts) + "\n"


def page_of_all(results: Sequence[Result], introduction: str, *, figures: str) -> str:
    """All results in the order given; ``figures`` as seen from the page, a folder for each experiment."""
    names = [result.experiment for result in results]
    if len(set(names)) < len(names):
        raise InputError("Two results are of the same experiment; a page shows one of each.")
    rows = [(f"[{one.title}](#{_anchor(one.title)})", one.shows, one.scale) for one in results]
    contents = _rows(("experiment", "what it repeats", "scale"), rows)
    pages = [page_of(one, level=2, figures=f"{figures}{one.experiment}/") for one in results]
    return "\n\n".join([introduction.strip(), contents, *(page.strip() for page in pages)]) + "\n"


def results_in(folder: Path) -> list[Result]:
    """The results of a folder's folders, by name."""
    return [Result.load(path) for path in sorted(folder.glob("*/result.json"))]


def _finding(finding: Finding) -> str:
    return f"**{_MARKS[finding.outcome]}**: {finding.claim} {finding.here}"


def _provenance(result: Result) -> str:
    made = result.provenance
    versions = ", ".join(f"{name} {version}" for name, version in made.versions.items())
    when = f"{datetime.fromisoformat(made.created):%d %B %Y}"
    return (
        f"Scale `{result.scale}`, made on {when} in {duration(made.seconds)} on {made.machine}; {versions}. "
        f"Numbers: `{result.experiment}/result.json`."
    )


def _table(table: Table) -> str:
    return _rows(table.columns, [[_cell(cell) for cell in row] for row in table.rows])


def _cell(cell: Cell) -> str:
    if cell is None:
        return NOTHING
    if isinstance(cell, Estimate):
        return estimate(cell)
    if isinstance(cell, str):
        return _escaped(cell)
    return f"{cell:,}" if isinstance(cell, int) else number(cell)


def _rows(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _bullets(lines: Iterable[str]) -> str:
    return "\n".join(f"- {clean(line)}" for line in lines)


def _escaped(text: str) -> str:
    return clean(text).replace("|", "\\|")


def _anchor(title: str) -> str:
    """As renderers of Markdown name a heading."""
    kept = "".join(one for one in title.lower() if one.isalnum() or one in " -")
    return kept.replace(" ", "-")
