"""What decides how a service answers: all of it public, and fixed while it runs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from tacit.errors import InputError
from tacit.ledger import Domain
from tacit.mechanisms.choice import MechanismChoice, MechanismName
from tacit.privacy.filter import NANO, nano, nano_budget

OnExhausted = Literal["public", "error"]

# A guard of so many times the price: what one query may cost a part at most (docs/utility.md).
_GUARD_TIMES = 16
_MECHANISMS: dict[str, MechanismName] = {
    "certified": "certified",
    "individual": "individual",
    "submix-guarded": "submix",
    "submix": "submix",
}


@dataclass(frozen=True)
class Settings:
    """How a service answers.

    queries         answers that the budget is meant for: the price of one follows from it
    target          the price itself (SubMix: how far apart the halves may be), in nats; None: from queries
    guard           what a query may cost a part at most (`submix-guarded`); None: 16 times the price, or the
                    whole budget where that is less
    cap             no part weighs more; None: the mechanism's own choice
    on_exhausted    what a request gets when a counted budget is used up; SubMix never tells
    slots           texts that are written at the same time
    context         tokens of the longest text, question and answer together
    waiting         texts that may wait for a slot; more are turned away
    default_tokens  length of an answer whose request names none
    most_tokens     longest answer
    most_choices    answers that one request may ask for
    chunk           tokens of questions that are read between two steps
    """

    queries: int = 1024
    target: float | None = None
    guard: float | None = None
    cap: float | None = None
    on_exhausted: OnExhausted = "public"
    slots: int = 8
    context: int = 1024
    waiting: int = 64
    default_tokens: int = 64
    most_tokens: int = 256
    most_choices: int = 4
    chunk: int = 64

    def __post_init__(self) -> None:
        least = {
            "queries": 1,
            "slots": 1,
            "context": 2,
            "waiting": 1,
            "default_tokens": 1,
            "most_tokens": 1,
            "most_choices": 1,
            "chunk": 1,
        }
        for name, bound in least.items():
            if getattr(self, name) < bound:
                raise InputError(f"{name}={getattr(self, name)}: must be at least {bound}.")
        if self.default_tokens > self.most_tokens:
            raise InputError(
                f"default_tokens={self.default_tokens} is above most_tokens={self.most_tokens}; lower it."
            )
        if self.on_exhausted not in ("public", "error"):
            raise InputError(f"on_exhausted={self.on_exhausted!r}: choose 'public' or 'error'.")

    @property
    def fitting_choices(self) -> int:
        """Answers of one request that the service has room for when it does nothing else."""
        return min(self.most_choices, self.slots + self.waiting)

    def choice(self, account: Domain) -> MechanismChoice:
        """The mechanism that a domain's terms and these settings name."""
        if account.mechanism not in _MECHANISMS:
            raise InputError(
                f"Domain {account.id} answers by {account.mechanism}, which the service does not have; it "
                f"has {', '.join(_MECHANISMS)}."
            )
        if self.on_exhausted == "error" and account.rule.spending != "counted":
            raise InputError(
                f"on_exhausted=error would tell when {account.mechanism} stops, which depends on private "
                "text; only certified mixing has a public counter."
            )
        price = self._price(account)
        if price > account.epsilon:
            raise _above_the_budget("target", price, account)
        guarded = account.mechanism == "submix-guarded"
        if self.guard is not None and not guarded:
            raise InputError(
                f"guard is for domains of submix-guarded, not of {account.mechanism}; leave it out."
            )
        if self.guard is not None and self.guard > account.epsilon:
            raise _above_the_budget("guard", self.guard, account)
        usual = min(_GUARD_TIMES * price, account.epsilon)
        return MechanismChoice(
            name=_MECHANISMS[account.mechanism],
            order=account.order,
            target=price,
            guard=(usual if self.guard is None else self.guard) if guarded else None,
            cap=self.cap,
        )

    def _price(self, account: Domain) -> float:
        """In whole billionths, as a ledger counts: else a budget for B answers would pay for fewer."""
        if self.target is not None:
            if not 0 < self.target < math.inf:
                raise InputError(f"target={self.target}: a price is a finite number above 0, e.g. 0.002.")
            return self.target
        units = nano_budget(account.epsilon) // self.queries
        if units < 1:
            raise InputError(
                f"epsilon={account.epsilon:g} does not pay for {self.queries:,} answers; ask for fewer."
            )
        return price_of(units)


def price_of(units: int) -> float:
    """So many billionths as a price, which costs no more than they are."""
    price = units / NANO
    while nano(price) > units:  # the quotient was rounded up
        price = math.nextafter(price, 0.0)
    return price


def _above_the_budget(name: str, value: float, account: Domain) -> InputError:
    # Else the first question could stop a domain for good, with everything unspent.
    return InputError(
        f"{name}={value}: no answer may cost more than the whole budget of domain {account.id} "
        f"(epsilon={account.epsilon}); give less, or leave {name} out."
    )
