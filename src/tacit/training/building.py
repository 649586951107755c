"""What every method does around its training: hold the Run's folder, find its seed, name its model."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from pathlib import Path

import torch

from tacit.errors import InputError
from tacit.files import read_json, write_json
from tacit.models.loading import PublicModel
from tacit.progress import Progress
from tacit.recipes import DEFAULT_MODEL, PerformanceSection, Recipe
from tacit.runs import PublicModelRecord, Run, RunBuilder

_BEGIN_AGAIN = "remove the folder of the unfinished run and begin again"


def build_run(
    recipe: Recipe,
    train: Callable[[Recipe, RunBuilder, Progress], Run],
    *,
    resume: bool,
    progress: Progress,
) -> Run:
    """Make a Run by ``train``, alone in its folder; a failure leaves only what can be resumed from."""
    recipe = from_any_folder(recipe)
    builder = RunBuilder.begin(Path(recipe.output), recipe.to_json(), resume=resume)
    try:
        return builder.complete() if builder.is_whole else train(recipe, builder, progress)
    except (Exception, KeyboardInterrupt):
        builder.abandon()
        raise
    finally:
        builder.release()


def from_any_folder(recipe: Recipe) -> Recipe:
    """The recipe with whole paths to its model and corpus: a Run is used from other folders too."""
    model, corpus = recipe.model, recipe.corpus
    if model.name != DEFAULT_MODEL and (folder := Path(model.name).expanduser()).exists():
        model = model.model_copy(update={"name": str(folder.absolute())})
    if corpus.format != "datasets" or Path(corpus.path).exists():  # else it is an id of the hub
        corpus = corpus.model_copy(update={"path": str(Path(corpus.path).absolute())})
    changes: dict[str, object] = {"model": model, "corpus": corpus}
    for section, name in (("confidentiality", "calibration"), ("selective", "screened")):
        given = getattr(recipe, section)
        if given is not None and getattr(given, name) is not None:
            path = str(Path(getattr(given, name)).expanduser().absolute())
            changes[section] = given.model_copy(update={name: path})
    return recipe.model_copy(update=changes)


def seed_of(recipe: Recipe, builder: RunBuilder) -> int:
    """The recipe's seed, or fresh entropy that a resumed run finds again."""
    if recipe.training.seed is not None:
        return recipe.training.seed
    path = builder.private / "seed.json"
    if not path.is_file():
        write_json(path, {"seed": secrets.randbits(63)}, private=True)
    seed = read_json(path, _BEGIN_AGAIN).get("seed")
    if not isinstance(seed, int):
        raise InputError(f"{path} is damaged; {_BEGIN_AGAIN}.")
    return seed


def use_threads(performance: PerformanceSection) -> None:
    """Compute with as many threads as the recipe says."""
    if performance.threads is not None:
        # More threads than processors only wait for each other.
        torch.set_num_threads(min(performance.threads, os.cpu_count() or 1))


def record_of(public: PublicModel) -> PublicModelRecord:
    """The public model as the Run's manifest names it."""
    return PublicModelRecord(
        name=public.name,
        revision=public.revision,
        fingerprint=public.fingerprint,
        tokenizer_fingerprint=public.tokenizer_fingerprint,
        family=public.family,
        start_token=public.start_token,
        vocabulary=public.vocabulary,
        mask_token=public.tokenizer.mask_token,
    )
