"""A sheet of SVG that is always well-formed: elements are built, never glued from text.

Colours are classes of the page's style sheet, so that one drawing serves light, dark and paper. Every drawing
has a title and a description, and shows text as text.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal
from xml.etree import ElementTree as ET

from markupsafe import Markup

from tacit.report.scales import Scale
from tacit.report.words import clean, number

Anchor = Literal["start", "middle", "end"]
Symbol = Literal["dot", "hollow", "line", "dashed", "band", "band wide", "bar", "diamond", "tick", "unseen"]
WIDTH = 640.0
SMALL = 440.0  # for two figures side by side
_LETTER = 6.1  # mean width of a letter at the size of a legend, with room to spare
_LINE = 18.0


@dataclass(frozen=True)
class Key:
    """An entry of a legend."""

    symbol: Symbol
    text: str
    tone: str = ""


@dataclass
class Drawing:
    """An SVG in the making; ``id`` is unique in its page."""

    id: str
    title: str
    description: str
    height: float
    width: float = WIDTH
    root: ET.Element = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.root = ET.Element(
            "svg",
            {
                "xmlns": "http://www.w3.org/2000/svg",
                "viewBox": f"0 0 {_figure(self.width)} {_figure(self.height)}",
                "class": "plot" if self.width == WIDTH else "plot small",
                "role": "img",
                "aria-labelledby": f"{self.id}-title {self.id}-desc",
            },
        )
        for name, text in (("title", self.title), ("desc", self.description)):
            ET.SubElement(self.root, name, {"id": f"{self.id}-{name}"}).text = clean(text)

    def svg(self) -> Markup:
        """The drawing as text."""
        return Markup(ET.tostring(self.root, encoding="unicode"))  # noqa: S704 - built of elements

    def rect(self, x: float, y: float, width: float, height: float, style: str, note: str = "") -> None:
        """A rectangle; ``note`` is shown to who points at it."""
        self._add("rect", style, note, x=x, y=y, width=max(0.0, width), height=max(0.0, height))

    def line(self, x1: float, y1: float, x2: float, y2: float, style: str, note: str = "") -> None:
        """A line."""
        self._add("line", style, note, x1=x1, y1=y1, x2=x2, y2=y2)

    def dot(self, x: float, y: float, radius: float, style: str, note: str = "") -> None:
        """A point."""
        self._add("circle", style, note, cx=x, cy=y, r=radius)

    def diamond(self, x: float, y: float, radius: float, style: str, note: str = "") -> None:
        """A square on its corner."""
        corners = ((x, y - radius), (x + radius, y), (x, y + radius), (x - radius, y))
        self.path(corners, style, note, closed=True)

    def path(
        self, points: Sequence[tuple[float, float]], style: str, note: str = "", *, closed: bool = False
    ) -> None:
        """A line through points."""
        steps = " L".join(f"{_figure(x)} {_figure(y)}" for x, y in points)
        element = self._add("path", style, note)
        element.set("d", f"M{steps}{' Z' if closed else ''}")

    def text(self, x: float, y: float, text: str, style: str = "", anchor: Anchor = "start") -> None:
        """A line of text."""
        element = self._add("text", style, "", x=x, y=y)
        if anchor != "start":
            element.set("text-anchor", anchor)
        element.text = clean(text)

    def turned(self, x: float, y: float, text: str, style: str = "") -> None:
        """A line of text that is read from below, around its middle."""
        element = self._add("text", style, "")
        element.set("transform", f"translate({_figure(x)} {_figure(y)}) rotate(-90)")
        element.set("text-anchor", "middle")
        element.text = clean(text)

    def whisker(self, x: float, low: float, high: float, style: str, cap: float = 4) -> None:
        """An interval that stands upright."""
        self.line(x, low, x, high, style)
        for end in (low, high):
            self.line(x - cap, end, x + cap, end, style)

    def legend(self, keys: Sequence[Key], *, left: float) -> None:
        """Keys at the top, in as many lines as :func:`legend_height` reckoned with."""
        x, y = left, 11.0
        for key in keys:
            size = _key_width(key)
            if x > left and x + size > self.width:
                x, y = left, y + _LINE
            self._symbol(key, x, y)
            self.text(x + 24, y, key.text, "key")
            x += size

    def _symbol(self, key: Key, x: float, y: float) -> None:
        middle, tone = y - 4, key.tone
        match key.symbol:
            case "dot" | "hollow":
                self.dot(x + 9, middle, 4, f"{key.symbol} {tone}".strip())
            case "diamond":
                self.diamond(x + 9, middle, 5.5, f"diamond {tone}".strip())
            case "line" | "dashed":
                self.line(x, middle, x + 18, middle, f"{key.symbol} {tone}".strip())
            case "tick":
                self.line(x + 9, middle - 6, x + 9, middle + 6, f"tick {tone}".strip())
            case _:
                self.rect(x, middle - 5, 18, 10, f"{key.symbol} {tone}".strip())

    def _add(self, tag: str, style: str, note: str, **places: float) -> ET.Element:
        element = ET.SubElement(self.root, tag, {name: _figure(place) for name, place in places.items()})
        if style:
            element.set("class", style)
        if note:
            ET.SubElement(element, "title").text = clean(note)
        return element


def _figure(value: float) -> str:
    if not math.isfinite(value):
        raise ValueError(f"a place on paper is a number, not {value}")
    return f"{round(value, 2):g}" if abs(value) < 1e5 else f"{value:.0f}"


def _key_width(key: Key) -> float:
    return 24 + _LETTER * len(key.text) + 18


def legend_height(keys: Sequence[Key], *, left: float, width: float = WIDTH) -> float:
    """What a legend needs above a plot."""
    x, lines = left, 1
    for key in keys:
        size = _key_width(key)
        if x > left and x + size > width:
            x, lines = left, lines + 1
        x += size
    return lines * _LINE + 8 if keys else 8.0


def axes(
    drawing: Drawing,
    x: Scale | None,
    y: Scale | None,
    *,
    box: tuple[float, float, float, float],
    x_label: str,
    y_label: str,
    x_text: Callable[[float], str] = number,
    y_text: Callable[[float], str] = number,
) -> None:
    """Grid, ticks and names of axes around a box (left, top, right, bottom)."""
    left, top, right, bottom = box
    if y is not None:
        for tick in y.ticks:
            drawing.line(left, y(tick), right, y(tick), "grid")
            drawing.text(left - 8, y(tick) + 4, y_text(tick), "tick-text", "end")
    if x is not None:
        for tick in x.ticks:
            drawing.line(x(tick), top, x(tick), bottom, "grid")
            drawing.text(x(tick), bottom + 17, x_text(tick), "tick-text", "middle")
    drawing.line(left, bottom, right, bottom, "axis")
    drawing.text((left + right) / 2, bottom + 36, x_label, "axis-text", "middle")
    if y_label:
        drawing.turned(13, (top + bottom) / 2, y_label, "axis-text")
