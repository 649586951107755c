"""What an experiment found: `result.json`, from which tables, figures and pages are made and nothing else.

A result holds numbers of whole corpora, never text. Every measured number is an :class:`Estimate`; what was
computed rather than measured is a plain number. A finding sets what a paper says beside what was seen here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, PlainSerializer, ValidationError, model_validator

from tacit.audit.file_parts import Measured
from tacit.errors import InputError
from tacit.files import read_json, write_json
from tacit.statistics import Estimate

FORMAT: Final = 1
FILE: Final = "result.json"

Scale = Literal["tiny", "small", "paper"]
Outcome = Literal["holds", "does not hold", "undecided"]


def _as_json(value: Estimate) -> dict[str, Any]:
    return value.to_json()


Number = Annotated[Measured, PlainSerializer(_as_json)]
Cell = Number | float | int | str | None


class _Part(BaseModel):
    """Frozen, and strict: a result that another version wrote is not read as if this one had."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Table(_Part):
    """Rows under columns."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]

    @model_validator(mode="after")
    def _is_rectangular(self) -> Self:
        if any(len(row) != len(self.columns) for row in self.rows):
            raise ValueError(f"table '{self.title}': a row has not as many cells as there are columns")
        return self


class Point(_Part):
    """One measured value over ``x``."""

    x: float
    y: Number


class Series(_Part):
    """A line of a chart: ``bare`` ones were computed and have no intervals; a note stands below the chart."""

    name: str
    points: tuple[Point, ...] = Field(min_length=1)
    bare: bool = False
    note: str = ""


class Level(_Part):
    """A value that does not depend on ``x``, drawn as a dashed line."""

    name: str
    value: float


class Chart(_Part):
    """A figure; ``name`` is that of its file."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9-]+$")]
    title: str
    x_label: str
    y_label: str
    series: tuple[Series, ...] = Field(min_length=1)
    levels: tuple[Level, ...] = ()
    log_x: bool = False
    log_y: bool = False


class Finding(_Part):
    """What the paper says, and what was seen here."""

    claim: str
    here: str
    outcome: Outcome


class StageRecord(_Part):
    """One stage that the result rests on, and what it took."""

    name: str
    mark: str
    seconds: float


class Provenance(_Part):
    """Where, when and with what the numbers were made."""

    created: str
    versions: dict[str, str]
    machine: str
    stages: tuple[StageRecord, ...]

    @property
    def seconds(self) -> float:
        """Of all stages together; those that another experiment had made count too."""
        return sum(stage.seconds for stage in self.stages)


class Result(_Part):
    """One experiment at one scale."""

    format: Literal[1] = FORMAT
    experiment: str
    title: str
    shows: str  # which figure of which paper, or that it is ours
    scale: Scale
    conditions: tuple[str, ...]  # model, text, tokens, epochs, seeds: a sentence each
    tables: tuple[Table, ...]
    charts: tuple[Chart, ...]
    findings: tuple[Finding, ...]
    caveats: tuple[str, ...] = ()
    summary: tuple[str, ...] = ()  # sentences for who reads nothing else: the README's
    settings: dict[str, Any]
    provenance: Provenance

    def save(self, folder: Path) -> None:
        """Write `result.json`."""
        write_json(folder / FILE, self.model_dump(mode="json"), overwrite=True)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a result; one sentence where that cannot be done."""
        remedy = "run the experiment again"
        content = read_json(path, remedy)
        try:
            return cls.model_validate(content)
        except ValidationError as problem:
            first = problem.errors(include_url=False)[0]
            where = ".".join(str(one) for one in first["loc"]) or "the whole"
            raise InputError(
                f"{path} is not a result of this version ({where}: {first['msg']}); {remedy}."
            ) from None
