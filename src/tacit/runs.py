"""The Run directory: the hand-over between all commands.

    RUN/
      run.json       method, recipe, versions, keyed data fingerprint, public model, guarantee
      privacy.json   the guarantee as a value
      adapter/       weights in PEFT layout, or
      model/         weights in Hugging Face layout (safetensors only)
      metrics.json   measurements on private text: the operator's, outside any guarantee
      private/       owner only: what must never be published (counts, seeds, fingerprints, keys)

A Run is built as ``RUN.partial`` and renamed when it is whole. A killed training run leaves its
``.partial`` folder with the last checkpoint, which ``--resume`` continues.
"""

from __future__ import annotations

import datetime
import hashlib
import hmac
import json
import platform
import secrets
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from tacit.errors import InputError, Tampered
from tacit.files import PRIVATE_FOLDER_MODE, make_parent, refuse_existing, sha256_of, write_json

FORMAT: Final = 1
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


class Manifest(BaseModel):
    """The content of ``run.json``: true of the Run, and free of private text, counts and user ids."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: Literal[1] = FORMAT
    method: str
    recipe: dict[str, Any]
    public_model: PublicModelRecord
    weights: Literal["adapter", "model"]
    weights_sha256: dict[str, str]
    guarantee: dict[str, Any]
    data_fingerprint: str
    seeded: bool
    created: str
    versions: dict[str, str]


@dataclass(frozen=True)
class Run:
    """A finished Run, opened for reading."""

    folder: Path
    manifest: Manifest

    @classmethod
    def open(cls, folder: Path) -> Self:
        """Open a Run; a folder that is not one, or is unfinished, is refused with the remedy."""
        path = folder / "run.json"
        if not path.is_file():
            raise InputError(_not_a_run(folder))
        try:
            return cls(folder, Manifest.model_validate_json(path.read_bytes()))
        except ValidationError:
            raise InputError(
                f"{path}: cannot be read by this version; train again or use the tacit that wrote it."
            ) from None

    @property
    def weights(self) -> Path:
        """The folder with the weights, in Hugging Face or PEFT layout."""
        return self.folder / self.manifest.weights

    def verify_weights(self) -> None:
        """Check the weights against the hashes in the manifest."""
        expected = self.manifest.weights_sha256
        if not any(name.endswith(".safetensors") for name in expected) or _hashes(self.weights) != expected:
            raise Tampered(
                f"{self.weights}: its files do not match the hashes in run.json; restore them or train again."
            )

    def check_corpus(self, fingerprint: str) -> None:
        """Refuse a corpus other than the one trained on: its held-out text may have been seen."""
        path = self.folder / "private" / "data.json"
        if not path.is_file():
            raise InputError(f"{path} is missing; give the text to measure on with --corpus.")
        recorded = json.loads(path.read_text(encoding="utf-8"))["corpus_fingerprint"]
        if recorded != fingerprint:
            raise InputError(
                f"The corpus has changed since {self.folder} was trained, so that held-out text may have "
                "moved; restore it, or give other text with --corpus."
            )

    def metrics(self) -> dict[str, Any]:
        """What has been measured so far, by name of the measurement."""
        path = self.folder / "metrics.json"
        return dict(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else {}

    def record_metrics(self, name: str, content: Mapping[str, Any]) -> None:
        """Add or replace one measurement; the others stay."""
        write_json(
            self.folder / "metrics.json", self.metrics() | {name: dict(content)}, private=True, overwrite=True
        )

    def record_private(self, name: str, content: Any) -> None:
        """Write one file for the owner alone."""
        write_json(self.folder / "private" / name, content, private=True, overwrite=True)


def _not_a_run(folder: Path) -> str:
    unfinished = partial_folder(folder)
    if unfinished.is_dir():
        return (
            f"{folder} is not finished ({unfinished} exists); continue it with tacit train RECIPE --resume."
        )
    return f"{folder} is not a Run (it has no run.json); give the output folder of tacit train."


def partial_folder(folder: Path) -> Path:
    """Where a Run is built before it is whole."""
    return folder.with_name(folder.name + ".partial")


@dataclass(frozen=True)
class RunBuilder:
    """A Run in the making, under its ``.partial`` name."""

    output: Path
    folder: Path
    created: str

    @classmethod
    def begin(cls, output: Path, recipe: Mapping[str, Any], *, resume: bool = False) -> Self:
        """Start a Run, or take up an unfinished one made from the same recipe."""
        refuse_existing(output)
        folder = partial_folder(output)
        start = folder / "private" / "begun.json"
        if folder.exists():
            if not resume:
                raise InputError(
                    f"{folder} holds an unfinished run; continue it with --resume or remove the folder."
                )
            return cls._take_up(output, folder, start, recipe)
        make_parent(folder)
        folder.mkdir()
        (folder / "private").mkdir(mode=PRIVATE_FOLDER_MODE)
        created = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        write_json(start, {"created": created, "recipe": dict(recipe)}, private=True)
        return cls(output, folder, created)

    @classmethod
    def _take_up(cls, output: Path, folder: Path, start: Path, recipe: Mapping[str, Any]) -> Self:
        if not start.is_file():
            raise InputError(
                f"{folder} is not an unfinished run of tacit; remove it or choose another output."
            )
        begun = json.loads(start.read_text(encoding="utf-8"))
        # Performance settings do not change the result, so a run may be resumed under others.
        changed = [key for key in recipe if key != "performance" and begun["recipe"].get(key) != recipe[key]]
        if changed:
            raise InputError(
                f"{folder} was begun with another '{changed[0]}'; restore the recipe or remove the folder."
            )
        return cls(output, folder, begun["created"])

    def pin(self, **fingerprints: str) -> None:
        """Record what the run is made of; a resumed run must be made of the same."""
        path = self.private / "pinned.json"
        if not path.is_file():
            write_json(path, fingerprints, private=True)
        begun = json.loads(path.read_text(encoding="utf-8"))
        for name, fingerprint in fingerprints.items():
            if begun[name] != fingerprint:
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

    def abandon(self) -> None:
        """Remove what has been begun, unless there is a checkpoint that a resumed run could use."""
        if not (self.checkpoint.is_dir() and any(self.checkpoint.iterdir())):
            shutil.rmtree(self.folder)

    def finish(
        self,
        *,
        method: str,
        recipe: Mapping[str, Any],
        public_model: PublicModelRecord,
        weights: Literal["adapter", "model"],
        guarantee: Mapping[str, Any],
        corpus_fingerprint: str,
        seeded: bool,
    ) -> Run:
        """Write the manifest and give the folder its name."""
        key = secrets.token_bytes(32)
        # Keyed: a plain hash would let anybody who guesses a small corpus confirm the guess.
        keyed = hmac.new(key, corpus_fingerprint.encode(), hashlib.sha256).hexdigest()
        write_json(
            self.private / "data.json",
            {"corpus_fingerprint": corpus_fingerprint, "fingerprint_key": key.hex()},
            private=True,
            overwrite=True,
        )
        hashes = _hashes(self.folder / weights)
        manifest = Manifest(
            method=method,
            recipe=dict(recipe),
            public_model=public_model,
            weights=weights,
            weights_sha256=hashes,
            guarantee=dict(guarantee),
            data_fingerprint=f"hmac-sha256:{keyed}",
            seeded=seeded,
            created=self.created,
            versions=_versions(),
        )
        write_json(self.folder / "privacy.json", dict(guarantee), overwrite=True)
        write_json(self.folder / "run.json", manifest.model_dump(mode="json"), overwrite=True)
        if self.checkpoint.exists():
            shutil.rmtree(self.checkpoint)
        refuse_existing(self.output)
        self.folder.rename(self.output)
        return Run(self.output, manifest)


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
