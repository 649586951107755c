"""Reading a whole ledger again: every hash, every number, every sum."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tacit.errors import Tampered
from tacit.ledger.entries import GENESIS, Entry, unpacked
from tacit.ledger.ledger import Ledger
from tacit.progress import Progress, Silent

_PAGE = 1000


@dataclass(frozen=True)
class Verified:
    """What was found to be in order."""

    domain: str
    entries: int
    head: str


def verify(ledger: Ledger, domain: str, progress: Progress | None = None) -> Verified:
    """Check one domain from its first entry to its head; `Tampered` names the first entry that is wrong.

    Numbers without a gap, every hash over the one before, terms, models and balances equal to what the
    entries add up to, no private answer after a stop (what else is released may still be booked). Answers
    may go on meanwhile. A chain that was rewritten as a whole is found by the anchor only.
    """
    progress = progress or Silent()
    ledger.domain(domain)
    progress.phase(f"verifying {domain}", ledger.balance(domain).entries)
    check = _Check(domain)
    while page := list(_page(ledger, domain, check.entries)):
        for entry, stored in page:
            check.take(entry, stored)
        progress.advance(len(page))
    with ledger.store.transaction():  # what came in the meantime, and then nothing until all is compared
        for entry, stored in _page(ledger, domain, check.entries, most=1_000_000):
            check.take(entry, stored)
        check.compare(ledger)
    return Verified(domain, check.entries, check.digest.hex())


def _page(ledger: Ledger, domain: str, first: int, most: int = _PAGE) -> Iterator[tuple[Entry, bytes]]:
    for row in ledger.store.run(
        "SELECT seq, kind, made, request, step, tenant, token, charges, note, hash FROM entry "
        "WHERE domain = ? AND seq >= ? ORDER BY seq LIMIT ?",
        (domain, first, most),
    ):
        entry = Entry(
            domain=domain,
            seq=int(row[0]),
            kind=row[1],
            made=row[2],
            request=row[3],
            step=row[4],
            tenant=row[5],
            token=row[6],
            charges=unpacked(bytes(row[7])),
            note=row[8],
        )
        yield entry, bytes(row[9])


class _Check:
    """What the entries so far add up to."""

    def __init__(self, domain: str) -> None:
        self._domain = domain
        self.entries = 0
        self.digest = GENESIS
        self._terms: dict[str, Any] = {}
        self._models: dict[str, tuple[str, int]] = {}  # by fingerprint: partition, entry
        self._people: dict[str, str] = {}  # by fingerprint: digest of their hashes
        self._spent: list[int] = []
        self._stopped: int | None = None
        self._answers = {"token": 0, "public": 0}

    def take(self, entry: Entry, stored: bytes) -> None:
        """Add one entry, or say what is wrong with it."""
        if entry.seq != self.entries:
            raise self._wrong(self.entries, "is missing")
        self.digest = entry.hash_after(self.digest)
        if self.digest != stored:
            raise self._wrong(entry.seq, "does not match its hash")
        if (entry.kind == "terms") != (entry.seq == 0):
            raise self._wrong(entry.seq, "has the terms in the wrong place")
        try:
            self._apply(entry)
        except (KeyError, TypeError, ValueError):
            raise self._wrong(entry.seq, "cannot be read") from None
        self.entries += 1

    def _apply(self, entry: Entry) -> None:
        if entry.kind in ("terms", "repartition"):
            said = json.loads(entry.note)
            carried = max(self._spent, default=0)
            if entry.kind == "repartition" and said.pop("carried") != carried:
                raise self._wrong(entry.seq, "carries another sum than was spent")
            self._terms |= said
            self._spent = [carried] * int(said["parts"])
        elif entry.kind == "model":
            said = json.loads(entry.note)
            self._models[said["fingerprint"]] = (said["partition"], entry.seq)
        elif entry.kind == "people":
            said = json.loads(entry.note)
            self._people[said["fingerprint"]] = said["people"]
        elif entry.kind == "stop":
            if self._stopped is not None:
                raise self._wrong(entry.seq, "stops a second time")
            self._stopped = entry.seq
        elif entry.kind in self._answers:
            self._answers[entry.kind] += 1
            if (entry.kind == "token") == (self._stopped is not None):
                raise self._wrong(entry.seq, "answers against the stop")
        if len(entry.charges) != len(self._spent) or min(entry.charges) < 0:
            raise self._wrong(entry.seq, "does not charge every part")
        if any(entry.charges) and entry.kind not in ("token", "training"):
            raise self._wrong(entry.seq, "charges what must be free")
        self._spent = [spent + charge for spent, charge in zip(self._spent, entry.charges, strict=True)]
        if max(self._spent) > self._terms["budget"]:
            raise self._wrong(entry.seq, "passes the budget")

    def compare(self, ledger: Ledger) -> None:
        """The tables beside the chain say what the chain says."""
        account, balance = ledger.domain(self._domain), ledger.balance(self._domain)
        head = ledger.store.run("SELECT seq, hash, stopped FROM head WHERE domain = ?", (self._domain,))[0]
        if (int(head[0]), bytes(head[1]), head[2]) != (self.entries - 1, self.digest, self._stopped):
            raise Tampered(f"The head of domain {self._domain} is not the end of its chain.")
        if (balance.private_answers, balance.public_answers) != tuple(self._answers.values()):
            raise Tampered(f"The answers of domain {self._domain} are not as many as its entries.")
        if list(balance.spent) != self._spent or set(balance.budget) != {self._terms["budget"]}:
            raise Tampered(f"The balances of domain {self._domain} are not what its entries add up to.")
        if any(balance.leased):
            raise Tampered(f"Domain {self._domain} has leases that no entry speaks of.")
        names = ("parts", "partition", "order", "mechanism", "unit")
        if any(self._terms[name] != getattr(account, name) for name in names):
            raise Tampered(f"The terms of domain {self._domain} are not those of its entries.")
        rows = ledger.store.run(
            "SELECT fingerprint, partitioning, attached FROM model WHERE domain = ?", (self._domain,)
        )
        if {row[0]: (row[1], row[2]) for row in rows} != self._models:
            raise Tampered(f"The models of domain {self._domain} are not those of its entries.")
        if ledger.people.digests(self._domain) != self._people:
            raise Tampered(f"The people of domain {self._domain} are not those of its entries.")

    def _wrong(self, seq: int, what: str) -> Tampered:
        return Tampered(f"Entry {seq} of domain {self._domain} {what}: the ledger has been altered.")
