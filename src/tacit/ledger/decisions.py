"""Which answers a budget pays for: a pure function of an account, its balance and a step's draws.

Whoever answers decides in memory and books behind it: the next step can be computed while this one becomes
durable, and only then does anything leave.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tacit.errors import InputError, LedgerRefused
from tacit.ledger.entries import Entry, Kind
from tacit.ledger.terms import Domain
from tacit.privacy.filter import nano


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

    def pays_for(self, price: float) -> int:
        """How many more answers at one price for all: a public number where the budget is counted."""
        return 0 if self.stopped else min(self.left) // nano(price)


@dataclass(frozen=True)
class Charged:
    """When an answer was given, and what it cost each part: billionths of a nat. Sensitive."""

    made: str
    charges: tuple[int, ...]


@dataclass(frozen=True)
class Decided:
    """A step that is decided and not yet durable: nothing of it may leave."""

    domain: str
    answers: tuple[Answer, ...]
    entries: tuple[Entry, ...]
    used: dict[str, int]  # tokens per tenant
    before: Balance
    after: Balance


def decide(account: Domain, balance: Balance, draws: Sequence[Draw]) -> Decided:
    """Who answers each draw, what is written about it, and what every part has spent afterwards."""
    spent, stopped = list(balance.spent), balance.stopped
    room = [left + used for left, used in zip(balance.left, spent, strict=True)]
    entries: list[Entry] = []
    answers: list[Answer] = []
    used: dict[str, int] = {}
    for draw in draws:
        charges = _charges(draw.charges, len(spent))
        after = None if charges is None else [a + b for a, b in zip(spent, charges, strict=True)]
        payable = after is not None and _pays(account, after, room)
        if account.rule.spending == "fading" and not payable:
            raise LedgerRefused("A part was charged more than it had left; nothing was booked.")
        if account.rule.spending == "counted" and (charges is None or len(set(charges)) > 1):
            # Else the end of the budget would depend on who paid how much.
            raise LedgerRefused("Every part pays the same price here; nothing was booked.")
        if not payable and not stopped:
            stopped = True
            entries.append(new_entry(account.id, "stop", len(spent)))
        if stopped or charges is None or after is None:
            answer, entry = Answer(draw.public, False), new_entry(account.id, "public", len(spent))
        else:
            # The blank makes it as long as a public one: what is written must not tell them apart.
            answer, entry = Answer(draw.private, True), new_entry(account.id, "token", len(spent), note=" ")
            entry, spent = replace(entry, charges=charges), after
        answers.append(answer)
        used[draw.tenant] = used.get(draw.tenant, 0) + 1
        entries.append(
            replace(entry, request=draw.request, step=draw.step, tenant=draw.tenant, token=answer.token)
        )
    private = sum(answer.was_private for answer in answers)
    later = replace(
        balance,
        spent=tuple(spent),
        stopped=stopped,
        entries=balance.entries + len(entries),
        private_answers=balance.private_answers + private,
        public_answers=balance.public_answers + len(answers) - private,
    )
    return Decided(account.id, tuple(answers), tuple(entries), used, balance, later)


def new_entry(domain: str, kind: Kind, parts: int, note: str = "") -> Entry:
    """An entry that has no place in a chain yet."""
    return Entry(domain=domain, seq=-1, kind=kind, made=now(), charges=(0,) * parts, note=note)


def now() -> str:
    """The time, as entries have it."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")


def _charges(charges: Sequence[float], parts: int) -> tuple[int, ...] | None:
    """In billionths; None for what is no number, below 0 or infinite, and which nobody can pay."""
    if len(charges) != parts:
        raise InputError(f"{len(charges)} charges for {parts} parts: one charge per part is needed.")
    if not all(0 <= charge < math.inf for charge in charges):
        return None
    return tuple(nano(float(charge)) for charge in charges)


def _pays(account: Domain, after: Sequence[int], room: Sequence[int]) -> bool:
    # Algorithm 2 goes on only while every part has something left.
    least = 1 if account.rule.spending == "filtered" else 0
    return all(most - spent >= least for spent, most in zip(after, room, strict=True))
