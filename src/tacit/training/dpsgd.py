"""`method: dpsgd`: every step a noisy sum of clipped gradients, for documents or for users.

Formal guarantee: (epsilon, delta)-differential privacy of the weights for one example's text more or less,
or replaced, where an example is one document or all of one user's. Assumed: the number of examples is
public (or stated by ``privacy.examples``, and the corpus has no more); the public model, the vocabulary and
every setting were chosen without looking at the text. Losses and counts on the terminal and in ``private/``
are the operator's, outside the guarantee.
"""

from __future__ import annotations

from pathlib import Path

import torch

from tacit.errors import RecipeError
from tacit.files import write_json
from tacit.privacy import Guarantee
from tacit.progress import Progress, Silent
from tacit.recipes import PrivacySection, Recipe
from tacit.runs import Run, RunBuilder
from tacit.training.building import build_run, record_of, seed_of
from tacit.training.checkpoint import trainable
from tacit.training.encoding import lay_out
from tacit.training.finetune import save_trained, task_for
from tacit.training.next_token import NextTokenTask
from tacit.training.optimisers import optimiser_for
from tacit.training.phases import Phases
from tacit.training.preparation import Prepared, gather
from tacit.training.privacy_plan import PrivacyPlan
from tacit.training.private_loop import PrivateOutcome, PrivatePhase, take_steps
from tacit.training.private_steps import (
    Examples,
    NextTokenObjective,
    PrivateTrainer,
    StepPerformance,
)
from tacit.training.records import examples_of

SEEDED = "the noise, which whoever knows training.seed can take away again: an experiment, not to be released"
_DEFAULT_ROWS = 16


def train_privately(recipe: Recipe, *, resume: bool = False, progress: Progress | None = None) -> Run:
    """Train a Run by DP-SGD; with ``resume``, go on where a killed run stopped."""
    return build_run(recipe, _train, resume=resume, progress=progress or Silent())


def _train(recipe: Recipe, builder: RunBuilder, progress: Progress) -> Run:
    work = builder.new_work()
    prepared = prepare_unpacked(recipe, work, progress)
    pin(builder, prepared)
    section = privacy_of(recipe)
    seed = seed_of(recipe, builder)
    torch.manual_seed(seed)  # a new adapter's weights are random
    task = task_for(prepared, fused=False)
    examples = examples_of(prepared.rows, section, task.make_batch)
    plan = PrivacyPlan.of(section, recipe.training, len(examples))
    task.cache_trunk(recipe.performance, work, progress)
    optimiser = optimiser_for(list(trainable(task.model).values()), recipe.training)
    trainer = trainer_for(task, examples, plan, prepared, optimiser)
    outcome = take_steps(
        task.model,
        Phases.private_only(plan),
        private=PrivatePhase(recipe.training, optimiser, trainer),
        public=None,
        seed=seed,
        checkpoint_folder=builder.checkpoint,
        checkpoint_every=recipe.performance.checkpoint_every,
        progress=progress,
    )
    layout = save_trained(task, prepared, builder, holds_private_text=True)
    record_private_run(builder, prepared, plan, outcome, engine=trainer.engine)
    prepared.corpus.whole.close()
    return builder.finish(
        method=recipe.method,
        recipe=recipe.to_json(),
        public_model=record_of(prepared.public),
        weights=layout,
        guarantee=guarantee_of(prepared, plan).to_json(),
        privacy={"dpsgd": plan.to_json()},
        corpus_fingerprint=prepared.corpus.whole.fingerprint,
        seeded=recipe.training.seed is not None,
    )


def prepare_unpacked(recipe: Recipe, storage: Path, progress: Progress) -> Prepared:
    """All that training starts from, with one piece of one document to a row."""
    materials = gather(recipe, storage, progress)
    rows = lay_out(materials.encoded, block_size=recipe.training.block_size, packing=False)
    return Prepared.of(materials, rows)


def pin(builder: RunBuilder, prepared: Prepared, **more: str) -> None:
    """Record what the run is made of, so that a resumed one is made of the same."""
    builder.pin(
        corpus=prepared.corpus.whole.fingerprint,
        public_model=prepared.public.fingerprint,
        tokenizer=prepared.public.tokenizer_fingerprint,
        **more,
    )


def privacy_of(recipe: Recipe) -> PrivacySection:
    """The section that every private method has."""
    if recipe.privacy is None:
        raise RecipeError(f"method '{recipe.method}' needs a section 'privacy'; add it.")
    return recipe.privacy


def trainer_for(
    task: NextTokenTask,
    examples: Examples,
    plan: PrivacyPlan,
    prepared: Prepared,
    optimiser: torch.optim.Optimizer,
    public_optimiser: torch.optim.Optimizer | None = None,
) -> PrivateTrainer:
    """Sampler, engine, noise and account for a task, as the recipe says."""
    performance = prepared.recipe.performance
    return PrivateTrainer(
        task.model,
        objective_for(task),
        optimiser,
        examples,
        plan.step_privacy,
        StepPerformance(
            "book-keeping" if performance.engine == "bookkeeping" else performance.engine,
            performance.microbatch or _DEFAULT_ROWS,
            prepared.recipe.training.block_size,
        ),
        public_optimiser=public_optimiser,
        seed=prepared.recipe.training.seed,
    )


def objective_for(task: NextTokenTask) -> NextTokenObjective:
    """The loss of each example, through the trunk where there is one."""
    return NextTokenObjective(
        task.model, task.logits, autocast=task.autocast, inputs_suffice=task.inputs_suffice
    )


def guarantee_of(prepared: Prepared, plan: PrivacyPlan) -> Guarantee:
    """What the Run may claim: DP for the unit and neighbours of the recipe."""
    return Guarantee.dp_sgd(
        epsilon=plan.epsilon,
        delta=plan.section.delta,
        adjacency=plan.section.adjacency,
        unit=plan.section.unit,
        # Where one example replaces another, their number is the same in both worlds.
        outside=outside_of(
            prepared, counted=plan.section.examples is None and plan.section.adjacency == "add-remove"
        ),
    )


def outside_of(prepared: Prepared, *, counted: bool = False) -> tuple[str, ...]:
    """What was chosen by looking at the private text, or can be undone by whoever reads the recipe."""
    outside = []
    if prepared.public.vocabulary == "private":
        outside.append("the vocabulary, which was built from private text")
    if counted:
        outside.append("the number of examples, which was counted and is taken as public")
    if prepared.recipe.method == "dpsgd" and prepared.corpus.whole.has_masks:
        outside.append("the screening, which looks for duplicates of one example among the others")
    if prepared.recipe.training.seed is not None:
        outside.append(SEEDED)
    return tuple(outside)


def record_private_run(
    builder: RunBuilder,
    prepared: Prepared,
    plan: PrivacyPlan,
    outcome: PrivateOutcome,
    *,
    engine: str,
    **more: object,
) -> None:
    """Counts, losses and clipping are functions of the private text: for the owner alone."""
    content = {
        "users": len(prepared.corpus.train.users),
        "documents": len(prepared.corpus.train),
        "tokens": int(prepared.encoded.starts[-1]),
        "skipped": dict(prepared.corpus.whole.skipped),
        "examples": plan.population,
        "engine": engine,
        **outcome.to_json(),
        **more,
    }
    write_json(builder.private / "training.json", content, private=True, overwrite=True)
