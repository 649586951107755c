"""Who a ledger is about and under which terms: all of it public."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal, get_args

from tacit.errors import InputError
from tacit.privacy.filter import check_budget

Unit = Literal["user", "block"]


@dataclass(frozen=True)
class Rule:
    """How the answers of a mechanism are paid for, and what that promises.

    promise     ``rdp``: true of every corpus. ``rop``: for this corpus and partition only.
    neighbours  what a charge compares the answers with
    spending    ``counted``: every answer costs every part the same public price, and a budget may be used up.
                ``filtered``: SubMix's Algorithm 2, which stops when a part would have nothing left.
                ``fading``: each part was kept within what it has left; nothing ever stops.
    one_directional  whether charges bound this corpus against its neighbours only, and not the reverse
    halves      whether it compares two models of each part
    served      whether `tacit serve` answers by it; else it is for programs that charge answers themselves
    """

    promise: Literal["rdp", "rop"]
    neighbours: Literal["null part", "removed part", "changed part"]
    spending: Literal["counted", "filtered", "fading"]
    one_directional: bool = False
    halves: bool = False
    served: bool = True


# A domain has one mechanism. Sums over different neighbours bound neither; and a stop that depends on what
# `individual` has spent would be an answer that nobody paid for.
RULES: dict[str, Rule] = {
    "certified": Rule("rdp", "null part", "counted"),
    "individual": Rule("rdp", "null part", "fading"),
    "subsample_aggregate": Rule("rdp", "changed part", "counted", served=False),
    "submix-guarded": Rule("rop", "null part", "filtered", halves=True),
    "submix": Rule("rop", "removed part", "filtered", halves=True),
    "gnmax": Rule("rop", "changed part", "filtered", one_directional=True, served=False),
}


@dataclass(frozen=True)
class Domain:
    """A set of people, and what may be revealed about them.

    order      Renyi order at which everything is charged
    parts      in how many parts they are
    partition  the mark of who is in which
    epsilon    the budget of every part, in nats
    mechanism  what answers: a key of ``RULES``
    unit       whose text a part is made of
    """

    id: str
    order: float
    parts: int
    partition: str
    epsilon: float
    mechanism: str = "certified"
    unit: Unit = "user"

    def __post_init__(self) -> None:
        check_name("A domain", self.id)
        if not 1 < self.order < math.inf:
            raise InputError(f"order={self.order}: a ledger needs a finite Renyi order above 1, e.g. 2.")
        if self.parts < 1:
            raise InputError(f"parts={self.parts}: at least one part is needed.")
        check_budget(self.epsilon)
        if self.mechanism not in RULES:
            raise InputError(f"mechanism={self.mechanism!r}: a ledger knows {', '.join(RULES)}.")
        if self.unit not in get_args(Unit):
            raise InputError(f"unit={self.unit!r}: choose 'user' or 'block'.")

    @property
    def rule(self) -> Rule:
        """How its answers are paid for."""
        return RULES[self.mechanism]

    def check_first(self, model: Model) -> None:
        """Refuse an ensemble that the account cannot begin with."""
        if (model.parts, model.partition, model.unit) != (self.parts, self.partition, self.unit):
            raise InputError("A domain begins with the partition of its first ensemble.")
        self.check_halves(model, instead=", or open the domain by certified or individual mixing")

    def check_halves(self, model: Model, *, instead: str = "") -> None:
        """Refuse an ensemble that could never answer from here; ``instead``: what else may be done."""
        if self.rule.halves and not model.halves:
            raise InputError(
                f"Domain {self.id} answers by {self.mechanism}, which compares the two halves of each part, "
                f"and {model.name} has one model per part; train it again with ensemble.halves: true"
                f"{instead}."
            )


@dataclass(frozen=True)
class Model:
    """An ensemble that may answer.

    fingerprint  its own mark
    partition    the mark of who is in which of its parts
    corpus       fingerprint of its text; kept as a keyed hash only
    unit         whose text its parts are made of
    outside      what its Run says is outside any guarantee
    people       the ids of everybody it was trained on, kept as keyed hashes only; None: not known, as of
                 blocks, whose names are places in one corpus and stand for nobody elsewhere
    halves       whether there are two models of each part
    """

    fingerprint: str
    name: str
    parts: int
    partition: str
    corpus: str
    unit: Unit = "user"
    outside: tuple[str, ...] = ()
    people: tuple[str, ...] | None = field(default=None, repr=False)
    halves: bool = True


def is_name(name: str) -> bool:
    """Whether a person can read a name and every database keep it."""
    return 0 < len(name) <= 200 and name.isprintable()


def check_name(what: str, name: str) -> None:
    """Refuse a name that a person could not read or a database could not keep."""
    if not is_name(name):
        raise InputError(f"{what} needs a printable name of at most 200 characters.")
