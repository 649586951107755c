"""A ledger in PostgreSQL: a schema of its own, one session that holds it, commits that wait for the disk.

Asynchronous commit, or a replica that takes over without having seen the last commits, gives spent budget
back. The first is refused here. The second only the cluster's settings can rule out: use quorum
``synchronous_standby_names`` where there are replicas.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tacit.errors import EnvironmentProblem, InputError, LedgerBusy, LedgerUnavailable, MissingExtra
from tacit.ledger.store import Row

try:
    import psycopg
except ImportError:  # pragma: no cover - the extra is there in every test
    raise MissingExtra("A ledger in PostgreSQL", "postgres") from None

_SCHEMA = "tacit"
# Any number that nothing else in the database locks.
_LOCK = int.from_bytes(hashlib.sha256(b"tacit ledger").digest()[:7])
_PAGE = 1000


class PostgresStore:
    """One session, which holds an advisory lock for as long as it lives."""

    lock = " FOR UPDATE"
    dialect = "postgres"

    def __init__(self, url: str) -> None:
        place = urlsplit(url)
        self.name = f"postgresql://{place.hostname or ''}{place.path}"
        try:
            self._connection = psycopg.connect(url, autocommit=True, application_name="tacit ledger")
        except psycopg.Error as problem:
            reason = str(problem).strip().splitlines()[-1] if str(problem).strip() else "no answer"
            raise LedgerUnavailable(f"{self.name}: {reason}; check the URL and the server.") from None
        try:
            with self._errors():
                self._claim()
        except BaseException:
            self.close()
            raise

    def _claim(self) -> None:
        found = self.durability()
        if found["synchronous_commit"] in ("off", "local") or found["fsync"] != "on":
            raise EnvironmentProblem(
                f"{self.name}: synchronous_commit is {found['synchronous_commit']} and fsync is "
                f"{found['fsync']}, so that committed charges can be lost; set both to on."
            )
        if not self.run("SELECT pg_try_advisory_lock(?)", (_LOCK,))[0][0]:
            raise LedgerBusy(
                f"{self.name} is in use by another process; ask that server's admin port, or stop it first."
            )
        self.run(f"CREATE SCHEMA IF NOT EXISTS {_SCHEMA}")
        self.run(f"SET search_path TO {_SCHEMA}")

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except psycopg.Error as problem:
            # A connection lost during COMMIT may have committed: it counts as charged, and nothing leaves.
            reason = (
                str(problem).strip().splitlines()[0] if str(problem).strip() else "the connection is lost"
            )
            raise LedgerUnavailable(f"{self.name}: {reason}; nothing was released.") from None

    def run(self, statement: str, values: Sequence[object] = ()) -> list[Row]:
        """Run one statement."""
        with self._errors():
            cursor = self._connection.execute(_percent(statement), tuple(values) or None)
            return cursor.fetchall() if cursor.description else []

    def run_many(self, statement: str, rows: Sequence[Sequence[object]]) -> None:
        """Run one statement for every row of values, in one pipeline."""
        with self._errors(), self._connection.cursor() as cursor:
            cursor.executemany(_percent(statement), [tuple(row) for row in rows])

    def stream(self, statement: str, values: Sequence[object] = ()) -> Iterator[Row]:
        """Rows of a long result, through a cursor on the server."""
        with self._errors(), self._connection.transaction(), self._connection.cursor("stream") as cursor:
            cursor.itersize = _PAGE
            cursor.execute(_percent(statement), tuple(values) or None)
            yield from cursor

    def script(self, statements: str) -> None:
        """Run several statements."""
        with self._errors():
            self._connection.execute(statements.encode())

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """BEGIN to COMMIT; the commit returns when it is on the disk, and on the replicas that count."""
        with self._errors(), self._connection.transaction():
            yield

    def durability(self) -> dict[str, str]:
        """What durability rests on."""
        names = ("server_version", "synchronous_commit", "fsync", "synchronous_standby_names")
        found: dict[str, str] = {name: str(self.run(f"SHOW {name}")[0][0]) for name in names}
        return {"store": f"PostgreSQL {found.pop('server_version')}"} | found

    def backup(self, path: Path) -> None:
        """PostgreSQL has its own tools for that."""
        raise InputError(f"{self.name}: back a PostgreSQL ledger up with pg_dump --schema={_SCHEMA}.")

    def close(self) -> None:
        """End the session, and with it the lock."""
        self._connection.close()


def _percent(statement: str) -> Any:
    return statement.replace("?", "%s").encode()
