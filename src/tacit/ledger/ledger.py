"""The spending record: a charge is durable before its token leaves, and nothing is ever given back.

A *domain* is a set of people, not a model. Everything that is released about them is charged to it: answers
of one ensemble, of the next one trained on the same people, weights by DP-SGD. Each part of the partition has
the same budget; when one part cannot pay, the domain stops for good and the public model answers.

Promise: under a crash of the process at any instruction, a crash of the machine or a loss of power on storage
that honours a sync, and under concurrent use by threads, the ledger never shows less than was released. It
may show more, by the tokens that were being answered. Not promised: anything against an administrator who
rewrites database and anchor, or against two copies of both.

Everything here is a function of private text, except domains' terms: for the operator alone.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import math
import os
import secrets
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Self

from tacit.errors import BudgetExceeded, InputError, LedgerUnavailable, RolledBack, Tampered
from tacit.ledger.anchor import Anchor, Position
from tacit.ledger.decisions import Answer, Balance, Decided, Draw, decide, new_entry, now
from tacit.ledger.entries import GENESIS, Entry, packed
from tacit.ledger.opening import check_tables
from tacit.ledger.store import Store, open_store
from tacit.ledger.terms import Domain, Model
from tacit.privacy.filter import NANO, nano, nano_budget

_LONGEST_NOTE = 2000


class Ledger:
    """One open ledger; nobody else can write to it meanwhile."""

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

    # Domains and their models

    def create(self, domain: Domain, model: Model) -> None:
        """Open an account for a set of people, with the ensemble that will answer."""
        budget = nano_budget(domain.epsilon)
        if (model.parts, model.partition, model.unit) != (domain.parts, domain.partition, domain.unit):
            raise InputError("A domain begins with the partition of its first ensemble.")
        self._remember()  # before and after: where no anchor can be written, nothing is booked
        with self.writing():
            if self.store.run("SELECT 1 FROM domain WHERE id = ?", (domain.id,)):
                raise InputError(
                    f"The ledger has a domain {domain.id} already; attach the Run to it with tacit ledger "
                    "attach, or choose another --domain if these are other people."
                )
            self._refuse_people_of_others(domain.id, model)
            self.store.run(
                "INSERT INTO domain VALUES (?, ?, ?, ?, ?, ?, ?)",
                (
                    domain.id,
                    domain.order,
                    domain.parts,
                    domain.partition,
                    domain.mechanism,
                    domain.unit,
                    now(),
                ),
            )
            self.store.run("INSERT INTO head (domain, seq, hash) VALUES (?, ?, ?)", (domain.id, -1, GENESIS))
            terms = {
                "order": domain.order,
                "parts": domain.parts,
                "partition": domain.partition,
                "mechanism": domain.mechanism,
                "unit": domain.unit,
                "budget": budget,
            }
            self._append(domain.id, [new_entry(domain.id, "terms", domain.parts, note=_json(terms))])
            self._set_balances(domain.id, domain.parts, budget, 0)
            self._admit(domain.id, model)
        self._remember()

    def attach(self, domain: str, model: Model, *, repartition: bool = False) -> None:
        """Let another ensemble of the same people answer from their budget.

        With ``repartition`` its parts may be others: every new part begins with the most that any old one had
        spent, because anybody may have been in that one; and ensembles of the old parts answer no more.
        """
        self._remember()
        with self.writing():
            self._lock(domain)
            account = self.domain(domain)
            self._refuse_people_of_others(domain, model)
            if model.unit != account.unit:
                raise InputError(
                    f"{model.name} is made of {model.unit}s and domain {domain} of {account.unit}s."
                )
            known = self.store.run(
                "SELECT domain, partitioning FROM model WHERE fingerprint = ?", (model.fingerprint,)
            )
            if known and known[0] != (domain, account.partition):
                raise InputError(
                    f"{model.name} belonged to domain {known[0][0]} under its partition of then; train anew."
                )
            if account.partition != model.partition:
                if not repartition:
                    raise InputError(
                        f"{model.name} has another partition than domain {domain}; if these are the same "
                        "people, carry their spending over with tacit ledger attach --repartition."
                    )
                self._repartition(account, model)
            elif model.parts != account.parts:
                raise InputError(f"{model.name} has {model.parts} parts and domain {domain} {account.parts}.")
            if not known:
                self._admit(domain, model)
        self._remember()

    def domains(self) -> list[Domain]:
        """Every account."""
        rows = self.store.run(
            "SELECT id, renyi_order, parts, partitioning, (SELECT MIN(budget) FROM balance WHERE "
            "balance.domain = domain.id), mechanism, unit FROM domain ORDER BY id"
        )
        for row in rows:
            if row[4] is None:
                raise Tampered(f"{self.store.name}: the balances of domain {row[0]} are gone; restore it.")
        return [Domain(row[0], row[1], row[2], row[3], row[4] / NANO, row[5], row[6]) for row in rows]

    def domain(self, name: str) -> Domain:
        """One account by its name."""
        every = self.domains()
        for domain in every:
            if domain.id == name:
                return domain
        known = ", ".join(domain.id for domain in every) or "none"
        raise InputError(f"The ledger has no domain {name} (it has: {known}); see tacit ledger status.")

    def domain_of(self, fingerprint: str) -> str | None:
        """The domain that an ensemble may answer from now; None for one that is unknown or of old parts."""
        found = self.store.run(
            "SELECT model.domain FROM model JOIN domain ON domain.id = model.domain "
            "WHERE fingerprint = ? AND model.partitioning = domain.partitioning",
            (fingerprint,),
        )
        return str(found[0][0]) if found else None

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

    # Charges

    def answer(
        self, domain: str, draws: Sequence[Draw], *, model: str, mechanism: str, order: float
    ) -> list[Answer]:
        """Pay for one step's answers in one durable transaction, in order; only then may they leave.

        Where a part cannot pay, the domain stops for good: that answer and all after it are the public
        model's. Under `individual` nothing stops: the caller mixes the draws of a step one after the other,
        each within what those before it leave; a charge above that is a mistake, and nothing is booked.

        Args:
            domain: whose account.
            draws: the step's answers.
            model: the fingerprint of the ensemble that answers.
            mechanism: what mixed them, which must be the domain's.
            order: the Renyi order of the charges, which must be the domain's.
        """
        with self._charging(domain):
            account = self.may_answer(domain, model, mechanism, order)
            decided = decide(account, self.balance(domain), draws)
            self._write(decided)
        return list(decided.answers)

    def book(self, decided: Decided) -> None:
        """Make a step durable that was decided in memory; on return its answers may leave.

        Refused, and the ledger with it, where the database is not where the decision began.
        """
        with self._charging(decided.domain):
            if self.balance(decided.domain) != decided.before:
                raise LedgerUnavailable(
                    f"{self.store.name} has entries of somebody else; nothing was released."
                )
            self._write(decided)

    @contextlib.contextmanager
    def _charging(self, domain: str) -> Iterator[None]:
        """A transaction that holds a domain's head."""
        self._refuse_if_broken()
        if self.anchor.due:
            self._remember()  # before anything is charged: a full disk must not cost budget
        with self.writing():
            self._lock(domain)
            yield

    def _write(self, decided: Decided) -> None:
        self._move(decided.domain, decided.after.spent)
        self._append(decided.domain, decided.entries)
        self.store.run_many(
            "UPDATE tenant SET tokens_used = tokens_used + ? WHERE name = ?",
            [(count, name) for name, count in sorted(decided.used.items())],
        )

    def book_training(self, domain: str, epsilon: float, note: str) -> None:
        """Charge every part for something else that was released about the same people.

        ``epsilon`` is its Renyi divergence bound at the domain's order, for one user's text replaced by other
        text (DP-SGD weights, accounted with replace-one neighbours). Losses of one order add up; the
        statement then speaks of users, no longer of parts.
        """
        _check_note(note)
        charge = nano(epsilon) if math.isfinite(epsilon) else 0
        if charge < 1:
            raise InputError(f"epsilon={epsilon}: a charge is a finite number above 0.")
        self._remember()
        rule = self.domain(domain).rule
        if rule.promise != "rdp":
            raise InputError(
                f"Domain {domain} is instance-specific: no statement covers its answers and trained weights "
                "together; use a domain with a mechanism of RDP."
            )
        with self.writing():
            self._lock(domain)
            balance = self.balance(domain)
            if rule.spending == "fading" and balance.private_answers:
                # Whether it fits would depend on what each part has spent, which nobody may learn.
                raise InputError(
                    f"Domain {domain} has answered; under individual mixing, book weights before."
                )
            if charge > min(balance.left):
                raise BudgetExceeded(
                    f"Domain {domain} has less than epsilon={epsilon:g} left; nothing was booked."
                )
            self._move(domain, [spent + charge for spent in balance.spent])
            entry = new_entry(domain, "training", len(balance.spent), note=note)
            self._append(domain, [replace(entry, charges=(charge,) * len(balance.spent))])
        self._remember()

    def tokens_of(self, domain: str, request: str) -> list[int]:
        """What a request has been answered so far, in order."""
        rows = self.store.run(
            "SELECT token FROM entry WHERE domain = ? AND request = ? ORDER BY step", (domain, request)
        )
        return [int(row[0]) for row in rows]

    # How it is kept

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

    def _keyed(self, fingerprint: str) -> bytes:
        return hmac.digest(self._corpus_key, fingerprint.encode(), "sha256")

    def may_answer(self, domain: str, model: str, mechanism: str, order: float) -> Domain:
        """The account, if this ensemble, mechanism and order are its own; refused otherwise."""
        account = self.domain(domain)
        if (mechanism, order) != (account.mechanism, account.order):
            raise InputError(
                f"Domain {domain} answers by {account.mechanism} at order {account.order:g}, not {mechanism} "
                f"at order {order:g}: their charges do not add up."
            )
        if self.domain_of(model) != domain:
            raise InputError(
                f"This ensemble does not answer from domain {domain}, or its people are in other parts now; "
                "see tacit ledger attach."
            )
        return account

    def _refuse_people_of_others(self, domain: str, model: Model) -> None:
        known = self.store.run(
            "SELECT domain FROM model WHERE domain <> ? AND "
            "(fingerprint = ? OR partitioning = ? OR corpus = ?)",
            (domain, model.fingerprint, model.partition, self._keyed(model.corpus)),
        )
        if known:
            raise InputError(
                f"The people of {model.name} have a budget already, in domain {known[0][0]}, and a budget is "
                "not given twice; attach the Run there with tacit ledger attach."
            )

    def _admit(self, domain: str, model: Model) -> None:
        note = {
            "fingerprint": model.fingerprint,
            "name": model.name,
            "partition": model.partition,
            "unit": model.unit,
            "outside": list(model.outside),
        }
        self._append(domain, [new_entry(domain, "model", model.parts, note=_json(note))])
        seq = self.store.run("SELECT seq FROM head WHERE domain = ?", (domain,))[0][0]
        self.store.run(
            "INSERT INTO model VALUES (?, ?, ?, ?, ?, ?)",
            (model.fingerprint, domain, model.partition, self._keyed(model.corpus), model.name, seq),
        )

    def _repartition(self, account: Domain, model: Model) -> None:
        domain = account.id
        before = self.balance(domain)
        if account.rule.spending == "fading" and before.private_answers:
            # The most that a part has spent would decide how much everybody else may still say.
            raise InputError(
                f"Domain {domain} has answered by individual mixing; its parts cannot change any more."
            )
        if any(before.leased):
            raise InputError(f"Domain {domain} has leases out; return them before its parts change.")
        most = max(before.spent)
        terms = {"parts": model.parts, "partition": model.partition, "carried": most}
        # First the entry: the database lets nobody change parts and balances but to what its last entry says.
        self._append(domain, [new_entry(domain, "repartition", model.parts, note=_json(terms))])
        self._set_balances(domain, model.parts, min(before.budget), most)
        self.store.run(
            "UPDATE domain SET parts = ?, partitioning = ? WHERE id = ?",
            (model.parts, model.partition, domain),
        )

    def _set_balances(self, domain: str, parts: int, budget: int, spent: int) -> None:
        self.store.run("DELETE FROM balance WHERE domain = ?", (domain,))
        self.store.run_many(
            "INSERT INTO balance (domain, part, budget, spent) VALUES (?, ?, ?, ?)",
            [(domain, part, budget, spent) for part in range(parts)],
        )

    def _lock(self, domain: str) -> None:
        if not self.store.run(f"SELECT 1 FROM head WHERE domain = ?{self.store.lock}", (domain,)):  # noqa: S608
            raise InputError(f"The ledger has no domain {domain}; see tacit ledger status.")

    def _move(self, domain: str, spent: Sequence[int]) -> None:
        # Every row, whether or not it changes: the work must not tell that nobody pays any more.
        rows = [(value, domain, part) for part, value in enumerate(spent)]
        self.store.run_many("UPDATE balance SET spent = ? WHERE domain = ? AND part = ?", rows)

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
        self._corpus_key = self.secret("corpus")
        self.secret("idempotency")  # made now, and not by two first requests at once
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
                    parts = len(self.balance(domain).spent)
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


def _check_note(note: str) -> None:
    if not note or len(note) > _LONGEST_NOTE or not note.isprintable():
        raise InputError("A charge needs a printable note that says what was released.")


def _json(content: Mapping[str, object]) -> str:
    return json.dumps(content, sort_keys=True)
