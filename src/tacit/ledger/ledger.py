"""The spending record: a charge is durable before its token leaves, and nothing is ever given back.

A *domain* is a set of people, not a model. Everything that is released about them is charged to it: answers
of one ensemble, of the next one trained on the same people, weights by DP-SGD. Each part of the partition has
the same budget; when one part cannot pay, the domain stops for good and the public model answers.

Promise: under a crash of the process at any instruction, a crash of the machine or a loss of power on storage
that honours a sync, the ledger never shows less than was released. It may show more, by the tokens that
were being answered. Not promised: anything against an administrator who rewrites database and anchor, or
against two copies of both.

Everything here is a function of private text, except domains' terms: for the operator alone.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import json
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, Self, get_args
from urllib.parse import urlsplit

from tacit.errors import BudgetExceeded, InputError, LedgerUnavailable, Tampered
from tacit.ledger.anchor import Anchor, Position
from tacit.ledger.entries import GENESIS, Entry, Kind, packed
from tacit.ledger.store import Store, open_store
from tacit.privacy.filter import NANO, nano, nano_budget

_LARGEST = 2**62

Neighbours = Literal["null part", "removed part"]
# What a mechanism's charges compare with. A mechanism that bounds any change of one part also bounds its
# replacement by nothing. Sums over both kinds would bound neither, so that a domain has one of them.
NEIGHBOURS_OF: dict[str, Neighbours] = {
    "certified": "null part",
    "individual": "null part",
    "submix-guarded": "null part",
    "subsample_aggregate": "null part",
    "gnmax": "null part",
    "submix": "removed part",
}


@dataclass(frozen=True)
class Domain:
    """A set of people and the terms under which anything about them is released: public.

    neighbours  what charges compare the answers with: those of the same ensemble with one part answering as
                the public model, or with one part less (SubMix without guard)
    """

    id: str
    order: float
    parts: int
    partition: str
    epsilon: float
    neighbours: Neighbours = "null part"

    def __post_init__(self) -> None:
        if not self.id or len(self.id) > 200 or not self.id.isprintable():
            raise InputError("A domain needs a printable name of at most 200 characters.")
        if not 1 < self.order < math.inf:
            raise InputError(f"order={self.order}: a ledger needs a finite Renyi order above 1, e.g. 2.")
        if self.parts < 1:
            raise InputError(f"parts={self.parts}: at least one part is needed.")
        if self.neighbours not in get_args(Neighbours):
            raise InputError(f"neighbours={self.neighbours!r}: choose 'null part' or 'removed part'.")
        nano_budget(self.epsilon)


@dataclass(frozen=True)
class Draw:
    """One answer before it is paid for: a token for either case, so that the work is the same."""

    request: str
    step: int
    tenant: str
    charges: Sequence[float]  # nats per part
    private: int
    public: int


@dataclass(frozen=True)
class Answer:
    """One answer that may leave. Whether it was private may not."""

    token: int
    was_private: bool


@dataclass(frozen=True)
class Balance:
    """What a domain has spent: sensitive."""

    budget: tuple[int, ...]
    spent: tuple[int, ...]
    leased: tuple[int, ...]
    stopped: bool
    entries: int
    private_answers: int
    public_answers: int

    @property
    def left(self) -> tuple[int, ...]:
        """Billionths left per part."""
        return tuple(b - s - r for b, s, r in zip(self.budget, self.spent, self.leased, strict=True))

    @property
    def worst(self) -> float:
        """The largest share of a budget that any part has used."""
        return max(1 - left / budget for left, budget in zip(self.left, self.budget, strict=True))


class Ledger:
    """One open ledger; nobody else can write to it meanwhile."""

    def __init__(self, store: Store, anchor: Anchor) -> None:
        self.store, self.anchor = store, anchor
        self._broken = False
        self._check_anchor()

    @classmethod
    def open(cls, url: str, *, anchor: Path | None = None, create: bool = False) -> Self:
        """Open the ledger at a path or PostgreSQL URL; refused where it is older than its anchor."""
        store = open_store(url, create=create)
        try:
            return cls(store, Anchor(anchor or default_anchor(url)))
        except BaseException:
            store.close()
            raise

    def close(self) -> None:
        """Write the anchor and let go."""
        try:
            if not self._broken:
                self.anchor.write(self._positions())
        finally:
            self.store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Domains

    def create(self, domain: Domain) -> None:
        """Open an account for a set of people."""
        budget = nano_budget(domain.epsilon)
        with self._writing():
            if self.store.run("SELECT 1 FROM domain WHERE id = ?", (domain.id,)):
                raise InputError(
                    f"The ledger has a domain {domain.id} already; attach the Run to it with tacit ledger "
                    "attach, or choose another --domain if these are other people."
                )
            self.store.run(
                "INSERT INTO domain (id, renyi_order, parts, partitioning, neighbours, created) "
                "VALUES (?, ?, ?, ?, ?, ?)",
                (domain.id, domain.order, domain.parts, domain.partition, domain.neighbours, _now()),
            )
            self.store.run("INSERT INTO head (domain, seq, hash) VALUES (?, ?, ?)", (domain.id, -1, GENESIS))
            self.store.run_many(
                "INSERT INTO balance (domain, part, budget) VALUES (?, ?, ?)",
                [(domain.id, part, budget) for part in range(domain.parts)],
            )
            terms = {
                "order": domain.order,
                "parts": domain.parts,
                "partition": domain.partition,
                "neighbours": domain.neighbours,
                "budget": budget,
            }
            note = json.dumps(terms, sort_keys=True)
            self._append(domain.id, [self._entry(domain.id, "terms", (0,) * domain.parts, note=note)])
        self.anchor.write(self._positions())

    def domains(self) -> list[Domain]:
        """Every account."""
        return [
            Domain(str(row[0]), float(row[1]), int(row[2]), str(row[3]), int(row[4]) / NANO, row[5])
            for row in self.store.run(
                "SELECT id, renyi_order, parts, partitioning, "
                "(SELECT MIN(budget) FROM balance WHERE balance.domain = domain.id), neighbours "
                "FROM domain ORDER BY id"
            )
        ]

    def domain(self, name: str) -> Domain:
        """One account by its name."""
        for domain in self.domains():
            if domain.id == name:
                return domain
        known = ", ".join(domain.id for domain in self.domains()) or "none"
        raise InputError(f"The ledger has no domain {name} (it has: {known}); see tacit ledger status.")

    def balance(self, domain: str) -> Balance:
        """What has been spent. Sensitive."""
        rows = self.store.run(
            "SELECT budget, spent, leased FROM balance WHERE domain = ? ORDER BY part", (domain,)
        )
        head = self.store.run("SELECT stopped, seq, private, public FROM head WHERE domain = ?", (domain,))
        if not rows or not head:
            raise InputError(f"The ledger has no domain {domain}; see tacit ledger status.")
        budget, spent, leased = (tuple(int(row[column]) for row in rows) for column in range(3))
        stopped, seq, private, public = head[0]
        return Balance(budget, spent, leased, stopped is not None, int(seq) + 1, int(private), int(public))

    # Models

    def attach(self, fingerprint: str, name: str, domain: str, partition: str) -> None:
        """Let an ensemble answer from a domain. Another partition of the same people is refused here."""
        account = self.domain(domain)
        with self._writing():
            other = self.store.run("SELECT domain FROM model WHERE fingerprint = ?", (fingerprint,))
            if other and other[0][0] != domain:
                raise InputError(
                    f"{name} answers from domain {other[0][0]} already; a new domain resets no budget."
                )
            if account.partition != partition:
                raise InputError(
                    f"{name} has another partition than domain {domain}; if these are the same people, carry "
                    "their spending over with tacit ledger attach --repartition."
                )
            if not other:
                self.store.run(
                    "INSERT INTO model (fingerprint, domain, name, attached) VALUES (?, ?, ?, ?)",
                    (fingerprint, domain, name, _now()),
                )

    def domain_of(self, fingerprint: str) -> str | None:
        """The domain that an ensemble answers from."""
        found = self.store.run("SELECT domain FROM model WHERE fingerprint = ?", (fingerprint,))
        return str(found[0][0]) if found else None

    def repartition(self, domain: str, *, parts: int, partition: str, note: str = "") -> None:
        """The same people in other parts: every new part begins with the most that any old one had spent.

        Anybody may have been in the part that spent most, so that nothing less would cover them.
        """
        if parts < 1:
            raise InputError(f"parts={parts}: at least one part is needed.")
        with self._writing():
            self._lock(domain)
            before = self.balance(domain)
            if any(before.leased):
                raise InputError(f"Domain {domain} has leases out; return them before its parts change.")
            most, budget = max(before.spent), min(before.budget)
            self.store.run("DELETE FROM balance WHERE domain = ?", (domain,))
            self.store.run_many(
                "INSERT INTO balance (domain, part, budget, spent) VALUES (?, ?, ?, ?)",
                [(domain, part, budget, most) for part in range(parts)],
            )
            self.store.run(
                "UPDATE domain SET parts = ?, partitioning = ? WHERE id = ?", (parts, partition, domain)
            )
            terms = {"parts": parts, "partition": partition, "carried": most, "note": note}
            entry = self._entry(domain, "repartition", (0,) * parts, note=json.dumps(terms, sort_keys=True))
            self._append(domain, [entry])

    # Charges

    def answer(
        self, domain: str, draws: Sequence[Draw], *, mechanism: str, strict: bool = True
    ) -> list[Answer]:
        """Pay for one step's answers in one durable transaction, in order; only then may they leave.

        Args:
            domain: whose account.
            draws: the step's answers. The first that some part cannot pay for stops the domain for good; it
                and all after it are the public model's.
            mechanism: which one mixed them; the statement says by it what holds for all answers together.
            strict: stop when a part would have nothing left (SubMix's Algorithm 2). Else a budget may be
                used to its last billionth, as by certified mixing, whose number of answers is public.
        """
        neighbours = NEIGHBOURS_OF.get(mechanism)
        with self._writing():
            self._lock(domain)
            terms = self.store.run("SELECT neighbours FROM domain WHERE id = ?", (domain,))[0][0]
            if terms != neighbours:
                raise InputError(
                    f"Domain {domain} adds up charges against a {terms}, and {mechanism} has none of that "
                    "kind; use another mechanism, or another domain from the beginning."
                )
            balance = self.balance(domain)
            spent, stopped = list(balance.spent), balance.stopped
            room = [left + now for left, now in zip(balance.left, spent, strict=True)]
            entries: list[Entry] = []
            answers: list[Answer] = []
            for draw in draws:
                charges = _charges(draw.charges, len(spent))
                after = [now + charge for now, charge in zip(spent, charges, strict=True)]
                short = any(a > r or (strict and a >= r) for a, r in zip(after, room, strict=True))
                if not stopped and short:
                    stopped = True
                    entries.append(self._entry(domain, "stop", (0,) * len(spent)))
                if stopped:
                    charges = (0,) * len(spent)
                else:
                    spent = after
                answers.append(Answer(draw.public if stopped else draw.private, not stopped))
                entries.append(
                    self._entry(
                        domain,
                        "public" if stopped else "token",
                        charges,
                        request=draw.request,
                        step=draw.step,
                        tenant=draw.tenant,
                        token=answers[-1].token,
                        note=mechanism,
                    )
                )
            self._move(domain, balance.spent, spent)
            self._append(domain, entries)
            used: dict[str, int] = {}
            for draw in draws:
                used[draw.tenant] = used.get(draw.tenant, 0) + 1
            self.store.run_many(
                "UPDATE tenant SET tokens_used = tokens_used + ? WHERE name = ?",
                [(count, name) for name, count in sorted(used.items())],
            )
        if self.anchor.due:
            self.anchor.write(self._positions())
        return answers

    def book_training(self, domain: str, epsilon: float, note: str) -> None:
        """Charge every part for something else that was released about the same people.

        ``epsilon`` is its Renyi divergence bound at the domain's order, for one user's text replaced by other
        text (DP-SGD weights, accounted with replace-one neighbours). Losses of one order add up; the
        statement then speaks of users, no longer of parts.
        """
        if not note:
            raise InputError("A training charge needs a note that says what was released.")
        charge = nano(epsilon)
        if not charge or charge >= _LARGEST:
            raise InputError(f"epsilon={epsilon}: a charge is a finite number above 0.")
        with self._writing():
            self._lock(domain)
            balance = self.balance(domain)
            if charge > min(balance.left):
                raise BudgetExceeded(
                    f"Domain {domain} has less than epsilon={epsilon:g} left; nothing was booked."
                )
            charges = (charge,) * len(balance.spent)
            self._move(domain, balance.spent, [spent + charge for spent in balance.spent])
            self._append(domain, [self._entry(domain, "training", charges, note=note)])
        self.anchor.write(self._positions())

    def tokens_of(self, domain: str, request: str) -> list[int]:
        """What a request has been answered so far, in order."""
        rows = self.store.run(
            "SELECT token FROM entry WHERE domain = ? AND request = ? ORDER BY step", (domain, request)
        )
        return [int(row[0]) for row in rows]

    # How it is kept

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """One transaction. After a failure of the store nothing more is written: it must be opened anew."""
        if self._broken:
            raise LedgerUnavailable(f"{self.store.name} failed before; restart to open it again.")
        try:
            with self.store.transaction():
                yield
        except LedgerUnavailable:
            self._broken = True
            raise

    def _lock(self, domain: str) -> None:
        if not self.store.run(f"SELECT 1 FROM head WHERE domain = ?{self.store.lock}", (domain,)):  # noqa: S608
            raise InputError(f"The ledger has no domain {domain}; see tacit ledger status.")

    def _move(self, domain: str, before: Sequence[int], after: Sequence[int]) -> None:
        self.store.run_many(
            "UPDATE balance SET spent = ? WHERE domain = ? AND part = ?",
            [
                (new, domain, part)
                for part, (old, new) in enumerate(zip(before, after, strict=True))
                if new != old
            ],
        )

    def _entry(self, domain: str, kind: Kind, charges: tuple[int, ...], **fields: object) -> Entry:
        return Entry(domain=domain, seq=-1, kind=kind, made=_now(), charges=charges, **fields)  # type: ignore[arg-type]

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
            digest = numbered.hash_after(digest)
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

    def _positions(self) -> dict[str, Position]:
        return {
            str(row[0]): Position(int(row[1]), bytes(row[2]))
            for row in self.store.run("SELECT domain, seq, hash FROM head")
        }

    def _check_anchor(self) -> None:
        for domain, remembered in self.anchor.read().items():
            row = self.store.run(
                "SELECT hash FROM entry WHERE domain = ? AND seq = ?", (domain, remembered.seq)
            )
            self.anchor.check(domain, remembered, bytes(row[0][0]) if row else None)
        for domain, position in self._positions().items():
            last = self.store.run("SELECT MAX(seq) FROM entry WHERE domain = ?", (domain,))[0][0]
            if last != position.seq:
                raise Tampered(f"{self.store.name}: the chain of domain {domain} does not end at its head.")


def default_ledger() -> str:
    """The ledger of this machine: ``TACIT_LEDGER``, or a file among the user's own data."""
    return os.environ.get("TACIT_LEDGER") or str(_data_folder() / "ledger.db")


def default_anchor(url: str) -> Path:
    """``TACIT_ANCHOR``; else beside a file, and for a database server among the user's own data."""
    if given := os.environ.get("TACIT_ANCHOR"):
        return Path(given).expanduser()
    if "://" in url:
        place = urlsplit(url)
        whose = hashlib.sha256(f"{place.hostname}:{place.port}{place.path}".encode()).hexdigest()[:16]
        return _data_folder() / f"postgres-{whose}.anchor"
    path = Path(url).expanduser()
    return path.with_name(path.name + ".anchor")


def _data_folder() -> Path:
    # Not the cache, where downloads go: caches are emptied.
    if home := os.environ.get("TACIT_HOME"):
        return Path(home)
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "tacit"


def _charges(charges: Sequence[float], parts: int) -> tuple[int, ...]:
    if len(charges) != parts:
        raise InputError(f"{len(charges)} charges for {parts} parts: one charge per part is needed.")
    # Not a number, below 0 or infinite: nobody can pay that, and the message says no more than that.
    if not all(0 <= charge < math.inf for charge in charges):
        return (_LARGEST,) * parts
    return tuple(nano(float(charge)) for charge in charges)


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
