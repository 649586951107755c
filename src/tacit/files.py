"""Writing files so that nothing is ever half-written, and private ones so that nobody else reads them.

Every output is built under a temporary name beside its destination and renamed when it is whole: a
reader sees the old state or the new one, a crash leaves at most a temporary name behind.
"""

from __future__ import annotations

import contextlib
import errno
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
_DISK = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT, errno.EIO, errno.EROFS)


def refuse_existing(path: Path) -> Path:
    """Refuse an output that exists: tacit never overwrites what it did not just make."""
    if path.exists() or path.is_symlink():
        raise OutputExists(f"{path} exists already; choose another name or remove it first.")
    return path


def _temporary_sibling(path: Path) -> Path:
    # In the same folder, because a rename is atomic only within one file system.
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")


def sync(path: Path) -> None:
    """Bring a file, or the names in a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_tree(folder: Path) -> None:
    """Bring a folder and all that is in it to the disk, so that a later rename cannot overtake it."""
    for path in folder.rglob("*"):
        if not path.is_symlink():
            sync(path)
    sync(folder)


@contextlib.contextmanager
def new_file(path: Path, *, private: bool = False, overwrite: bool = False) -> Iterator[IO[bytes]]:
    """Open ``path`` for writing; it appears, complete and synced, only if the block succeeds."""
    if not overwrite:
        refuse_existing(path)
    make_parent(path)
    temporary = _temporary_sibling(path)
    mode = PRIVATE_FILE_MODE if private else 0o666
    try:
        # The mode is given at creation: a chmod afterwards would leave a moment in which others can read.
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    except OSError as problem:
        raise InputError(f"Cannot create {path} ({problem.strerror}); choose another output.") from None
    try:
        with os.fdopen(descriptor, "wb") as handle:
            yield handle
            handle.flush()
            os.fsync(handle.fileno())
        temporary.replace(path)
    except BaseException as problem:
        temporary.unlink(missing_ok=True)
        name_in(problem, path)
        raise
    sync(path.parent)


def name_in(problem: BaseException, path: Path) -> None:
    """Tell a full disk which file it stopped: a write does not know its own."""
    if isinstance(problem, OSError) and problem.filename is None and problem.errno in _DISK:
        problem.filename = str(path)


@contextlib.contextmanager
def new_folder(path: Path, *, private: bool = False, called: Path | None = None) -> Iterator[Path]:
    """Build a folder under a temporary name; it appears, complete and synced, only if the block succeeds.

    Where it cannot be created, the sentence says ``called``: the name that the person gave, if not ``path``.
    """
    refuse_existing(path)
    make_parent(path)
    temporary = _temporary_sibling(path)
    try:
        temporary.mkdir(mode=PRIVATE_FOLDER_MODE if private else 0o777)
    except OSError as problem:
        raise InputError(
            f"Cannot create {called or path} ({problem.strerror}); choose another output."
        ) from None
    try:
        yield temporary
        sync_tree(temporary)
        name_folder(temporary, path)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def name_folder(folder: Path, path: Path) -> None:
    """Give a finished folder its name; the name is on the disk when this returns."""
    refuse_existing(path)
    folder.rename(path)
    sync(path.parent)


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


def read_json(path: Path, remedy: str) -> dict[str, Any]:
    """A JSON object that tacit wrote; where it is missing or damaged, one sentence ending in ``remedy``."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{path} is missing; {remedy}.") from None
    except (ValueError, RecursionError):  # not JSON, or not UTF-8
        raise InputError(f"{path} is damaged: it is not valid JSON; {remedy}.") from None
    if not isinstance(content, dict):
        raise InputError(f"{path} is damaged: it does not hold a JSON object; {remedy}.")
    return content


def sha256_of(path: Path) -> str:
    """SHA-256 of a file, as lower-case hex, in constant memory."""
    digest = hashlib.sha256()
    with path.open("rb") as handle:
        while chunk := handle.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()
