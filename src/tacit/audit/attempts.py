"""Whether anything leaks: the one question that an audit's headline answers, over all that was tried.

Every attack that the headline looks at is an attempt with a p-value: how likely chance alone gives so much.
Some were named beforehand: one score of each set of texts, the most exposed canary, completions. Others are
looked at as well, because a leak that only they see is a leak: all other scores, all canaries together.

The rule. Half of the level is for the named attempts and half for the others; within each half Holm's
procedure corrects for their number. Where one kind was not tried, the other has the whole level.

Formal guarantee. Where nothing leaks, any attempt is called a leak with probability at most the level,
however the attempts depend on each other: Holm keeps each half's error at half of the level, and errors add
up. ``adjusted`` says the same without a level: an attempt leaks if and only if it is at most the level. So
the headline, the tables and the card cannot disagree.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from tacit.audit.audit_file import AttemptPart, parse
from tacit.audit.multiple import holm
from tacit.statistics import Estimate


@dataclass(frozen=True)
class Attempt:
    """One attack against chance.

    chance    what chance gives on average, to read ``measured`` against
    named     whether it was named before any score was seen
    adjusted  the p-value corrected for all attempts of the audit, by :func:`judged_together`
    """

    attack: str
    measured: Estimate
    chance: float
    p_value: float
    named: bool = True
    adjusted: float = 1.0

    def leaks(self, level: float) -> bool:
        """Whether chance does not explain it, so many attempts considered."""
        return self.adjusted <= level

    def to_json(self) -> dict[str, Any]:
        """JSON form."""
        return asdict(self) | {"measured": self.measured.to_json()}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Attempt:
        """Inverse of :meth:`to_json`; a verdict that stands beside it is made again, not read."""
        return cls.of(parse(AttemptPart, fields, origin="audit.json"))

    @classmethod
    def of(cls, part: AttemptPart) -> Attempt:
        """As it stands in the file."""
        return cls(part.attack, part.measured, part.chance, part.p_value, part.named, part.adjusted)


def judged_together(attempts: Sequence[Attempt]) -> tuple[Attempt, ...]:
    """The attempts in their order, each with its p-value corrected for all of them."""
    if len({one.attack for one in attempts}) < len(attempts):
        raise ValueError("two attempts have one name")
    kinds = [[one for one in attempts if one.named is named] for named in (True, False)]
    shares = sum(bool(kind) for kind in kinds)
    corrected = {
        row.name: min(1.0, shares * row.adjusted)
        for kind in kinds
        for row in holm({one.attack: one.p_value for one in kind})
    }
    return tuple(replace(one, adjusted=corrected[one.attack]) for one in attempts)


def leaking(attempts: Sequence[Attempt], level: float) -> tuple[Attempt, ...]:
    """Those that leak: what was named beforehand first, then the surest."""
    found = (one for one in attempts if one.leaks(level))
    return tuple(sorted(found, key=lambda one: (not one.named, one.adjusted)))


def with_adjusted(content: Any, attempts: Sequence[Attempt], level: float) -> Any:
    """A section's JSON in which every row that names an ``attempt`` is judged by its corrected p-value.

    Rows of attempts that are not among these stay as they are.
    """
    known = {one.attack: one.adjusted for one in attempts}
    if isinstance(content, Mapping):
        filled = {name: with_adjusted(value, attempts, level) for name, value in content.items()}
        return filled | dict(_corrected(filled, known, level))
    if isinstance(content, list):
        return [with_adjusted(value, attempts, level) for value in content]
    return content


def _corrected(
    row: Mapping[str, Any], known: Mapping[str, float], level: float
) -> Iterator[tuple[str, float | str]]:
    name = row.get("attempt")
    if isinstance(name, str) and name in known:
        yield "adjusted", known[name]
        if row.get("verdict") in ("extracts", "none"):  # it was of the p-value before it was corrected
            yield "verdict", "extracts" if known[name] <= level else "none"
