"""SubMix rows as tables, lines and verdicts: functions of what was measured."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from tacit.experiments.results import Cell, Level, Outcome, Point, Series, Table
from tacit.statistics import Estimate

Row = Mapping[str, Any]

COLUMNS: Final = (
    "mechanism",
    "target",
    "k",
    "order",
    "epsilon",
    "B",
    "perplexity",
    "of the ensemble's improvement",
    "of the fine-tuned model's",
    "answered before STOP",
    "stretches",
    "guarantee",
)


def estimate(row: Row, name: str) -> Estimate | None:
    """A measured number of a row, if it has that."""
    content = row.get(name)
    return None if content is None else Estimate.from_json(content)


def perplexity(row: Row) -> Estimate:
    """What every row has."""
    return Estimate.from_json(row["perplexity"])


def those(rows: Iterable[Row], **criteria: Any) -> list[Row]:
    """Rows that are so."""
    return [row for row in rows if all(row[name] == value for name, value in criteria.items())]


def only(rows: Iterable[Row], **criteria: Any) -> Row:
    """The one row that is so."""
    (found,) = those(rows, **criteria)
    return found


def line(name: str, rows: Iterable[Row], x: str, y: str = "perplexity") -> Series:
    """A line over one of the settings."""
    points = [(row[x], estimate(row, y)) for row in rows]
    return Series(name=name, points=tuple(Point(x=at, y=value) for at, value in points if value is not None))


def levels(references: Iterable[Row]) -> tuple[Level, ...]:
    """Models that answer without a budget."""
    return tuple(Level(name=one["name"], value=perplexity(one).value) for one in references)


def table_of(title: str, rows: Sequence[Row], references: Sequence[Row] = ()) -> Table:
    """Models without a budget, then mechanisms."""
    above: list[tuple[Cell, ...]] = [
        (one["name"], None, one["parts"], None, None, None, perplexity(one), *(None,) * 5)
        for one in references
    ]
    return Table(title=title, columns=COLUMNS, rows=(*above, *map(_cells, rows)))


def _cells(row: Row) -> tuple[Cell, ...]:
    guarantee = "; ".join(row["labels"]) or None
    if row["dp_epsilon"] is not None:
        guarantee = f"({row['dp_epsilon']:.4g}, {row['dp_delta']:g})-DP" + (
            f"; {guarantee}" if guarantee else ""
        )
    return (
        row["variant"],
        f"{row['target']:.3g}, {row['target_source']}",
        row["parts"],
        row["order"],
        row["epsilon"],
        row["queries"],
        perplexity(row),
        estimate(row, "share_of_ensemble"),
        estimate(row, "share_of_nonprivate"),
        None if row["queries"] == 1 else estimate(row, "answered"),
        row["stretches"],
        guarantee,
    )


def weights_table(models: Mapping[str, Row]) -> Table:
    """Models whose weights answer any number of queries, by label."""
    return Table(
        title="Weights that answer any number of queries",
        columns=("model", "perplexity", "of the fine-tuned model's improvement"),
        rows=tuple(
            (label, perplexity(row), estimate(row, "share_of_nonprivate")) for label, row in models.items()
        ),
    )


def decided(*, holds: bool, fails: bool) -> Outcome:
    """A claim that the intervals decide, or leave open."""
    assert not (holds and fails), "no interval lies on both sides"  # noqa: S101
    return "holds" if holds else "does not hold" if fails else "undecided"


def all_below(values: Iterable[Estimate | None], bound: float) -> Outcome:
    """Whether all measured numbers lie below a bound; what could not be measured leaves it open."""
    found = list(values)
    known = [one for one in found if one is not None]
    return decided(
        holds=bool(known) and len(known) == len(found) and all(one.high <= bound for one in known),
        fails=any(one.low > bound for one in known),
    )


def all_above(values: Iterable[Estimate | None], bound: float) -> Outcome:
    """Whether all measured numbers lie above a bound."""
    found = list(values)
    known = [one for one in found if one is not None]
    return decided(
        holds=bool(known) and len(known) == len(found) and all(one.low >= bound for one in known),
        fails=any(one.high < bound for one in known),
    )


def clearly_above(one: Estimate | None, other: Estimate | None) -> Outcome:
    """Whether one measured number is above another, both known."""
    if one is None or other is None:
        return "undecided"
    return decided(holds=one.low > other.high, fails=one.high < other.low)


def together(outcomes: Sequence[Outcome]) -> Outcome:
    """Whether all hold; one that does not is enough against it."""
    fails = "does not hold" in outcomes
    return decided(holds=bool(outcomes) and all(one == "holds" for one in outcomes), fails=fails)


def falls(values: Sequence[Estimate | None]) -> Outcome:
    """Whether a sequence never rises and ends clearly below its beginning; one clear rise is against it."""
    known = [one for one in values if one is not None]
    if len(known) < len(values) or len(known) < 2:
        return "undecided"
    pairs = list(itertools.combinations(known, 2))
    rises = any(later.low > earlier.high for earlier, later in pairs)
    steady = all(later.value <= earlier.value for earlier, later in pairs)
    return decided(holds=steady and not rises and known[-1].high < known[0].low, fails=rises)
