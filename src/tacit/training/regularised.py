"""`method: adversarial` and `method: triplet`: training that is steered away from what tells authors apart.

Formal guarantee: none. The model learns to hide authors from one discriminator, or to move their states
together; what another attacker finds is measured, never proven, and the Run says "empirical".
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import numpy as np
import torch

from tacit.errors import CorpusError
from tacit.privacy import Guarantee
from tacit.progress import Progress, Silent
from tacit.recipes import Recipe, RegularisationSection
from tacit.runs import Run, RunBuilder
from tacit.training.author_losses import discriminator_parameters
from tacit.training.author_schedule import AuthorSchedule
from tacit.training.authors import Authors, authors_of, read_labels, rows_by_author
from tacit.training.building import build_run, record_of, seed_of
from tacit.training.early_stop import public_check_for
from tacit.training.finetune import guarantee_of, record_training, save_trained, task_for
from tacit.training.loop import optimise
from tacit.training.next_token import NextTokenTask
from tacit.training.preparation import Prepared, prepare
from tacit.training.regularisers import Adversary, Regulariser, Triplet
from tacit.training.schedule import Schedule

_PAIR: Final = 2  # of some author, or triplets have nothing to move apart


def train_regularised(recipe: Recipe, *, resume: bool = False, progress: Progress | None = None) -> Run:
    """Train a Run as the recipe says; with ``resume``, go on where a killed run stopped."""
    return build_run(recipe, _train, resume=resume, progress=progress or Silent())


def _train(recipe: Recipe, builder: RunBuilder, progress: Progress) -> Run:
    work = builder.new_work()
    prepared = prepare(recipe, work, progress)
    authors = authors_for(prepared)
    prepared = by_author(prepared, authors)
    builder.pin(
        corpus=prepared.corpus.whole.fingerprint,
        public_model=prepared.public.fingerprint,
        tokenizer=prepared.public.tokenizer_fingerprint,
        authors=authors.fingerprint,
    )
    seed = seed_of(recipe, builder)
    torch.manual_seed(seed)  # the weights of a new adapter, and then of the discriminator, are random
    task = task_for(prepared)
    public_check = public_check_for(prepared, task, work, progress)
    task.cache_trunk(recipe.performance, work, progress)
    schedule = schedule_for(prepared, authors, seed)
    regulariser = regulariser_for(prepared, task, authors, schedule)
    outcome = optimise(
        task.model,
        regulariser.objective,
        task.make_batch,
        schedule,
        checkpoint_folder=builder.checkpoint,
        checkpoint_every=recipe.performance.checkpoint_every,
        progress=progress,
        public_check=public_check,
        companion=regulariser,
    )
    guarantee = regularised_guarantee(prepared)
    layout = save_trained(task, prepared, builder, holds_private_text=guarantee.kind != "public")
    record_training(
        builder, prepared, outcome, authors=authors.count, **_beside_the_model(regulariser, progress)
    )
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


def _beside_the_model(regulariser: Regulariser, progress: Progress) -> dict[str, Any]:
    """What the operator may want to know of the discriminator, which is thrown away."""
    parameters = sum(one.numel() for one in regulariser.module.parameters())
    told: dict[str, Any] = {"discriminator_parameters": parameters}
    if isinstance(regulariser, Adversary):
        told["discriminator"] = regulariser.guesses.to_json()
        progress.remark(str(regulariser.guesses))
    return told


def section_of(recipe: Recipe) -> RegularisationSection:
    """How training is regularised."""
    return recipe.regularisation or RegularisationSection()


def authors_for(prepared: Prepared) -> Authors:
    """Whose the training text is, by user or by the recipe's label."""
    recipe, corpus = prepared.recipe, prepared.corpus
    label = section_of(recipe).label
    if label is None:
        return authors_of(corpus.train, prepared.encoded)
    # An audit scores held-out text of the same authors: what it would refuse is refused before training.
    within = recipe.held_out is not None and recipe.held_out.by == "within"
    needed = corpus.whole if within else corpus.train
    of_row = dict(zip(needed.row_numbers().tolist(), read_labels(recipe.corpus, label, needed), strict=True))
    labels = [of_row[row] for row in corpus.train.row_numbers().tolist()]
    return authors_of(corpus.train, prepared.encoded, labels)


def _needs_rows_by_author(recipe: Recipe) -> bool:
    return recipe.method == "triplet" or section_of(recipe).batches == "user"


def by_author(prepared: Prepared, authors: Authors) -> Prepared:
    """Rows of one author each, where batches are composed by author; else as for plain fine-tuning."""
    if not _needs_rows_by_author(prepared.recipe):
        return prepared
    rows = rows_by_author(
        prepared.encoded,
        authors,
        block_size=prepared.recipe.training.block_size,
        packing=prepared.rows.packed,
    )
    return replace(prepared, rows=rows)


def schedule_for(prepared: Prepared, authors: Authors, seed: int) -> Schedule:
    """In which order rows are seen."""
    recipe, section = prepared.recipe, section_of(prepared.recipe)
    if not _needs_rows_by_author(recipe):
        return Schedule(prepared.rows, recipe.training, seed)
    schedule = AuthorSchedule(
        prepared.rows,
        recipe.training,
        seed,
        authors=authors,
        batches=section.batches,
        two_authors=recipe.method == "triplet" and section.pairs == "batch",
    )
    if recipe.method == "triplet" and not section.paper_eq4:
        _require_pairs_of_an_author(schedule, authors, section)
    return schedule


def _require_pairs_of_an_author(
    schedule: AuthorSchedule, authors: Authors, section: RegularisationSection
) -> None:
    """Pairs of different authors alone have no gradient: the Run would be called what it is not."""
    if int(np.bincount(authors.of_piece[authors.teaches]).max()) < _PAIR:
        raise CorpusError(
            "No two texts of an author are in training, and triplets without them change nothing; give more "
            "text of each, name another column with regularisation.label, or set method=adversarial."
        )
    if section.pairs == "second" and int(np.bincount(schedule.row_authors).max()) < _PAIR:
        raise CorpusError(
            "Every author's texts fit into one row, and regularisation.pairs=second compares rows; lower "
            "training.block_size, or set regularisation.pairs=batch."
        )


def regulariser_for(
    prepared: Prepared, task: NextTokenTask, authors: Authors, schedule: Schedule
) -> Regulariser:
    """What the recipe's method adds to each step."""
    section = section_of(prepared.recipe)
    if isinstance(schedule, AuthorSchedule) and prepared.recipe.method == "triplet":
        return Triplet(task, authors, section, schedule)
    width, device = _width(prepared), prepared.public.model.device
    return Adversary(task, authors, section, schedule, width=width, device=device)


def _width(prepared: Prepared) -> int:
    """Numbers in a state that enters the head."""
    return int(prepared.public.model.get_output_embeddings().weight.shape[1])


def parameters_beside(prepared: Prepared, authors: Authors) -> int:
    """How many numbers learn beside the model: the discriminator's, or none."""
    if prepared.recipe.method != "adversarial":
        return 0
    return discriminator_parameters(_width(prepared), authors.count, section_of(prepared.recipe).hidden)


def regularised_guarantee(prepared: Prepared) -> Guarantee:
    """Nothing formal; that of public text where the text was declared public."""
    plain = guarantee_of(prepared)
    return plain if plain.kind == "public" else Guarantee.regularised(plain.unit, outside=plain.outside)
