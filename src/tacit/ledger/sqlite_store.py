"""A ledger in one SQLite file: WAL, synchronous=FULL, and one connection that keeps everybody else out.

SQLite from 3.7.0 to 3.51.2 can lose a committed transaction when a checkpoint races a write of another
connection ("WAL-reset bug"). For a ledger that is budget given back. There is one connection here and it
locks the file, which alone avoids the race; a library with the bug is refused all the same. apsw brings its
own SQLite, Python's is often old.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import tempfile
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path

import apsw

from tacit.errors import EnvironmentProblem, InputError, LedgerBusy, LedgerRefused, LedgerUnavailable
from tacit.files import PRIVATE_FILE_MODE, make_parent, refuse_existing, sync
from tacit.ledger.store import Row

_FIXED = (3, 51, 3)
_BACKPORTED = {(3, 44): 6, (3, 50): 7}
_APPLICATION = 0x7AC17  # written into the file, so that nobody else's database is taken for a ledger
_Identity = tuple[int, int]  # device and inode
_BUSY = "is in use by another process; ask that server's admin port, or stop it first"


def has_wal_reset_bug(version: str) -> bool:
    """Whether this SQLite can lose a committed transaction in WAL mode."""
    major, minor, patch, *_ = (*(int(part) for part in version.split(".")), 0, 0)
    if (major, minor) in _BACKPORTED:
        return patch < _BACKPORTED[major, minor]
    return (3, 7, 0) <= (major, minor, patch) < _FIXED


def check_version(version: str) -> None:
    """Refuse a SQLite that can lose what was charged."""
    if has_wal_reset_bug(version):
        raise EnvironmentProblem(
            f"SQLite {version} can lose a committed charge (the WAL-reset bug, mended in 3.51.3); bring a "
            "newer one with pip install --upgrade apsw."
        )


class SQLiteConnection:
    """One exclusive connection, for one process."""

    lock = ""
    dialect = "sqlite"

    def __init__(self, path: Path, *, create: bool = False) -> None:
        check_version(apsw.sqlite_lib_version())
        self.name = str(path)
        self.beside: Path | None = path.with_name(path.name + ".anchor")
        self._owner = os.getpid()
        self._connection: apsw.Connection | None = None
        self._claim: int | None = None
        self._made = False
        self._files: dict[Path, _Identity | None] = {}
        _LIVING.add(self)
        try:
            if create and not path.exists():
                self._make(path)
            if not path.is_file():
                raise InputError(f"{path} is no ledger; make one with tacit ledger init, or give --ledger.")
            with self._errors():
                self._connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)
            if self.has_ledger():
                self._settle()
        except BaseException:
            self.discard()
            self.close()
            raise

    def _make(self, path: Path) -> None:
        """A new file, locked from before it is there: so nobody else can have used it when it is removed."""
        make_parent(path)
        self._claim = _claimed(path)
        try:
            # Made with its mode: SQLite gives the same to the files it adds beside it.
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, PRIVATE_FILE_MODE))
        except FileExistsError:
            return  # another process was faster; the ledger is its own
        self._made = True
        sync(path.parent)

    def _settle(self) -> None:
        """Lock the file and write through; not before it is known to be a ledger, or about to be one."""
        if self._claim is None:
            self._claim = _claimed(Path(self.name))
        with self._errors():
            for setting in (
                "locking_mode = EXCLUSIVE",
                "journal_mode = WAL",
                "synchronous = FULL",
                "fullfsync = ON",
                "foreign_keys = ON",
                "recursive_triggers = ON",  # or REPLACE would remove rows behind the triggers' back
                f"application_id = {_APPLICATION}",
            ):
                self._open.execute(f"PRAGMA {setting}")
            self._open.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
            self._open.execute("BEGIN EXCLUSIVE")  # the lock is taken by the first access, and kept
            self._open.execute("COMMIT")
        found = self.durability()
        if (found["journal_mode"], found["synchronous"]) != ("wal", "full"):
            raise EnvironmentProblem(
                f"{self.name}: the disk does not let SQLite write durably (journal "
                f"{found['journal_mode']}); put the ledger on a local disk."
            )
        Path(self.name).chmod(PRIVATE_FILE_MODE)
        self._files = {path: _identity(path) for path in (Path(self.name), Path(self.name + "-wal"))}
        if self._has_moved() or None in self._files.values():
            raise LedgerUnavailable(f"{self.name} was removed or replaced while it was opened; put it back.")

    def _has_moved(self) -> bool:
        """Whether the file that SQLite opened is another one than that at its path."""
        moved = ctypes.c_int()
        with self._errors():
            self._open.file_control("main", apsw.SQLITE_FCNTL_HAS_MOVED, ctypes.addressof(moved))
        return bool(moved.value)

    @property
    def in_place(self) -> bool:
        """Whether the file and its log are still what their paths lead to."""
        return bool(self._files) and all(_identity(path) == known for path, known in self._files.items())

    @property
    def _open(self) -> apsw.Connection:
        if self._connection is None:
            raise LedgerUnavailable(f"{self.name} is not open.")
        return self._connection

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        if os.getpid() != self._owner:  # locks do not survive a fork, and the connection would be shared
            raise LedgerUnavailable(f"{self.name} was opened by another process; open it in this one.")
        try:
            yield
        except apsw.BusyError:
            raise LedgerBusy(f"{self.name} {_BUSY}.") from None
        except apsw.NotADBError:
            raise InputError(f"{self.name} is not a ledger; give another file.") from None
        except apsw.ConstraintError as problem:
            raise LedgerRefused(f"{self.name}: {problem}; nothing was booked.") from None
        except apsw.Error as problem:
            # Whatever it is, nothing has been committed that anybody may rely on: no private token.
            raise LedgerUnavailable(f"{self.name}: {problem}; nothing was released.") from None

    def has_ledger(self) -> bool:
        """Whether the file holds a ledger."""
        return bool(self.run("PRAGMA application_id")[0][0] == _APPLICATION)

    def prepare(self) -> None:
        """Take an empty file; somebody else's database is left alone."""
        if self.run("SELECT 1 FROM sqlite_master"):
            raise InputError(f"{self.name} is another database; give another file.")
        self._settle()

    def run(self, statement: str, values: Sequence[object] = ()) -> list[Row]:
        """Run one statement."""
        with self._errors():
            return list(self._open.execute(statement, tuple(values)))

    def run_many(self, statement: str, rows: Sequence[Sequence[object]]) -> None:
        """Run one statement for every row of values."""
        with self._errors():
            self._open.executemany(statement, [tuple(row) for row in rows])

    def script(self, statements: str) -> None:
        """Run several statements."""
        with self._errors():
            list(self._open.execute(statements))

    def begin(self) -> None:
        """BEGIN IMMEDIATE."""
        self.run("BEGIN IMMEDIATE")

    def commit(self) -> None:
        """COMMIT, which returns when the write-ahead log is on the disk."""
        self.run("COMMIT")

    def rollback(self) -> None:
        """What SQLite has not undone by itself must not become part of the next transaction."""
        with contextlib.suppress(apsw.Error):
            if os.getpid() == self._owner and self._open.in_transaction:
                self._open.execute("ROLLBACK")

    def durability(self) -> dict[str, str]:
        """What durability rests on."""
        journal, synchronous, locking = (
            self.run(f"PRAGMA {name}")[0][0] for name in ("journal_mode", "synchronous", "locking_mode")
        )
        levels = {0: "off", 1: "normal", 2: "full", 3: "extra"}
        return {
            "store": f"SQLite {apsw.sqlite_lib_version()}",
            "journal_mode": str(journal),
            "synchronous": levels[int(synchronous)],
            "locking_mode": str(locking),
        }

    def backup(self, path: Path) -> None:
        """SQLite's own copy, which is one file and whole."""
        refuse_existing(path)
        make_parent(path)
        with self._errors():
            try:
                self._copy(path)
            except (OSError, apsw.Error) as problem:  # of the copy: the ledger itself has not failed
                reason = (problem.strerror if isinstance(problem, OSError) else None) or problem
                raise EnvironmentProblem(
                    f"{self.name} cannot be copied to {path} ({reason}); make room or choose another place."
                ) from None

    def _copy(self, path: Path) -> None:
        # Under another name until it is whole: a killed backup must not look like one.
        with tempfile.TemporaryDirectory(prefix=f".{path.name}-", dir=path.parent) as place:
            partial = Path(place) / path.name
            os.close(os.open(partial, os.O_RDWR | os.O_CREAT | os.O_EXCL, PRIVATE_FILE_MODE))
            copy = apsw.Connection(str(partial))
            try:
                with copy.backup("main", self._open, "main") as running:
                    running.step()
            finally:
                copy.close()
            sync(partial)
            refuse_existing(path)
            partial.rename(path)
        sync(path.parent)

    def discard(self) -> None:
        """Remove the files again, if this connection made them."""
        if self._made and self._claim is not None and os.getpid() == self._owner:
            for ending in ("", "-wal", "-shm", ".lock"):  # the lock last: it is held until it has gone
                Path(self.name + ending).unlink(missing_ok=True)
            self._made = False

    def close(self) -> None:
        """Let go of the file."""
        if os.getpid() == self._owner and self._connection is not None:
            self._connection.close(force=True)
        if self._claim is not None:
            os.close(self._claim)
            self._claim = None


_LIVING: weakref.WeakSet[SQLiteConnection] = weakref.WeakSet()


def _abandon_in_child() -> None:
    """A forked child must never close its copy: SQLite would remove the log that the parent writes to."""
    for living in list(_LIVING):
        if living._connection is not None:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(living._connection))  # so that nothing destroys it
        if living._claim is not None:
            os.close(living._claim)  # or the lock would outlive the parent
            living._claim = None


os.register_at_fork(after_in_child=_abandon_in_child)


def _claimed(path: Path) -> int:
    """A lock of our own beside SQLite's, which is lost when anything in the process closes the file."""
    place = path.with_name(path.name + ".lock")
    while True:
        lock = os.open(place, os.O_RDWR | os.O_CREAT, PRIVATE_FILE_MODE)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _identity(place) == _identity_of(os.fstat(lock)):
                return lock
        except BlockingIOError:
            os.close(lock)
            raise LedgerBusy(f"{path} {_BUSY}.") from None
        os.close(lock)  # whoever had it has removed it with the ledger: there may be another one by now


def _identity(path: Path) -> _Identity | None:
    """Which file a path leads to; None where that cannot be known."""
    try:
        return _identity_of(path.stat())
    except OSError:
        return None


def _identity_of(found: os.stat_result) -> _Identity:
    return found.st_dev, found.st_ino
