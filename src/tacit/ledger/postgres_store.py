"""A ledger in PostgreSQL: a schema of its own, one session that holds it, commits that wait for the disk.

Asynchronous commit, or a replica that takes over without having seen the last commits, gives spent budget
back. The first is refused here. The second only the cluster's settings can rule out: use quorum
``synchronous_standby_names`` where there are replicas. The session's lock and settings need a session of
their own: connect to the server, or to a pooler in session mode.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tacit.errors import (
    EnvironmentProblem,
    InputError,
    LedgerBusy,
    LedgerRefused,
    LedgerUnavailable,
    MissingExtra,
)
from tacit.ledger.store import Row

try:
    import psycopg
    from psycopg.conninfo import conninfo_to_dict
except ImportError:  # pragma: no cover - the extra is there in every test
    raise MissingExtra("A ledger in PostgreSQL", "postgres") from None

_SCHEMA = "tacit"
# Any number that nothing else in the database locks.
_SECONDS_TO_LEAVE = 2.0  # a closed connection's lock is free when the server has noticed
_LOCK = int.from_bytes(hashlib.sha256(b"tacit ledger").digest()[:7])
# A network that swallows packets must end in an error, not in a server that hangs.
_PATIENCE = {
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 20_000,
}


def place_of(url: str) -> str:
    """Where a URL leads, without user and password."""
    try:
        found = conninfo_to_dict(url)
    except psycopg.Error:
        # Its own message may quote the password.
        raise InputError("The ledger's postgresql:// URL cannot be read; check its spelling.") from None
    port = f":{found['port']}" if found.get("port") else ""
    return f"postgresql://{found.get('host') or 'localhost'}{port}/{found.get('dbname') or ''}"


class PostgresConnection:
    """One session, which holds an advisory lock for as long as it lives."""

    lock = " FOR UPDATE"
    dialect = "postgres"
    beside: Path | None = None
    in_place = True  # or the session would have ended

    def __init__(self, url: str) -> None:
        self.name = place_of(url)
        self._owner = os.getpid()
        self._warnings: list[str] = []
        settings: dict[str, Any] = {"application_name": "tacit ledger"} | _PATIENCE
        try:
            self._connection = psycopg.connect(url, autocommit=True, **settings)
        except psycopg.Error as problem:
            reason = _first_line(problem)
            raise LedgerUnavailable(f"{self.name}: {reason}; check the URL and the server.") from None
        try:
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
        for limit in ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout"):
            self.run(f"SET {limit} TO 0")  # a commit that is cut short may not have reached the replicas
        # The session's own setting, which a reload of the server's does not change.
        self.run(f"SET synchronous_commit TO {found['synchronous_commit']}")
        patience = time.monotonic() + _SECONDS_TO_LEAVE
        while not self.run("SELECT pg_try_advisory_lock(?)", (_LOCK,))[0][0]:
            if time.monotonic() > patience:
                raise LedgerBusy(
                    f"{self.name} is in use by another process; ask that server's admin port, or stop it "
                    "first."
                )
            time.sleep(0.05)
        self.run(f"SET search_path TO {_SCHEMA}")
        self._connection.add_notice_handler(self._noticed)

    def _noticed(self, notice: psycopg.errors.Diagnostic) -> None:
        if notice.severity_nonlocalized == "WARNING":
            self._warnings.append(notice.message_primary or "a warning")

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        if os.getpid() != self._owner:  # a forked child would speak on its parent's line
            raise LedgerUnavailable(f"{self.name} was opened by another process; open it in this one.")
        try:
            yield
        except (psycopg.IntegrityError, psycopg.DataError) as problem:
            raise LedgerRefused(f"{self.name}: {_first_line(problem)}; nothing was booked.") from None
        except psycopg.Error as problem:
            # A connection lost during COMMIT may have committed: it counts as charged, and nothing leaves.
            raise LedgerUnavailable(f"{self.name}: {_first_line(problem)}; nothing was released.") from None

    def has_ledger(self) -> bool:
        """Whether the database has the schema and its tables."""
        return self.run(f"SELECT to_regclass('{_SCHEMA}.migration')")[0][0] is not None

    def prepare(self) -> None:
        """Make the schema; somebody else's is left alone."""
        if self.run("SELECT 1 FROM pg_tables WHERE schemaname = ?", (_SCHEMA,)):
            raise InputError(f"{self.name} has a schema {_SCHEMA} of another kind; give another database.")
        self.run(f"CREATE SCHEMA IF NOT EXISTS {_SCHEMA}")

    def run(self, statement: str, values: Sequence[object] = ()) -> list[Row]:
        """Run one statement."""
        with self._errors():
            cursor = self._connection.execute(_percent(statement), tuple(values) or None)
            return cursor.fetchall() if cursor.description else []

    def run_many(self, statement: str, rows: Sequence[Sequence[object]]) -> None:
        """Run one statement for every row of values, in one pipeline."""
        with self._errors(), self._connection.cursor() as cursor:
            cursor.executemany(_percent(statement), [tuple(row) for row in rows])

    def script(self, statements: str) -> None:
        """Run several statements."""
        with self._errors():
            self._connection.execute(statements.encode())

    def begin(self) -> None:
        """BEGIN."""
        self.run("BEGIN")

    def commit(self) -> None:
        """COMMIT, which returns when it is on the disk, and on the replicas that count."""
        self._warnings.clear()
        with self._errors():
            ended = self._connection.execute("COMMIT").statusmessage
        if self._warnings:  # such as: committed here, and perhaps not on the replicas
            raise LedgerUnavailable(f"{self.name}: {self._warnings[0]}; nothing was released.")
        if ended != "COMMIT":  # PostgreSQL answers COMMIT with ROLLBACK where a statement had failed
            raise LedgerUnavailable(f"{self.name}: the transaction was undone; nothing was released.")

    def rollback(self) -> None:
        """Undo what is open; a lost connection has undone it."""
        with contextlib.suppress(psycopg.Error):
            if self._connection.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
                self._connection.execute("ROLLBACK")

    def durability(self) -> dict[str, str]:
        """What durability rests on."""
        names = ("server_version", "synchronous_commit", "fsync", "synchronous_standby_names")
        found: dict[str, str] = {name: str(self.run(f"SHOW {name}")[0][0]) for name in names}
        return {"store": f"PostgreSQL {found.pop('server_version')}"} | found

    def backup(self, path: Path) -> None:
        """PostgreSQL has its own tools for that."""
        raise InputError(f"{self.name}: back a PostgreSQL ledger up with pg_dump --schema={_SCHEMA}.")

    def discard(self) -> None:
        """Nothing: a schema is the administrator's to remove."""

    def close(self) -> None:
        """End the session, and with it the lock."""
        if os.getpid() == self._owner:
            self._connection.close()


def _first_line(problem: psycopg.Error) -> str:
    said = str(problem).strip()
    return said.splitlines()[0] if said else "the connection is lost"


def _percent(statement: str) -> Any:
    return statement.replace("?", "%s").encode()
