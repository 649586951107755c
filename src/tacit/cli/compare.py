"""`tacit compare`: audited Runs side by side, at equal perplexity."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tacit.cli import console
from tacit.files import new_file, refuse_existing
from tacit.runs import Run


def compare(
    run_folders: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Audited Runs.")],
    tolerance: Annotated[
        float, typer.Option(help="Perplexities within this share of the first Run's count as equal.")
    ] = 0.05,
    html: Annotated[Path | None, typer.Option(help="Also write the comparison as a page.")] = None,
    as_json: console.JsonFlag = False,
) -> None:
    """Methods side by side: what they leak, what they guarantee, at equal perplexity.

    Leakage can be bought with perplexity, so that two methods compare only where both predict equally well.
    Runs outside the tolerance are shown and marked. All Runs must have been audited (tacit audit).

    Examples:

        tacit compare runs/first runs/second

        tacit compare runs/first runs/second --tolerance 0.1 --html side-by-side.html
    """
    from tacit.audit.comparison import compare_runs
    from tacit.report import render_comparison

    if html is not None:
        refuse_existing(html)
    rows = compare_runs([Run.open(folder) for folder in run_folders], tolerance=tolerance)
    if html is not None:
        with new_file(html, private=True) as handle:
            handle.write(render_comparison([row.to_json() for row in rows]).encode())
    if as_json:
        console.show_json({"runs": [row.to_json() for row in rows]})
        return
    console.show_rows([row.cells() for row in rows], as_json=False, name="runs", title="At equal perplexity")
    for row in rows:
        console.out.print(f"{row.name}: {row.guarantee}", markup=False)
        if not row.comparable:
            console.out.print(f"{row.name}: not comparable, {row.why}", markup=False)
