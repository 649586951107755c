"""Reading a whole ledger again: every hash, every number, every sum."""

from __future__ import annotations

import json
from dataclasses import dataclass

from tacit.errors import Tampered
from tacit.ledger.entries import GENESIS, Entry, unpacked
from tacit.ledger.ledger import Balance, Domain, Ledger
from tacit.progress import Progress, Silent

_EVERY = 1000


@dataclass(frozen=True)
class Verified:
    """What was found to be in order."""

    domain: str
    entries: int
    head: str


def verify(ledger: Ledger, domain: str, progress: Progress | None = None) -> Verified:
    """Check one domain from its first entry to its head; `Tampered` names the first entry that is wrong.

    Numbers without a gap, every hash over the one before, terms and balances equal to what the entries add
    up to, nothing charged after a stop. A chain that was rewritten as a whole is found by the anchor only.
    """
    progress = progress or Silent()
    account, balance = ledger.domain(domain), ledger.balance(domain)
    progress.phase(f"verifying {domain}", balance.entries)
    check = _Check(domain)
    for row in ledger.store.stream(
        "SELECT seq, kind, made, request, step, tenant, token, charges, note, hash FROM entry "
        "WHERE domain = ? ORDER BY seq",
        (domain,),
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
        check.take(entry, bytes(row[9]))
        if check.entries % _EVERY == 0:
            progress.advance(_EVERY)
    progress.advance(check.entries % _EVERY)
    check.compare(account, balance, ledger)
    return Verified(domain, check.entries, check.digest.hex())


class _Check:
    def __init__(self, domain: str) -> None:
        self._domain = domain
        self.entries = 0
        self.digest = GENESIS
        self._terms: dict[str, object] = {}
        self._spent: list[int] = []
        self._stopped: int | None = None
        self._answers = {"token": 0, "public": 0}

    def take(self, entry: Entry, stored: bytes) -> None:
        if entry.seq != self.entries:
            raise self._wrong(self.entries, "is missing")
        self.digest = entry.hash_after(self.digest)
        if self.digest != stored:
            raise self._wrong(entry.seq, "does not match its hash")
        if (entry.kind == "terms") != (entry.seq == 0):
            raise self._wrong(entry.seq, "has the terms in the wrong place")
        if entry.kind in ("terms", "repartition"):
            said = json.loads(entry.note)
            self._terms |= {key: said[key] for key in ("parts", "partition")}
            if entry.kind == "terms":
                self._terms |= {key: said[key] for key in ("order", "budget", "neighbours")}
            carried = max(self._spent, default=0)
            if entry.kind == "repartition" and said["carried"] != carried:
                raise self._wrong(entry.seq, "carries another sum than was spent")
            self._spent = [carried] * int(said["parts"])
        if len(entry.charges) != len(self._spent) or min(entry.charges) < 0:
            raise self._wrong(entry.seq, "does not charge every part")
        if any(entry.charges) and entry.kind not in ("token", "training"):
            raise self._wrong(entry.seq, "charges what must be free")
        if entry.kind == "token" and self._stopped is not None:
            raise self._wrong(entry.seq, "answers privately after the stop")
        if entry.kind in self._answers:
            self._answers[entry.kind] += 1
        if entry.kind == "stop":
            if self._stopped is not None:
                raise self._wrong(entry.seq, "stops a second time")
            self._stopped = entry.seq
        self._spent = [spent + charge for spent, charge in zip(self._spent, entry.charges, strict=True)]
        if max(self._spent) > int(str(self._terms["budget"])):
            raise self._wrong(entry.seq, "passes the budget")
        self.entries += 1

    def compare(self, account: Domain, balance: Balance, ledger: Ledger) -> None:
        head = ledger.store.run("SELECT seq, hash, stopped FROM head WHERE domain = ?", (self._domain,))[0]
        if (int(head[0]), bytes(head[1]), head[2]) != (self.entries - 1, self.digest, self._stopped):
            raise Tampered(f"The head of domain {self._domain} is not the end of its chain.")
        if (balance.private_answers, balance.public_answers) != tuple(self._answers.values()):
            raise Tampered(f"The answers of domain {self._domain} are not as many as its entries.")
        if list(balance.spent) != self._spent or set(balance.budget) != {self._terms["budget"]}:
            raise Tampered(f"The balances of domain {self._domain} are not what its entries add up to.")
        names = ("parts", "partition", "order", "neighbours")
        if any(self._terms[name] != getattr(account, name) for name in names):
            raise Tampered(f"The terms of domain {self._domain} are not those of its entries.")

    def _wrong(self, seq: int, what: str) -> Tampered:
        return Tampered(f"Entry {seq} of domain {self._domain} {what}: the ledger has been altered.")
