"""`tacit train`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from tacit.cli import console
from tacit.errors import InputError
from tacit.recipes import Recipe, load_recipe
from tacit.runs import abandon_unfinished, partial_folder


def train(
    recipe_path: Annotated[Path, typer.Argument(metavar="RECIPE", help="YAML recipe.")],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="Overrides, e.g. training.epochs=2."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan and stop.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Continue a run that was killed.")] = False,
    as_json: console.JsonFlag = False,
) -> None:
    """Train a Run from a recipe.

    Examples:

        tacit train recipe.yaml --dry-run

        tacit train recipe.yaml output=runs/longer training.epochs=5

        tacit train recipe.yaml output=runs/ensemble method=submix ensemble.parts=2 training.max_steps=4

        tacit train recipe.yaml --resume
    """
    if dry_run and resume:
        raise InputError("--dry-run plans a new run and --resume continues one; give one of them.")
    recipe = load_recipe(recipe_path, overrides or ())
    output = Path(recipe.output)
    if dry_run:
        _show_plan(recipe, as_json=as_json)
        return
    from tacit.training import finetune, train_ensemble

    method = {"finetune": finetune, "submix": train_ensemble}[recipe.method]
    with console.progress() as progress:
        if resume and not output.exists() and not partial_folder(output).exists():
            progress.remark(f"nothing to resume at {output}; starting from the beginning")
        try:
            run = method(recipe, resume=resume, progress=progress)
        except KeyboardInterrupt:
            if abandon_unfinished(output):
                again = "the same recipe and overrides: tacit train RECIPE [KEY=VALUE]... --resume"
                progress.remark(f"stopped; continue with {again}")
            else:
                progress.remark("stopped before the first checkpoint; nothing was kept")
            raise
    content = {
        "run": str(run.folder),
        "weights": str(run.weights),
        "guarantee": run.manifest.guarantee["statement"],
    }
    console.show(content, as_json=as_json, title="Run")


def _show_plan(recipe: Recipe, *, as_json: bool) -> None:
    from tacit.training import plan_ensemble, plan_training

    with console.progress() as progress:
        submix = recipe.method == "submix"
        plan = asdict(plan_ensemble(recipe, progress) if submix else plan_training(recipe, progress))
    if not as_json:
        plan["filled_share"] = f"{plan['filled_share']:.0%}"
        plan["memory"] = f"about {plan.pop('memory_bytes') / 2**30:.1f} GiB"
        plan["time"] = f"about {_duration(plan.pop('seconds'))} on this machine"
    console.show(plan, as_json=as_json, title="Plan (nothing was trained or written)")


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
