"""Axes: round ticks that hold the data, and places that never leave the box."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.errors import InputError
from tacit.report.scales import Scale, decade_ticks, folded_ticks, nice_ticks

reals = st.floats(-1e9, 1e9, allow_nan=False)
positive = st.floats(1e-12, 1e12)


@given(reals, reals, st.integers(3, 12))
def test_ticks_are_round_even_few_and_hold_the_data(one: float, other: float, most: int) -> None:
    low, high = sorted((one, other))
    ticks = nice_ticks(low, high, most=most)
    assert 2 <= len(ticks) <= most
    slack = 1e-9 * max(abs(low), abs(high))
    assert ticks[0] <= low + slack
    assert ticks[-1] >= high - slack
    steps = [after - before for before, after in itertools.pairwise(ticks)]
    assert all(step > 0 for step in steps)
    assert max(steps) == pytest.approx(min(steps), rel=1e-6)
    digit = steps[0] / 10 ** math.floor(math.log10(steps[0]) + 1e-9)
    assert min(abs(digit - nice) for nice in (1, 2, 5)) < 1e-4


@given(st.floats(0, 1e6), st.floats(1e-3, 1e6))
def test_no_finer_or_coarser_axis_than_needed(low: float, span: float) -> None:
    ticks = nice_ticks(low, low + span)
    step = ticks[1] - ticks[0]
    assert ticks[0] > low - step * (1 + 1e-9)
    assert ticks[-1] < low + span + step * (1 + 1e-9)


def test_ticks_that_people_would_choose() -> None:
    assert nice_ticks(0, 19.93, most=7) == (0, 5, 10, 15, 20)
    assert nice_ticks(0, 1) == (0, 0.2, 0.4, 0.6, 0.8, 1)
    assert nice_ticks(0, 0.3) == (0, 0.1, 0.2, 0.3)  # and not 0.30000000000000004
    assert nice_ticks(-3, 4) == (-4, -2, 0, 2, 4)
    assert nice_ticks(0, 0) == (-0.5, 0, 0.5)
    assert nice_ticks(18.7, 18.7)[0] < 18.7 < nice_ticks(18.7, 18.7)[-1]


@pytest.mark.parametrize(("low", "high"), [(math.nan, 1), (0, math.inf), (2, 1)])
def test_no_axis_without_finite_ends_in_order(low: float, high: float) -> None:
    with pytest.raises(InputError, match="axis"):
        nice_ticks(low, high)


@given(positive, positive, st.integers(3, 12))
def test_decades_are_powers_of_ten_few_and_hold_the_data(one: float, other: float, most: int) -> None:
    low, high = sorted((one, other))
    ticks = decade_ticks(low, high, most=most)
    assert 2 <= len(ticks) <= most
    assert ticks[0] <= low
    assert high <= ticks[-1]
    assert all(tick == float(f"1e{round(math.log10(tick))}") for tick in ticks)
    ratios = {round(math.log10(after / before)) for before, after in itertools.pairwise(ticks)}
    assert len(ratios) == 1


def test_decades_that_people_would_choose() -> None:
    assert decade_ticks(0.001, 1) == (0.001, 0.01, 0.1, 1)
    assert decade_ticks(3, 350) == (1, 10, 100, 1000)
    assert decade_ticks(5, 5) == (1, 10)
    assert decade_ticks(1, 1) == (1, 10)
    for wrong in ((0, 1), (-1, 1), (2, 1), (1, math.inf)):
        with pytest.raises(InputError, match="logarithmic"):
            decade_ticks(*wrong)


@given(st.floats(0, 1e8))
def test_folded_ticks_begin_at_nothing_and_reach_the_data(high: float) -> None:
    ticks = folded_ticks(high)
    assert ticks[0] == 0
    assert ticks[-1] >= high
    assert list(ticks) == sorted(set(ticks))
    assert len(ticks) <= 9


def test_a_folded_axis_ends_somewhere() -> None:
    assert folded_ticks(40) == (0, 1, 2, 5, 10, 20, 50)
    with pytest.raises(InputError, match="folded"):
        folded_ticks(math.inf)


def scales() -> list[Scale]:
    return [
        Scale.linear(-2, 17, 60, 620),
        Scale.linear(0, 1, 300, 10),
        Scale.logarithmic(0.001, 1, 60, 620),
        Scale.folded(80, 60, 620),
    ]


@given(st.sampled_from(scales()), st.floats(allow_nan=False))
def test_no_value_leaves_the_box(scale: Scale, value: float) -> None:
    low, high = sorted((scale.start, scale.end))
    assert low <= scale(value) <= high


@given(st.sampled_from(scales()), reals, reals)
def test_order_is_kept(scale: Scale, one: float, other: float) -> None:
    low, high = sorted((one, other))
    forward = 1 if scale.end > scale.start else -1
    assert forward * scale(low) <= forward * scale(high) + 1e-9


def test_places_are_where_the_axis_says() -> None:
    linear, up, log, folded = scales()
    assert [linear(tick) for tick in (linear.low, linear.high)] == [60, 620]
    assert up(0.25) == pytest.approx(300 - 0.25 * 290)
    assert log(0.1) == pytest.approx(60 + 560 * 2 / 3)
    assert log(0) == 60  # nothing has no logarithm
    assert folded(0) == 60
    assert folded(folded.high) == pytest.approx(620)
    near, far = folded(0.2) - folded(0.1), folded(100) - folded(99.9)
    assert near > 20 * far
