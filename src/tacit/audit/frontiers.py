"""Methods at equal perplexity: what each would leak at one and the same usefulness.

A method that was trained several times, with more or less protection and otherwise alike, has a frontier
(`configurations.py` says which Runs make one). Where the perplexity that all are compared at lies between two
of its Runs, leakage is interpolated between them, linearly over log(perplexity). The interval goes from the
interpolated lower ends to the interpolated upper ends: if both Runs' intervals hold their true values it
holds the interpolated one, which two intervals of confidence c do with probability at least 2c - 1.
Perplexities are taken as measured; they are of the same text, so that their order is far surer than each
value. Beyond its Runs a method is never extrapolated, and Runs that were audited otherwise than the first, or
have another tokenizer, are on no frontier.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any, Final

from tacit.audit.comparison import ComparedRun
from tacit.errors import InputError
from tacit.statistics import Estimate

MEASURES: Final = ("exposure_mean", "auc", "tab", "linkability", "disparity_gap")


@dataclass(frozen=True)
class MethodAtPerplexity:
    """One method at the common perplexity; ``why`` says why it is not there."""

    method: str
    runs: tuple[str, ...]
    perplexity: float
    exposure_mean: Estimate | None
    auc: Estimate | None
    tab: Estimate | None
    linkability: Estimate | None
    disparity_gap: Estimate | None
    how: str
    why: str

    def to_json(self) -> dict[str, Any]:
        """JSON form."""
        values = {name: getattr(self, name) for name in MEASURES}
        return asdict(self) | {
            name: None if value is None else value.to_json() for name, value in values.items()
        }

    def cells(self) -> dict[str, Any]:
        """The row as a person reads it."""
        shown = {name: None if value is None else str(value) for name, value in self._values().items()}
        return {
            "method": self.method,
            "runs": len(self.runs),
            "mean_exposure": shown["exposure_mean"],
            "membership_AUC": shown["auc"],
            "tab": shown["tab"],
            "authors_named": shown["linkability"],
            "disparity": shown["disparity_gap"],
            "how": self.how or f"not comparable: {self.why}",
        }

    def _values(self) -> dict[str, Estimate | None]:
        return {name: getattr(self, name) for name in MEASURES}


def methods_at(
    rows: Sequence[ComparedRun], *, perplexity: float | None = None, tolerance: float = 0.05
) -> list[MethodAtPerplexity]:
    """Every method among the rows, in order of appearance, at one perplexity: the first Run's by default."""
    if perplexity is None:
        if not rows or rows[0].perplexity is None:
            raise InputError(
                "The first Run's perplexity was not measured; name the one to compare at (--perplexity)."
            )
        perplexity = rows[0].perplexity.value
    require_perplexity(perplexity)
    methods: dict[str, list[ComparedRun]] = {}
    for row in rows:
        methods.setdefault(row.method, []).append(row)
    return [_at(method, runs, perplexity, tolerance) for method, runs in methods.items()]


def require_perplexity(perplexity: float) -> None:
    """Refuse a number that no model could have for its perplexity."""
    if not 1 <= perplexity < math.inf:
        raise InputError(f"Expected a finite perplexity={perplexity} of at least 1, e.g. 20.")


@dataclass(frozen=True)
class Enclosing:
    """The two Runs of a method next to a perplexity, and how far it lies from the left to the right one."""

    left: ComparedRun
    right: ComparedRun
    share: float


def enclosing(runs: Sequence[ComparedRun], perplexity: float) -> Enclosing | None:
    """Between which of a method's Runs a perplexity lies; None where it is beyond them."""
    for (below, left), (above, right) in pairwise(_placed(runs)):
        if below <= perplexity <= above and below < above:
            return Enclosing(left, right, math.log(perplexity / below) / math.log(above / below))
    return None


def _placed(runs: Sequence[ComparedRun]) -> list[tuple[float, ComparedRun]]:
    found = ((row.perplexity.value, row) for row in runs if row.alike and row.perplexity is not None)
    return sorted(found, key=lambda one: one[0])


def _at(method: str, runs: Sequence[ComparedRun], perplexity: float, tolerance: float) -> MethodAtPerplexity:
    placed = _placed(runs)
    names = tuple(row.name for row in runs)

    def found(values: dict[str, Estimate | None], how: str, why: str = "") -> MethodAtPerplexity:
        return MethodAtPerplexity(method, names, perplexity, **values, how=how, why=why)

    def itself(row: ComparedRun) -> MethodAtPerplexity:
        return found({name: getattr(row, name) for name in MEASURES}, f"{row.name} itself")

    if (around := enclosing(runs, perplexity)) is not None:
        if around.share in (0.0, 1.0):
            return itself(around.right if around.share else around.left)
        left, right = around.left, around.right
        values = {
            name: interpolated(getattr(left, name), getattr(right, name), around.share) for name in MEASURES
        }
        return found(values, f"between {left.name} and {right.name}")
    near = [(abs(value / perplexity - 1), row) for value, row in placed]
    distance, nearest = min(near, key=lambda one: one[0], default=(math.inf, None))
    if nearest is not None and distance <= tolerance:
        return itself(nearest)
    nothing: dict[str, Estimate | None] = dict.fromkeys(MEASURES)
    if not placed:
        unlike = [row.why for row in runs if not row.alike]
        return found(nothing, "", unlike[0] if unlike else "its perplexity was not measured")
    least, most = placed[0][0], placed[-1][0]
    where = f"{least:.3g}" if len(placed) == 1 else f"{least:.3g} to {most:.3g}"
    return found(
        nothing,
        "",
        f"its perplexity is {where}; train it with more or less protection to enclose this",
    )


def interpolated(left: Estimate | None, right: Estimate | None, share: float) -> Estimate | None:
    """``share`` of the way from one to the other."""
    if left is None or right is None:
        return None

    def between(one: float, other: float) -> float:
        return (1 - share) * one + share * other

    confidence = max(0.0, left.confidence + right.confidence - 1)
    if not 0 < confidence < 1:
        return None
    return Estimate(
        between(left.value, right.value),
        between(left.low, right.low),
        between(left.high, right.high),
        confidence,
        f"interpolated {share:.2f} of the way; {left.method}; {right.method}",
    )
