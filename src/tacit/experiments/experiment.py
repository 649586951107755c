"""What an experiment is, and how one is run: plan its stages, do those that are missing, conclude.

An experiment's settings are fixed before it is run, seeds included; its conclusion is a function of its
stages' outcomes alone. So a result can be made again from what is kept, and no number is typed by hand.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, Final

import tacit
from tacit.experiments.pages import figures_of, page_of, write_texts
from tacit.experiments.results import (
    Chart,
    Finding,
    Provenance,
    Result,
    Scale,
    StageRecord,
    Table,
)
from tacit.experiments.stages import Kept, Stage, Workshop, machine

PAGE: Final = "result.md"
_VERSIONS: Final = ("torch", "transformers", "numpy", "dp-accounting")

Settings = Mapping[str, Any]
Outcomes = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Conclusion:
    """What the outcomes of all stages say together."""

    conditions: tuple[str, ...]
    tables: tuple[Table, ...]
    charts: tuple[Chart, ...]
    findings: tuple[Finding, ...]
    caveats: tuple[str, ...] = ()
    summary: tuple[str, ...] = ()


@dataclass(frozen=True)
class Experiment:
    """One experiment of the catalogue.

    ``texts`` are the files of ``--data`` that scale `small` reads; ``settings`` all that decides the result.
    """

    name: str
    title: str
    shows: str
    settings: Callable[[Scale], Settings] = field(repr=False)
    stages: Callable[[Workshop, Settings], Sequence[Stage]] = field(repr=False)
    conclude: Callable[[Settings, Outcomes], Conclusion] = field(repr=False)
    texts: tuple[str, ...] = ()

    def folder(self, workshop: Workshop, scale: Scale) -> Path:
        """Where its result goes."""
        return workshop.folder / f"{self.name}-{scale}"

    def planned(self, workshop: Workshop, scale: Scale) -> list[PlannedStage]:
        """What there is to do; nothing is done."""
        stages = self.stages(workshop, self.settings(scale))
        return [PlannedStage(stage.name, stage.minutes, workshop.kept(stage) is not None) for stage in stages]

    def run(self, workshop: Workshop, scale: Scale) -> Result:
        """Do what is missing and write the result, its page and its figures."""
        settings = self.settings(scale)
        stages = self.stages(workshop, settings)
        done = _all_done(workshop, stages)
        outcomes = {stage.name: done[stage.name].outcome for stage in stages}
        records = [
            StageRecord(name=stage.name, mark=stage.mark, seconds=done[stage.name].seconds)
            for stage in stages
        ]
        result = self._concluded(scale, settings, outcomes, tuple(records))
        write_result(result, self.folder(workshop, scale))
        return result

    def _concluded(
        self, scale: Scale, settings: Settings, outcomes: Outcomes, stages: tuple[StageRecord, ...]
    ) -> Result:
        found = self.conclude(settings, outcomes)
        return Result(
            experiment=self.name,
            title=self.title,
            shows=self.shows,
            scale=scale,
            conditions=found.conditions,
            tables=found.tables,
            charts=found.charts,
            findings=found.findings,
            caveats=found.caveats,
            summary=found.summary,
            settings=dict(settings),
            provenance=Provenance(
                created=datetime.now(UTC).isoformat(timespec="seconds"),
                versions={
                    "tacit": tacit.__version__,
                    "python": platform.python_version(),
                    **{name: metadata.version(name) for name in _VERSIONS},
                },
                machine=machine(),
                stages=stages,
            ),
        )


@dataclass(frozen=True)
class PlannedStage:
    """A stage before it is done, or after."""

    name: str
    minutes: float
    done: bool


def _all_done(workshop: Workshop, stages: Sequence[Stage]) -> dict[str, Kept]:
    """All stages in order, but for those that another process is at: they are waited for at the end."""
    done: dict[str, Kept] = {}
    for ask in (workshop.done_if_free, workshop.done):
        for stage in stages:
            if stage.name in done:
                continue
            workshop.progress.stage(stage.name, len(done), len(stages))
            kept = ask(stage)
            if kept is not None:
                done[stage.name] = kept
    workshop.progress.stage("all stages", len(stages), len(stages))
    return done


def write_result(result: Result, folder: Path) -> None:
    """`result.json`, its page and a file for each figure."""
    result.save(folder)
    write_texts({folder / PAGE: page_of(result)})
    write_texts({folder / name: drawn for name, drawn in figures_of(result).items()})
