"""What was booked for a set of people, and what it adds up to."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

from tacit.errors import InputError
from tacit.ledger.decisions import Balance
from tacit.ledger.entries import unpacked
from tacit.ledger.history import events
from tacit.ledger.ledger import Ledger
from tacit.ledger.terms import Domain
from tacit.privacy import Guarantee
from tacit.privacy.filter import NANO

COVERS = (
    "What was booked here: the answers of tacit serve, and what tacit ledger book was told of. Not: answers "
    "of tacit generate, published measurements, weights that were given away, other ledgers and domains."
)


@dataclass(frozen=True)
class Training:
    """Something else that was released about the same people."""

    made: str
    epsilon: float
    note: str


@dataclass(frozen=True)
class Statement:
    """One domain's account: sensitive as a whole, except its terms and its guarantee.

    It knows what was booked. Whatever was released without the ledger is not in it: see ``COVERS``.
    """

    domain: Domain
    balance: Balance
    training: tuple[Training, ...]
    models: tuple[str, ...]
    new_anchors: int  # times that somebody began a new anchor by hand
    guarantee: Guarantee | None
    caveats: tuple[str, ...]

    @property
    def spent(self) -> tuple[float, ...]:
        """Nats per part."""
        return tuple(spent / NANO for spent in self.balance.spent)

    def to_json(self) -> dict[str, Any]:
        """Everything, for the operator."""
        return {
            "domain": self.domain.id,
            "order": self.domain.order,
            "epsilon": self.domain.epsilon,
            "parts": self.domain.parts,
            "mechanism": self.domain.mechanism,
            "neighbours": self.domain.rule.neighbours,
            "unit": self.domain.unit,
            "models": list(self.models),
            "private_answers": self.balance.private_answers,
            "public_answers": self.balance.public_answers,
            "stopped": self.balance.stopped,
            "spent": list(self.spent),
            "worst_part_used": self.balance.worst,
            "training": [vars(one) for one in self.training],
            "new_anchors": self.new_anchors,
            "guarantee": None if self.guarantee is None else self.guarantee.to_json(),
            "covers": COVERS,
            "caveats": list(self.caveats),
        }


def statement(ledger: Ledger, name: str) -> Statement:
    """Add up one domain."""
    domain, balance = ledger.domain(name), ledger.balance(name)
    past = events(ledger.store, name)
    models = [json.loads(event.note) for event in past if event.kind == "model"]
    training = tuple(
        Training(event.made, max(unpacked(event.charges)) / NANO, event.note)
        for event in past
        if event.kind == "training"
    )
    kinds = [event.kind for event in past]
    outside = tuple(dict.fromkeys(one for model in models for one in model["outside"]))
    guarantee = _guarantee(domain, per_user=bool(training) or "repartition" in kinds, outside=outside)
    caveats = [] if guarantee is not None else [_NO_STATEMENT]
    if shared := ledger.shared_people(name):
        caveats.append(_SHARED.format(", ".join(f"{other} ({count:,})" for other, count in shared.items())))
    if unknown := ledger.unknown_people(name):
        caveats.append(_UNKNOWN.format(", ".join(unknown)))
    return Statement(
        domain,
        balance,
        training,
        tuple(str(model["name"]) for model in models),
        kinds.count("anchor"),
        guarantee,
        tuple(caveats),
    )


_SHARED = (
    "Some of these people have a budget in another domain too, from before the ledger kept people: in {}. "
    "They can lose both, and this statement is about one."
)
_UNKNOWN = (
    "Nobody can say whether some of these people have a budget in {} too: whoever does can lose both, and "
    "this statement is about one."
)
_NO_STATEMENT = (
    "These people were in other parts before, and instance-specific answers (SubMix) were charged for parts: "
    "there is no statement that covers both times."
)


def _guarantee(domain: Domain, *, per_user: bool, outside: tuple[str, ...]) -> Guarantee | None:
    """What holds for everything that is booked, by its budget: a public number, unlike what was spent.

    Answers are charged for one part, weights for one user. The loss of a user is at most the converted loss
    of their part plus that of the weights, and the conversion never makes less: so one account with both
    holds for users, and no longer for parts. The same is true after a new partition: at any time a user was
    in one part, which was charged for it.
    """
    if domain.rule.promise == "rdp":
        whole = Guarantee.certified(
            order=domain.order, epsilon=domain.epsilon, neighbours=domain.rule.neighbours, outside=outside
        )
        return replace(whole.to_user(), unit=domain.unit) if per_user else whole
    if per_user:
        return None
    return Guarantee.operational(
        order=domain.order,
        epsilon=domain.epsilon,
        neighbours=domain.rule.neighbours,
        one_directional=domain.rule.one_directional,
        outside=outside,
    )


def only_domain(ledger: Ledger, name: str | None) -> str:
    """The domain that is meant: the named one, or the only one."""
    if name is not None:
        return ledger.domain(name).id
    known = [domain.id for domain in ledger.domains()]
    if len(known) == 1:
        return known[0]
    if not known:
        raise InputError("The ledger has no domain yet; make one with tacit ledger init RUN --epsilon 2.")
    raise InputError(f"The ledger has several domains; name one with --domain ({', '.join(known)}).")
