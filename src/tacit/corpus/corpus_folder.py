"""The folder of a corpus: written whole, entered by its owner only, and removed when it was temporary.

documents.arrow   user code and text (and token ids) of every document, in order
users.arrow       the users, whose positions are the codes
corpus.json       what is true of all of them: the unit, the counts, the fingerprint
lock              of a temporary folder: locked by the process that uses it
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import stat
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Literal, get_args

from tacit.corpus.documents_file import DOCUMENTS, USERS, DocumentsWriter, write_users
from tacit.errors import CorpusError, Tampered
from tacit.files import PRIVATE_FILE_MODE, name_in, new_file, new_folder, write_json

CorpusUnit = Literal["user", "block", "undivided"]

_FACTS = "corpus.json"
_VERSION = 1
_TEMPORARY = "tacit-corpus-"
_LOCK = "lock"


@dataclass(frozen=True)
class CorpusFacts:
    """What is true of a corpus as a whole."""

    version: int
    unit: CorpusUnit
    documents: int
    users: int
    skipped: Mapping[str, int]
    fingerprint: str
    tokenizer_fingerprint: str | None
    screened: bool = False


@dataclass(frozen=True)
class NewCorpus:
    """Documents on their way into a folder, and what they say of themselves.

    ``documents`` gives (user, text, token ids or None) once; ``skipped`` is read when it has been exhausted.
    """

    place: str
    documents: Iterable[tuple[str, str, Sequence[int] | None]]
    unit: CorpusUnit
    skipped: Mapping[str, int]
    tokenizer_fingerprint: str | None = None
    screened: bool = False


class CorpusFolder:
    """A corpus' folder; a temporary one goes with the last object that refers to it.

    ``lock`` is a descriptor of a temporary folder's lock file, open for as long as the folder is in use.
    """

    def __init__(self, path: Path, *, lock: int | None = None) -> None:
        self.path = path
        self.remove: Callable[[], object] = (
            _keep_folder if lock is None else weakref.finalize(self, _remove_folder, path, lock, os.getpid())
        )


def temporary_folder(corpus: NewCorpus, storage: Path | None) -> CorpusFolder:
    """Write a corpus to a temporary folder; nothing is left behind when that fails.

    It lies in ``storage``, by default the system's folder for temporary files. A process that is killed
    cannot remove its own, so what such processes left there is removed first.
    """
    place = Path(tempfile.gettempdir()) if storage is None else storage
    _sweep(place)
    path, lock = _new_locked_folder(place)
    folder = CorpusFolder(path, lock=lock)
    try:
        _write(folder.path, corpus, _passing_file)
    except BaseException:
        folder.remove()
        raise
    return folder


@contextlib.contextmanager
def passing_storage() -> Iterator[Path]:
    """An owner-only folder for copies of text while a block runs.

    It is named and locked like a temporary corpus: if this process is killed, the next one that reads a
    corpus removes it.
    """
    path, lock = _new_locked_folder(Path(tempfile.gettempdir()))
    try:
        yield path
    finally:
        _remove_folder(path, lock, os.getpid())


def _new_locked_folder(place: Path) -> tuple[Path, int]:
    path = Path(tempfile.mkdtemp(prefix=f"{_TEMPORARY}{os.getpid()}-", dir=place))
    lock = _opened_lock(path)
    with contextlib.suppress(OSError):  # a file system without locks; nobody can sweep there either
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return path, lock


def _sweep(place: Path) -> None:
    """Remove this user's temporary corpora whose process is dead."""
    for path in place.glob(f"{_TEMPORARY}*"):
        process = path.name.removeprefix(_TEMPORARY).partition("-")[0]
        with contextlib.suppress(OSError):
            state = path.lstat()
            ours = stat.S_ISDIR(state.st_mode) and state.st_uid == os.getuid()
            if ours and process.isdecimal() and not _is_alive(int(process)) and _is_unlocked(path):
                shutil.rmtree(path, ignore_errors=True)


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        pass
    return True


def _is_unlocked(folder: Path) -> bool:
    """Whether no process uses the folder: one in another container has no number here but has its lock."""
    lock = _opened_lock(folder)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(lock)
    return True


def _opened_lock(folder: Path) -> int:
    return os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, PRIVATE_FILE_MODE)


def lasting_folder(path: Path, corpus: NewCorpus) -> None:
    """Write a corpus to a new folder that stays."""
    with new_folder(path, private=True) as unfinished:
        _write(unfinished, corpus, _durable_file)


def read_facts(folder: Path) -> CorpusFacts:
    """Read what was recorded of the corpus as a whole."""
    path = folder / _FACTS
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as problem:
        raise CorpusError(
            f"{folder} is not a saved corpus ({_FACTS}: {problem.strerror}); give its folder."
        ) from None
    except (ValueError, RecursionError):
        raise Tampered(f"{path} is not JSON; make the corpus again.") from None
    if not isinstance(content, dict) or content.get("version") != _VERSION:
        raise CorpusError(
            f"{path} is not of version {_VERSION}; make the corpus again with this version of tacit."
        )
    try:
        facts = CorpusFacts(**content)
    except TypeError:
        raise Tampered(f"{path} lacks a field or has one too many; make the corpus again.") from None
    if facts.unit not in get_args(CorpusUnit):
        raise Tampered(f"{path} names an unknown unit; make the corpus again.")
    return facts


def _write(folder: Path, corpus: NewCorpus, opened: _Opener) -> None:
    with opened(folder / DOCUMENTS) as handle:
        writer = DocumentsWriter(handle, with_tokens=corpus.unit == "block")
        for user, text, tokens in corpus.documents:
            writer.append(user, text, tokens)
        writer.close()
    if not writer.users:
        skipped = sum(corpus.skipped.values())
        because = f" ({skipped} bad rows were skipped)" if skipped else ""
        raise CorpusError(f"{corpus.place} has no documents{because}; a corpus needs at least one.")
    with opened(folder / USERS) as handle:
        write_users(handle, writer.users)
    facts = CorpusFacts(
        version=_VERSION,
        unit=corpus.unit,
        documents=len(writer.codes),
        users=len(writer.users),
        skipped=dict(sorted(corpus.skipped.items())),
        fingerprint=writer.fingerprint.hexdigest(),
        tokenizer_fingerprint=corpus.tokenizer_fingerprint,
        screened=corpus.screened,
    )
    write_json(folder / _FACTS, asdict(facts), private=True)


_Opener = Callable[[Path], contextlib.AbstractContextManager[IO[bytes]]]


def _durable_file(path: Path) -> contextlib.AbstractContextManager[IO[bytes]]:
    return new_file(path, private=True)


@contextlib.contextmanager
def _passing_file(path: Path) -> Iterator[IO[bytes]]:
    # Not synced: it need not survive a crash, and syncing a gigabyte takes as long as reading it.
    try:
        with os.fdopen(
            os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE_FILE_MODE), "wb"
        ) as handle:
            yield handle
    except OSError as problem:
        name_in(problem, path)
        raise


def _remove_folder(path: Path, lock: int, owner: int) -> None:
    # A forked worker inherits the object; its end must not take the folder from the process that made it.
    os.close(lock)
    if os.getpid() == owner:
        shutil.rmtree(path, ignore_errors=True)


def _keep_folder() -> None:
    """A saved corpus stays."""
