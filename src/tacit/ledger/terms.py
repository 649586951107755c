"""Who a ledger is about and under which terms: all of it public."""

from __future__ import annotations

import math
from dataclasses import dataclass
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
    """

    promise: Literal["rdp", "rop"]
    neighbours: Literal["null part", "removed part", "changed part"]
    spending: Literal["counted", "filtered", "fading"]
    one_directional: bool = False


# A domain has one mechanism. Sums over different neighbours bound neither; and a stop that depends on what
# `individual` has spent would be an answer that nobody paid for.
RULES: dict[str, Rule] = {
    "certified": Rule("rdp", "null part", "counted"),
    "individual": Rule("rdp", "null part", "fading"),
    "subsample_aggregate": Rule("rdp", "changed part", "counted"),
    "submix-guarded": Rule("rop", "null part", "filtered"),
    "submix": Rule("rop", "removed part", "filtered"),
    "gnmax": Rule("rop", "changed part", "filtered", one_directional=True),
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


@dataclass(frozen=True)
class Model:
    """An ensemble that may answer.

    fingerprint  its own mark
    partition    the mark of who is in which of its parts
    corpus       fingerprint of its text; kept as a keyed hash only
    unit         whose text its parts are made of
    outside      what its Run says is outside any guarantee
    """

    fingerprint: str
    name: str
    parts: int
    partition: str
    corpus: str
    unit: Unit = "user"
    outside: tuple[str, ...] = ()


def check_name(what: str, name: str) -> None:
    """Refuse a name that a person could not read or a database could not keep."""
    if not name or len(name) > 200 or not name.isprintable():
        raise InputError(f"{what} needs a printable name of at most 200 characters.")
