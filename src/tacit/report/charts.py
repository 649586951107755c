"""The figures of leakage: claims on one axis, exposure with its null, curves of membership attacks.

Each function turns a part of the audit into one SVG that can be read without a script. What chance alone
would show is always drawn beside what was measured.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from markupsafe import Markup

from tacit.audit.attack_parts import Exposure, ExposureRow, MembershipSet
from tacit.report.drawing import SMALL, WIDTH, Drawing, Key, axes, legend_height
from tacit.report.scales import Scale
from tacit.report.words import aligned, clean, estimate, number, percent
from tacit.statistics import Estimate

LEFT, RIGHT, BELOW = 62.0, WIDTH - 14, 48.0
_MOST_NAMES = 176.0  # width of the names of rows
_ROW = 34.0
_MOST_LETTERS = 25
_LARGEST_LINEAR = 30.0  # epsilon above which an axis is folded
_FEW_POINTS = 120
_CHORD = 6


@dataclass(frozen=True)
class Rung:
    """One claim on the ladder: what was claimed, what was shown, what could have been shown."""

    name: str
    verdict: str
    claimed: float | None
    measured: float | None
    detectable: float | None


@dataclass(frozen=True)
class Measurement:
    """A row of :func:`intervals`."""

    name: str
    value: Estimate
    hollow: bool = False


def ladder(id: str, rungs: Sequence[Rung], measure: str = "epsilon") -> Markup:
    """What was claimed, the lower bound that was shown, and what could have been detected, on one axis."""
    limited = any(rung.detectable is not None for rung in rungs)
    keys = [
        Key("bar", f"shown: {measure} is at least"),
        *([Key("diamond", "claimed: at most")] if any(rung.claimed is not None for rung in rungs) else []),
        *([Key("unseen", "beyond what this audit can detect")] if limited else []),
    ]
    top = legend_height(keys, left=0)
    names = _names_width(rung.name for rung in rungs)
    height = top + _ROW * len(rungs) + BELOW
    drawing = Drawing(
        id,
        f"Claimed and measured {measure}",
        " ".join(
            f"{rung.name}: claimed {number(rung.claimed)}, shown at least {number(rung.measured)}, "
            f"detectable {number(rung.detectable)}, {rung.verdict}."
            for rung in rungs
        ),
        height,
    )
    drawing.legend(keys, left=0)
    found = [
        one
        for rung in rungs
        for one in (rung.claimed, rung.measured, rung.detectable)
        if one is not None and math.isfinite(one)
    ]
    largest = max(found, default=1.0) * 1.05
    x = (
        Scale.linear(0, largest, names, RIGHT - 6, most=8)
        if largest <= _LARGEST_LINEAR
        else Scale.folded(min(largest, 1e8), names, RIGHT - 6)
    )
    bottom = height - BELOW
    axes(drawing, x, None, box=(names, top, RIGHT - 6, bottom), x_label=f"{measure} (nats)", y_label="")
    for place, rung in enumerate(rungs):
        middle = top + _ROW * (place + 0.5)
        drawing.text(names - 12, middle + 4, shortened(rung.name), "row-name", "end")
        if rung.detectable is not None and math.isfinite(rung.detectable):
            start = x(rung.detectable)
            drawing.rect(start, middle - 12, RIGHT - 6 - start, 24, "unseen", "not detectable by this audit")
        if rung.measured is not None:
            note = f"shown at least {number(rung.measured)}"
            width = max(2.0, x(rung.measured) - names)
            drawing.rect(names, middle - 7, width, 14, f"bar {rung.verdict}", note)
        if rung.claimed is not None:
            drawing.diamond(x(rung.claimed), middle, 7, "diamond", f"claimed at most {number(rung.claimed)}")
    return drawing.svg()


def exposure_by_repetition(id: str, exposure: Exposure) -> Markup:
    """Every canary by how often it was inserted, over what chance alone gives to one and to the largest."""
    null, most = exposure.null, exposure.bits
    sure = percent(null.confidence)
    public = any(row.public is not None for row in exposure.rows)
    keys = [
        Key("dot", "a canary"),
        Key("line", "mean of those inserted as often", "strong"),
        *([Key("hollow", "the same before training")] if public else []),
        Key("band", f"one canary by chance, {sure}: up to {number(null.limit)}"),
        Key(
            "band wide",
            f"largest of {exposure.canaries} by chance, {sure}: up to {number(null.largest_limit)}",
        ),
        Key("dashed", f"most that is possible: {number(most)}"),
    ]
    top = legend_height(keys, left=LEFT)
    height = top + 250 + BELOW
    groups = _by_repetition(exposure.rows)
    drawing = Drawing(
        id,
        "Exposure by number of insertions",
        " ".join(
            f"{_times(times)}: {len(rows)} canaries, largest {number(max(r.exposure.value for r in rows))} "
            "bits."
            for times, rows in groups.items()
        )
        + f" By chance one canary stays below {number(null.limit)} bits in {sure} of cases, and the largest "
        f"of {exposure.canaries} below {number(null.largest_limit)}.",
        height,
    )
    drawing.legend(keys, left=LEFT)
    bottom = height - BELOW
    y = Scale.linear(0, max(most, null.largest_limit), bottom, top, most=7)
    narrow, wide = y(null.limit), y(null.largest_limit)
    drawing.rect(LEFT, wide, RIGHT - LEFT, narrow - wide, "band wide")
    drawing.rect(LEFT, narrow, RIGHT - LEFT, bottom - narrow, "band")
    axes(
        drawing,
        None,
        y,
        box=(LEFT, top, RIGHT, bottom),
        x_label="times that a canary was inserted",
        y_label="exposure (bits)",
    )
    drawing.line(LEFT, y(most), RIGHT, y(most), "dashed")
    means = {level.repetitions: level.mean for level in exposure.per_repetition}
    slot = (RIGHT - LEFT) / max(1, len(groups))
    radius = 4.5 if len(exposure.rows) <= _FEW_POINTS else 2.5
    for place, (times, rows) in enumerate(groups.items()):
        centre = LEFT + slot * (place + 0.5)
        drawing.text(centre, bottom + 17, "not inserted" if times == 0 else f"{times}", "tick-text", "middle")
        for at, row in enumerate(rows):
            x = centre + min(slot, 240.0) * 0.66 * ((at + 0.5) / len(rows) - 0.5)
            if row.public is not None:
                drawing.dot(x, y(row.public.value), radius - 0.5, "hollow", "before training")
            if row.exposure.high - row.exposure.low > 0.3:
                drawing.line(x, y(row.exposure.low), x, y(row.exposure.high), "whisker")
            note = f"{row.id}: {estimate(row.exposure)} bits, {row.method}"
            drawing.dot(x, y(row.exposure.value), radius, "dot", note)
        if times in means:
            half = min(slot, 240.0) * 0.38
            level = y(means[times].value)
            drawing.line(centre - half, level, centre + half, level, "line strong", "mean")
    return drawing.svg()


def _by_repetition(rows: Sequence[ExposureRow]) -> dict[int, list[ExposureRow]]:
    groups: dict[int, list[ExposureRow]] = {}
    for row in sorted(rows, key=lambda row: row.exposure.value):
        groups.setdefault(row.repetitions if row.inserted else 0, []).append(row)
    return dict(sorted(groups.items()))


def _times(times: int) -> str:
    return "Not inserted" if times == 0 else f"Inserted {times} times"


def roc(id: str, found: MembershipSet, *, width: float = SMALL) -> Markup:
    """True against false alarms on logarithmic axes, where the number of non-members can tell at all."""
    if found.roc is None:
        raise ValueError("a set without a curve has no figure")
    certain = 3 / max(1, found.non_members)
    keys = (
        Key("line", f"attack: {shortened(found.roc.attack)}"),
        Key("dashed", "chance"),
        Key("unseen", f"too few non-members ({found.non_members:,}) to tell"),
    )
    top, right = legend_height(keys, left=LEFT, width=width), width - 24
    height = top + 240 + BELOW
    drawing = Drawing(
        id,
        f"ROC of {found.roc.attack} on {found.name}",
        "Share of members found against share of false alarms, both logarithmic. "
        f"{found.non_members} non-members cannot certify below {percent(min(1.0, certain))} false alarms.",
        height,
        width,
    )
    drawing.legend(keys, left=LEFT)
    bottom = height - BELOW
    # Three negatives' share is the least that zero false alarms certify, one's the least that is seen.
    low = min(0.1, 1 / max(1, found.non_members))
    x = Scale.logarithmic(low, 1, LEFT, right)
    y = Scale.logarithmic(low, 1, bottom, top)
    end = x(min(1.0, certain))
    drawing.rect(LEFT, top, end - LEFT, bottom - top, "unseen")
    axes(
        drawing,
        x,
        y,
        box=(LEFT, top, right, bottom),
        x_label="false alarms: share of non-members",
        y_label="members found",
        x_text=percent,
        y_text=percent,
    )
    drawing.line(x(x.low), y(x.low), x(1), y(1), "dashed")
    points = [(x(false), y(true)) for false, true in _chords(sorted(found.roc.points), x.low)]
    if points:
        drawing.path(points, "line curve")
    return drawing.svg()


def _chords(points: Sequence[tuple[float, float]], least: float) -> list[tuple[float, float]]:
    """The curve with points between, because a straight line of shares is bent on logarithmic axes."""
    found = list(points[:1])
    for (before, low), (after, high) in pairwise(points):
        begin = max(before, least)
        if after > begin and before < after:
            for step in range(_CHORD):
                false = begin * (after / begin) ** (step / _CHORD)
                found.append((false, low + (high - low) * (false - before) / (after - before)))
        found.append((after, high))
    return found


def intervals(
    id: str,
    title: str,
    rows: Sequence[Measurement],
    *,
    label: str,
    reference: tuple[float, str] | None = None,
    bounds: tuple[float, float] | None = None,
    width: float = WIDTH,
) -> Markup:
    """Measured values with their intervals, one below the other, and what chance would give."""
    keys = (Key("dashed", reference[1]),) if reference else ()
    names = _names_width(row.name for row in rows)
    top = legend_height(keys, left=names, width=width)
    height = top + 30 * len(rows) + BELOW
    drawing = Drawing(
        id, title, " ".join(f"{row.name}: {estimate(row.value)}." for row in rows), height, width
    )
    drawing.legend(keys, left=names)
    ends = [
        end for row in rows for end in (row.value.low, row.value.value, row.value.high) if math.isfinite(end)
    ] + ([reference[0]] if reference else [])
    low, high = min(ends), max(ends)
    if bounds:
        low, high = max(low, bounds[0]), min(high, bounds[1])
    right = width - 74
    x = Scale.linear(low, max(low, high), names, right)
    bottom = height - BELOW
    axes(drawing, x, None, box=(names, top, right, bottom), x_label=label, y_label="")
    if reference:
        drawing.line(x(reference[0]), top, x(reference[0]), bottom, "dashed")
    shown = aligned([row.value.value for row in rows])
    for place, row in enumerate(rows):
        middle = top + 30 * (place + 0.5)
        drawing.text(names - 12, middle + 4, shortened(row.name), "row-name", "end")
        drawing.line(x(row.value.low), middle, x(row.value.high), middle, "whisker")
        style = "hollow" if row.hollow else "dot"
        drawing.dot(x(row.value.value), middle, 5, style, f"{row.name}: {estimate(row.value)}")
        drawing.text(width - 14, middle + 4, shown[place], "row-value", "end")
    return drawing.svg()


def _names_width(names: Iterable[str]) -> float:
    return min(_MOST_NAMES, 26 + 6.6 * max((len(shortened(name)) for name in names), default=0))


def shortened(name: str) -> str:
    """A name that fits beside a row."""
    name = clean(name)
    return name if len(name) <= _MOST_LETTERS else name[: _MOST_LETTERS - 1].rstrip() + "…"
