"""Traces a frontier: trains and audits what is missing in a folder, however often it was interrupted.

What is finished is read from the folder each time, never assumed: a Run that is there is not trained again,
one that was killed goes on from its checkpoint, one without its audit is audited. All Runs are audited alike,
or their figures would not compare; so an audit that somebody has replaced since is made again.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from tacit.audit.audited import require_unprotected, split_texts
from tacit.audit.auditing import audit_run
from tacit.audit.frontiers import require_perplexity
from tacit.audit.plans import AuditPlan
from tacit.audit.record import FILE as AUDIT_FILE
from tacit.audit.record import read_audit
from tacit.audit.trained_canaries import refuse_another
from tacit.corpus import read_corpus
from tacit.errors import InputError, OutputExists, TrainingDiverged
from tacit.files import new_file, new_folder
from tacit.progress import Silent, Stages
from tacit.report import write_report
from tacit.runs import Run, abandon_unfinished, partial_folder
from tacit.training import plan_run, train_run
from tacit.training.certifying import published_recipe
from tacit.training.preparation import tokenizer_of
from tacit.tuning.frontier import Frontier
from tacit.tuning.record import (
    FILE,
    PAGE,
    Entry,
    TuneRecord,
    alone_in,
    are_numbers,
    mark_of,
    settings_of,
)
from tacit.tuning.values import BESIDE_THE_POINT, Point, Sweep

Standing = Literal["finished", "to be audited", "begun", "new"]


@dataclass(frozen=True)
class Tuning:
    """What to trace. ``audit_again``: these audits replace others, of all Runs."""

    sweep: Sweep
    audit: AuditPlan = field(repr=False)
    perplexity: float | None = None
    audit_again: bool = False

    def __post_init__(self) -> None:
        if self.perplexity is not None:
            require_perplexity(self.perplexity)

    def planned(self, progress: Stages | None = None) -> list[PlannedRun]:
        """What there is to do; nothing is trained or written."""
        progress = progress or Silent()
        sweep, record = _taken_up(self)
        found = []
        for place, point in enumerate(sweep.points):
            progress.stage(f"planning {point.name}", place, len(sweep.points))
            standing = _standing(point, record)
            trained = standing in ("finished", "to be audited")
            seconds = 0.0 if trained else plan_run(point.recipe, progress).seconds
            found.append(PlannedRun(point.value, point.name, standing, seconds))
        return found


@dataclass(frozen=True)
class PlannedRun:
    """One Run before it is made; ``seconds`` of training from its beginning, without the audit."""

    value: Any
    run: str
    standing: Standing
    seconds: float


def trace_frontier(tuning: Tuning, progress: Stages | None = None) -> tuple[TuneRecord, Frontier]:
    """Train and audit what is missing, and tell what came out; also in `tune.json` and `tune.html`.

    A value at which training diverges is told and left out: that it diverges is what was to be found out.
    """
    progress = progress or Silent()
    folder = tuning.sweep.folder
    sweep, record = _taken_up(tuning)  # whatever is refused, is refused before anything is written
    _require_trainable(sweep, record, tuning.audit, progress)
    if not folder.exists():
        with new_folder(folder) as building:
            record.save(building)
    with alone_in(folder):
        sweep, record = _taken_up(tuning)
        record.save(folder)
        _require_same_corpus(sweep, progress)
        for place, point in enumerate(sweep.points):
            progress.stage(f"{point.name}", place, len(sweep.points))
            record = _with_entry(record, _completed(point, record, tuning.audit, progress))
            record.save(folder)
        progress.stage("all Runs", len(sweep.points), len(sweep.points))
        frontier = _frontier(sweep, record, tuning.perplexity)
        record = replace(record, frontier=frontier.to_json())
        record.save(folder)
        with new_file(folder / PAGE, private=True, overwrite=True) as handle:
            handle.write(frontier.page().encode())
    return record, frontier


def _taken_up(tuning: Tuning) -> tuple[Sweep, TuneRecord]:
    """The sweep with all that the folder has, and the record of both; refuses another recipe's folder."""
    sweep, settings = tuning.sweep, settings_of(tuning.audit)
    before = _record_of(sweep.folder)
    if before is not None:
        _require_same_recipe(sweep, before)
        if any(entry.state == "audited" for entry in before.runs) and not tuning.audit_again:
            _require_same_audit(sweep.folder, settings, before)
        # What was trained stays on the frontier, asked for again or not: all that was tried is shown.
        trained = (entry.value for entry in before.runs if (sweep.folder / entry.run).exists())
        sweep = sweep.with_values(trained)
    if len(sweep.points) < 2:
        raise InputError(
            f"A frontier needs two values of '{sweep.key}' or more; give --over {sweep.key}=V1,V2,..., or "
            "train the one Run with tacit train."
        )
    if tuning.perplexity is not None and not are_numbers(point.value for point in sweep.points):
        raise InputError(
            f"--perplexity={tuning.perplexity:g} would be interpolated between values of '{sweep.key}', and "
            "not all of these are numbers; leave it out, and trace each of them along another key, e.g. "
            "training.epochs."
        )
    known = {} if before is None or tuning.audit_again else {entry.run: entry for entry in before.runs}
    entries = tuple(known.get(point.name, Entry(point.value, point.name)) for point in sweep.points)
    return sweep, TuneRecord(sweep.method, sweep.key, sweep.pinned, settings, entries)


def _record_of(folder: Path) -> TuneRecord | None:
    if (folder / FILE).is_file():
        return TuneRecord.load(folder)
    if folder.exists() or folder.is_symlink():
        raise OutputExists(
            f"{folder} exists and is no folder of tacit tune (it has no {FILE}); give another --output."
        )
    return None


def _require_same_recipe(sweep: Sweep, before: TuneRecord) -> None:
    if before.key != sweep.key:
        raise InputError(
            f"{sweep.folder} is a frontier over '{before.key}', not '{sweep.key}'; give another --output."
        )
    changed = [name for name in sweep.pinned if before.recipe.get(name) != sweep.pinned[name]]
    if changed:
        raise InputError(
            f"{sweep.folder} was begun with another '{changed[0]}'; restore the recipe, or give another "
            "--output."
        )


def _require_same_audit(folder: Path, settings: dict[str, Any], before: TuneRecord) -> None:
    changed = [name for name in settings if before.audit.get(name) != settings[name]]
    if changed:
        raise InputError(
            f"The Runs in {folder} were audited with another '{changed[0]}'; give the same, or --audit-again "
            "to audit all of them anew."
        )


def _require_trainable(sweep: Sweep, record: TuneRecord, plan: AuditPlan, progress: Stages) -> None:
    """Before anything is written: the first Run could be trained, and what it is audited with is of use."""
    new = [point for point in sweep.points if _standing(point, record) == "new"]
    if not new:
        return
    if plan.against is not None:
        require_unprotected(plan.against)
    recipe = new[0].recipe
    plan_run(recipe, progress)
    if plan.manifest is not None:
        with contextlib.closing(read_corpus(recipe.corpus, tokenizer_of(recipe.model), progress)) as corpus:
            refuse_another(new[0].name, plan.manifest, corpus)


def _require_same_corpus(sweep: Sweep, progress: Stages) -> None:
    """Before an hour of training: the text is still what the finished Runs were trained on."""
    there = [point for point in sweep.points if point.folder.exists()]
    if there and len(there) < len(sweep.points):
        with split_texts(Run.open(there[0].folder), progress):
            pass


def _standing(point: Point, record: TuneRecord) -> Standing:
    """How far a Run is, by what the folder holds."""
    if not point.folder.exists():
        return "begun" if partial_folder(point.folder).exists() else "new"
    (entry,) = (one for one in record.runs if one.run == point.name)
    run = _opened(point)
    if entry.audit is None or not (run.folder / AUDIT_FILE).exists():
        return "to be audited"
    return "finished" if mark_of(read_audit(run)) == entry.audit else "to be audited"


def _opened(point: Point) -> Run:
    """A Run that is there, if it is what the value's recipe makes."""
    run = Run.open(point.folder)
    made, asked = run.manifest.recipe, published_recipe(point.recipe)
    changed = [name for name in asked if name not in BESIDE_THE_POINT and made.get(name) != asked[name]]
    if changed:
        raise InputError(
            f"{point.folder} was trained with another '{changed[0]}' than this frontier's; move it "
            "elsewhere, or give another --output."
        )
    return run


def _completed(point: Point, record: TuneRecord, plan: AuditPlan, progress: Stages) -> Entry:
    """Bring one Run to its end."""
    (entry,) = (one for one in record.runs if one.run == point.name)
    standing = _standing(point, record)
    if standing == "finished":
        return entry
    try:
        run = _opened(point) if standing == "to be audited" else _trained(point, progress)
        if entry.audit is not None:
            progress.remark(f"{point.name} was audited otherwise since; it is audited again like the others")
        # A Run of a private method was not measured on its text before it was named: its audit tells.
        audit = _audited(point, run, plan, progress)
    except TrainingDiverged as problem:
        progress.remark(f"{point.name}: {problem}")
        return Entry(point.value, point.name, "diverged", why=str(problem))
    return Entry(point.value, point.name, "audited", mark_of(audit))


def _trained(point: Point, progress: Stages) -> Run:
    try:
        return train_run(point.recipe, resume=True, progress=progress)
    except KeyboardInterrupt:
        abandon_unfinished(point.folder)  # an interrupt may come before there is anybody to clean up
        raise


def _audited(point: Point, run: Run, plan: AuditPlan, progress: Stages) -> dict[str, Any]:
    found = audit_run(run, plan, device=point.recipe.performance.device, progress=progress)
    found.save(run)
    content = found.to_json()
    write_report(run, content)
    return content


def _with_entry(record: TuneRecord, entry: Entry) -> TuneRecord:
    runs = tuple(entry if one.run == entry.run else one for one in record.runs)
    return replace(record, runs=runs, frontier=None)


def _frontier(sweep: Sweep, record: TuneRecord, perplexity: float | None) -> Frontier:
    audited = [
        (entry.value, Run.open(sweep.folder / entry.run)) for entry in record.runs if entry.state == "audited"
    ]
    if len(audited) < 2:
        raise TrainingDiverged(
            f"Training diverged at all values but {len(audited)}; lower training.learning_rate, or give "
            f"other values of '{sweep.key}'."
        )
    values, runs = zip(*audited, strict=True)
    return Frontier.of(sweep.key, values, runs, perplexity)
