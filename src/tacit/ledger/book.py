"""How a ledger is kept: chained entries in a store, written in transactions, remembered by an anchor.

After a failure of the store nothing more is written: what it holds is only known after opening it anew.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import threading
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Self

from tacit.errors import InputError, LedgerUnavailable, RolledBack
from tacit.ledger.anchor import Anchor, Position
from tacit.ledger.decisions import new_entry
from tacit.ledger.entries import Entry, packed
from tacit.ledger.opening import check_tables
from tacit.ledger.store import Store, open_store


class Book:
    """An open book of entries, one chain per domain; nobody else can write to it meanwhile."""

    def __init__(self, store: Store, anchor: Path | None = None, *, new_anchor: bool = False) -> None:
        self.store = store
        self._broken = self._changed = False
        self._anchoring = threading.Lock()
        name = self.secret("ledger").hex()[:32]
        self.anchor = Anchor(anchor or _usual_anchor(store, name), name)
        self._check(new_anchor=new_anchor)

    @classmethod
    def open(
        cls, url: str, *, anchor: Path | None = None, create: bool = False, new_anchor: bool = False
    ) -> Self:
        """Open the ledger at a path or PostgreSQL URL; refused where it is older than its anchor.

        ``new_anchor`` begins a new one where the anchor is lost; the ledger's entries say so ever after.
        """
        store = open_store(url, create=create)
        try:
            return cls(store, anchor, new_anchor=new_anchor)
        except BaseException:
            store.discard()
            store.close()
            raise

    def close(self) -> None:
        """Write the anchor, if anything has changed, and let go."""
        try:
            if self._changed and not self._broken:
                self.check_place()
                self._remember()
        finally:
            self.store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """One transaction. After a failure of the store nothing more is written: it must be opened anew."""
        self.check_place()
        try:
            with self.store.transaction():
                self._changed = True
                yield
        except LedgerUnavailable:
            self._broken = True
            raise
        self.check_place()  # or it is durable in a file that has no name any more

    def check_place(self) -> None:
        """Refuse to go on where the ledger's files have been removed or replaced: what they hold is lost."""
        self._refuse_if_broken()
        if self.store.in_place:
            return
        self._remember()  # they can still be read: an older copy that takes their place must not open
        self._broken = True
        raise LedgerUnavailable(
            f"{self.store.name} was removed or replaced, or its log was; nothing was released. Put the files "
            "back: without them the honest remedy is to count the budget as spent."
        )

    def _refuse_if_broken(self) -> None:
        if self._broken:
            raise LedgerUnavailable(f"{self.store.name} failed before; restart to open it again.")

    def secret(self, name: str) -> bytes:
        """A random value that this ledger has for a purpose; made when it is first asked for."""
        found = self.store.run("SELECT value FROM secret WHERE name = ?", (name,))
        if found:
            return bytes(found[0][0])
        value = secrets.token_bytes(32)
        with self.store.transaction():
            self.store.run("INSERT INTO secret (name, value) VALUES (?, ?)", (name, value))
        return value

    def positions(self) -> dict[str, Position]:
        """Where each domain's chain ends."""
        return {
            str(row[0]): Position(int(row[1]), bytes(row[2]))
            for row in self.store.run("SELECT domain, seq, hash FROM head")
        }

    def _lock(self, domain: str) -> None:
        if not self.store.run(f"SELECT 1 FROM head WHERE domain = ?{self.store.lock}", (domain,)):  # noqa: S608
            raise InputError(f"The ledger has no domain {domain}; see tacit ledger status.")

    def _append(self, domain: str, entries: Iterable[Entry]) -> None:
        """Number and chain entries behind the last one, and move the head."""
        seq, digest, stopped = self.store.run(
            "SELECT seq, hash, stopped FROM head WHERE domain = ?", (domain,)
        )[0]
        rows, answered = [], {"token": 0, "public": 0}
        for entry in entries:
            seq += 1
            if entry.kind in answered:
                answered[entry.kind] += 1
            numbered = replace(entry, seq=seq)
            digest = numbered.hash_after(bytes(digest))
            stopped = seq if entry.kind == "stop" else stopped
            rows.append(
                (
                    domain,
                    seq,
                    numbered.kind,
                    numbered.made,
                    numbered.request,
                    numbered.step,
                    numbered.tenant,
                    numbered.token,
                    packed(numbered.charges),
                    numbered.note,
                    digest,
                )
            )
        self.store.run_many("INSERT INTO entry VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", rows)
        self.store.run(
            "UPDATE head SET seq = ?, hash = ?, stopped = ?, private = private + ?, public = public + ? "
            "WHERE domain = ?",
            (seq, digest, stopped, answered["token"], answered["public"], domain),
        )

    def _remember(self) -> None:
        """Write the anchor; where that fails, nothing more is charged."""
        self._refuse_if_broken()
        try:
            with self._anchoring:  # or an older position could be written over a newer one
                self.anchor.write(self.positions())
        except LedgerUnavailable:
            self._broken = True
            raise

    def _check(self, *, new_anchor: bool) -> None:
        """Refuse a ledger that is older than its anchor, or whose tables are not what its chains say."""
        for name in ("corpus", "people", "idempotency"):
            self.secret(name)  # made now, and not by two first requests at once
        positions = self.positions()
        check_tables(self.store, positions)
        remembered = self.anchor.read()
        if remembered is None and positions:
            if not new_anchor:
                raise RolledBack(
                    f"The anchor {self.anchor.path} is missing, and without it an older copy of the ledger "
                    "cannot be told from the newest; restore it or give --anchor. If this is the newest "
                    "ledger and its anchor is lost, begin another with tacit ledger new-anchor."
                )
            with self.writing():
                for domain in positions:
                    parts = self.store.run("SELECT parts FROM domain WHERE id = ?", (domain,))[0][0]
                    self._append(domain, [new_entry(domain, "anchor", parts, "a new anchor was begun")])
        for domain, position in (remembered or {}).items():
            row = self.store.run(
                "SELECT hash FROM entry WHERE domain = ? AND seq = ?", (domain, position.seq)
            )
            self.anchor.check(domain, position, bytes(row[0][0]) if row else None)
        self._remember()


def default_ledger() -> str:
    """The ledger of this machine: ``TACIT_LEDGER``, or a file among the user's own data."""
    return os.environ.get("TACIT_LEDGER") or str(_data_folder() / "ledger.db")


def _usual_anchor(store: Store, ledger: str) -> Path:
    """In the folder ``TACIT_ANCHORS`` under the ledger's id; else beside a file, or among the user's data."""
    if folder := os.environ.get("TACIT_ANCHORS"):
        return Path(folder).expanduser() / f"{ledger}.anchor"
    return store.beside or _data_folder() / f"{ledger}.anchor"


def _data_folder() -> Path:
    # Not the cache, where downloads go: caches are emptied.
    if home := os.environ.get("TACIT_HOME"):
        return Path(home)
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "tacit"
