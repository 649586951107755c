"""Everything the operator's page shows: functions of private text, for the admin port alone."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from tacit.ledger import Access, ApiKey, Balance, Charged, Ledger, Statement, Tenant
from tacit.ledger import statement as statement_of
from tacit.ledger.history import events, latest_charges
from tacit.privacy.filter import NANO
from tacit.serving.service import Service

_RECENT = 1000  # answers that rates are taken of
_BARS = 50


@dataclass(frozen=True)
class Rate:
    """What the latest answers cost, and when the first part would have nothing left at that rate.

    answers       how many of them
    bars          what an answer cost the part that paid most, in nats, oldest first
    per_bar       answers that a bar is the mean of
    since         when the first of them was given, and ``latest`` the last
    first_to_end  the part that the rest is about: not always the one that has used most
    """

    answers: int = 0
    bars: tuple[float, ...] = ()
    per_bar: int = 1
    since: str | None = None
    latest: str | None = None
    first_to_end: int | None = None
    answers_left: int | None = None
    seconds_left: float | None = None


@dataclass(frozen=True)
class Overview:
    """One look at a service."""

    statement: Statement
    balance: Balance
    rate: Rate
    tenants: tuple[Tenant, ...]
    keys: tuple[ApiKey, ...]
    durability: dict[str, str]
    anchor_seconds: float | None
    events: tuple[tuple[str, str], ...]
    refusing: bool  # a counted budget pays for no more, and requests are told so

    @property
    def used(self) -> tuple[float, ...]:
        """Share of its budget that each part has used."""
        balance = self.balance
        return tuple(1 - left / had for left, had in zip(balance.left, balance.budget, strict=True))

    @property
    def faded(self) -> int:
        """Parts that have nothing left."""
        return self.balance.left.count(0)

    def to_json(self) -> dict[str, Any]:
        """For a program."""
        return {
            "statement": self.statement.to_json(),
            "used": list(self.used),
            "answers_left_at_this_rate": self.rate.answers_left,
            "seconds_left_at_this_rate": self.rate.seconds_left,
            "tenants": [vars(tenant) for tenant in self.tenants],
            "keys": [vars(key) for key in self.keys],
            "durability": self.durability,
            "anchor_seconds": self.anchor_seconds,
        }


def overview(service: Service, ledger: Ledger) -> Overview:
    """Look now."""
    access, domain = Access(ledger), service.books.account.id
    statement = statement_of(ledger, domain)
    charged = latest_charges(ledger.store, domain, _RECENT)
    return Overview(
        statement,
        statement.balance,
        rate_of(charged, statement.balance),
        tuple(access.tenants()),
        tuple(access.every_key()),
        ledger.store.durability(),
        ledger.anchor.age,
        tuple((event.made, event.kind) for event in reversed(events(ledger.store, domain)[-8:])),
        refusing=service.settings.on_exhausted == "error"
        and statement.balance.pays_for(service.books.choice.target) == 0,
    )


def rate_of(charged: Sequence[Charged], balance: Balance) -> Rate:
    """Rates of the latest answers (oldest first)."""
    if not charged:
        return Rate()
    per_bar = -(-len(charged) // _BARS)
    groups = [charged[first : first + per_bar] for first in range(0, len(charged), per_bar)]
    bars = tuple(sum(max(one.charges) for one in group) / len(group) / NANO for group in groups)
    rate = Rate(len(charged), bars, per_bar, charged[0].made, charged[-1].made)
    paid = [sum(charges) for charges in zip(*(one.charges for one in charged), strict=True)]
    lasts = [
        (left * len(charged) // spent, part)
        for part, (left, spent) in enumerate(zip(balance.left, paid, strict=True))
        if spent > 0
    ]
    if balance.stopped or not lasts:
        return rate
    answers_left, part = min(lasts)
    first, last = (datetime.fromisoformat(one.made).timestamp() for one in (charged[0], charged[-1]))
    # A service that rests makes the budget last longer: time since the first of them, until now.
    elapsed = max(last, time.time()) - first
    seconds = answers_left * elapsed / len(charged) if elapsed > 0 else None
    return replace(rate, first_to_end=part, answers_left=answers_left, seconds_left=seconds)


def when(made: str) -> str:
    """A ledger's time as people read it."""
    return datetime.fromisoformat(made).astimezone(UTC).strftime("%Y-%m-%d %H:%M")
