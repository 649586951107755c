"""What an extraction attack found, row by row: rates, bounds and verdicts as values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, Literal, Self

from tacit.attacks.extraction import AnalyticRate
from tacit.privacy import Guarantee
from tacit.statistics import Estimate, clopper_pearson

CONTROLS: Final = ("member", "nonprivate", "finetuned")  # unprotected
FALSE_ALARM: Final = 0.05  # of all rows of an attack together
Verdict = Literal["extracts", "at chance", "inconclusive"]


@dataclass(frozen=True)
class ExtractionRow:
    """What the attack got out of one mechanism.

    analytic       the computed rate; ``basis`` says under which condition, or why there is none
    at_most        what the guarantee says of a generation's hit rate, on average over the codes that could
                   have been drawn: the number of codes times the certificate of one generation
    one_code       the certificate for one code against everything that was generated together
    """

    name: str
    epsilon: float | None
    rate: Estimate
    hits: int
    distinct: int
    answers: int
    private_answers: int
    analytic: AnalyticRate | None
    basis: str
    chance: float
    guarantee: Guarantee
    at_most: float | None
    one_code: float | None
    verdict: Verdict = "inconclusive"

    def to_json(self) -> dict[str, Any]:
        """JSON form."""
        return asdict(self) | {
            "rate": self.rate.to_json(),
            "analytic": None if self.analytic is None else self.analytic.to_json(),
            "guarantee": self.guarantee.to_json(),
        }

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Self:
        """Inverse of :meth:`to_json`."""
        analytic = fields["analytic"]
        return cls(
            **fields
            | {
                "rate": Estimate.from_json(fields["rate"]),
                "analytic": None if analytic is None else AnalyticRate(**analytic),
                "guarantee": Guarantee.from_json(fields["guarantee"]),
            }
        )


@dataclass(frozen=True)
class ExtractionReport:
    """All rows of one experiment, and what they were measured on."""

    digits: int
    codes: int
    generations: int
    tokens_per_generation: int
    chance: float
    rows: tuple[ExtractionRow, ...]
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """JSON form."""
        return asdict(self) | {"rows": [row.to_json() for row in self.rows], "notes": list(self.notes)}


def judged(rows: Sequence[ExtractionRow], generations: int) -> tuple[ExtractionRow, ...]:
    """Give each row its verdict, by its hits among so many generations, against chance and the control.

    ``extracts``      more hits than chance, and than the public model's own rate, would give; that any row is
                      called so by luck has a probability of at most ``FALSE_ALARM``, which the rows share
    ``at chance``     not so, and the upper end is below half of the control's lower one: at chance or below
                      it, since an attack that hits less often than a blind guess has found nothing either
    ``inconclusive``  anything else; all rows, where the control itself extracts nothing
    """
    public = next((row for row in rows if row.name == "public"), None)
    reference = max(row.chance for row in rows)
    if public is not None and public.analytic is not None:
        reference = max(reference, public.analytic.high)
    sure = 1 - FALSE_ALARM / len(rows)
    lows = [clopper_pearson(row.hits, generations, confidence=sure, side="lower").low for row in rows]
    control = max((low for row, low in zip(rows, lows, strict=True) if row.name in CONTROLS), default=0.0)
    return tuple(
        replace(row, verdict=_verdict(low, row.rate.high, reference, control))
        for row, low in zip(rows, lows, strict=True)
    )


def _verdict(low: float, high: float, reference: float, control: float) -> Verdict:
    if low > reference:
        return "extracts"
    if control > reference and high < control / 2:
        return "at chance"
    return "inconclusive"
