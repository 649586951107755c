"""From values to places on an axis: ticks that people would have chosen, and scales that never leave the box.

A linear axis has ticks at multiples of 1, 2 or 5 times a power of ten and begins and ends at one; a
logarithmic one has them at powers of ten; a folded one is linear below 1 and logarithmic above, for bounds
that may be 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from tacit.errors import InputError

_STEPS = (1, 2, 5)
_SMALLEST = 1e-200  # far from where powers of ten end
_FOLDED_TICKS = tuple(float(f"{digit}e{power}") for power in range(-1, 9) for digit in _STEPS)


def nice_ticks(low: float, high: float, *, most: int = 6) -> tuple[float, ...]:
    """At most ``most`` round, evenly spaced numbers, the first at most ``low``, the last at least ``high``.

    Edge cases: equal ends are widened around their value; ends that are closer than a float can tell apart
    at their size likewise.
    """
    if not (math.isfinite(low) and math.isfinite(high) and low <= high) or most < 3:
        raise InputError(f"Expected finite low={low} <= high={high} and most={most} >= 3 for an axis.")
    size = max(abs(low), abs(high))
    if high - low <= 1e-9 * size or high - low < 1e-300:
        half = 0.05 * size or 0.5
        low, high = low - half, high + half
    power = math.floor(math.log10((high - low) / most))
    while True:
        for digit in _STEPS:
            step = digit * 10.0**power
            first, last = math.floor(low / step), math.ceil(high / step)
            if last - first < most:
                # Powers below 1 are not exact: 3 * 0.1 is not 0.3, and would be printed so.
                return tuple(
                    round(place * digit * 10.0**power, max(0, -power)) for place in range(first, last + 1)
                )
        power += 1


def decade_ticks(low: float, high: float, *, most: int = 8) -> tuple[float, ...]:
    """At most ``most`` powers of ten, the first at most ``low``, the last at least ``high``."""
    if not _SMALLEST <= low <= high <= 1 / _SMALLEST or most < 3:
        raise InputError(
            f"Expected 0 < low={low} <= high={high} and most={most} >= 3 for a logarithmic axis."
        )
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    first -= _power(first) > low
    last += _power(last) < high
    last = max(last, first + 1)
    stride = math.ceil((last - first) / (most - 1))
    first -= (first - last) % stride
    return tuple(_power(power) for power in range(first, last + 1, stride))


def _power(exponent: int) -> float:
    return float(f"1e{exponent}")


def folded_ticks(high: float, *, most: int = 9) -> tuple[float, ...]:
    """0 and round numbers up to at least ``high``, for a folded axis."""
    if not 0 <= high <= _FOLDED_TICKS[-1]:
        raise InputError(f"Expected 0 <= high={high} <= {_FOLDED_TICKS[-1]:g} for a folded axis.")
    end = next(place for place, tick in enumerate(_FOLDED_TICKS) if tick >= max(high, 1.0))
    reached = [tick for tick in _FOLDED_TICKS[: end + 1] if tick >= 1]
    stride = math.ceil(len(reached) / (most - 1))
    return (0.0, *reversed(reached[::-1][::stride]))


@dataclass(frozen=True)
class Scale:
    """An axis from ``start`` to ``end`` on the paper; values beyond its ticks are put at its ends."""

    ticks: tuple[float, ...]
    start: float
    end: float
    bend: Callable[[float], float] = float  # values to something whose even distances are drawn evenly

    @classmethod
    def linear(cls, low: float, high: float, start: float, end: float, *, most: int = 6) -> Scale:
        """Even distances."""
        return cls(nice_ticks(low, high, most=most), start, end)

    @classmethod
    def logarithmic(cls, low: float, high: float, start: float, end: float, *, most: int = 8) -> Scale:
        """Even ratios; values of 0 and below are put at the low end."""
        return cls(decade_ticks(low, high, most=most), start, end, math.log10)

    @classmethod
    def folded(cls, high: float, start: float, end: float) -> Scale:
        """Even distances below 1, even ratios far above."""
        return cls(folded_ticks(high), start, end, math.asinh)

    @property
    def low(self) -> float:
        """Where the axis begins."""
        return self.ticks[0]

    @property
    def high(self) -> float:
        """Where it ends."""
        return self.ticks[-1]

    def __call__(self, value: float) -> float:
        """The place of a value, never outside the box."""
        inside = min(max(value, self.low), self.high)
        low, high = self.bend(self.low), self.bend(self.high)
        share = (self.bend(inside) - low) / (high - low)
        return self.start + (self.end - self.start) * min(max(share, 0.0), 1.0)
