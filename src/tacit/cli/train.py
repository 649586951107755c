"""`tacit train`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

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

        tacit train recipe.yaml output=runs/private method=dpsgd privacy.epsilon=8 privacy.delta=1e-5

        tacit train recipe.yaml output=runs/regularised method=triplet regularisation.lambda=0.1

        tacit train recipe.yaml --resume
    """
    if dry_run and resume:
        raise InputError("--dry-run plans a new run and --resume continues one; give one of them.")
    recipe = load_recipe(recipe_path, overrides or ())
    output = Path(recipe.output)
    if dry_run:
        _show_plan(recipe, as_json=as_json)
        return
    from tacit.training import train_run

    with console.progress() as progress:
        if resume and not output.exists() and not partial_folder(output).exists():
            progress.remark(f"nothing to resume at {output}; starting from the beginning")
        try:
            run = train_run(recipe, resume=resume, progress=progress)
        except KeyboardInterrupt:
            if abandon_unfinished(output):
                again = "the same recipe and overrides: tacit train RECIPE [KEY=VALUE]... --resume"
                progress.remark(f"stopped; continue with {again}")
            else:
                progress.remark("stopped before the first checkpoint; nothing was kept")
            raise
    content: dict[str, Any] = {
        "run": str(run.folder),
        "weights": str(run.weights),
        "guarantee": run.manifest.guarantee["statement"],
    }
    certificate = run.certificate()
    if as_json and certificate is not None:
        content["certificate"] = certificate
    console.show(content, as_json=as_json, title="Run")
    if not as_json and certificate is not None:
        console.say_plainly(certificate["words"])


def _show_plan(recipe: Recipe, *, as_json: bool) -> None:
    from tacit.training import plan_run

    with console.progress() as progress:
        plan = asdict(plan_run(recipe, progress))
    words = None
    if not as_json:
        if "filled_share" in plan:
            plan["filled_share"] = f"{plan['filled_share']:.0%}"
        words = plan.pop("certificate", None)
        for name in ("authors", "privacy_weight", "discriminator_parameters"):
            if plan.get(name) is None:
                plan.pop(name, None)  # of methods that have no such thing
        plan["memory"] = f"about {plan.pop('memory_bytes') / 2**30:.1f} GiB"
        plan["time"] = f"about {console.duration(plan.pop('seconds'))} on this machine"
    console.show(plan, as_json=as_json, title="Plan (nothing was trained or written)")
    if words is not None:
        console.say_plainly(words)
