"""`tune.json`: what a folder of Runs is a frontier of, and how far each Run is.

It is written before anything is trained and after every Run, whole each time. What would make the Runs
incomparable is pinned in it: the recipe but for the key that varies, and what the audits try. The operator's:
it holds what was measured on private text.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, Final, Literal, Self

from tacit.audit.plans import AuditPlan
from tacit.errors import InputError
from tacit.files import read_json, write_json
from tacit.recipes import PRIVATE_METHODS

FORMAT: Final = 1
FILE: Final = "tune.json"
PAGE: Final = "tune.html"

State = Literal["waiting", "audited", "diverged"]


@dataclass(frozen=True)
class Entry:
    """One value's Run. ``audit`` is the mark of its audit, ``why`` the reason where it has none."""

    value: Any
    run: str
    state: State = "waiting"
    audit: str | None = None
    why: str = ""


@dataclass(frozen=True)
class TuneRecord:
    """The content of `tune.json`; ``frontier`` is there when all Runs are."""

    method: str
    key: str
    recipe: Mapping[str, Any] = field(repr=False)
    audit: Mapping[str, Any] = field(repr=False)
    runs: tuple[Entry, ...]
    frontier: Mapping[str, Any] | None = field(default=None, repr=False)

    @property
    def caution(self) -> str:
        """What a choice among the Runs is, in a sentence."""
        return caution_about(self.method)

    @property
    def audited(self) -> tuple[Entry, ...]:
        """The Runs that are finished."""
        return tuple(entry for entry in self.runs if entry.state == "audited")

    def to_json(self) -> dict[str, Any]:
        """JSON form."""
        return {
            "format": FORMAT,
            "method": self.method,
            "key": self.key,
            "caution": self.caution,
            "runs": [asdict(entry) for entry in self.runs],
            "frontier": self.frontier,
            "recipe": self.recipe,
            "audit": self.audit,
        }

    def save(self, folder: Path) -> None:
        """Write `tune.json` for the owner alone."""
        write_json(folder / FILE, self.to_json(), private=True, overwrite=True)

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read the `tune.json` of a folder."""
        path = folder / FILE
        remedy = "restore it, or tune into another --output"
        content = read_json(path, remedy)
        if content.get("format") != FORMAT:
            raise InputError(f"{path} was written by another version of tacit; tune into another --output.")
        try:
            return cls(
                method=content["method"],
                key=content["key"],
                recipe=content["recipe"],
                audit=content["audit"],
                runs=tuple(Entry(**entry) for entry in content["runs"]),
                frontier=content["frontier"],
            )
        except (KeyError, TypeError):
            raise InputError(f"{path} is damaged; {remedy}.") from None


def are_numbers(values: Iterable[Any]) -> bool:
    """Whether something lies between them, so that they can make a frontier."""
    return all(isinstance(one, int | float) and not isinstance(one, bool) for one in values)


def caution_about(method: str) -> str:
    """The honest sentence: these figures are functions of private text, and so is who chooses by them."""
    if method in PRIVATE_METHODS:
        return (
            "The guarantee of each Run is about its own weights: a choice among Runs by these figures, which "
            "were measured on private text, is outside of it, and Runs that are released together add up."
        )
    return (
        "These figures were measured on private text, so that a choice of a value by them is a function of "
        "it; these Runs promise nothing, and the choice adds no promise."
    )


def settings_of(plan: AuditPlan) -> dict[str, Any]:
    """All that decides what an audit tries, as JSON: what is large or a Run by its fingerprint."""
    held = ("manifest", "words", "answers", "against")
    plain = {one.name: getattr(plan, one.name) for one in fields(plan) if one.name not in held}
    settings = {
        "canaries": None if plan.manifest is None else plan.manifest.commitment,
        "words": None if plan.words is None else hashlib.sha256(" ".join(plan.words).encode()).hexdigest(),
        "against": None if plan.against is None else plan.against.manifest.weights_fingerprint,
        **{
            name: asdict(value) if is_dataclass(value) and not isinstance(value, type) else value
            for name, value in plain.items()
        },
    }
    found: dict[str, Any] = json.loads(json.dumps(settings))  # as it will be read again
    return found


def mark_of(audit: Mapping[str, Any]) -> str:
    """What an audit is known by: when and how it was made. What a service showed may be added to it."""
    known = json.dumps([audit.get("created"), audit.get("provenance")], sort_keys=True)
    return hashlib.sha256(known.encode()).hexdigest()


@contextlib.contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Hold a folder for this process; the operating system frees it however the process ends."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(
                f"{folder} is being tuned by another process; wait for it or give another --output."
            ) from None
        yield
    finally:
        os.close(descriptor)
