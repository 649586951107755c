"""What a training run will be, before it is run: counts, memory and time.

Time and memory are measured, not guessed: one batch goes forwards and backwards, twice, on this machine.
"""

from __future__ import annotations

import resource
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from tacit.corpus.corpus_folder import passing_storage
from tacit.files import refuse_existing
from tacit.models.trunk import trunk_states
from tacit.progress import Progress, Silent
from tacit.recipes import REGULARISED_METHODS, Recipe
from tacit.training.checkpoint import trainable
from tacit.training.encoding import Batch
from tacit.training.finetune import guarantee_of, task_for
from tacit.training.next_token import NextTokenTask
from tacit.training.preparation import Prepared, prepare
from tacit.training.regularised import (
    authors_for,
    by_author,
    parameters_beside,
    regularised_guarantee,
    schedule_for,
    section_of,
)
from tacit.training.schedule import Schedule
from tacit.training.trunk_cache import fits_in_memory

ADAM_BYTES = 4 + 4 + 4  # gradient and two moments, in fp32
WEIGHT_BYTES = 4  # of what learns beside the model, in fp32


@dataclass(frozen=True)
class TrainingPlan:
    """The figures that `--dry-run` prints."""

    method: str
    model: str
    guarantee: str
    users: int
    held_out_users: int
    documents: int
    tokens: int
    rows: int
    filled_share: float  # share of a row's positions that hold text
    steps: int
    parameters: int
    trainable_parameters: int
    memory_bytes: int
    seconds: float
    authors: int | None = None  # who regularised training shall not be able to tell apart
    privacy_weight: float | None = None  # lambda: of the privacy loss beside the mean loss per token
    discriminator_parameters: int | None = None  # of adversarial training, which grow with the authors


def plan_training(recipe: Recipe, progress: Progress | None = None) -> TrainingPlan:
    """Prepare everything, time one batch, write nothing."""
    refuse_existing(Path(recipe.output))
    progress = progress or Silent()
    with passing_storage() as folder:
        prepared = prepare(recipe, folder, progress)
        schedule = Schedule(prepared.rows, recipe.training, seed=0)
        promised, authors = guarantee_of, None
        if recipe.method in REGULARISED_METHODS:
            authors = authors_for(prepared)
            prepared, promised = by_author(prepared, authors), regularised_guarantee
            schedule = schedule_for(prepared, authors, seed=0)
        sample = replace(prepared, rows=prepared.rows.only(schedule.batches_of(0)[0]))
        task = task_for(sample)
        task.cache_trunk(recipe.performance, folder, progress)
        batch = task.make_batch(np.arange(len(sample.rows)))
        step_seconds = time_of_step(task, batch)
        trunk_seconds, trunk_bytes = trunk_cost(prepared, batch)
        weights = trainable(task.model)
        trainable_parameters = sum(parameter.numel() for parameter in weights.values())
        batches = schedule.steps * recipe.training.accumulate
        held_out = prepared.corpus.held_out
        beside = 0 if authors is None else parameters_beside(prepared, authors)
        return TrainingPlan(
            method=recipe.method,
            model=prepared.public.name,
            guarantee=str(promised(prepared)),
            users=len(prepared.corpus.train.users),
            held_out_users=0 if held_out is None else len(held_out.users),
            documents=len(prepared.corpus.train),
            tokens=int(prepared.encoded.starts[-1]),
            rows=len(prepared.rows),
            filled_share=float(prepared.rows.lengths.mean() / prepared.rows.lengths.max()),
            steps=schedule.steps,
            parameters=sum(parameter.numel() for parameter in prepared.public.model.parameters()),
            trainable_parameters=trainable_parameters,
            memory_bytes=peak_memory()
            + trainable_parameters * ADAM_BYTES
            + beside * (WEIGHT_BYTES + ADAM_BYTES)
            + trunk_bytes,
            seconds=step_seconds * batches + trunk_seconds,
            authors=None if authors is None else authors.count,
            privacy_weight=None if authors is None else section_of(recipe).weight,
            discriminator_parameters=beside or None,
        )


def time_of_step(task: NextTokenTask, batch: Batch) -> float:
    """Seconds of one batch forwards and backwards."""
    task.model.train()
    seconds = 0.0
    for _ in range(2):  # the first pass pays for allocation and thread start
        began = time.perf_counter()
        (task.summed_loss(batch) / batch.label_count).backward()  # type: ignore[no-untyped-call]
        seconds = time.perf_counter() - began
    task.model.zero_grad(set_to_none=True)
    return seconds


def trunk_cost(prepared: Prepared, batch: Batch) -> tuple[float, int]:
    """Seconds and bytes of running the trunk once over all rows."""
    recipe = prepared.recipe
    if not recipe.adapter.trunk_layers or recipe.performance.trunk_cache == "off":
        return 0.0, 0
    prepared.public.model.eval()
    began = time.perf_counter()
    states = trunk_states(prepared.public.model, recipe.adapter.trunk_layers, batch.inputs)
    seconds = (time.perf_counter() - began) * len(prepared.rows) / len(batch.rows)
    size = int(prepared.rows.lengths.sum()) * states.shape[-1] * states.element_size()
    in_memory = recipe.performance.trunk_cache == "memory" and fits_in_memory(size)
    return seconds, size if in_memory else 0


def peak_memory() -> int:
    """The most bytes that this process has held."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
