"""Plain fine-tuning: the unprotected baseline that every other method is compared with.

Formal guarantee: none. The weights may reproduce any training text word for word, and the Run says so.
"""

from __future__ import annotations

import json
import math
import secrets
import shutil
from pathlib import Path

import torch

from tacit.corpus import CorpusSource, UserCorpus
from tacit.errors import TacitError, TrainingDiverged
from tacit.files import PRIVATE_FOLDER_MODE, write_json
from tacit.models.adapters import layout_of, save_weights
from tacit.models.loading import PublicModel, best_dtype
from tacit.privacy import Guarantee, Unit
from tacit.progress import Progress, Silent
from tacit.recipes import Recipe
from tacit.runs import PublicModelRecord, Run, RunBuilder
from tacit.training.checkpoint import trainable
from tacit.training.encoding import encode, lay_out
from tacit.training.loop import Outcome, PublicCheck, optimise
from tacit.training.next_token import NextTokenTask, batch_arguments
from tacit.training.preparation import Prepared, dtype_of, prepare
from tacit.training.schedule import Schedule

_PUBLIC_ROWS_AT_ONCE = 8


def finetune(recipe: Recipe, *, resume: bool = False, progress: Progress | None = None) -> Run:
    """Train a Run as the recipe says; with ``resume``, go on where a killed run stopped."""
    builder = RunBuilder.begin(Path(recipe.output), recipe.to_json(), resume=resume)
    try:
        return _train(recipe, builder, progress or Silent())
    except (TacitError, OSError, RuntimeError, ValueError):
        builder.abandon()
        raise


def _train(recipe: Recipe, builder: RunBuilder, progress: Progress) -> Run:
    work = builder.private / "work"
    work.mkdir(mode=PRIVATE_FOLDER_MODE, exist_ok=True)
    prepared = prepare(recipe, work, progress)
    builder.pin(
        corpus=prepared.corpus.whole.fingerprint,
        public_model=prepared.public.fingerprint,
        tokenizer=prepared.public.tokenizer_fingerprint,
    )
    seed = _seed(recipe, builder)
    torch.manual_seed(seed)  # a new adapter's weights are random
    task = task_for(prepared)
    task.cache_trunk(recipe.performance, work, progress)
    outcome = optimise(
        task.model,
        task.summed_loss,
        task.make_batch,
        Schedule(prepared.rows, recipe.training, seed),
        checkpoint_folder=builder.checkpoint,
        checkpoint_every=recipe.performance.checkpoint_every,
        progress=progress,
        public_check=_public_check(prepared, task, work, progress),
    )
    if not all(bool(torch.isfinite(parameter).all()) for parameter in trainable(task.model).values()):
        raise TrainingDiverged("The trained weights are not finite; lower training.learning_rate.")
    layout = layout_of(recipe.adapter)
    weights = builder.folder / layout
    if weights.exists():  # left by a run that was killed while it saved
        shutil.rmtree(weights)
    private = guarantee_of(prepared).kind != "public"
    save_weights(task.model, weights, prepared.public, holds_private_text=private)
    _record(builder, prepared, outcome)
    shutil.rmtree(work)
    return builder.finish(
        method=recipe.method,
        recipe=recipe.to_json(),
        public_model=record_of(prepared.public),
        weights=layout,
        guarantee=guarantee_of(prepared).to_json(),
        corpus_fingerprint=prepared.corpus.whole.fingerprint,
        seeded=recipe.training.seed is not None,
    )


def task_for(prepared: Prepared) -> NextTokenTask:
    """The model, its adapter and its rows, ready to train."""
    recipe = prepared.recipe
    if recipe.performance.threads is not None:
        torch.set_num_threads(recipe.performance.threads)
    # A frozen base is stored in bf16; weights that are trained stay in fp32 and compute under autocast.
    # The fused LSTM kernel has no emulated bf16: where the processor lacks it, an LSTM computes in fp32.
    able = prepared.public.family == "transformer" or best_dtype() == torch.bfloat16
    autocast = able and dtype_of(recipe.model) == torch.bfloat16 and recipe.adapter.kind != "lora"
    return NextTokenTask(prepared.public, recipe.adapter, prepared.rows, autocast=autocast)


def guarantee_of(prepared: Prepared) -> Guarantee:
    """What the Run may claim: nothing, or that its text was public."""
    unit: Unit = "block" if prepared.corpus.whole.unit == "block" else "user"
    private_words = prepared.public.vocabulary == "private"
    outside = ("the vocabulary, which was built from private text",) if private_words else ()
    # Public text makes nothing public that the model it is added to has read before.
    if prepared.recipe.corpus.public and not prepared.public.holds_private_text:
        return Guarantee.public_text(unit, outside=outside)
    return Guarantee.unprotected(unit, outside=outside)


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
    )


def _seed(recipe: Recipe, builder: RunBuilder) -> int:
    """The recipe's seed, or fresh entropy that a resumed run finds again."""
    if recipe.training.seed is not None:
        return recipe.training.seed
    path = builder.private / "seed.json"
    if not path.is_file():
        write_json(path, {"seed": secrets.randbits(63)}, private=True)
    return int(json.loads(path.read_text(encoding="utf-8"))["seed"])


def _public_check(
    prepared: Prepared, task: NextTokenTask, work: Path, progress: Progress
) -> PublicCheck | None:
    settings = prepared.recipe.training.early_stop
    if settings is None:
        return None
    source = CorpusSource(settings.public_text, format="text", user="file", document="paragraph")
    encoded = encode(
        UserCorpus.read(source),
        prepared.public.tokenizer,
        block_size=prepared.recipe.training.block_size,
        storage=work / "public.int32",
        progress=progress,
    )
    rows = lay_out(encoded, block_size=prepared.recipe.training.block_size, packing=prepared.rows.packed)
    arguments = batch_arguments(prepared.public)
    numbers = torch.split(torch.arange(len(rows)), _PUBLIC_ROWS_AT_ONCE)
    batches = [rows.batch(group.numpy(), **arguments) for group in numbers]
    return PublicCheck(settings, lambda: task.mean_loss_of(batches))


def _record(builder: RunBuilder, prepared: Prepared, outcome: Outcome) -> None:
    """Counts and losses are functions of the private text: for the owner alone."""
    content = {
        "users": len(prepared.corpus.train.users),
        "documents": len(prepared.corpus.train),
        "tokens": int(prepared.encoded.starts[-1]),
        "skipped": dict(prepared.corpus.whole.skipped),
        "steps": outcome.steps,
        "final_loss": outcome.final_loss if math.isfinite(outcome.final_loss) else None,
        "tokens_per_second": outcome.tokens_per_second,
        "stopped_early": outcome.stopped_early,
    }
    write_json(builder.private / "training.json", content, private=True, overwrite=True)
