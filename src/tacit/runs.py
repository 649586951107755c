"""The Run directory: the hand-over between all commands.

    RUN/
      run.json       method, recipe, versions, keyed data fingerprint, public model, guarantee
      privacy.json   the guarantee as a value; of private training also its steps and their whole curves
      certificate.json  of confidential training: what is promised about secrets, as it may be published
      adapter/       weights in PEFT layout, or
      model/         weights in Hugging Face layout (safetensors only), or
      members/       one folder in either layout per member of an ensemble: owner only, never to be released
      metrics.json   measurements on private text: the operator's, outside any guarantee
      private/       owner only: what must never be published (counts, seeds, fingerprints, keys)

A Run is built as ``RUN.partial`` by one process at a time and renamed when it is whole. A killed training
run leaves its ``.partial`` folder with the last checkpoint, which ``--resume`` continues.
"""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import hashlib
import hmac
import json
import os
import platform
import secrets
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from tacit.errors import InputError, Tampered
from tacit.files import (
    PRIVATE_FILE_MODE,
    PRIVATE_FOLDER_MODE,
    name_folder,
    new_folder,
    read_json,
    refuse_existing,
    sha256_of,
    sync_tree,
    write_json,
)

WeightsLayout = Literal["adapter", "model", "members"]

FORMAT: Final = 1
_MANIFEST = "run.json"
_DATA = "private/data.json"
_WEIGHT_HASHES = "private/weights_sha256.json"
RELEASABLE: Final = ("public", "rdp", "dp", "confidentiality")  # what weights may be published under
_CERTIFICATE = "certificate.json"
_BEGUN = "private/begun.json"
_LOCK = "private/lock"
_RECORDED_VERSIONS = ("tacit", "torch", "transformers", "peft", "tokenizers", "numpy")


class PublicModelRecord(BaseModel):
    """Which public model a Run started from."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    revision: str | None
    fingerprint: str
    tokenizer_fingerprint: str
    family: Literal["transformer", "lstm"]
    start_token: int
    vocabulary: Literal["public", "private"]
    mask_token: int | None = None  # where the Run reads screened text


class EnsembleRecord(BaseModel):
    """How many members a Run has: two per part, or one where there are no halves. Both are public."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    parts: int
    halves: bool

    @property
    def names(self) -> list[str]:
        """The members' folders in ``members/``, in order: part by part, half a before half b."""
        halves = ("-a", "-b") if self.halves else ("",)
        return [f"part-{part:03d}{half}" for part in range(self.parts) for half in halves]


class Manifest(BaseModel):
    """The content of ``run.json``: true of the Run, and free of private text, counts and user ids."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: Literal[1] = FORMAT
    method: str
    recipe: dict[str, Any]
    public_model: PublicModelRecord
    weights: WeightsLayout
    ensemble: EnsembleRecord | None = None
    weights_sha256: dict[str, str] | None = None  # only of weights that may be released
    weights_fingerprint: str
    guarantee: dict[str, Any]
    data_fingerprint: str
    seeded: bool
    created: str
    versions: dict[str, str]

    @property
    def may_be_released(self) -> bool:
        """Whether the weights may be published as the guarantee states."""
        return _may_be_released(self.guarantee, seeded=self.seeded)

    @model_validator(mode="after")
    def _has_a_statement_to_show(self) -> Self:
        if not isinstance(self.guarantee.get("statement"), str):
            raise ValueError("guarantee.statement")
        if (self.ensemble is None) != (self.weights != "members"):
            raise ValueError("ensemble")
        return self


@dataclass(frozen=True)
class Run:
    """A finished Run, opened for reading."""

    folder: Path
    manifest: Manifest

    @classmethod
    def open(cls, folder: Path) -> Self:
        """Open a Run; a folder that is not one, or is unfinished, is refused with the remedy."""
        path = folder / _MANIFEST
        if not path.is_file():
            raise InputError(_not_a_run(folder))
        try:
            return cls(folder, Manifest.model_validate_json(path.read_bytes()))
        except ValidationError as problem:
            error = problem.errors(include_url=False)[0]
            wrong = ".".join(map(str, error["loc"])) or str(error.get("ctx", {}).get("error"))
            raise InputError(
                f"{path}: cannot be read by this version ({wrong}); train again or use the tacit that "
                "wrote it."
            ) from None

    @property
    def weights(self) -> Path:
        """The folder with the weights, in Hugging Face or PEFT layout, or with one such folder per member."""
        return self.folder / self.manifest.weights

    def weights_sha256(self) -> dict[str, str]:
        """The hash of every file of the weights, as it was when the Run was made."""
        if self.manifest.weights_sha256 is not None:
            return self.manifest.weights_sha256
        hashes = read_json(self.folder / _WEIGHT_HASHES, "restore it or train again")
        if _keyed(_json_text(hashes), self._fingerprint_key()) != self.manifest.weights_fingerprint:
            raise Tampered(
                f"{self.folder / _WEIGHT_HASHES} does not belong to {_MANIFEST}; restore both or train again."
            )
        return hashes

    def _fingerprint_key(self) -> bytes:
        path = self.folder / _DATA
        try:
            return bytes.fromhex(read_json(path, "restore it or train again")["fingerprint_key"])
        except (KeyError, TypeError, ValueError):
            raise Tampered(f"{path} has no key; restore it or train again.") from None

    def verify_weights(self) -> None:
        """Check the weights against the hashes that were recorded with them."""
        expected = self.weights_sha256()
        if not any(name.endswith(".safetensors") for name in expected) or _hashes(self.weights) != expected:
            raise Tampered(
                f"{self.weights}: its files do not match the hashes of the Run; restore them or train again."
            )

    def corpus_fingerprint(self) -> str:
        """The fingerprint of the text that the Run was made from: the owner's to read."""
        path = self.folder / _DATA
        found = read_json(path, "it is needed to tell the texts of two Runs apart").get("corpus_fingerprint")
        if not isinstance(found, str):
            raise InputError(f"{path} is damaged; restore it or train again.")
        return found

    def check_corpus(
        self, fingerprint: str, *, remedy: str = "restore it, or give other text with --corpus"
    ) -> None:
        """Refuse a corpus other than the one trained on: its held-out text may have been seen."""
        recorded = read_json(self.folder / _DATA, remedy).get("corpus_fingerprint")
        if recorded != fingerprint:
            raise InputError(
                f"The corpus has changed since {self.folder} was trained, so that held-out text may have "
                f"moved; {remedy}."
            )

    def certificate(self) -> dict[str, Any] | None:
        """What confidential training promises about secrets, with all counts: the owner's.

        The one beside ``run.json`` leaves out what is not the same with and without a secret, and is read
        where the owner's is not there. None where the method gives no certificate.
        """
        for path in (self.folder / "private" / _CERTIFICATE, self.folder / _CERTIFICATE):
            if path.is_file():
                return read_json(path, "restore it or train again")
        return None

    def metrics(self) -> dict[str, Any]:
        """What has been measured so far, by name of the measurement."""
        path = self.folder / "metrics.json"
        return read_json(path, "remove it and measure again") if path.exists() else {}

    def record_metrics(self, name: str, content: Mapping[str, Any]) -> None:
        """Add or replace one measurement; the others stay, whoever else is measuring."""
        folder = os.open(self.folder, os.O_RDONLY)
        try:
            with contextlib.suppress(OSError):  # a file system without locks
                fcntl.flock(folder, fcntl.LOCK_EX)
            found = self.metrics() | {name: dict(content)}
            write_json(self.folder / "metrics.json", found, private=True, overwrite=True)
        finally:
            os.close(folder)

    def record_private(self, name: str, content: Any) -> None:
        """Write one file for the owner alone."""
        write_json(self.folder / "private" / name, content, private=True, overwrite=True)


def _may_be_released(guarantee: Mapping[str, Any], *, seeded: bool) -> bool:
    """Whether weights may be published as the guarantee states: not if its epsilon is no number, or if the
    noise can be computed again from the recipe.
    """
    kind = guarantee.get("kind")
    return kind in RELEASABLE and guarantee.get("epsilon") != "inf" and (kind == "public" or not seeded)


def _not_a_run(folder: Path) -> str:
    unfinished = partial_folder(folder)
    if unfinished.is_dir():
        return (
            f"{folder} is not finished ({unfinished} exists); continue it with tacit train RECIPE --resume."
        )
    return f"{folder} is not a Run (it has no run.json); give the output folder of tacit train."


def _keyed(text: str, key: bytes) -> str:
    return f"hmac-sha256:{hmac.new(key, text.encode(), hashlib.sha256).hexdigest()}"


def _json_text(hashes: Mapping[str, Any]) -> str:
    return json.dumps(hashes, sort_keys=True)


def partial_folder(folder: Path) -> Path:
    """Where a Run is built before it is whole."""
    return folder.with_name(folder.name + ".partial")


@dataclass(frozen=True)
class RunBuilder:
    """A Run in the making, under its ``.partial`` name; one process at a time holds it."""

    output: Path
    folder: Path
    created: str
    _lock: int  # an open file: the operating system frees the lock when the process ends, however it ends

    @classmethod
    def begin(cls, output: Path, recipe: Mapping[str, Any], *, resume: bool = False) -> Self:
        """Start a Run, or take up an unfinished one made from the same recipe."""
        refuse_existing(output)
        folder = partial_folder(output)
        if folder.exists():
            if resume:
                return cls._take_up(output, folder, recipe)
            raise InputError(
                f"{folder} holds an unfinished run; continue it with --resume or remove the folder."
            )
        created = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        with new_folder(folder, called=output) as new:
            for own in ("private", "members"):
                (new / own).mkdir(mode=PRIVATE_FOLDER_MODE)
            write_json(new / _BEGUN, {"created": created, "recipe": dict(recipe)}, private=True)
        return cls(output, folder, created, _locked(folder))

    @classmethod
    def _take_up(cls, output: Path, folder: Path, recipe: Mapping[str, Any]) -> Self:
        if not (folder / _BEGUN).is_file():
            raise InputError(
                f"{folder} is not an unfinished run of tacit; remove it or choose another output."
            )
        lock = _locked(folder)
        try:
            refuse_existing(output)  # whoever held the lock until now may have finished the Run
            begun = read_json(folder / _BEGUN, "remove the folder and begin again")
            before, created = begun.get("recipe"), begun.get("created")
            if not isinstance(before, dict) or not isinstance(created, str):
                raise InputError(f"{folder / _BEGUN} is damaged; remove the folder and begin again.")
            # Performance settings do not change the result, so a run may be resumed under others.
            changed = [key for key in recipe if key != "performance" and before.get(key) != recipe[key]]
            if changed:
                raise InputError(
                    f"{folder} was begun with another '{changed[0]}'; restore the recipe or remove the "
                    "folder."
                )
        except BaseException:
            os.close(lock)
            raise
        return cls(output, folder, created, lock)

    def pin(self, **fingerprints: str) -> None:
        """Record what the run is made of; a resumed run must be made of the same."""
        path = self.private / "pinned.json"
        if not path.is_file():
            write_json(path, fingerprints, private=True)
        begun = read_json(path, "remove the folder of the unfinished run and begin again")
        for name, fingerprint in fingerprints.items():
            if begun.get(name) != fingerprint:
                raise InputError(
                    f"The {name.replace('_', ' ')} has changed since {self.folder} was begun; restore it or "
                    "remove the folder and begin again."
                )

    @property
    def private(self) -> Path:
        """The folder for the owner alone."""
        return self.folder / "private"

    @property
    def checkpoint(self) -> Path:
        """Where training keeps its last checkpoint; it does not survive into the finished Run."""
        return self.private / "checkpoint"

    @property
    def members(self) -> Path:
        """Where the finished members of an ensemble are."""
        return self.folder / "members"

    @property
    def work(self) -> Path:
        """Where training keeps copies of the text while it runs; gone when it ends or is interrupted."""
        return self.private / "work"

    def new_work(self) -> Path:
        """An empty folder for work, whatever a killed process has left in it."""
        shutil.rmtree(self.work, ignore_errors=True)
        self.work.mkdir(mode=PRIVATE_FOLDER_MODE)
        return self.work

    def abandon(self) -> None:
        """Remove what has been begun, unless a resumed run could use a checkpoint or a finished member."""
        if not self.is_whole and not any(
            path.is_file() for kept in (self.checkpoint, self.members) for path in kept.rglob("*")
        ):
            shutil.rmtree(self.folder)

    def release(self) -> None:
        """Let another process take the run up; it must not be used afterwards."""
        shutil.rmtree(self.work, ignore_errors=True)
        os.close(self._lock)

    def finish(
        self,
        *,
        method: str,
        recipe: Mapping[str, Any],
        public_model: PublicModelRecord,
        weights: WeightsLayout,
        guarantee: Mapping[str, Any],
        corpus_fingerprint: str,
        seeded: bool,
        ensemble: EnsembleRecord | None = None,
        privacy: Mapping[str, Any] | None = None,
    ) -> Run:
        """Write the manifest and give the folder its name; ``privacy`` goes beside the guarantee."""
        key = secrets.token_bytes(32)
        # Keyed: a plain hash would let anybody who guesses a small corpus confirm the guess.
        write_json(
            self.folder / _DATA,
            {"corpus_fingerprint": corpus_fingerprint, "fingerprint_key": key.hex()},
            private=True,
            overwrite=True,
        )
        hashes = _hashes(self.folder / weights)
        write_json(self.folder / _WEIGHT_HASHES, hashes, private=True, overwrite=True)
        # So would a hash of weights that hold text: a member without any has one that anybody can compute,
        # and with a known seed so has one whose text is guessed. Where weights may be released, so may it.
        released = hashes if _may_be_released(guarantee, seeded=seeded) else None
        manifest = Manifest(
            method=method,
            recipe=dict(recipe),
            public_model=public_model,
            weights=weights,
            ensemble=ensemble,
            weights_sha256=released,
            weights_fingerprint=_keyed(_json_text(hashes), key),
            guarantee=dict(guarantee),
            data_fingerprint=_keyed(corpus_fingerprint, key),
            seeded=seeded,
            created=self.created,
            versions=_versions(),
        )
        write_json(self.folder / "privacy.json", {**guarantee, **(privacy or {})}, overwrite=True)
        self._settle_members()
        # run.json comes last and after everything else is on the disk: where it is, the Run is whole.
        sync_tree(self.folder)
        write_json(self.folder / _MANIFEST, manifest.model_dump(mode="json"), overwrite=True)
        return self.complete()

    def _settle_members(self) -> None:
        """Give all members one time of change, or how long each was trained would tell who had text."""
        if not any(self.members.iterdir()):
            self.members.rmdir()
            return
        now = time.time_ns()
        for path in (*self.members.rglob("*"), self.members):
            os.utime(path, ns=(now, now))

    @property
    def is_whole(self) -> bool:
        """Whether a process was killed after the last file was written and before the Run had its name."""
        return (self.folder / _MANIFEST).is_file()

    def complete(self) -> Run:
        """Clear away what only training needed, and give the folder its name."""
        run = Run.open(self.folder)
        run.verify_weights()
        for needless in (self.checkpoint, self.work):
            shutil.rmtree(needless, ignore_errors=True)
        (self.folder / _LOCK).unlink(missing_ok=True)
        name_folder(self.folder, self.output)
        return Run(self.output, run.manifest)


def abandon_unfinished(output: Path) -> bool:
    """Abandon the unfinished run of an output that nobody holds; returns whether there is one to resume."""
    folder = partial_folder(output)
    if (folder / _BEGUN).is_file():
        builder = RunBuilder(output, folder, "", _locked(folder))
        try:
            builder.abandon()
        finally:
            builder.release()
    return folder.exists()


def _locked(folder: Path) -> int:
    """Hold an unfinished run for this process alone."""
    path = folder / _LOCK
    lock = os.open(path, os.O_RDWR | os.O_CREAT, PRIVATE_FILE_MODE)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise InputError(
            f"{folder} is being trained by another process; wait for it or choose another output."
        ) from None
    return lock


def _hashes(folder: Path) -> dict[str, str]:
    """SHA-256 of every file: settings beside the weights decide what they mean, and nothing may be added."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path.relative_to(folder)): sha256_of(path) for path in files}


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in _RECORDED_VERSIONS:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "not installed as a package"
    return found
