"""Ensemble training (`method: submix`): one member per half of every part, from one frozen public model.

Formal guarantee: *independence of members*. Users are assigned by a keyed hash of their id before any text
is cut; with that partition, changing, adding or removing text of one half changes that half's member and
leaves every other member's weights bit-identical (same machine, threads and versions). Number of steps,
shapes and learning rates are public constants; nothing trained is ever shared; no member is stopped, tuned
or clipped by what another holds. With `assign: balanced` this holds only while nobody joins or leaves.

The members themselves are protected by nothing: what a mechanism answers from them carries a guarantee,
their weights never do, and they are written for the owner alone.
"""

from __future__ import annotations

import hashlib
import math
import shutil
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tacit.corpus import Partition, read_key
from tacit.errors import PublicModelWarning, Tampered
from tacit.files import new_folder, write_json
from tacit.models.ensemble_files import save_member
from tacit.models.loading import PublicModel
from tacit.privacy import Guarantee
from tacit.progress import Progress, Silent
from tacit.recipes import Recipe
from tacit.runs import EnsembleRecord, Run, RunBuilder
from tacit.training.building import build_run, record_of, seed_of, use_threads
from tacit.training.ensemble_joint import JointTask, train_jointly
from tacit.training.ensemble_schedule import (
    Member,
    MemberSchedule,
    members_of,
    remark_on_epochs,
    section_of,
    stream_of,
    warn_of_empty_members,
)
from tacit.training.ensemble_single import train_alone
from tacit.training.preparation import Materials, gather, load_model

# Groups must be the same on every machine and in every resumed run, so they go by sizes that are public and
# not by free memory. A layer keeps about 32 numbers per unit of its width and position for the way back.
_ROOM_FOR_ACTIVATIONS = 4 << 30
_KEPT_PER_UNIT = 32 * 4


def train_ensemble(recipe: Recipe, *, resume: bool = False, progress: Progress | None = None) -> Run:
    """Train all members as the recipe says; with ``resume``, go on where a killed run stopped."""
    return build_run(recipe, _train, resume=resume, progress=progress or Silent())


def _train(recipe: Recipe, builder: RunBuilder, progress: Progress) -> Run:
    section = section_of(recipe)
    remark_on_epochs(recipe, progress)
    key = key_of(recipe)
    work = builder.new_work()
    materials = gather(recipe, work, progress)
    fingerprints = {
        "corpus": materials.corpus.whole.fingerprint,
        "public_model": materials.public.fingerprint,
        "tokenizer": materials.public.tokenizer_fingerprint,
    }
    if key is not None:
        fingerprints["partition_key"] = hashlib.sha256(key).hexdigest()
    builder.pin(**fingerprints)
    seed = seed_of(recipe, builder)
    members = members_of(materials, _kept_partition(materials, key, builder))
    warn_of_empty_members(members)
    use_threads(recipe.performance)
    losses = _train_groups(materials, members, seed, builder, progress)
    _record(builder, materials, members, losses)
    materials.corpus.whole.close()
    return builder.finish(
        method=recipe.method,
        recipe=recipe.to_json(),
        public_model=record_of(materials.public),
        weights="members",
        ensemble=EnsembleRecord(parts=section.parts, halves=section.halves),
        guarantee=guarantee_of_members(materials).to_json(),
        corpus_fingerprint=materials.corpus.whole.fingerprint,
        seeded=recipe.training.seed is not None,
    )


def key_of(recipe: Recipe) -> bytes | None:
    """The partition key that the recipe names, or None for a fresh one."""
    path = section_of(recipe).key
    return None if path is None else read_key(Path(path))


def partition_for(materials: Materials, key: bytes | None) -> Partition:
    """The training side's users in parts. Members without text are told of later, by name."""
    section = section_of(materials.recipe)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PublicModelWarning)
        return Partition.create(materials.corpus.train, section.parts, section.assign, key)


def _kept_partition(materials: Materials, key: bytes | None, builder: RunBuilder) -> Partition:
    """The run's partition: made once and kept for the owner, found again by a resumed run."""
    folder = builder.private / "partition"
    if not folder.exists():
        partition = partition_for(materials, key)
        with new_folder(folder, private=True) as new:
            partition.save(new)
    return Partition.load(folder)


def guarantee_of_members(materials: Materials) -> Guarantee:
    """What the Run's weights may claim: nothing, or that their text was public."""
    public = materials.public
    private_words = public.vocabulary == "private"
    outside = ("the vocabulary, which was built from private text",) if private_words else ()
    if materials.recipe.corpus.public and not public.holds_private_text:
        return Guarantee.public_text("part", outside=outside)
    return Guarantee(
        kind="none",
        unit="part",
        caveat=(
            "The members' weights may reproduce training text word for word and must not be released; only "
            "answers through a mechanism carry a guarantee."
        ),
        outside=outside,
    )


def is_joint(recipe: Recipe, public: PublicModel) -> bool:
    """Whether members train together: by default wherever that is possible and faster.

    LSTMs are faster one by one: together they go position by position in Python, alone through the fused
    kernel. A joint step took 0.85 to 1.85 times the processor time of its members' single steps, below 1 only
    in batches of 1 or 2 rows (1x64 to 2x550, 8 and 32 members, one thread), and more with two threads.
    """
    wish = section_of(recipe).joint
    possible = recipe.adapter.kind == "lora" and not recipe.adapter.dropout
    return wish is True or (wish == "auto" and possible and public.family != "lstm")


def groups_of(members: Sequence[Member], recipe: Recipe, public: PublicModel) -> list[list[Member]]:
    """Which members train in one pass: consecutive ones, as many as public sizes allow, in even groups."""
    size = 1
    if is_joint(recipe, public):
        config = public.model.config
        positions = recipe.training.batch_size * recipe.training.block_size
        layers = config.num_hidden_layers - recipe.adapter.trunk_layers
        kept = positions * max(1, layers) * config.hidden_size * _KEPT_PER_UNIT
        groups = math.ceil(len(members) / max(1, _ROOM_FOR_ACTIVATIONS // kept))
        size = math.ceil(len(members) / groups)
    return [list(members[first : first + size]) for first in range(0, len(members), size)]


def _train_groups(
    materials: Materials, members: Sequence[Member], seed: int, builder: RunBuilder, progress: Progress
) -> dict[str, float]:
    """Train group by group what is not finished yet; returns the last losses of those trained now."""
    recipe, public = materials.recipe, materials.public
    groups = groups_of(members, recipe, public)
    steps = recipe.training.max_steps or 0
    inside = progress
    if len(groups) > 1:
        progress.phase("training", steps * len(groups))
        inside = _OneBar(progress)
    # What a process has left that was killed while it wrote: the Run's hashes would count it as a member.
    for leftover in [*builder.members.glob(".*"), *builder.private.glob(".partition.*")]:
        shutil.rmtree(leftover)
    losses: dict[str, float] = {}
    untouched = True
    for number, group in enumerate(groups):
        checkpoint = builder.checkpoint / f"group-{number:04d}"
        if all((builder.members / member.name).is_dir() for member in group):
            progress.advance(steps if len(groups) > 1 else 0)
        else:
            if not untouched:
                public = _fresh_model(recipe, materials.public.fingerprint)
            untouched = False
            found = _train_group(replace(materials, public=public), group, seed, builder, checkpoint, inside)
            losses |= {member.name: loss for member, loss in zip(group, found, strict=True)}
        shutil.rmtree(checkpoint, ignore_errors=True)
    return losses


def _fresh_model(recipe: Recipe, fingerprint: str) -> PublicModel:
    """The public model read anew: training has changed the one before it."""
    public = load_model(
        recipe.model, frozen_base=recipe.adapter.kind == "lora", device=recipe.performance.device
    )
    if public.fingerprint != fingerprint:
        raise Tampered(f"The public model {recipe.model.name} has changed during the run; begin again.")
    return public


def _train_group(
    materials: Materials,
    group: Sequence[Member],
    seed: int,
    builder: RunBuilder,
    checkpoint: Path,
    progress: Progress,
) -> list[float]:
    recipe, public = materials.recipe, materials.public
    streams = [stream_of(seed, member.number) for member in group]
    private = guarantee_of_members(materials).kind != "public"
    if not is_joint(recipe, public):
        return [
            train_alone(
                materials,
                member,
                stream,
                builder.members / member.name,
                holds_private_text=private,
                checkpoint_folder=checkpoint,
                work=builder.work,
                progress=progress,
            )
            for member, stream in zip(group, streams, strict=True)
        ]
    task = JointTask(public, recipe, group)
    task.initialise(streams)
    task.cache_trunk(recipe.performance, builder.work, progress)
    losses = train_jointly(
        task,
        [
            MemberSchedule(member.rows, recipe.training, stream)
            for member, stream in zip(group, streams, strict=True)
        ],
        checkpoint_folder=checkpoint,
        checkpoint_every=recipe.performance.checkpoint_every,
        progress=progress,
    )
    for place, member in enumerate(group):
        folder = builder.members / member.name
        if not folder.is_dir():  # a run that was killed while it saved has left the same bytes there
            with new_folder(folder, private=True) as new:
                save_member(task.stack, task.model, place, new, base_name=public.name)
    return losses


class _OneBar(Silent):
    """One bar for the training of all groups; what else they do shows as time."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._training = False

    def phase(self, name: str, total: int | None) -> None:
        self._training = name == "training"

    def advance(self, units: int, note: str = "") -> None:
        if self._training:
            self._progress.advance(units, note)

    def remark(self, message: str) -> None:
        self._progress.remark(message)


def _record(
    builder: RunBuilder, materials: Materials, members: Sequence[Member], losses: dict[str, float]
) -> None:
    """Counts and losses are functions of the private text: for the owner alone."""
    content = {
        "users": len(materials.corpus.train.users),
        "documents": len(materials.corpus.train),
        "tokens": int(materials.encoded.starts[-1]),
        "skipped": dict(materials.corpus.whole.skipped),
        "steps": materials.recipe.training.max_steps,
        "members": {
            member.name: {
                "users": member.users,
                "rows": len(member.rows),
                "tokens": int(member.rows.lengths.sum()),
                # None: without text, or trained before the run was resumed.
                "final_loss": loss if math.isfinite(loss := losses.get(member.name, math.nan)) else None,
            }
            for member in members
        },
    }
    write_json(builder.private / "training.json", content, private=True, overwrite=True)
