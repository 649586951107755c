"""An account of everything that was released about a set of people, and what it adds up to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tacit.errors import InputError
from tacit.ledger.entries import unpacked
from tacit.ledger.ledger import Balance, Domain, Ledger
from tacit.privacy import Guarantee
from tacit.privacy.filter import NANO

_TRUE_OF_EVERY_CORPUS = ("certified", "individual", "subsample_aggregate")


@dataclass(frozen=True)
class Training:
    """Something else that was released about the same people."""

    made: str
    epsilon: float
    note: str


@dataclass(frozen=True)
class Statement:
    """One domain's account: sensitive as a whole, except its terms and its guarantee."""

    domain: Domain
    balance: Balance
    answers: dict[str, int]  # private ones, by mechanism
    training: tuple[Training, ...]
    models: tuple[str, ...]
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
            "neighbours": self.domain.neighbours,
            "models": list(self.models),
            "private_answers": self.balance.private_answers,
            "public_answers": self.balance.public_answers,
            "answers_by_mechanism": dict(self.answers),
            "stopped": self.balance.stopped,
            "spent": list(self.spent),
            "worst_part_used": self.balance.worst,
            "training": [vars(one) for one in self.training],
            "guarantee": None if self.guarantee is None else self.guarantee.to_json(),
            "caveats": list(self.caveats),
        }


def statement(ledger: Ledger, name: str) -> Statement:
    """Add up one domain."""
    domain, balance = ledger.domain(name), ledger.balance(name)
    run = ledger.store.run
    answers = run(
        "SELECT note, COUNT(*) FROM entry WHERE domain = ? AND kind = 'token' GROUP BY note ORDER BY note",
        (name,),
    )
    training = run(
        "SELECT made, charges, note FROM entry WHERE domain = ? AND kind = 'training' ORDER BY seq", (name,)
    )
    models = run("SELECT name FROM model WHERE domain = ? ORDER BY attached, name", (name,))
    booked = tuple(Training(row[0], max(unpacked(bytes(row[1]))) / NANO, row[2]) for row in training)
    by_mechanism = {str(row[0]): int(row[1]) for row in answers}
    guarantee, caveats = _guarantee(domain, set(by_mechanism), trained=bool(booked))
    return Statement(
        domain, balance, by_mechanism, booked, tuple(str(row[0]) for row in models), guarantee, caveats
    )


def _guarantee(
    domain: Domain, mechanisms: set[str], *, trained: bool
) -> tuple[Guarantee | None, tuple[str, ...]]:
    """What holds for everything together, by its budget: a public number, unlike what was spent.

    Answers are charged for one part, weights for one user. The loss of a user is at most the converted loss
    of their part plus that of the weights, and the conversion only enlarges: so one account with both holds
    for users, and no longer for parts.
    """
    if mechanisms <= set(_TRUE_OF_EVERY_CORPUS):
        whole = Guarantee.certified(order=domain.order, epsilon=domain.epsilon)
        return (whole.to_user() if trained else whole), ()
    if trained:
        return None, (
            "Instance-specific answers (SubMix) and trained weights were released about the same people: "
            "there is no statement that covers both.",
        )
    neighbours = domain.neighbours
    return Guarantee.operational(order=domain.order, epsilon=domain.epsilon, neighbours=neighbours), ()


def only_domain(ledger: Ledger, name: str | None) -> str:
    """The domain that is meant: the named one, or the only one."""
    known = [domain.id for domain in ledger.domains()]
    if name is not None:
        return ledger.domain(name).id
    if len(known) == 1:
        return known[0]
    if not known:
        raise InputError("The ledger has no domain yet; make one with tacit ledger init RUN --epsilon 2.")
    raise InputError(f"The ledger has several domains; name one with --domain ({', '.join(known)}).")
