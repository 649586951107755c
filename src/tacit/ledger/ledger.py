"""The spending record: a charge is durable before its token leaves, and nothing is ever given back.

A *domain* is a set of people, not a model. Everything that is booked about them is charged to it: answers
of one ensemble, of the next one trained on the same people, weights by DP-SGD. Each part of the partition has
the same budget; when one part cannot pay, the domain stops for good and the public model answers.

Promise: under a crash of the process at any instruction, a crash of the machine or a loss of power on storage
that honours a sync, and under concurrent use by threads, the ledger never shows less than was released. It
may show more, by the tokens that were being answered. Not promised: anything against an administrator who
rewrites database and anchor, or against two copies of both; nor does it know what was released without it.

Everything here is a function of private text, except domains' terms: for the operator alone.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tacit.errors import BudgetExceeded, InputError, LedgerUnavailable, Tampered
from tacit.ledger.book import Book
from tacit.ledger.decisions import Answer, Balance, Decided, Draw, decide, new_entry, now
from tacit.ledger.entries import GENESIS, unpacked
from tacit.ledger.history import events
from tacit.ledger.people import People
from tacit.ledger.terms import Domain, Model
from tacit.privacy.filter import NANO, nano, nano_budget

_LONGEST_NOTE = 2000


class Ledger(Book):
    """One open ledger: who has an account in it, and what has been charged."""

    # Domains and their models

    def create(self, domain: Domain, model: Model) -> None:
        """Open an account for a set of people, with the ensemble that will answer."""
        budget = nano_budget(domain.epsilon)
        domain.check_first(model)
        self._remember()  # before and after: where no anchor can be written, nothing is booked
        with self.writing():
            if self.store.run("SELECT 1 FROM domain WHERE id = ?", (domain.id,)):
                raise InputError(
                    f"The ledger has a domain {domain.id} already; attach the Run to it with tacit ledger "
                    "attach, or choose another --domain if these are other people."
                )
            hashes = self._refuse_people_of_others(domain.id, model)
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
            self._meet(domain.id, model, hashes)
        self._remember()

    def attach(self, domain: str, model: Model, *, repartition: bool = False) -> None:
        """Let another ensemble of the same people answer from their budget.

        With ``repartition`` its parts may be others: every new part begins with the most that any old one had
        spent, because anybody may have been in that one; and ensembles of the old parts answer no more.

        Of an ensemble that the domain has had since people were not kept yet, they are kept now, wherever
        else they have a budget: what has happened is not undone by refusing to know it.
        """
        self._remember()
        with self.writing():
            self._lock(domain)
            account = self.domain(domain)
            if self._is_of_unknown_people(domain, model):
                self._meet(domain, model, self.people.hashes(model.people or ()))
            else:
                self._attach(account, model, repartition=repartition)
        self._remember()

    def _attach(self, account: Domain, model: Model, *, repartition: bool) -> None:
        domain = account.id
        account.check_halves(model, instead=", with the same ensemble.key, and attach that")
        hashes = self._refuse_people_of_others(domain, model)
        if model.unit != account.unit:
            raise InputError(f"{model.name} is made of {model.unit}s and domain {domain} of {account.unit}s.")
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
        self._meet(domain, model, hashes)

    def shared_people(self, domain: str) -> dict[str, int]:
        """Other domains that some of this one's people are in too, and how many of an ensemble at most.

        Only where both had budgets before the ledger kept people.
        """
        found: dict[str, int] = {}
        for (own,) in self.store.run("SELECT id FROM domain"):
            notes = [json.loads(event.note) for event in events(self.store, own) if event.kind == "people"]
            for other, count in (pair for note in notes for pair in note.get("elsewhere", {}).items()):
                if domain in (own, other):
                    second = other if own == domain else own
                    found[second] = max(found.get(second, 0), int(count))
        return dict(sorted(found.items()))

    def unknown_people(self, domain: str) -> list[str]:
        """Other domains of which nobody can say whether this one's people have a budget there too."""
        others = {one.id for one in self.domains()} - {domain}
        unknown = self.people.domains_with_unknown()
        return sorted(others if domain in unknown else others & unknown)

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

    def last_charge(self, domain: str) -> int | None:
        """What the last private answer cost the part that paid most, in billionths. Sensitive."""
        found = self.store.run(
            "SELECT charges FROM entry WHERE domain = ? AND kind = 'token' ORDER BY seq DESC LIMIT 1",
            (domain,),
        )
        return max(unpacked(bytes(found[0][0]))) if found else None

    def tokens_of(self, domain: str, request: str) -> list[int]:
        """What a request has been answered so far, in order."""
        rows = self.store.run(
            "SELECT token FROM entry WHERE domain = ? AND request = ? ORDER BY step", (domain, request)
        )
        return [int(row[0]) for row in rows]

    def _keyed(self, fingerprint: str) -> bytes:
        return hmac.digest(self.secret("corpus"), fingerprint.encode(), "sha256")

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

    @property
    def people(self) -> People:
        """Who is known, by keyed hashes."""
        return People(self.store, self.secret("people"))

    def _refuse_people_of_others(self, domain: str, model: Model) -> bytes | None:
        """Refuse an ensemble whose people have a budget in another domain; else their hashes, if known.

        The same text is of the same people, and where people are not known the same partition is taken for
        a sign of them.
        """
        known = self.store.run(
            "SELECT domain FROM model WHERE domain <> ? AND (fingerprint = ? OR corpus = ? OR "
            "(partitioning = ? AND (? = 0 OR fingerprint NOT IN (SELECT model FROM people))))",
            (
                domain,
                model.fingerprint,
                self._keyed(model.corpus),
                model.partition,
                int(model.people is not None),
            ),
        )
        if known:
            raise InputError(
                f"The people of {model.name} have a budget already, in domain {known[0][0]}, and a budget is "
                f"not given twice; attach the Run there with tacit ledger attach --domain '{known[0][0]}'."
            )
        if model.people is None:
            return None
        hashes = self.people.hashes(model.people)
        if elsewhere := self.people.with_accounts_elsewhere(domain, hashes):
            raise InputError(_second_budget(model, elsewhere))
        return hashes

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

    def _is_of_unknown_people(self, domain: str, model: Model) -> bool:
        known = self.store.run(
            "SELECT 1 FROM model WHERE fingerprint = ? AND domain = ?", (model.fingerprint, domain)
        )
        return bool(known) and model.people is not None and not self.people.are_known(model.fingerprint)

    def _meet(self, domain: str, model: Model, hashes: bytes | None) -> None:
        """Remember an ensemble's people, if they are known now and were not before."""
        if hashes is None or self.people.are_known(model.fingerprint):
            return
        note: dict[str, Any] = {
            "fingerprint": model.fingerprint,
            "people": self.people.keep(model.fingerprint, hashes),
        }
        if elsewhere := self.people.with_accounts_elsewhere(domain, hashes):
            note["elsewhere"] = elsewhere
        self._append(domain, [new_entry(domain, "people", model.parts, note=_json(note))])

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

    def _move(self, domain: str, spent: Sequence[int]) -> None:
        # Every row changes, whether or not anybody pays: the work must not tell that nobody does any more.
        rows = [(value, domain, part) for part, value in enumerate(spent)]
        self.store.run_many(
            "UPDATE balance SET spent = ?, moved = moved + 1 WHERE domain = ? AND part = ?", rows
        )


def _second_budget(model: Model, elsewhere: Mapping[str, int]) -> str:
    total = len(model.people or ())
    shares = ", ".join(f"{count:,} of {total:,} in domain {name}" for name, count in elsewhere.items())
    remedy = (
        f"attach the Run there with tacit ledger attach --domain '{next(iter(elsewhere))}'"
        if len(elsewhere) == 1
        else "train without the people of all of these domains but one, and attach the Run to that one"
    )
    return (
        f"People of {model.name} have a budget already ({shares}), and a budget is not given twice: what is "
        f"revealed about them adds up; {remedy}. If these are other people with the same ids, keep them in "
        "a ledger of their own (--ledger)."
    )


def _check_note(note: str) -> None:
    if not note or len(note) > _LONGEST_NOTE or not note.isprintable():
        raise InputError("A charge needs a printable note that says what was released.")


def _json(content: Mapping[str, object]) -> str:
    return json.dumps(content, sort_keys=True)
