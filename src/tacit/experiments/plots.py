"""A chart of a result as an SVG file of its own, which follows light and dark wherever it is shown."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final
from xml.etree import ElementTree as ET

from tacit.experiments.results import Chart, Series
from tacit.report.drawing import WIDTH, Drawing, Key, axes, legend_height
from tacit.report.scales import Scale
from tacit.report.words import estimate, number

_LEFT: Final = 66.0
_RIGHT: Final = WIDTH - 16
_PLOT, _BELOW = 270.0, 48.0
_NOTES, _LINE, _LETTER = 16.0, 19.0, 6.4
# Of equal lightness, and told apart by who does not see all colours; the lines have different dashes too.
_TONES: Final = (
    ("#1f6f5c", "#6cc7ad", "none"),
    ("#a93c28", "#f28b74", "7 3"),
    ("#3a5ea8", "#8fb0f0", "2 3"),
    ("#7a5600", "#e5bd62", "9 3 2 3"),
    ("#7b3f92", "#c99be0", "4 2"),
    ("#4b5560", "#b4bfca", "1 2"),
    ("#0f7d96", "#6fd0e6", "12 4"),
    ("#8a2f5f", "#ee9cc4", "6 2 1 2"),
)


def svg_of(chart: Chart) -> str:
    """The figure; the same chart always gives the same bytes."""
    noted = any(one.note for one in chart.series)
    keys = [Key("line", one.name, _tone(place)) for place, one in enumerate(chart.series) if not noted]
    keys += [Key("dashed", f"{level.name}: {number(level.value)}") for level in chart.levels]
    top = legend_height(keys, left=_LEFT)
    bottom = top + _PLOT
    notes = _LINE * len(chart.series) + 12 if noted else 0
    drawing = Drawing(f"{chart.name}-figure", chart.title, _description(chart), bottom + _BELOW + notes)
    _put_style(drawing)
    drawing.legend(keys, left=_LEFT)
    x, y = _scales(chart, top, bottom)
    axes(drawing, x, y, box=(_LEFT, top, _RIGHT, bottom), x_label=chart.x_label, y_label=chart.y_label)
    for level in chart.levels:
        drawing.line(_LEFT, y(level.value), _RIGHT, y(level.value), "dashed", level.name)
    for place, series in enumerate(chart.series):
        _draw(drawing, series, _tone(place), x, y)
    if noted:
        _put_notes(drawing, chart.series, bottom + _BELOW + 12)
    return str(drawing.svg()) + "\n"


def _draw(drawing: Drawing, series: Series, tone: str, x: Scale, y: Scale) -> None:
    points = sorted(series.points, key=lambda point: point.x)
    drawing.path([(x(one.x), y(one.y.value)) for one in points], f"line {tone}")
    if series.bare:
        return
    for one in points:
        drawing.whisker(x(one.x), y(one.y.low), y(one.y.high), f"whisker {tone}", cap=3)
        drawing.dot(x(one.x), y(one.y.value), 3.2, f"dot {tone}", f"{series.name}: {estimate(one.y)}")


def _put_notes(drawing: Drawing, lines: Sequence[Series], top: float) -> None:
    """A line of text for each series, below the chart: its name, and what is to be read with it."""
    widest = max(len(one.name) for one in lines)
    for place, one in enumerate(lines):
        y = top + _LINE * place
        drawing.line(_NOTES, y - 4, _NOTES + 22, y - 4, f"line {_tone(place)}")
        drawing.text(_NOTES + 30, y, one.name)
        drawing.text(_NOTES + 30 + _LETTER * widest + 12, y, one.note, "key")


def _scales(chart: Chart, top: float, bottom: float) -> tuple[Scale, Scale]:
    xs = [point.x for series in chart.series for point in series.points]
    ys = [*_heights(chart)]
    x = (Scale.logarithmic if chart.log_x else Scale.linear)(min(xs), max(xs), _LEFT + 10, _RIGHT - 10)
    low = min(ys) if chart.log_y else min(0.0, *ys)
    if not chart.log_y and min(ys) > 0.4 * max(ys):
        low = min(ys)  # far from 0: an axis from there would hide the differences
    y = (Scale.logarithmic if chart.log_y else Scale.linear)(low, max(ys), bottom, top)
    return x, y


def _heights(chart: Chart) -> Iterator[float]:
    """All that has to fit; an end of an interval that is infinite runs off the paper."""
    yield from (level.value for level in chart.levels)
    for series in chart.series:
        for point in series.points:
            ends = (point.y.value,) if series.bare else (point.y.low, point.y.value, point.y.high)
            yield from (end for end in ends if math.isfinite(end) and (end > 0 or not chart.log_y))


def _description(chart: Chart) -> str:
    lines = []
    for series in chart.series:
        shown = ", ".join(
            f"{number(one.x)}: {number(one.y.value) if series.bare else estimate(one.y)}"
            for one in series.points
        )
        lines.append(f"{series.name}: {shown}.")
    return " ".join([*lines, *(f"{level.name}: {number(level.value)}." for level in chart.levels)])


def _tone(place: int) -> str:
    return f"tone{place % len(_TONES)}"


def _put_style(drawing: Drawing) -> None:
    """Style inside the file, because a picture in a page of Markdown has no style sheet but its own."""

    def rules(dark: bool) -> str:
        ink, quiet, line, paper = (
            ("#e7ece9", "#a0ada6", "#2b342f", "#101412")
            if dark
            else ("#1b2320", "#566159", "#e3e2da", "#ffffff")
        )
        base = (
            f"text{{fill:{ink}}}.tick-text,.axis-text,.key{{fill:{quiet}}}.grid{{stroke:{line}}}"
            f".axis{{stroke:{quiet}}}.dashed{{stroke:{quiet};stroke-width:1.4;stroke-dasharray:5 4}}"
            f".dot{{stroke:{paper};stroke-width:1}}.paper{{fill:{paper}}}"
        )
        tones = "".join(
            f".line.tone{place}{{stroke:{tone[dark]};stroke-dasharray:{tone[2]}}}"
            f".whisker.tone{place}{{stroke:{tone[dark]}}}.dot.tone{place}{{fill:{tone[dark]}}}"
            for place, tone in enumerate(_TONES)
        )
        return base + tones

    style = ET.Element("style")
    style.text = (
        "svg{font:12px system-ui,-apple-system,'Segoe UI',Roboto,sans-serif}.tick-text{font-size:11.5px}"
        ".line{fill:none;stroke-width:2.2;stroke-linejoin:round}.whisker{stroke-width:1.2;opacity:.8}"
        f"{rules(False)}@media (prefers-color-scheme:dark){{{rules(True)}}}"
    )
    drawing.root.insert(0, style)
    drawing.rect(0, 0, drawing.width, drawing.height, "paper")
