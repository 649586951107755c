"""How commands talk: tables and progress bars to a person, JSON to a program, one sentence on trouble.

Results go to standard output, everything else to standard error. With ``--json`` standard output is one
JSON object and nothing else.
"""

from __future__ import annotations

import contextlib
import json
import math
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table

# A terminal says how wide it is; a file or a pipe has no width, and a folded table there helps nobody.
out = Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else 160)
err = Console(stderr=True, highlight=False, soft_wrap=True)

JsonFlag = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]


def show(content: Mapping[str, Any], *, as_json: bool, title: str = "") -> None:
    """A result as a two-column table, or as JSON."""
    if as_json:
        show_json(content)
        return
    table = Table(title=title or None, title_justify="left", show_header=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in content.items():
        table.add_row(name.replace("_", " "), plain(value))
    out.print(table)


def show_rows(rows: Sequence[Mapping[str, Any]], *, as_json: bool, name: str, title: str = "") -> None:
    """Several results of one kind as a table, or as JSON under ``name``."""
    if as_json:
        show_json({name: list(rows)})
        return
    table = Table(title=title or None, title_justify="left")
    for column in rows[0] if rows else ():
        table.add_column(column.replace("_", " "), overflow="fold")
    for row in rows:
        table.add_row(*(plain(value) for value in row.values()))
    out.print(table)


def show_json(content: Any) -> None:
    """One JSON object on standard output."""
    typer.echo(json.dumps(_finite(content), indent=2, ensure_ascii=False, allow_nan=False))


def _finite(content: Any) -> Any:
    """JSON has no infinity and no NaN; they are written as words."""
    if isinstance(content, Mapping):
        return {key: _finite(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [_finite(value) for value in content]
    if isinstance(content, float) and not math.isfinite(content):
        return str(content)
    return content


def plain(value: Any) -> str:
    """A value as a person reads it."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value)


def duration(seconds: float) -> str:
    """A length of time as a person says it."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def say_plainly(text: str) -> None:
    """Paragraphs on standard output, as they are."""
    out.print(text, markup=False, highlight=False, soft_wrap=True)


def say(message: str) -> None:
    """A remark to the person at the terminal."""
    err.print(message, markup=False)


class TerminalProgress:
    """Progress bars on a terminal; on anything else only the remarks."""

    def __init__(self, bars: Progress | None) -> None:
        self._bars = bars
        self._task: TaskID | None = None
        self._whole: TaskID | None = None

    def stage(self, name: str, done: int, total: int) -> None:
        """Move the bar of the whole work; the bars of the part before this one go."""
        if self._bars is None:
            return
        for task in self._bars.tasks:
            if task.id != self._whole:
                self._bars.remove_task(task.id)
        self._task = None
        if self._whole is None:
            self._whole = self._bars.add_task(name, total=total, note="")
        self._bars.update(self._whole, description=name, completed=done)

    def phase(self, name: str, total: int | None) -> None:
        """Start a new bar; the one before it stays, finished."""
        if self._bars is not None:
            self._finish_bar()
            self._task = self._bars.add_task(name, total=total, note="")

    def advance(self, units: int, note: str = "") -> None:
        """Move the current bar."""
        if self._bars is not None and self._task is not None:
            self._bars.update(self._task, advance=units, note=note)

    def remark(self, message: str) -> None:
        """Print a line above the bars."""
        say(message)

    def _finish_bar(self) -> None:
        if self._bars is None:
            return
        for task in self._bars.tasks:
            if task.id == self._task and task.total is None:
                done = task.completed or 1
                self._bars.update(task.id, total=done, completed=done)


@contextlib.contextmanager
def progress() -> Iterator[TerminalProgress]:
    """Progress for a command; warnings are shown as remarks, in one line each."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        if err.is_terminal:
            columns = (
                SpinnerColumn(),
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeRemainingColumn(),
                TextColumn("{task.fields[note]}", markup=False),
            )
            with Progress(*columns, console=err) as bars:
                yield TerminalProgress(bars)
        else:
            yield TerminalProgress(None)
    for warning in caught:
        if issubclass(warning.category, UserWarning):
            say(f"warning: {warning.message}")
