"""`tacit tune`: what a method leaks at what perplexity, over the values of one key."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from tacit.cli import console
from tacit.cli.audit import word_list
from tacit.runs import Run

if TYPE_CHECKING:
    from tacit.tuning import Frontier, TuneRecord, Tuning


def tune(
    recipe_path: Annotated[Path, typer.Argument(metavar="RECIPE", help="YAML recipe.")],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="Overrides for all Runs, e.g. method=triplet."),
    ] = None,
    over: Annotated[
        str | None,
        typer.Option(
            metavar="KEY=V1,V2,...",
            help="The key that varies; default: regularisation.lambda (adversarial: to 10, triplet: to "
            "0.3), privacy's epsilon or noise, or how long an unprotected model learns.",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Where the Runs go; default: OUTPUT-over-KEY, by the recipe."),
    ] = None,
    perplexity: Annotated[
        float | None, typer.Option(help="Also tell what the method leaks here, between its Runs.")
    ] = None,
    canaries: Annotated[
        Path | None, typer.Option(help="The manifest of the canaries that were planted into the corpus.")
    ] = None,
    words: Annotated[
        Path | None, typer.Option(help="The word list of word canaries, one word per line, if it was yours.")
    ] = None,
    against: Annotated[
        Path | None,
        typer.Option("--against", "--control", help="A Run of the same corpus without protection."),
    ] = None,
    preset: Annotated[
        Literal["crt", "regularisation"] | None,
        typer.Option(help="A paper's own set-up; see docs/audit.md."),
    ] = None,
    documents: Annotated[
        int, typer.Option(help="Training and held-out documents to score, of each at most; 0: none.")
    ] = 1000,
    lines: Annotated[
        int, typer.Option(help="Training lines with gold spans to score beside look-alikes; 0: none.")
    ] = 1000,
    delta: Annotated[float, typer.Option(help="The delta at which epsilon is bounded.")] = 1e-5,
    confidence: Annotated[
        float, typer.Option(help="Of every bound, interval, test and band of chance.")
    ] = 0.95,
    audit_again: Annotated[
        bool, typer.Option("--audit-again", help="Audit all Runs anew, where the audit's options changed.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan and stop.")] = False,
    as_json: console.JsonFlag = False,
) -> None:
    """Trace what a method leaks at what perplexity: a Run for each value of one key, all audited alike.

    The Runs go into one folder, with tune.json and tune.html beside them for their owner alone. Killed at any
    time, the same command goes on; with more values it makes the frontier finer. Methods are compared at
    equal perplexity by giving their folders to tacit compare.

    Examples:

        tacit tune recipe.yaml method=triplet --dry-run

        tacit tune recipe.yaml method=triplet output=runs/triplet --over regularisation.lambda=0,1

        tacit tune recipe.yaml --over training.max_steps=2,8 --perplexity 20

        tacit tune recipe.yaml corpus.path=planted.jsonl --over training.epochs=1,2 --canaries canaries.json
    """
    from tacit.audit.plans import AuditPlan
    from tacit.audit.presets import as_in_the_paper
    from tacit.corpus.canaries import CanaryManifest
    from tacit.tuning import Tuning, sweep_of, trace_frontier

    plan = AuditPlan(
        manifest=None if canaries is None else CanaryManifest.load(canaries),
        words=None if words is None else word_list(words),
        against=None if against is None else Run.open(against),
        documents=documents,
        lines=lines,
        delta=delta,
        confidence=confidence,
    )
    if preset is not None:
        plan = as_in_the_paper(plan, preset)
    tuning = Tuning(
        sweep=sweep_of(recipe_path, overrides or (), over, output),
        audit=plan,
        perplexity=perplexity,
        audit_again=audit_again,
    )
    if dry_run:
        _show_plan(tuning, as_json=as_json)
        return
    with console.progress() as progress:
        try:
            record, frontier = trace_frontier(tuning, progress)
        except KeyboardInterrupt:
            progress.remark("stopped; what is finished is kept, and the same command goes on from there")
            raise
    if as_json:
        console.show_json({"folder": str(tuning.sweep.folder)} | record.to_json())
        return
    _show(tuning.sweep.folder, record, frontier)


def _show_plan(tuning: Tuning, *, as_json: bool) -> None:
    with console.progress() as progress:
        planned = tuning.planned(progress)
    sweep = tuning.sweep
    if as_json:
        rows = [
            {"value": one.value, "run": one.run, "state": one.standing, "seconds": one.seconds}
            for one in planned
        ]
        console.show_json({"folder": str(sweep.folder), "key": sweep.key, "runs": rows})
        return
    cells = [
        {
            sweep.key: one.value,
            "run": one.run,
            "state": one.standing,
            "training": f"about {console.duration(one.seconds)}" if one.seconds else None,
        }
        for one in planned
    ]
    title = f"Plan of {sweep.folder} (nothing was trained or written)"
    console.show_rows(cells, as_json=False, name="runs", title=title)
    total = sum(one.seconds for one in planned)
    console.say_plainly(
        f"In all about {console.duration(total)} of training on this machine, and the audits."
    )


def _show(folder: Path, record: TuneRecord, frontier: Frontier) -> None:
    from tacit.tuning import FILE, PAGE

    title = f"{record.method} over {record.key}"
    console.show_rows(frontier.cells(), as_json=False, name="values", title=title)
    if frontier.at is not None:
        value = frontier.value_at
        at: dict[str, Any] = {record.key: None if value is None else f"about {value:.3g}, interpolated"}
        title = f"At perplexity {frontier.at.perplexity:.4g}"
        console.show(at | frontier.at.cells(), as_json=False, title=title)
    for entry in record.runs:
        if entry.state == "diverged":
            console.say_plainly(f"{entry.run}: {entry.why}")
    console.say_plainly(record.caution)
    for name in (FILE, PAGE):
        console.say_plainly(f"{folder / name}")
