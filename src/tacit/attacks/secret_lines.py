"""Lines that hold a secret, once as trained on and once with another's secret in its place.

**What chance decides.** A Run's split tosses a coin for every *unit*: a user, or (held out within users) a
document. Everything here but who is a member is a function of the whole corpus, both sides together, and of
the audit's own seed, so that it is what it is whichever way the coins fell:

* A secret is a value that one unit alone holds. Values that several hold (surnames, cities) stay where they
  are. Taking members from training and look-alikes from what training never saw would do otherwise: what is
  common turns up in training, what is rare does not, and any model knows common from rare.
* Units are paired before anybody looks at their sides, and their secrets with each other, by label and
  format. Within users, a document is paired with one of the same user.
* A pair gives the lines of *both*: each as it stands, and with all of its secrets replaced by the other's.
  A line suits its own secret better than another's ("I live in Paris, France"), for any model. With one
  side's lines alone that would look like memory; with both it is as often for it as against it.

Of every two texts the member is the one with the secrets of whoever was trained on.

**Why swapping is a test.** Keep the pairs of which one is in training and the other held out. Given the
corpus, the seed and which pairs these are, each went one way or the other with probability 1/2, independently
of the other pairs. By user: coins are independent with one bias s, and s(1-s) = (1-s)s. Within users: a
user's held-out documents are uniform among all sets of their number, and turning a pair round does not change
the number. A model that remembers nothing scores texts without regard to the coins, whatever it knows about
language and people. So, under that hypothesis, swapping all texts of a pair of units at once changes no law;
how many lines or secrets they have, how these depend on each other and how often a line is repeated plays no
part (:mod:`tacit.audit.exchange`). The coins are a keyed hash, and taken for random.

**Donors.** Where the other secrets come from other documents (`donor_set`), nothing was tossed: whatever
tells the two sources apart looks like memory. Such a set describes, and is never a test.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from tacit.attacks.gold_lines import Line, lines_of, shape_of
from tacit.attacks.look_alikes import MembershipSet, Row, set_of
from tacit.corpus import Dialogue
from tacit.errors import InputError

_Kind = tuple[str, str]  # a label and a format
_Pair = tuple["_Unit", "_Unit"]


def span_set(
    documents: Iterable[tuple[Dialogue, bool]],
    *,
    by: Literal["user", "within"] = "user",
    among: int | None = None,
    members: int = 1000,
    labels: Sequence[str] | None = None,
    seed: int = 0,
) -> MembershipSet:
    """Lines of both sides of a split, with the secrets of whoever was trained on and of whoever was not.

    Args:
        documents: the whole corpus in its order, each with whether it was trained on.
        by: how text was held out.
        among: of a split within users: how many documents had a coin; those behind them were trained on.
        members: how many lines to take, at most, drawn uniformly.
        labels: the kinds of secrets of which a line must hold one; all by default.
        seed: of pairs and of the draw.
    """
    units: dict[tuple[str, ...], _Unit] = {}
    for number, (document, trained) in enumerate(documents):
        name = (document.user,) if by == "user" else (document.user, str(number))
        tossed = among is None or number < among
        unit = units.setdefault(name, _Unit(name[:-1], trained, tossed))
        unit.add(document)
    _keep_own(units.values())
    draw = random.Random(seed)
    pairs = [
        pair for pair in _neighbours(_in_order(units.values(), draw)) if pair[0].trained != pair[1].trained
    ]
    return _set_of_pairs(pairs, units.values(), members, labels, draw, by_chance=True)


def donor_set(
    dialogues: Iterable[Dialogue],
    donors: Iterable[Dialogue],
    *,
    members: int = 1000,
    labels: Sequence[str] | None = None,
    seed: int = 0,
) -> MembershipSet:
    """Lines of training dialogues, against the same with the secrets of somebody among the donors.

    The paper's set-up: training lines alone, each user's secrets replaced by one donor's. No chance decided
    who is who (``by_chance`` is False).
    """
    units: dict[tuple[bool, str], _Unit] = {}
    for trained, given in ((True, dialogues), (False, donors)):
        for dialogue in given:
            units.setdefault((trained, dialogue.user), _Unit((), trained)).add(dialogue)
    _keep_own(units.values())
    draw = random.Random(seed)
    pairs = list(_across(_in_order(units.values(), draw)))
    return _set_of_pairs(pairs, units.values(), members, labels, draw, by_chance=False)


@dataclass
class _Unit:
    """Whose side one coin decided: a user, or a document.

    stratum  units of one stratum may stand for each other
    trained  on which side it came down
    tossed   whether there was a coin
    values   all that it holds
    own      those that it alone holds, by kind, in the order in which they come
    """

    stratum: tuple[str, ...]
    trained: bool
    tossed: bool = True
    lines: list[Line] = field(default_factory=list)
    values: dict[str, None] = field(default_factory=dict)
    own: dict[_Kind, list[str]] = field(default_factory=dict)

    def add(self, dialogue: Dialogue) -> None:
        """One more document."""
        self.values.update((dialogue.text[span.start : span.end], None) for span in dialogue.spans)
        self.lines += lines_of(dialogue)


def _keep_own(units: Collection[_Unit]) -> None:
    """Find the values that one unit alone holds."""
    holders = Counter(value for unit in units for value in unit.values)
    for unit in units:
        kinds: dict[str, _Kind] = {}
        for line in unit.lines:
            for value, span in line.values():
                if holders[value] == 1:  # under two labels: the first
                    kinds.setdefault(value, (span.label, shape_of(value)))
        for value, kind in kinds.items():
            unit.own.setdefault(kind, []).append(value)


def _in_order(units: Iterable[_Unit], draw: random.Random) -> list[_Unit]:
    """Units with secrets at random, but those that hold secrets of the same kinds side by side."""
    found = [unit for unit in units if unit.own and unit.tossed]
    draw.shuffle(found)
    return sorted(
        found, key=lambda unit: (unit.stratum, sorted((kind, len(own)) for kind, own in unit.own.items()))
    )


def _suit(first: _Unit, second: _Unit) -> bool:
    return first.stratum == second.stratum and not first.own.keys().isdisjoint(second.own)


def _neighbours(units: Sequence[_Unit]) -> Iterator[_Pair]:
    """Pair them without regard to their sides."""
    at = 0
    while at + 1 < len(units):
        if suited := _suit(units[at], units[at + 1]):
            yield units[at], units[at + 1]
        at += 2 if suited else 1


def _across(units: Sequence[_Unit]) -> Iterator[_Pair]:
    """Pair each with one of the other side that is near, as long as there are such."""
    waiting: list[_Unit] = []
    for unit in units:
        if waiting and waiting[-1].trained != unit.trained and _suit(waiting[-1], unit):
            yield waiting.pop(), unit
        else:
            waiting.append(unit)


def _set_of_pairs(
    pairs: Sequence[_Pair],
    units: Iterable[_Unit],
    members: int,
    labels: Sequence[str] | None,
    draw: random.Random,
    *,
    by_chance: bool,
) -> MembershipSet:
    """The texts of the pairs, a member and its look-alike in turn; a pair of units is one cluster."""
    wanted = None if labels is None else frozenset(labels)
    if not any(_holds(line, wanted) for unit in units for line in unit.lines):
        raise InputError("No line holds a gold span of these labels; give dialogues with spans.")
    found: list[tuple[Row, Row]] = []
    for number, pair in enumerate(pairs):
        for unit, other in (pair, pair[::-1]):
            if not (by_chance or unit.trained):
                continue
            others = {
                value: instead
                for kind, own in unit.own.items()
                for value, instead in zip(own, other.own.get(kind, ()), strict=False)
            }
            alone = {value for own in unit.own.values() for value in own}
            for line in unit.lines:
                secrets = {value for value, _ in line.values()} & alone
                if secrets and secrets <= others.keys() and _holds(line, wanted, secrets):
                    texts = (line.with_others({}), line.with_others(others))
                    found.append(
                        _rows(texts if unit.trained else texts[::-1], f"{number}", line.dialogue.user)
                    )
    if not found:
        raise InputError(
            "There are no two, one trained on and one not, that have secrets of one label and format which "
            "nobody else has; hold out more text."
            if by_chance
            else "The donors have no secrets of any needed label and format; give more donors."
        )
    draw.shuffle(found)
    rows = [row for both in found[:members] for row in both]
    return set_of(rows, "spans", np.arange(len(rows)) ^ 1, by_chance=by_chance)


def _rows(texts: tuple[str, str], pair: str, user: str) -> tuple[Row, Row]:
    return Row(texts[0], True, pair, user), Row(texts[1], False, pair, user)


def _holds(line: Line, labels: frozenset[str] | None, among: set[str] | None = None) -> bool:
    """Whether one of its values, or of those among them, has one of the labels."""
    return any(
        (labels is None or span.label in labels) and (among is None or value in among)
        for value, span in line.values()
    )
