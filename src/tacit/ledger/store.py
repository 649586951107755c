"""Where a ledger is kept: one connection with plain SQL, to SQLite or to PostgreSQL.

Statements are written once, with ``?`` for values. What differs between the two is in their modules: how a
transaction begins, what makes its end durable, how a second writer is kept away, and whose errors are raised.
"""

from __future__ import annotations

import contextlib
import hashlib
import threading
from collections.abc import Iterator, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, Protocol

from tacit.errors import InputError, LedgerUnavailable

Row = tuple[Any, ...]


class Connection(Protocol):
    """What the two databases are asked for. Every error is a `TacitError`."""

    name: str  # where it is, without a password
    lock: str  # what to add to a SELECT that must hold its row until the transaction ends
    dialect: str  # whose migrations
    beside: Path | None  # where an anchor goes by default; None: among the user's own data

    @property
    def in_place(self) -> bool:
        """Whether what is written now will be found where the ledger is."""
        ...

    def run(self, statement: str, values: Sequence[object] = ()) -> list[Row]:
        """Run one statement; its rows, where it has some."""
        ...

    def run_many(self, statement: str, rows: Sequence[Sequence[object]]) -> None:
        """Run one statement for every row of values."""
        ...

    def script(self, statements: str) -> None:
        """Run several statements."""
        ...

    def begin(self) -> None:
        """Begin a transaction."""
        ...

    def commit(self) -> None:
        """End it; returns when it is durable."""
        ...

    def rollback(self) -> None:
        """Undo it, as far as there is one."""
        ...

    def has_ledger(self) -> bool:
        """Whether there is a ledger; nothing is written to find out."""
        ...

    def prepare(self) -> None:
        """Make room for a new ledger."""
        ...

    def durability(self) -> dict[str, str]:
        """The settings that durability rests on, as they are now."""
        ...

    def backup(self, path: Path) -> None:
        """Write a consistent copy to a new file."""
        ...

    def discard(self) -> None:
        """Remove files that were made by opening; nothing else."""
        ...

    def close(self) -> None:
        """Let go of the ledger."""
        ...


class Store:
    """One connection for any number of threads, one transaction at a time.

    A reader waits for the end of a transaction: it never sees what may still be undone.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._mutex = threading.RLock()
        self._open = False
        self.name, self.dialect, self.beside = connection.name, connection.dialect, connection.beside
        self.lock = connection.lock

    @property
    def in_place(self) -> bool:
        """Whether what is written now will be found where the ledger is."""
        return self._connection.in_place

    def run(self, statement: str, values: Sequence[object] = ()) -> list[Row]:
        """Run one statement; its rows, where it has some."""
        with self._mutex:
            return self._connection.run(statement, values)

    def run_many(self, statement: str, rows: Sequence[Sequence[object]]) -> None:
        """Run one statement for every row of values."""
        with self._mutex:
            if rows:
                self._connection.run_many(statement, rows)

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """All or nothing; durable once the block has ended without an error.

        Never within another one: what ends inside would wait for what is outside, and be undone with it.
        """
        with self._mutex:
            if self._open:
                raise LedgerUnavailable(
                    f"{self.name}: a transaction within a transaction; nothing was released."
                )
            self._open = True
            try:
                self._connection.begin()
                yield
                self._connection.commit()
            except BaseException:
                self._connection.rollback()
                raise
            finally:
                self._open = False

    def migrate(self) -> None:
        """Apply the numbered migrations that are missing, each in a transaction of its own."""
        known = _migrations(self.dialect)
        applied = {int(row[0]): str(row[1]) for row in self.run("SELECT number, sha256 FROM migration")}
        if applied and max(applied) > max(number for number, _, _ in known):
            raise InputError(f"{self.name} was written by a newer tacit; upgrade this one.")
        for number, name, text in known:
            digest = hashlib.sha256(text.encode()).hexdigest()
            if number not in applied:
                with self.transaction():
                    self._connection.script(text)
                    self.run("INSERT INTO migration VALUES (?, ?, ?)", (number, name, digest))
            elif applied[number] != digest:
                raise InputError(f"{self.name}: migration {name} is not the one that this tacit has.")

    def durability(self) -> dict[str, str]:
        """The settings that durability rests on, as they are now."""
        with self._mutex:
            return self._connection.durability()

    def backup(self, path: Path) -> None:
        """Write a consistent copy to a new file."""
        with self._mutex:
            self._connection.backup(path)

    def discard(self) -> None:
        """Remove files that were made by opening; nothing else."""
        with self._mutex:
            self._connection.discard()

    def close(self) -> None:
        """Let go of the ledger."""
        with self._mutex:
            self._connection.close()


def open_store(url: str, *, create: bool = False) -> Store:
    """The store that a path or a ``postgresql://`` URL names; ``create`` makes one where there is none."""
    connection: Connection
    if is_postgres(url):
        from tacit.ledger.postgres_store import PostgresConnection

        connection = PostgresConnection(url)
    elif "://" in url:
        raise InputError(f"{url.split('://')[0]}:// is no ledger; give a file or a postgresql:// URL.")
    else:
        from tacit.ledger.sqlite_store import SQLiteConnection

        connection = SQLiteConnection(Path(url).expanduser().resolve(), create=create)
    try:
        if not connection.has_ledger():
            if not create:
                raise InputError(f"{connection.name} holds no ledger; make one with tacit ledger init.")
            connection.prepare()
            connection.run(
                "CREATE TABLE IF NOT EXISTS migration (number BIGINT PRIMARY KEY, name TEXT NOT NULL, "
                "sha256 TEXT NOT NULL)"
            )
        store = Store(connection)
        store.migrate()
    except BaseException:
        connection.discard()
        connection.close()
        raise
    return store


def place_of(url: str) -> str:
    """Where a ledger is, without a password."""
    if not is_postgres(url):
        return url
    from tacit.ledger.postgres_store import place_of as postgres_place_of

    return postgres_place_of(url)


def is_postgres(url: str) -> bool:
    """Whether a ledger's address is a database server's."""
    return url.startswith(("postgresql://", "postgres://"))


def _migrations(dialect: str) -> list[tuple[int, str, str]]:
    folder = resources.files("tacit.ledger") / "migrations" / dialect
    files = sorted(file.name for file in folder.iterdir() if file.name.endswith(".sql"))
    return [(int(name.split("_")[0]), name, (folder / name).read_text("utf-8")) for name in files]
