"""Plain fine-tuning: the unprotected baseline that every other method is compared with.

Formal guarantee: none. The weights may reproduce any training text word for word, and the Run says so.
"""

from __future__ import annotations

import math
import shutil
import sys
from typing import Any, Final

import numpy as np
import torch

from tacit.errors import TrainingDiverged
from tacit.files import write_json
from tacit.models.adapters import WeightsLayout, layout_of, save_weights
from tacit.models.loading import best_dtype
from tacit.privacy import Guarantee, Unit
from tacit.progress import Progress, Silent
from tacit.recipes import PRIVATE_METHODS, Recipe
from tacit.runs import Run, RunBuilder
from tacit.training.building import build_run, record_of, seed_of, use_threads
from tacit.training.checkpoint import trainable
from tacit.training.early_stop import public_check_for
from tacit.training.loop import Outcome, optimise
from tacit.training.next_token import NextTokenTask
from tacit.training.preparation import Prepared, dtype_of, prepare
from tacit.training.schedule import Schedule

_LOOKED_AT: Final = 16  # rows of the text that tell whether a trained model has a perplexity
_MOST_NATS: Final = math.log(sys.float_info.max)  # a token; of more there is no finite perplexity


def finetune(recipe: Recipe, *, resume: bool = False, progress: Progress | None = None) -> Run:
    """Train a Run as the recipe says; with ``resume``, go on where a killed run stopped."""
    return build_run(recipe, _train, resume=resume, progress=progress or Silent())


def _train(recipe: Recipe, builder: RunBuilder, progress: Progress) -> Run:
    work = builder.new_work()
    prepared = prepare(recipe, work, progress)
    builder.pin(
        corpus=prepared.corpus.whole.fingerprint,
        public_model=prepared.public.fingerprint,
        tokenizer=prepared.public.tokenizer_fingerprint,
    )
    seed = seed_of(recipe, builder)
    torch.manual_seed(seed)  # a new adapter's weights are random
    task = task_for(prepared)
    public_check = public_check_for(prepared, task, work, progress)
    task.cache_trunk(recipe.performance, work, progress)
    outcome = optimise(
        task.model,
        task.summed_loss,
        task.make_batch,
        Schedule(prepared.rows, recipe.training, seed),
        checkpoint_folder=builder.checkpoint,
        checkpoint_every=recipe.performance.checkpoint_every,
        progress=progress,
        public_check=public_check,
    )
    guarantee = guarantee_of(prepared)
    layout = save_trained(task, prepared, builder, holds_private_text=guarantee.kind != "public")
    record_training(builder, prepared, outcome)
    prepared.corpus.whole.close()
    return builder.finish(
        method=recipe.method,
        recipe=recipe.to_json(),
        public_model=record_of(prepared.public),
        weights=layout,
        guarantee=guarantee.to_json(),
        corpus_fingerprint=prepared.corpus.whole.fingerprint,
        seeded=recipe.training.seed is not None,
    )


def save_trained(
    task: NextTokenTask, prepared: Prepared, builder: RunBuilder, *, holds_private_text: bool
) -> WeightsLayout:
    """Write the trained weights into the Run; none that diverged become one.

    Of a private method the weights alone decide: whether there is a Run may depend on the text through them
    only, because no noise covers what a loss on the text tells.
    """
    if not all(bool(torch.isfinite(parameter).all()) for parameter in trainable(task.model).values()):
        raise TrainingDiverged("The trained weights are not finite; lower training.learning_rate.")
    if prepared.recipe.method not in PRIVATE_METHODS:
        _require_finite_perplexity(task, prepared)
    layout = layout_of(prepared.recipe.adapter)
    weights = builder.folder / layout
    if weights.exists():  # left by a run that was killed while it saved
        shutil.rmtree(weights)
    save_weights(task.model, weights, prepared.public, holds_private_text=holds_private_text)
    return layout


def _require_finite_perplexity(task: NextTokenTask, prepared: Prepared) -> None:
    """Finite weights may still lose too much for any perplexity, and then nothing can be measured on them."""
    task.model.eval()
    some = np.unique(np.linspace(0, len(prepared.rows) - 1, _LOOKED_AT, dtype=np.int64))
    batches = (task.make_batch(some[at : at + 1]) for at in range(len(some)))
    losses = [task.mean_loss_of([batch]) for batch in batches if batch.label_count]
    if not all(loss < _MOST_NATS for loss in losses):  # nor where one is no number
        raise TrainingDiverged(
            "The perplexity of the trained model is not finite; lower training.learning_rate."
        )


def task_for(prepared: Prepared, *, base_dropout: bool = True, fused: bool = True) -> NextTokenTask:
    """The model, its adapter and its rows, ready to train."""
    recipe = prepared.recipe
    use_threads(recipe.performance)
    # A frozen base is stored in bf16; weights that are trained stay in fp32 and compute under autocast.
    # The fused LSTM kernel has no emulated bf16: where the processor lacks it, an LSTM computes in fp32.
    device = prepared.public.model.device
    able = prepared.public.family == "transformer" or best_dtype(device) == torch.bfloat16
    autocast = able and dtype_of(recipe.model, device) == torch.bfloat16 and recipe.adapter.kind != "lora"
    return NextTokenTask(
        prepared.public,
        recipe.adapter,
        prepared.rows,
        autocast=autocast,
        base_dropout=base_dropout,
        fused=fused,
    )


def guarantee_of(prepared: Prepared) -> Guarantee:
    """What the Run may claim: nothing, or that its text was public."""
    unit: Unit = "block" if prepared.corpus.whole.unit == "block" else "user"
    private_words = prepared.public.vocabulary == "private"
    outside = ("the vocabulary, which was built from private text",) if private_words else ()
    # Public text makes nothing public that the model it is added to has read before.
    if prepared.recipe.corpus.public and not prepared.public.holds_private_text:
        return Guarantee.public_text(unit, outside=outside)
    return Guarantee.unprotected(unit, outside=outside)


def record_training(builder: RunBuilder, prepared: Prepared, outcome: Outcome, **more: Any) -> None:
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
        **more,
    }
    write_json(builder.private / "training.json", content, private=True, overwrite=True)
