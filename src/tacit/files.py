"""Writing files so that nothing is ever half-written, and private ones so that nobody else reads them.

Every output is built under a temporary name beside its destination and renamed when it is whole: a
reader sees the old state or the new one, a crash leaves at most a temporary name behind.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from tacit.errors import InputError, OutputExists

PRIVATE_FILE_MODE = 0o600
PRIVATE_FOLDER_MODE = 0o700
_CHUNK = 1 << 20


def refuse_existing(path: Path) -> Path:
    """Refuse an output that exists: tacit never overwrites what it did not just make."""
    if path.exists() or path.is_symlink():
        raise OutputExists(f"{path} exists already; choose another name or remove it first.")
    return path


def _temporary_sibling(path: Path) -> Path:
    # In the same folder, because a rename is atomic only within one file system.
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def new_file(path: Path, *, private: bool = False, overwrite: bool = False) -> Iterator[IO[bytes]]:
    """Open ``path`` for writing; it appears, complete and synced, only if the block succeeds."""
    if not overwrite:
        refuse_existing(path)
    make_parent(path)
    temporary = _temporary_sibling(path)
    mode = PRIVATE_FILE_MODE if private else 0o666
    # The mode is given at creation: a chmod afterwards would leave a moment in which others can read.
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os.fdopen(descriptor, "wb") as handle:
            yield handle
            handle.flush()
            os.fsync(handle.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


@contextlib.contextmanager
def new_folder(path: Path, *, private: bool = False) -> Iterator[Path]:
    """Build a folder under a temporary name; it appears under ``path`` only if the block succeeds."""
    refuse_existing(path)
    make_parent(path)
    temporary = _temporary_sibling(path)
    temporary.mkdir(mode=PRIVATE_FOLDER_MODE if private else 0o777)
    try:
        yield temporary
        refuse_existing(path)
        temporary.rename(path)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    _sync_folder(path.parent)


def make_parent(path: Path) -> None:
    """Create the folder that ``path`` will be in, with one clear sentence where that is impossible."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise InputError(
            f"Cannot create the folder {path.parent} ({problem.strerror}); choose another output."
        ) from None


def write_json(path: Path, content: Any, *, private: bool = False, overwrite: bool = False) -> None:
    """Write JSON that two runs with the same content write byte for byte alike."""
    text = json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    with new_file(path, private=private, overwrite=overwrite) as handle:
        handle.write(text.encode())


def sha256_of(path: Path) -> str:
    """SHA-256 of a file, as lower-case hex, in constant memory."""
    digest = hashlib.sha256()
    with path.open("rb") as handle:
        while chunk := handle.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()
