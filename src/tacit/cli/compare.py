"""`tacit compare`: audited Runs side by side, at equal perplexity."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from tacit.cli import console
from tacit.files import new_file, refuse_existing


def compare(
    run_folders: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Audited Runs, or folders of tacit tune.")
    ],
    tolerance: Annotated[
        float, typer.Option(help="Perplexities within this share of the first Run's count as equal.")
    ] = 0.05,
    perplexity: Annotated[
        float | None, typer.Option(help="Where methods are compared; default: the first Run's perplexity.")
    ] = None,
    html: Annotated[Path | None, typer.Option(help="Also write the comparison as a page.")] = None,
    as_json: console.JsonFlag = False,
) -> None:
    """Methods side by side: what they leak, what they guarantee, at equal perplexity.

    Leakage can be bought with perplexity, so that two methods compare only where both predict equally well.
    Where several Runs of a method enclose the perplexity, what it leaks there is interpolated, with an
    interval; Runs of one method that are set up otherwise are methods of their own, and their rows say in
    what. Runs outside the tolerance are shown and marked. All must have been audited (tacit audit). A folder
    of tacit tune stands for its Runs.

    Examples:

        tacit compare runs/first runs/second

        tacit compare runs/first runs/second --perplexity 20 --html side-by-side.html

        tacit compare runs/first-over-max_steps runs/triplet-over-lambda --perplexity 20
    """
    from tacit.audit.comparison import compare_runs
    from tacit.audit.frontiers import methods_at
    from tacit.report import render_comparison
    from tacit.tuning import distinct_names, runs_in, varied_in

    if html is not None:
        refuse_existing(html)
    runs = runs_in(run_folders)
    names = distinct_names(runs)
    compared = compare_runs(runs, tolerance=tolerance, along=varied_in(run_folders))
    rows = [replace(row, name=name) for row, name in zip(compared, names, strict=True)]
    measured = perplexity is not None or rows[0].perplexity is not None
    methods = methods_at(rows, perplexity=perplexity, tolerance=tolerance) if measured else []
    if html is not None:
        with new_file(html, private=True) as handle:
            page = render_comparison([row.to_json() for row in rows], [one.to_json() for one in methods])
            handle.write(page.encode())
    if as_json:
        content = {"runs": [row.to_json() for row in rows], "methods": [one.to_json() for one in methods]}
        console.show_json(content)
        return
    console.show_rows([row.cells() for row in rows], as_json=False, name="runs", title="Runs side by side")
    if methods:
        title = f"Methods at perplexity {methods[0].perplexity:.4g}"
        console.show_rows([one.cells() for one in methods], as_json=False, name="methods", title=title)
    for row in rows:
        console.out.print(f"{row.name}: {row.guarantee}", markup=False)
        if row.gaussian_mu is not None:
            console.out.print(f"{row.name}: {row.gaussian_mu}", markup=False)
        if not row.comparable:
            console.out.print(f"{row.name}: not comparable, {row.why}", markup=False)
