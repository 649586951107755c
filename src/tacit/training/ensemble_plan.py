"""What training an ensemble will be, before it is run. The figures are for the operator's terminal alone.

Time and memory are measured, not guessed: one pass of the first group goes forwards and backwards, twice.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from tacit.corpus.corpus_folder import passing_storage
from tacit.files import refuse_existing
from tacit.progress import Progress, Silent
from tacit.recipes import Recipe
from tacit.training.building import use_threads
from tacit.training.checkpoint import trainable
from tacit.training.encoding import NO_ROW, IntArray
from tacit.training.ensemble import groups_of, guarantee_of_members, is_joint, key_of, partition_for
from tacit.training.ensemble_joint import JointTask
from tacit.training.ensemble_schedule import Member, members_of, remark_on_epochs
from tacit.training.finetune import task_for
from tacit.training.plan import ADAM_BYTES, peak_memory, time_of_step, trunk_cost
from tacit.training.preparation import Materials, Prepared, gather
from tacit.training.trunk_cache import fits_in_memory


@dataclass(frozen=True)
class EnsemblePlan:
    """The figures that `--dry-run` prints. Without `ensemble.key` the partition is one drawn for the plan."""

    method: str
    model: str
    guarantee: str
    members: int
    trained_together: int
    members_without_text: int
    users: int
    held_out_users: int
    users_per_member_least: int
    users_per_member_median: float
    users_per_member_most: int
    documents: int
    tokens: int
    filled_share: float  # share of a row's positions that hold text
    steps: int
    median_times_a_row_is_seen: float
    parameters: int
    trainable_parameters_per_member: int
    memory_bytes: int
    seconds: float


@dataclass(frozen=True)
class _Cost:
    trainable: int  # of one member
    step_seconds: float  # of one pass of a group
    trunk_seconds: float  # of all rows
    trunk_bytes: int  # of the largest group, where it is kept in memory


def plan_ensemble(recipe: Recipe, progress: Progress | None = None) -> EnsemblePlan:
    """Prepare everything, time one pass, write nothing."""
    refuse_existing(Path(recipe.output))
    progress = progress or Silent()
    remark_on_epochs(recipe, progress)
    key = key_of(recipe)
    with passing_storage() as folder:
        materials = gather(recipe, folder, progress)
        parameters = sum(parameter.numel() for parameter in materials.public.model.parameters())
        members = members_of(materials, partition_for(materials, key))
        groups = groups_of(members, recipe, materials.public)
        use_threads(recipe.performance)
        joint = is_joint(recipe, materials.public)
        cost = (_joint_cost if joint else _single_cost)(materials, groups, folder)
        users = [member.users for member in members]
        rows = [len(member.rows) for member in members]
        lengths = np.concatenate([member.rows.lengths for member in members])
        steps = recipe.training.max_steps or 0
        drawn = steps * recipe.training.accumulate * recipe.training.batch_size
        held_out = materials.corpus.held_out
        at_once = len(groups[0])
        plan = EnsemblePlan(
            method=recipe.method,
            model=materials.public.name,
            guarantee=str(guarantee_of_members(materials)),
            members=len(members),
            trained_together=at_once,
            members_without_text=rows.count(0),
            users=sum(users),
            held_out_users=0 if held_out is None else len(held_out.users),
            users_per_member_least=min(users),
            users_per_member_median=float(np.median(users)),
            users_per_member_most=max(users),
            documents=len(materials.corpus.train),
            tokens=int(materials.encoded.starts[-1]),
            filled_share=float(lengths.mean() / recipe.training.block_size),
            steps=steps,
            median_times_a_row_is_seen=float(drawn / np.median([count for count in rows if count])),
            parameters=parameters,
            trainable_parameters_per_member=cost.trainable,
            memory_bytes=peak_memory() + at_once * cost.trainable * ADAM_BYTES + cost.trunk_bytes,
            seconds=steps * recipe.training.accumulate * len(groups) * cost.step_seconds + cost.trunk_seconds,
        )
        materials.corpus.whole.close()
        return plan


def _joint_cost(materials: Materials, groups: Sequence[Sequence[Member]], folder: Path) -> _Cost:
    recipe = materials.recipe
    sample = [_few_rows(member, recipe) for member in groups[0]]
    task = JointTask(materials.public, recipe, sample)
    began = time.perf_counter()
    task.cache_trunk(recipe.performance, folder, Silent())
    seconds_per_row = (time.perf_counter() - began) / max(1, sum(len(member.rows) for member in sample))
    step_seconds = 0.0
    for _ in range(2):  # the first pass pays for allocation and thread start
        began = time.perf_counter()
        losses = task.summed_losses([_all_rows(member, recipe) for member in sample])
        losses.sum().backward()  # type: ignore[no-untyped-call]
        step_seconds = time.perf_counter() - began
    kept = recipe.adapter.trunk_layers > 0 and recipe.performance.trunk_cache != "off"
    rows = sum(len(member.rows) for group in groups for member in group)
    positions = max(sum(int(member.rows.lengths.sum()) for member in group) for group in groups)
    model = materials.public.model
    size = positions * model.config.hidden_size * model.dtype.itemsize
    in_memory = kept and recipe.performance.trunk_cache == "memory" and fits_in_memory(size)
    return _Cost(
        sum(parameter[0].numel() for parameter in task.stack.parameters()),
        step_seconds,
        seconds_per_row * rows if kept else 0.0,
        size if in_memory else 0,
    )


def _single_cost(materials: Materials, groups: Sequence[Sequence[Member]], folder: Path) -> _Cost:
    recipe = materials.recipe
    largest = max((group[0] for group in groups), key=lambda member: len(member.rows))
    sample = Prepared.of(materials, _few_rows(largest, recipe).rows)
    task = task_for(sample, base_dropout=recipe.adapter.kind != "lora")
    task.cache_trunk(recipe.performance, folder, Silent())
    batch = task.make_batch(np.arange(len(sample.rows)))
    step_seconds = time_of_step(task, batch)
    seconds, size = trunk_cost(Prepared.of(materials, largest.rows), batch)
    rows = sum(len(group[0].rows) for group in groups)
    count = sum(parameter.numel() for parameter in trainable(task.model).values())
    return _Cost(count, step_seconds, seconds * rows / len(largest.rows), size)


def _few_rows(member: Member, recipe: Recipe) -> Member:
    few = np.arange(min(len(member.rows), recipe.training.batch_size))
    return replace(member, rows=member.rows.only(few))


def _all_rows(member: Member, recipe: Recipe) -> IntArray:
    """As many rows as a batch has: the member's own, again and again, or padding."""
    size = recipe.training.batch_size
    if not len(member.rows):
        return np.full(size, NO_ROW)
    return np.resize(np.arange(len(member.rows)), size)
