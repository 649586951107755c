"""Numbers and names as people read them.

Whatever is shown goes through here, so that a number is rounded the same way in a sentence, a table and a
figure, and that no name that somebody chose can break a page.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime

from tacit.statistics import Estimate

NOTHING = "–"
_MOST_METHODS = 3


def clean(text: str) -> str:
    """Text without characters that XML or UTF-8 cannot carry; line breaks become spaces."""
    kept = "".join(one if one.isprintable() else " " for one in text)
    return kept.encode("utf-8", "replace").decode("utf-8")


def number(value: float | None, digits: int = 3) -> str:
    """A number with so many digits that matter; a dash where there is none."""
    if value is None:
        return NOTHING
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    size = abs(value)
    if value == 0:
        shown = "0"
    elif size >= 1e7 or size < 1e-4:
        mantissa, exponent = f"{size:.{digits - 1}e}".split("e")
        shown = f"{float(mantissa):g}e{int(exponent)}"
    elif size >= 10 ** (digits - 1):
        shown = f"{size:,.0f}"
    else:
        shown = f"{size:.{digits}g}"
    return f"−{shown}" if value < 0 else shown


def percent(value: float | None) -> str:
    """A share: a little is not shown as nothing, nor almost all as all."""
    if value is None:
        return NOTHING
    if 0 < value < 1e-4:
        return "<0.01%"
    if 0.9999 < value < 1:
        return ">99.99%"
    return f"{100 * value:.3g}%" if value < 0.99 else f"{100 * value:.4g}%"


def estimate(measured: Estimate | None) -> str:
    """A value with its interval, e.g. ``12.3 [11.8, 12.9]``."""
    if measured is None:
        return NOTHING
    places = _places(measured)
    value, low, high = (_fixed(one, places) for one in (measured.value, measured.low, measured.high))
    return f"{value} [{low}, {high}]"


def _places(measured: Estimate) -> int | None:
    """Decimals that all three numbers share; None where they are too large or too small for any."""
    ends = [abs(one) for one in (measured.low, measured.value, measured.high) if math.isfinite(one)]
    largest = max(ends)
    if not 1e-3 <= largest < 1e7:
        return None
    places = max(0, 2 - math.floor(math.log10(largest)))
    # A value far below its upper end is not shown as nothing.
    size = abs(measured.value)
    return max(places, min(4, 1 - math.floor(math.log10(size)))) if size > 0 else places


def _fixed(value: float, places: int | None) -> str:
    if places is None or not math.isfinite(value):
        return number(value)
    shown = f"{abs(value):,.{places}f}"
    return f"−{shown}" if value < 0 and float(shown.replace(",", "")) else shown


def share(measured: Estimate | None) -> str:
    """A measured share with its interval."""
    if measured is None:
        return NOTHING
    return (
        f"{percent(measured.value)} [{percent(max(0.0, measured.low))}, {percent(min(1.0, measured.high))}]"
    )


def p_value(value: float | None) -> str:
    """How surprising the data are where nothing leaks, for a table."""
    if value is None:
        return NOTHING
    return "<0.0001" if value < 1e-4 else f"{value:.2g}"


def p_sentence(value: float | None) -> str:
    """The same for a sentence."""
    if value is None:
        return "p was not computed"
    return "p < 0.0001" if value < 1e-4 else f"p = {value:.2g}"


def interval(measured: Estimate, text: Callable[[float], str] | None = None) -> str:
    """The interval alone, e.g. ``95% interval 0.760 to 0.800``."""
    places = _places(measured)
    low, high = (text(end) if text else _fixed(end, places) for end in (measured.low, measured.high))
    return f"{percent(measured.confidence)} interval {low} to {high}"


def aligned(values: Sequence[float]) -> list[str]:
    """Numbers that stand below each other, with as many decimals each where that rounds none of them away."""
    sizes = [abs(value) for value in values if value]
    largest, least = max(sizes, default=0.0), min(sizes, default=0.0)
    if not 1e-3 <= largest < 1e7 or least < largest / 30:
        return [number(value) for value in values]
    places = max(0, 2 - math.floor(math.log10(largest)))
    return [_fixed(value, places) for value in values]


def methods(measured: Iterable[Estimate | None]) -> tuple[str, ...]:
    """How the intervals of a table were made: the distinct methods, or the first few of many."""
    found = dict.fromkeys(
        f"{percent(one.confidence)} intervals: {one.method}" for one in measured if one is not None
    )
    if len(found) <= _MOST_METHODS:
        return tuple(found)
    return (*list(found)[:_MOST_METHODS], f"and {len(found) - _MOST_METHODS} others, which the data name")


def moment(made: str) -> str:
    """A time of ``audit.json``; what is not one is shown as it is."""
    try:
        return f"{datetime.fromisoformat(made).astimezone(UTC):%d %B %Y, %H:%M} UTC"
    except (ValueError, OverflowError):
        return clean(made)


def duration(seconds: float | None) -> str:
    """How long something took."""
    if seconds is None:
        return NOTHING
    if seconds < 120:
        return f"{number(seconds, 2)} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def plural(count: int, one: str, many: str | None = None) -> str:
    """A count with its noun."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"
