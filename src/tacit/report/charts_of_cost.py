"""The figures of what is given away and what it costs: extraction, disparity, and the frontier of Runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from tacit.audit.audit_file import Disparity
from tacit.audit.file_parts import Measured
from tacit.report.charts import BELOW, LEFT, RIGHT, shortened
from tacit.report.drawing import SMALL, Drawing, Key, axes, legend_height
from tacit.report.scales import Scale
from tacit.report.words import estimate, number, percent, share
from tacit.statistics import Estimate

_LABEL_HEIGHT = 15.0
_SMALLEST_IN_PERCENT = 1e-3


@dataclass(frozen=True)
class Bar:
    """A share with its interval; ``chance`` is what guessing would give this bar."""

    name: str
    value: Estimate
    chance: float | None = None


@dataclass(frozen=True)
class Place:
    """A Run on the frontier."""

    name: str
    perplexity: Estimate
    leakage: Estimate
    comparable: bool
    method: str = ""


def bars(
    id: str,
    title: str,
    rows: Sequence[Bar],
    *,
    label: str,
    across: str,
    lines: Sequence[tuple[float, str]] = (),
    width: float = SMALL,
) -> Markup:
    """Shares as bars with their intervals, and the lines that they must be read against."""
    chances = any(row.chance is not None for row in rows)
    keys = [
        *(Key("dashed", text) for _, text in lines),
        *([Key("tick", "by guessing alone")] if chances else []),
    ]
    top, right = legend_height(keys, left=LEFT, width=width), width - 14
    height = top + 210 + BELOW
    drawing = Drawing(id, title, " ".join(f"{row.name}: {share(row.value)}." for row in rows), height, width)
    drawing.legend(keys, left=LEFT)
    bottom = height - BELOW
    tallest = max(
        [min(1.0, row.value.high) for row in rows]
        + [row.chance or 0.0 for row in rows]
        + [value for value, _ in lines],
        default=1.0,
    )
    y = Scale.linear(0, tallest or 1.0, bottom, top)
    # An ensemble's rates are often so small that percents of all ticks would read alike.
    text = percent if tallest >= _SMALLEST_IN_PERCENT else number
    axes(drawing, None, y, box=(LEFT, top, right, bottom), x_label=across, y_label=label, y_text=text)
    slot = (right - LEFT) / max(1, len(rows))
    half = min(0.3 * slot, 34.0)
    for place, row in enumerate(rows):
        centre = LEFT + slot * (place + 0.5)
        level = y(row.value.value)
        drawing.rect(centre - half, level, 2 * half, bottom - level, "bar", f"{row.name}: {share(row.value)}")
        drawing.whisker(centre, y(row.value.low), y(row.value.high), "whisker")
        if row.chance is not None:
            drawing.line(centre - 1.35 * half, y(row.chance), centre + 1.35 * half, y(row.chance), "tick")
        letters = max(4, int(slot / 6.4))
        name = row.name if len(row.name) <= letters else row.name[: letters - 1] + "…"
        drawing.text(centre, bottom + 17, name, "tick-text", "middle")
    for value, _ in lines:
        drawing.line(LEFT, y(value), right, y(value), "dashed")
    return drawing.svg()


def disparity(id: str, found: Disparity, slope: Measured) -> Markup:
    """Every user: how much text they gave against how much worse the model became for them.

    The line has the measured slope and goes through the mean of the points, as a least-squares line does.
    """
    keys = (
        Key("dot", "a user"),
        Key("line", f"slope {estimate(slope)} per unit of log(samples)", "strong"),
        Key("dashed", "no change"),
    )
    top = legend_height(keys, left=LEFT)
    height = top + 250 + BELOW
    drawing = Drawing(
        id,
        "Change of perplexity by number of samples",
        f"{found.users} users. The {found.compared} with most samples: {estimate(found.top)}; the "
        f"{found.compared} with fewest: {estimate(found.bottom)}; slope {estimate(slope)}.",
        height,
    )
    drawing.legend(keys, left=LEFT)
    bottom = height - BELOW
    samples, changes = [s for s, _ in found.points], [c for _, c in found.points]
    x = Scale.logarithmic(min(samples), max(samples), LEFT + 8, RIGHT - 12)
    y = Scale.linear(min(0.0, *changes), max(0.0, *changes), bottom, top)
    axes(
        drawing,
        x,
        y,
        box=(LEFT, top, RIGHT, bottom),
        x_label="samples of the user",
        y_label=f"perplexity minus {shortened(found.against)}",
    )
    drawing.line(LEFT, y(0), RIGHT, y(0), "dashed")
    for count, change in found.points:
        drawing.dot(x(count), y(change), 3.5, "dot faint", f"{number(count)} samples: {number(change)}")
    middle = sum(map(math.log, samples)) / len(samples)
    level = sum(changes) / len(changes)
    line = _clipped(
        [(s, level + slope.value * (math.log(s) - middle)) for s in (min(samples), max(samples))],
        y.low,
        y.high,
    )
    if line:
        drawing.path([(x(s), y(c)) for s, c in line], "line strong")
    return drawing.svg()


def _clipped(ends: Sequence[tuple[float, float]], low: float, high: float) -> list[tuple[float, float]]:
    """The part of a line over log(samples) that is between two heights."""
    (first, start), (last, end) = ends
    if start == end:
        return list(ends) if low <= start <= high else []
    cuts = sorted((bound - start) / (end - start) for bound in (low, high))
    begin, stop = max(0.0, cuts[0]), min(1.0, cuts[1])
    if begin > stop:
        return []
    return [
        (first * (last / first) ** share_of_way, start + share_of_way * (end - start))
        for share_of_way in (begin, stop)
    ]


def frontier(
    id: str,
    title: str,
    rows: Sequence[Place],
    *,
    label: str,
    reference: tuple[float, str] | None = None,
    text: Callable[[float], str] = number,
    at: float | None = None,
    filled: str = "comparable",
    hollow: str = "not comparable",
) -> Markup:
    """Utility against leakage: towards the lower left is better in both.

    Runs of one method are joined by a line; methods are compared where it meets the perplexity ``at``.
    """
    ways = _ways(rows)
    keys = [
        *([Key("line", "Runs of one method", "strong")] if ways else []),
        *([] if at is None else [Key("dashed", f"compared at {number(at)}")]),
        Key("dot", filled),
        *([Key("hollow", hollow)] if any(not row.comparable for row in rows) else []),
        *([Key("dashed", reference[1])] if reference else []),
    ]
    top = legend_height(keys, left=LEFT)
    height = top + 300 + BELOW
    drawing = Drawing(
        id,
        title,
        " ".join(
            f"{row.name}: perplexity {estimate(row.perplexity)}, {label} {estimate(row.leakage)}."
            for row in rows
        ),
        height,
    )
    drawing.legend(keys, left=LEFT)
    bottom = height - BELOW
    across = [end for row in rows for end in _seen(row.perplexity)] + ([] if at is None else [at])
    up = [end for row in rows for end in _seen(row.leakage)] + ([reference[0]] if reference else [])
    x = Scale.linear(min(across), max(across), LEFT, RIGHT - 10)
    y = Scale.linear(min(up), max(up), bottom, top)
    axes(
        drawing,
        x,
        y,
        box=(LEFT, top, RIGHT - 10, bottom),
        x_label="perplexity (further left is more useful)",
        y_label=label,
        y_text=text,
    )
    if reference:
        drawing.line(LEFT, y(reference[0]), RIGHT - 10, y(reference[0]), "dashed")
    if at is not None:
        drawing.line(x(at), top, x(at), bottom, "dashed")
    for way in ways:
        drawing.path([(x(row.perplexity.value), y(row.leakage.value)) for row in way], "line strong")
    taken: list[tuple[float, float]] = []
    for row in sorted(rows, key=lambda row: -row.leakage.value):
        across_at, up_at = x(row.perplexity.value), y(row.leakage.value)
        drawing.line(x(row.perplexity.low), up_at, x(row.perplexity.high), up_at, "whisker")
        drawing.line(across_at, y(row.leakage.low), across_at, y(row.leakage.high), "whisker")
        note = f"{row.name}: {estimate(row.perplexity)}, {estimate(row.leakage)}"
        drawing.dot(across_at, up_at, 6, "dot" if row.comparable else "hollow", note)
        near_right = across_at > RIGHT - 170
        height_of_name = _free(across_at, up_at - 8, taken)
        drawing.text(
            across_at + (-10 if near_right else 10),
            height_of_name,
            shortened(row.name),
            "row-name halo",
            "end" if near_right else "start",
        )
    return drawing.svg()


def _ways(rows: Sequence[Place]) -> list[list[Place]]:
    """The Runs of each method that has several, by perplexity."""
    methods: dict[str, list[Place]] = {}
    for row in rows:
        if row.method:
            methods.setdefault(row.method, []).append(row)
    return [sorted(some, key=lambda row: row.perplexity.value) for some in methods.values() if len(some) > 1]


def _seen(measured: Estimate) -> list[float]:
    return [end for end in (measured.low, measured.value, measured.high) if math.isfinite(end)]


def _free(x: float, y: float, taken: list[tuple[float, float]]) -> float:
    """The nearest height below ``y`` at which a name meets no other; it is then taken."""
    while any(abs(x - other) < 190 and abs(y - height) < _LABEL_HEIGHT for other, height in taken):
        y += _LABEL_HEIGHT
    taken.append((x, y))
    return y
