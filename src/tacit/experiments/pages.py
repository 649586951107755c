"""Results as Markdown: a page for one, `docs/results.md` for all that were made, and the README's few lines.

    FOLDER/INTRODUCTION.md     what the page begins with
    FOLDER/NAME/result.json    a result, in a folder that is called after its experiment
    FOLDER/NAME/*.svg          its figures

Page, figures and lines are functions of the results and of nothing else; a test makes them again and
compares.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Final

from tacit.errors import InputError
from tacit.experiments.plots import svg_of
from tacit.experiments.results import FILE, Cell, Finding, Result, Table
from tacit.files import new_file
from tacit.report.words import NOTHING, clean, duration, estimate, methods, number, plural
from tacit.statistics import Estimate

INTRODUCTION: Final = "INTRODUCTION.md"
BEGIN, END = "<!-- results: made by tacit experiment page -->", "<!-- end of results -->"
_FIRST: Final = "overview"  # whose picture and sentences the README shows
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


def results_in(folder: Path, order: Sequence[str] = ()) -> list[Result]:
    """The results of a folder's folders, by name; those of ``order`` come first, in that order."""
    found = []
    for path in sorted(folder.glob(f"*/{FILE}")):
        result = Result.load(path)
        if path.parent.name != result.experiment:
            raise InputError(
                f"{path} is of {result.experiment}; a result lies in a folder that is called after its "
                f"experiment: rename {path.parent.name} to {result.experiment}."
            )
        found.append(result)
    if not found:
        raise InputError(f"{folder} holds no result; add one with --add.")
    places = {name: place for place, name in enumerate(order)}
    return sorted(found, key=lambda one: places.get(one.experiment, len(places)))


def introduction_in(folder: Path) -> str:
    """What the page of a folder begins with."""
    path = folder / INTRODUCTION
    if not path.is_file():
        raise InputError(f"{path} is missing; write there what the page begins with.")
    return path.read_text(encoding="utf-8")


def made_of(folder: Path, page: Path, results: Sequence[Result]) -> dict[Path, str]:
    """The page of a folder's results, which stands beside the folder, and every figure."""
    text = page_of_all(results, introduction_in(folder), figures=f"{folder.name}/")
    return {page: text} | {
        folder / result.experiment / name: drawn
        for result in results
        for name, drawn in figures_of(result).items()
    }


def figures_of(result: Result) -> dict[str, str]:
    """Its figures by file name."""
    return {f"{chart.name}.svg": svg_of(chart) for chart in result.charts}


def write_texts(texts: Mapping[Path, str]) -> None:
    """Write files, or write over them."""
    for path, text in texts.items():
        with new_file(path, overwrite=True) as handle:
            handle.write(text.encode())


def with_lines(readme: str, results: Sequence[Result], *, folder: str, page: str) -> str:
    """A README with the overview's picture and sentences between its two marks, and how all claims fared."""
    before, begin, rest = readme.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise InputError(
            f"The README has no place for results; put {BEGIN} and {END} where they shall stand."
        )
    parts = []
    for result in results:
        if result.experiment == _FIRST:
            parts += [
                f"![{_escaped(chart.title)}]({folder}{_FIRST}/{chart.name}.svg)" for chart in result.charts
            ]
            parts.append(_bullets(result.summary))
    tally = Counter(finding.outcome for result in results for finding in result.findings)
    parts.append(
        f"[{page}]({page}) has {plural(len(results), 'experiment')} with tables, figures and intervals: of "
        f"{sum(tally.values())} claims, the papers' and ours, {tally['holds']} were found to hold here, "
        f"{tally['does not hold']} not to hold, and {tally['undecided']} are undecided."
    )
    return "\n\n".join([before + BEGIN, *filter(None, parts), END + after])


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
