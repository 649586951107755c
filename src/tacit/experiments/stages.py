"""Stages of experiments: done once, kept by what decides their outcome, shared by all who name the same.

A stage's mark is a hash of its name and its key, and the key is all that decides the outcome: recipes, seeds,
sizes, which text. So a killed experiment goes on where it stopped, two experiments that need the same
ensemble train it once, and a changed setting never finds a stale number.

    WORK/stages/NAME-MARK.json   the outcome of a stage, its key, how long it took and where
    WORK/runs/NAME-MARK/         Runs, trained by recipes with fixed seeds; resumed by training itself
    WORK/texts/                  corpora as experiments need them: files, and folders of what belongs together
    WORK/locks/                  who is at what

Several processes may work in one folder: what one of them is at, another leaves alone or waits for. So the
same command, given twice, does its stages twice as fast where there are cores for both.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import platform
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import tacit
from tacit.errors import InputError
from tacit.files import make_parent, new_file, new_folder, read_json, sha256_of, write_json
from tacit.progress import Silent, Stages
from tacit.recipes import parse_recipe
from tacit.runs import Run, partial_folder
from tacit.training import train_run

FORMAT: Final = 1  # of stage files; another number makes every stage anew


def mark_of(name: str, key: Mapping[str, Any]) -> str:
    """What a stage or a Run is known by; alike for equal keys whatever their order."""
    known = json.dumps([FORMAT, tacit.__version__, name, key], sort_keys=True, allow_nan=False)
    return hashlib.sha256(known.encode()).hexdigest()[:12]


@dataclass(frozen=True)
class Stage:
    """A step with an outcome in JSON; ``minutes`` is what it takes on two cores, about."""

    name: str
    key: Mapping[str, Any] = field(repr=False)
    minutes: float
    work: Callable[[Workshop], Mapping[str, Any]] = field(repr=False)

    @property
    def mark(self) -> str:
        """Alike for stages with the same outcome."""
        return mark_of(self.name, self.key)

    @property
    def label(self) -> str:
        """What its file and its lock are called."""
        return f"{self.name}-{self.mark}"


@dataclass(frozen=True)
class Kept:
    """The outcome of a stage, with what it took."""

    outcome: Mapping[str, Any]
    seconds: float


@dataclass(frozen=True)
class Workshop:
    """Where experiments work: their folder, the corpora, and who watches."""

    folder: Path
    data: Path | None = None
    progress: Stages = field(default_factory=Silent)

    def text(self, name: str) -> Path:
        """A corpus of ``data``, e.g. ``wikitext-2/train.txt``."""
        if self.data is None:
            raise InputError(f"This experiment reads {name}; say with --data which folder holds it.")
        path = self.data / name
        if not path.exists():
            raise InputError(f"{path} is missing; --data must be a folder that holds {name}.")
        return path

    def made_text(self, name: str, key: Mapping[str, Any], make: Callable[[], str]) -> Path:
        """A text file that is made once; ``key`` is all that decides what is in it."""
        stem, _, suffix = name.rpartition(".")
        path = self.folder / "texts" / f"{stem}-{mark_of(name, key)}.{suffix}"
        with self._held(path.name):
            if not path.exists():
                content = make()
                with new_file(path) as handle:
                    handle.write(content.encode())
        return path

    def made_folder(self, name: str, key: Mapping[str, Any], make: Callable[[Path], None]) -> Path:
        """A folder that ``make`` fills once; it is there whole or not at all."""
        path = self.folder / "texts" / f"{name}-{mark_of(name, key)}"
        with self._held(path.name):
            if not path.exists():
                with new_folder(path) as building:
                    make(building)
        return path

    def run(self, name: str, recipe: Mapping[str, Any]) -> Run:
        """A Run by a recipe without output: found, taken up, or trained now. Its mark knows the text."""
        mark = mark_of(name, _by_content(recipe))
        folder = self.folder / "runs" / f"{name}-{mark}"
        with self._held(folder.name):
            if folder.is_dir():
                return Run.open(folder)
            whole = parse_recipe({**recipe, "output": str(folder.absolute())})
            return train_run(whole, resume=partial_folder(folder).is_dir(), progress=self.progress)

    def kept(self, stage: Stage) -> Kept | None:
        """What a stage came to, if it is done."""
        path = self._file(stage)
        if not path.exists():
            return None
        content = read_json(path, "remove it, and its stage is done again")
        try:
            return Kept(content["outcome"], float(content["seconds"]))
        except (KeyError, TypeError, ValueError):
            raise InputError(f"{path} is damaged; remove it, and its stage is done again.") from None

    def done(self, stage: Stage) -> Kept:
        """The outcome of a stage, worked for now where nobody has before."""
        with self._held(stage.label):
            return self._worked(stage)

    def done_if_free(self, stage: Stage) -> Kept | None:
        """The same; None where another process is at it."""
        try:
            with self._held(stage.label, wait=False):
                return self._worked(stage)
        except BlockingIOError:
            return None

    def _worked(self, stage: Stage) -> Kept:
        found = self.kept(stage)
        if found is not None:
            return found
        begun = time.monotonic()
        outcome = stage.work(self)
        seconds = round(time.monotonic() - begun, 1)
        content = {"stage": stage.name, "key": stage.key, "seconds": seconds, "machine": machine()}
        write_json(self._file(stage), content | {"outcome": outcome})
        return Kept(json.loads(json.dumps(outcome)), seconds)  # as it will be read the next time

    @contextlib.contextmanager
    def _held(self, name: str, *, wait: bool = True) -> Iterator[None]:
        """Hold a name among all processes of this folder; the system frees it however a process ends."""
        path = self.folder / "locks" / f"{name}.lock"
        make_parent(path)
        with path.open("w") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield

    def _file(self, stage: Stage) -> Path:
        return self.folder / "stages" / f"{stage.label}.json"


def text_mark(path: Path) -> str:
    """What a text is known by, wherever it lies."""
    return sha256_of(path)[:16]


def _by_content(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """A recipe with texts themselves, and the key of its partition, in the place of where they lie."""
    known = {**recipe, "corpus": _marked(recipe["corpus"], "path")}
    for section, name in (("ensemble", "key"), ("selective", "screened")):
        if name in recipe.get(section, {}):
            known[section] = _marked(recipe[section], name)
    return known


def _marked(section: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {**section, name: text_mark(Path(section[name]))}


def machine() -> str:
    """The machine in a few words."""
    found = "an unknown processor"
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        lines = [line for line in cpuinfo.read_text(encoding="utf-8").splitlines() if "model name" in line]
        found = lines[0].partition(":")[2].strip() if lines else found
    return f"{found}, {os.cpu_count()} cores, {platform.system()}"
