"""`method: crt`: confidentially redacted training, Algorithm 1 of Zhao, Li and Wang (2022).

In every epoch one pass of plain training over the public data points, then the expected number of Poisson
steps of DP-SGD over the private ones. A step is wholly public or wholly private.

Formal guarantee: a `Certificate`, about secrets that the screening masked or might have missed. Neighbours
are *replace-one*: a secret is replaced by a mask and its data point stays. In both worlds the screened
corpora have the same data points in the same places, and those with a mask or with anything the
conservative policy labels are private. So the number of private points, and with it the sampling rate and
the number of steps, is the same in both, unless both policies miss the secret, which `delta2` pays for:
these numbers may be published. How many points are bare masks is not the same where a secret is a whole
data point, nor is u: they are the owner's.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from tacit.corpus.screened_corpus import PointFlags, point_flags
from tacit.errors import CorpusError
from tacit.files import write_json
from tacit.progress import Progress, Silent
from tacit.recipes import PublicPhaseSection, Recipe, TrainingSection
from tacit.runs import Run, RunBuilder
from tacit.training.building import build_run, record_of, seed_of
from tacit.training.certifying import (
    certificate_for,
    published,
    published_recipe,
    tell_of_repeated_secrets,
)
from tacit.training.checkpoint import trainable
from tacit.training.dpsgd import (
    objective_for,
    pin,
    prepare_unpacked,
    privacy_of,
    record_private_run,
    trainer_for,
)
from tacit.training.encoding import Batch, IntArray, Rows
from tacit.training.finetune import save_trained, task_for
from tacit.training.next_token import NextTokenTask
from tacit.training.optimisers import optimiser_for
from tacit.training.phases import Phases
from tacit.training.preparation import Prepared
from tacit.training.privacy_plan import PrivacyPlan
from tacit.training.private_loop import PrivatePhase, PublicPhase, take_steps
from tacit.training.records import examples_of
from tacit.training.schedule import Schedule


def train_confidentially(recipe: Recipe, *, resume: bool = False, progress: Progress | None = None) -> Run:
    """Train a Run on a screened corpus; with ``resume``, go on where a killed run stopped."""
    return build_run(recipe, _train, resume=resume, progress=progress or Silent())


def _train(recipe: Recipe, builder: RunBuilder, progress: Progress) -> Run:
    work = builder.new_work()
    prepared = prepare_unpacked(recipe, work, progress)
    flags = flags_of(prepared)
    pin(builder, prepared, private_data_points=flags.fingerprint)
    seed = seed_of(recipe, builder)
    torch.manual_seed(seed)  # a new adapter's weights are random
    task = task_for(prepared, fused=False)
    section = privacy_of(recipe)
    examples = examples_of(prepared.rows, section, task.make_batch, chosen=flags.private)
    plan = PrivacyPlan.of(section, recipe.training, len(examples))
    tell_what_is_missing(plan, flags, progress)
    tell_of_repeated_secrets(prepared, progress)
    certificate = certificate_for(prepared, plan, flags)
    task.cache_trunk(recipe.performance, work, progress)
    public = _public_phase(task, prepared, flags, seed)
    private, engine = None, "none"
    if plan.population:
        optimiser = optimiser_for(list(trainable(task.model).values()), recipe.training)
        if public is not None and public_section(recipe).optimiser_state == "shared":
            optimiser = public.optimiser
        trainer = trainer_for(
            task, examples, plan, prepared, optimiser, None if public is None else public.optimiser
        )
        private, engine = PrivatePhase(recipe.training, optimiser, trainer), trainer.engine
    schedule = public_schedule(prepared, flags, seed)
    outcome = take_steps(
        task.model,
        Phases.alternating(recipe.training, plan, 0 if schedule is None else schedule.steps_per_epoch),
        private=private,
        public=public,
        seed=seed,
        checkpoint_folder=builder.checkpoint,
        checkpoint_every=recipe.performance.checkpoint_every,
        progress=progress,
    )
    layout = save_trained(task, prepared, builder, holds_private_text=True)
    counts = {"private_points": int(flags.private.sum()), "bare_points": int(flags.bare.sum())}
    record_private_run(builder, prepared, plan, outcome, engine=engine, **counts)
    write_json(builder.private / "certificate.json", certificate.to_json(), private=True, overwrite=True)
    write_json(builder.folder / "certificate.json", published(certificate).to_json(), overwrite=True)
    write_json(builder.private / "recipe.json", recipe.to_json(), private=True, overwrite=True)
    prepared.corpus.whole.close()
    return builder.finish(
        method=recipe.method,
        recipe=published_recipe(recipe),
        public_model=record_of(prepared.public),
        weights=layout,
        guarantee=published(certificate).guarantee.to_json(),
        privacy={"dpsgd": plan.to_json()},
        corpus_fingerprint=prepared.corpus.whole.fingerprint,
        seeded=recipe.training.seed is not None,
    )


def flags_of(prepared: Prepared) -> PointFlags:
    """Which of the training side's data points are private; text that was never screened is refused."""
    path = Path(prepared.recipe.corpus.path)
    if not prepared.corpus.whole.has_masks:
        raise CorpusError(
            f"{path} is not a screened corpus, and method 'crt' needs one; make it with tacit corpus screen."
        )
    flags = point_flags(path)
    if len(flags.private) != len(prepared.corpus.whole):
        raise CorpusError(
            f"{path}: {len(flags.private)} data points were screened and {len(prepared.corpus.whole)} read; "
            "give the file as tacit corpus screen wrote it, without corpus.skip_bad."
        )
    rows = prepared.corpus.train.row_numbers()
    return PointFlags(flags.private[rows], flags.bare[rows])


def tell_what_is_missing(plan: PrivacyPlan, flags: PointFlags, progress: Progress) -> None:
    """Both parts may be empty; either is worth a word."""
    if not plan.population:
        progress.remark("no data point is private: nothing is trained with noise")
    elif flags.private.all():
        progress.remark("every data point is private: this is DP-SGD on redacted text")


def public_section(recipe: Recipe) -> PublicPhaseSection:
    """How public passes differ from private steps."""
    return recipe.public_phase or PublicPhaseSection()


def public_schedule(prepared: Prepared, flags: PointFlags, seed: int) -> Schedule | None:
    """The passes over public rows, numbered among themselves; None where there is no public text."""
    rows = public_rows(prepared.rows, flags)
    if not len(rows):
        return None
    return Schedule(prepared.rows.only(rows), _public_training(prepared.recipe), seed)


def public_rows(rows: Rows, flags: PointFlags) -> IntArray:
    """The rows of public data points."""
    documents = rows.corpus.piece_document[[pieces[0] for pieces in rows.pieces]]
    return np.flatnonzero(~flags.private[documents])


def _public_training(recipe: Recipe) -> TrainingSection:
    section = public_section(recipe)
    changes = {
        "learning_rate": section.learning_rate or recipe.training.learning_rate,
        "batch_size": section.batch_size or recipe.training.batch_size,
    }
    return recipe.training.model_copy(update=changes)


def _public_phase(
    task: NextTokenTask, prepared: Prepared, flags: PointFlags, seed: int
) -> PublicPhase | None:
    schedule = public_schedule(prepared, flags, seed)
    if schedule is None:
        return None
    numbers = public_rows(prepared.rows, flags)

    def batches_of(step: int) -> list[Batch]:
        return [task.make_batch(numbers[some]) for some in schedule.batches_of(step)]

    optimiser = optimiser_for(list(trainable(task.model).values()), schedule.training)
    return PublicPhase(schedule.training, optimiser, objective_for(task), batches_of)
