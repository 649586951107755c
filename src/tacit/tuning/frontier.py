"""What a method leaks at what perplexity, by the value that was varied.

The rows are those of `tacit compare`. There a Run of another perplexity is no equal; here that is what is
looked for, and only Runs that were audited otherwise are set apart.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from tacit.audit.comparison import ComparedRun, compare_runs
from tacit.audit.frontiers import MethodAtPerplexity, enclosing, methods_at
from tacit.report import render_comparison
from tacit.runs import Run
from tacit.tuning.record import are_numbers

_NOT_OF_A_FRONTIER = ("run", "method", "equal")  # the same in all rows, or meant for other methods


@dataclass(frozen=True)
class Frontier:
    """One row for each value; ``at`` is the method at the perplexity that was asked for.

    ``value_at`` is the value that would reach it, interpolated as leakage is: over log(perplexity), and
    between positive numbers over their logarithms. It is where to train next, not a measurement.
    """

    values: tuple[Any, ...]
    rows: tuple[ComparedRun, ...]
    at: MethodAtPerplexity | None = None
    value_at: float | None = None

    @classmethod
    def of(
        cls, key: str, values: Sequence[Any], runs: Sequence[Run], perplexity: float | None = None
    ) -> Self:
        """The frontier of audited Runs, each with its value of ``key``.

        Where these are no numbers nothing lies between two of them, and nothing is told ``at`` a perplexity.
        """
        along = key if are_numbers(values) else None
        compared = compare_runs(runs, along=[along] * len(runs))
        rows = tuple(replace(row, comparable=row.alike, why="" if row.alike else row.why) for row in compared)
        if perplexity is None or along is None:
            return cls(tuple(values), rows)
        (at,) = methods_at(rows, perplexity=perplexity)
        return cls(tuple(values), rows, at, _value_at(values, rows, perplexity))

    def to_json(self) -> dict[str, Any]:
        """JSON form."""
        return {
            "rows": [{"value": value} | row.to_json() for value, row in self._pairs()],
            "at": None if self.at is None else {"value": self.value_at} | self.at.to_json(),
        }

    def cells(self) -> list[dict[str, Any]]:
        """The rows as a person reads them."""
        return [
            {"value": value}
            | {name: cell for name, cell in row.cells().items() if name not in _NOT_OF_A_FRONTIER}
            for value, row in self._pairs()
        ]

    def page(self) -> str:
        """The frontier as one HTML file, as `tacit compare` draws it."""
        methods = [] if self.at is None else [self.at.to_json()]
        return render_comparison([row.to_json() for row in self.rows], methods)

    def _pairs(self) -> zip[tuple[Any, ComparedRun]]:
        return zip(self.values, self.rows, strict=True)


def _value_at(values: Sequence[Any], rows: Sequence[ComparedRun], perplexity: float) -> float | None:
    """Which value would have this perplexity; None where it is beyond the Runs."""
    around = enclosing(rows, perplexity)
    if around is None:
        return None
    by_name = {row.name: value for row, value in zip(rows, values, strict=True)}
    left, right = by_name[around.left.name], by_name[around.right.name]
    if min(left, right) > 0:
        return math.exp((1 - around.share) * math.log(left) + around.share * math.log(right))
    return float((1 - around.share) * left + around.share * right)
