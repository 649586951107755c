"""Where a ledger is kept: one connection with plain SQL, to SQLite or to PostgreSQL.

Statements are written once, with ``?`` for values. What differs between the two is here: how a transaction
begins, what makes its end durable, how a second writer is kept away, and whose errors are raised.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, Protocol

from tacit.errors import InputError

Row = tuple[Any, ...]


class Store(Protocol):
    """One connection, which holds the ledger for itself."""

    name: str  # where it is, without a password
    lock: str  # what to add to a SELECT that must hold its row until the transaction ends
    dialect: str  # whose migrations

    def run(self, statement: str, values: Sequence[object] = ()) -> list[Row]:
        """Run one statement; its rows, where it has some."""
        ...

    def run_many(self, statement: str, rows: Sequence[Sequence[object]]) -> None:
        """Run one statement for every row of values."""
        ...

    def stream(self, statement: str, values: Sequence[object] = ()) -> Iterator[Row]:
        """Rows of a long result, a few at a time."""
        ...

    def script(self, statements: str) -> None:
        """Run several statements."""
        ...

    def transaction(self) -> contextlib.AbstractContextManager[None]:
        """All or nothing; durable once the block has ended without an error."""
        ...

    def durability(self) -> dict[str, str]:
        """The settings that durability rests on, as they are now."""
        ...

    def backup(self, path: Path) -> None:
        """Write a consistent copy to a new file."""
        ...

    def close(self) -> None:
        """Let go of the ledger."""
        ...


def open_store(url: str, *, create: bool = False) -> Store:
    """The store that a path or a ``postgresql://`` URL names; ``create`` makes one where there is none."""
    if url.startswith(("postgresql://", "postgres://")):
        from tacit.ledger.postgres_store import PostgresStore

        store: Store = PostgresStore(url)
    elif "://" in url:
        raise InputError(f"{url.split('://')[0]}:// is no ledger; give a file or a postgresql:// URL.")
    else:
        from tacit.ledger.sqlite_store import SQLiteStore

        store = SQLiteStore(Path(url).expanduser(), create=create)
    try:
        _migrate(store, create=create)
    except BaseException:
        store.close()
        raise
    return store


def _migrate(store: Store, *, create: bool) -> None:
    """Apply the numbered migrations that are missing, each in a transaction of its own."""
    known = _migrations(store.dialect)
    with store.transaction():
        store.run(
            "CREATE TABLE IF NOT EXISTS migration (number BIGINT PRIMARY KEY, name TEXT NOT NULL, "
            "sha256 TEXT NOT NULL)"
        )
    applied = {int(row[0]): str(row[1]) for row in store.run("SELECT number, sha256 FROM migration")}
    if not applied and not create:
        raise InputError(f"{store.name} holds no ledger yet; make one with tacit ledger init.")
    newest = max(number for number, _, _ in known)
    if applied and max(applied) > newest:
        raise InputError(f"{store.name} was written by a newer tacit; upgrade this one.")
    for number, name, text in known:
        digest = hashlib.sha256(text.encode()).hexdigest()
        if number in applied:
            if applied[number] != digest:
                raise InputError(f"{store.name}: migration {name} is not the one that this tacit has.")
            continue
        with store.transaction():
            store.script(text)
            store.run("INSERT INTO migration VALUES (?, ?, ?)", (number, name, digest))


def _migrations(dialect: str) -> list[tuple[int, str, str]]:
    folder = resources.files("tacit.ledger") / "migrations" / dialect
    files = sorted(file.name for file in folder.iterdir() if file.name.endswith(".sql"))
    return [(int(name.split("_")[0]), name, (folder / name).read_text("utf-8")) for name in files]
