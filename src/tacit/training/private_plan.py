"""What a private training run will be, before it is run: its steps and their price in privacy and time."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from tacit.corpus.corpus_folder import passing_storage
from tacit.files import refuse_existing
from tacit.privacy import DpSgdProcess, Guarantee, dpsgd_curve, gaussian_dp_mu
from tacit.progress import Progress, Silent
from tacit.recipes import Recipe
from tacit.training.certifying import certificate_for, tell_of_repeated_secrets
from tacit.training.checkpoint import trainable
from tacit.training.crt import flags_of, public_rows, public_schedule, tell_what_is_missing
from tacit.training.dpsgd import guarantee_of, prepare_unpacked, privacy_of
from tacit.training.finetune import task_for
from tacit.training.plan import ADAM_BYTES, peak_memory, time_of_step, trunk_cost
from tacit.training.preparation import Prepared
from tacit.training.privacy_plan import PrivacyPlan, expected_batch
from tacit.training.records import BoolArray, padded
from tacit.training.selective import SelectiveAccount, marked_documents
from tacit.training.selective_lstm import one_layer

_TIMED_ROWS = 8


@dataclass(frozen=True)
class PrivateTrainingPlan:
    """The figures that `--dry-run` prints; counts are functions of the private text."""

    method: str
    model: str
    guarantee: str
    unit: str
    examples: int
    bare_examples: int  # nothing but a mask, or without a token: sampled, and teaching nothing
    public_points: int
    expected_batch: int
    sampling_rate: float
    private_steps: int
    public_steps: int
    noise_multiplier: float
    clip: float
    delta: float
    epsilon_add_remove: float
    epsilon_replace_one: float
    gaussian_dp_mu: float  # what other tools print, add-remove; no bound
    certificate: str | None
    users: int
    held_out_users: int
    documents: int
    tokens: int
    rows: int
    parameters: int
    trainable_parameters: int
    memory_bytes: int
    seconds: float


def plan_private(recipe: Recipe, progress: Progress | None = None) -> PrivateTrainingPlan:
    """Prepare everything, calibrate the noise, time a few rows, write nothing."""
    refuse_existing(Path(recipe.output))
    progress = progress or Silent()
    with passing_storage() as folder:
        prepared = prepare_unpacked(recipe, folder, progress)
        try:
            return _plan(prepared, folder, progress)
        finally:
            prepared.corpus.whole.close()


@dataclass(frozen=True)
class _Priced:
    """What differs between the methods."""

    process: DpSgdProcess
    guarantee: Guarantee
    examples: int
    rows_seen: float
    certificate: str | None = None
    bare: int = 0
    public_points: int = 0
    public_steps: int = 0


def _plan(prepared: Prepared, folder: Path, progress: Progress) -> PrivateTrainingPlan:
    recipe, section, corpus = prepared.recipe, privacy_of(prepared.recipe), prepared.corpus
    price = {"dpsgd": _dpsgd, "crt": _crt, "selective": _selective}[recipe.method]
    priced = price(prepared, progress)
    cost = _cost(prepared, folder, progress, priced.rows_seen)
    process = priced.process
    return PrivateTrainingPlan(
        method=recipe.method,
        model=prepared.public.name,
        guarantee=str(priced.guarantee),
        unit=priced.guarantee.unit,
        examples=priced.examples,
        bare_examples=priced.bare,
        public_points=priced.public_points,
        expected_batch=expected_batch(recipe.training),
        sampling_rate=process.sampling_rate,
        private_steps=process.steps,
        public_steps=priced.public_steps,
        noise_multiplier=process.noise_multiplier,
        clip=section.clip,
        delta=section.delta,
        epsilon_add_remove=dpsgd_curve(process, "add-remove").epsilon_at(section.delta),
        epsilon_replace_one=dpsgd_curve(process, "replace-one").epsilon_at(section.delta),
        gaussian_dp_mu=gaussian_dp_mu(process).mu,
        certificate=priced.certificate,
        users=len(corpus.train.users),
        held_out_users=0 if corpus.held_out is None else len(corpus.held_out.users),
        documents=len(corpus.train),
        tokens=int(prepared.encoded.starts[-1]),
        rows=len(prepared.rows),
        parameters=cost.parameters,
        trainable_parameters=cost.trainable,
        memory_bytes=cost.memory,
        seconds=cost.seconds,
    )


def _dpsgd(prepared: Prepared, progress: Progress) -> _Priced:
    train, section = prepared.corpus.train, privacy_of(prepared.recipe)
    plan = _privacy_plan(prepared, len(train.users) if section.unit == "user" else len(train))
    bare = 0 if section.unit == "user" else int((~_teaching(prepared)).sum())
    return _Priced(
        plan.process, guarantee_of(prepared, plan), plan.population, _rows_of(prepared, plan), bare=bare
    )


def _crt(prepared: Prepared, progress: Progress) -> _Priced:
    flags = flags_of(prepared)
    plan = _privacy_plan(prepared, int(flags.private.sum()))
    tell_what_is_missing(plan, flags, progress)
    tell_of_repeated_secrets(prepared, progress)
    schedule = public_schedule(prepared, flags, seed=0)
    certificate = certificate_for(prepared, plan, flags)
    public = len(public_rows(prepared.rows, flags)) * prepared.recipe.training.epochs
    return _Priced(
        plan.process,
        certificate.guarantee,
        plan.population,
        public + _rows_of(prepared, plan),
        certificate=str(certificate),
        bare=int((flags.private & ~_teaching(prepared)).sum()),
        public_points=int((~flags.private).sum()),
        public_steps=0 if schedule is None else schedule.steps,
    )


def _selective(prepared: Prepared, progress: Progress) -> _Priced:
    """Its private steps are passes over the text: nothing is gained by sampling."""
    documents = marked_documents(prepared)
    one_layer(prepared.public.model)
    account = SelectiveAccount.of(prepared.recipe, len(documents))
    rows = len(prepared.rows) * prepared.recipe.training.epochs
    return _Priced(account.process, account.guarantee(prepared), len(documents), rows)


def _teaching(prepared: Prepared) -> BoolArray:
    """Of each document whether it has any token to predict."""
    taught = np.zeros(prepared.encoded.documents, dtype=np.bool_)
    taught[prepared.encoded.piece_document[prepared.encoded.labels > 0]] = True
    return taught


def _rows_of(prepared: Prepared, plan: PrivacyPlan) -> float:
    """Rows that the private steps see, about."""
    per_step = plan.sampling_rate * len(prepared.rows)
    return plan.steps * min(per_step, len(prepared.rows))


def _privacy_plan(prepared: Prepared, counted: int) -> PrivacyPlan:
    section = privacy_of(prepared.recipe)
    examples = padded([np.empty(0, np.int64)] * counted, section)
    return PrivacyPlan.of(section, prepared.recipe.training, len(examples))


@dataclass(frozen=True)
class _Cost:
    parameters: int
    trainable: int
    memory: int
    seconds: float


def _cost(prepared: Prepared, folder: Path, progress: Progress, rows_seen: float) -> _Cost:
    """Measured on rows of middling length, forwards and backwards."""
    recipe = prepared.recipe
    middling = np.argsort(prepared.rows.lengths, kind="stable")[len(prepared.rows) // 2 :][:_TIMED_ROWS]
    sample = replace(prepared, rows=prepared.rows.only(middling))
    task = task_for(sample, fused=False)
    task.cache_trunk(recipe.performance, folder, progress)
    # One by one, as the slower engine takes them: the plan must not promise too much.
    seconds = time_of_step(task, task.make_batch(np.arange(1))) * rows_seen
    batch = task.make_batch(np.arange(len(middling)))
    trunk_seconds, trunk_bytes = trunk_cost(prepared, batch)
    trained = sum(parameter.numel() for parameter in trainable(task.model).values())
    return _Cost(
        sum(parameter.numel() for parameter in prepared.public.model.parameters()),
        trained,
        peak_memory() + trained * ADAM_BYTES + trunk_bytes,
        seconds + trunk_seconds,
    )
