"""`tacit experiment`: the papers' experiments, end to end."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tacit.cli import console
from tacit.cli.run_by_default import RunByDefault

if TYPE_CHECKING:
    from tacit.experiments import Experiment, Result, Scale, Workshop

_WORK = Path("experiments")


app = typer.Typer(
    cls=RunByDefault,
    no_args_is_help=True,
    help="The papers' experiments, end to end: `tacit experiment NAME`, or one of the commands below.",
)


@app.command()
def run(
    name: Annotated[str, typer.Argument(help="Which experiment; `tacit experiment list` has them.")],
    scale: Annotated[
        str,
        typer.Option(
            help="small: planned for an hour at most on two cores; paper: the paper's own configuration, "
            "for machines with GPUs; tiny: seconds, to see that it works.",
        ),
    ] = "small",
    data: Annotated[
        Path | None, typer.Option(help="The folder that holds the corpora, each in a folder of its own.")
    ] = None,
    work: Annotated[
        Path, typer.Option(help="Where Runs, stages and results are kept, and looked for.")
    ] = _WORK,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan and stop.")] = False,
    as_json: console.JsonFlag = False,
) -> None:
    """Run an experiment: train, measure, and write tables, figures and findings.

    The plan comes first, with how long each stage takes about. Stages are kept in the work folder: killed at
    any time, the same command goes on, and experiments that need the same Runs share them.

    Examples:

        tacit experiment crt-amplification --scale tiny

        tacit experiment crt-amplification --dry-run
    """
    from tacit.experiments import Workshop, experiment_called

    chosen, checked = experiment_called(name), _scale(scale)
    shop = Workshop(work, data)
    if dry_run or not as_json:
        _show_plan(chosen, shop, checked, as_json=as_json)
    if dry_run:
        return
    with console.progress() as progress:
        try:
            result = chosen.run(Workshop(work, data, progress), checked)
        except KeyboardInterrupt:
            progress.remark("stopped; finished stages are kept, and the same command goes on from there")
            raise
    folder = chosen.folder(shop, checked)
    if as_json:
        console.show_json({"folder": str(folder)} | result.model_dump(mode="json"))
        return
    _show(result, folder)


@app.command("list")
def list_all(as_json: console.JsonFlag = False) -> None:
    """Show what experiments there are, which figure each repeats, and what text it reads.

    Examples:

        tacit experiment list
    """
    from tacit.experiments import EXPERIMENTS

    rows = [
        {"name": one.name, "repeats": one.shows, "title": one.title, "texts": ", ".join(one.texts) or None}
        for one in EXPERIMENTS
    ]
    console.show_rows(rows, as_json=as_json, name="experiments")


@app.command()
def page(
    results: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="With a folder for each result, and INTRODUCTION.md.")
    ],
    output: Annotated[Path, typer.Argument(metavar="PAGE", help="The Markdown file; it is overwritten.")],
    add: Annotated[
        list[Path] | None,
        typer.Option(metavar="RESULT", help="A folder that an experiment wrote: its result is copied first."),
    ] = None,
    readme: Annotated[
        Path | None, typer.Option(help="A README that gets the overview's picture and sentences.")
    ] = None,
    as_json: console.JsonFlag = False,
) -> None:
    """Make one page of all results in a folder, with their figures made anew.

    The page is a function of the results: no number in it is typed by hand. Nor in the README, between its
    two marks.

    Examples:

        tacit experiment page results results.md

        tacit experiment page results results.md --add experiments/overview-small --readme README.md
    """
    from tacit.experiments import EXPERIMENTS, Result, pages, results_in
    from tacit.experiments.results import FILE

    added = [Result.load(folder / FILE) for folder in add or ()]
    pages.introduction_in(results)
    for one in added:
        one.save(results / one.experiment)
    found = results_in(results, [one.name for one in EXPERIMENTS])
    texts = pages.made_of(results, output, found)
    if readme is not None:
        before = readme.read_text(encoding="utf-8")
        places = (os.path.relpath(path, readme.parent) for path in (results, output))
        folder, page = (Path(place).as_posix() for place in places)
        texts[readme] = pages.with_lines(before, found, folder=f"{folder}/", page=page)
    pages.write_texts(texts)
    console.show({"page": str(output), "results": len(found)}, as_json=as_json)


def _scale(name: str) -> Scale:
    from tacit.errors import InputError

    match name:
        case "tiny" | "small" | "paper":
            return name
    raise InputError(f"--scale {name}: choose tiny, small or paper.")


def _show_plan(chosen: Experiment, shop: Workshop, scale: Scale, *, as_json: bool) -> None:
    planned = chosen.planned(shop, scale)
    if as_json:
        stages = [{"stage": one.name, "minutes": one.minutes, "done": one.done} for one in planned]
        console.show_json({"experiment": chosen.name, "scale": scale, "stages": stages})
        return
    cells = [
        {"stage": one.name, "takes": "done" if one.done else f"about {console.duration(60 * one.minutes)}"}
        for one in planned
    ]
    title = f"{chosen.title} ({chosen.shows}), scale {scale}"
    console.show_rows(cells, as_json=False, name="stages", title=title)
    left = sum(60 * one.minutes for one in planned if not one.done)
    console.say_plainly(f"In all about {console.duration(left)} on two cores.")


def _show(result: Result, folder: Path) -> None:
    for finding in result.findings:
        console.say_plainly(f"{finding.outcome}: {finding.claim} {finding.here}")
    console.say_plainly(f"Tables and figures: {folder / 'result.md'}")
