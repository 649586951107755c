"""Numbers and names as people read them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.report.words import (
    aligned,
    clean,
    duration,
    estimate,
    interval,
    methods,
    moment,
    number,
    p_sentence,
    p_value,
    percent,
    plural,
    share,
)
from tacit.statistics import Estimate


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "–"),
        (0.0, "0"),
        (1.4427, "1.44"),
        (-0.52, "−0.52"),
        (99.96, "100"),
        (1234.5, "1,234"),
        (1_000_000.0, "1,000,000"),
        (1e-5, "1e-5"),
        (-2.346e-7, "−2.35e-7"),
        (1.024e23, "1.02e23"),
        (math.inf, "∞"),
        (-math.inf, "−∞"),
    ],
)
def test_numbers(value: float | None, shown: str) -> None:
    assert number(value) == shown


@given(st.floats(1e-6, 1e12))
def test_a_number_is_shown_to_three_digits(value: float) -> None:
    assert float(number(value).replace(",", "")) == pytest.approx(value, rel=0.0051)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "–"), (0.0, "0%"), (1e-6, "<0.01%"), (0.001, "0.1%"), (0.35, "35%"), (0.9951, "99.51%"),
        (0.999_999, ">99.99%"), (1.0, "100%"),
    ],
)  # fmt: skip
def test_shares(value: float | None, shown: str) -> None:
    assert percent(value) == shown


def measured(value: float, low: float, high: float, method: str = "m") -> Estimate:
    return Estimate(value, low, high, 0.95, method)


def test_an_interval_has_the_decimals_of_its_value() -> None:
    assert estimate(measured(0.78, 0.76, 0.8)) == "0.780 [0.760, 0.800]"
    assert estimate(measured(18.7, 17.5, 20)) == "18.7 [17.5, 20.0]"
    assert estimate(measured(-0.52, -0.7, 0)) == "−0.520 [−0.700, 0.000]"
    assert estimate(measured(3, -math.inf, math.inf)) == "3.00 [−∞, ∞]"
    assert estimate(measured(2e-6, 1e-6, 3e-6)) == "2e-6 [1e-6, 3e-6]"
    assert estimate(measured(0, 0, 0)) == "0 [0, 0]"
    assert estimate(None) == "–"


def test_a_little_is_not_shown_as_nothing() -> None:
    assert estimate(measured(0.003, 0, 5.2)).startswith("0.0030 ")


def test_intervals_of_shares_stay_shares() -> None:
    assert share(measured(0.5, -math.inf, math.inf)) == "50% [0%, 100%]"
    assert share(None) == "–"
    assert interval(measured(0.35, 0.154, 0.592), percent) == "95% interval 15.4% to 59.2%"
    assert interval(measured(0.78, 0.76, 0.8)) == "95% interval 0.760 to 0.800"


def test_numbers_below_each_other_have_equal_decimals() -> None:
    assert aligned([0.7, 0.506]) == ["0.700", "0.506"]
    assert aligned([31.2, 8]) == ["31.2", "8.0"]
    assert aligned([]) == []
    assert aligned([1.62, 736]) == ["1.62", "736"]  # not "2" beside it


def test_p_values() -> None:
    assert [p_value(one) for one in (None, 1e-9, 0.031)] == ["–", "<0.0001", "0.031"]
    assert [p_sentence(one) for one in (1e-9, 0.031)] == ["p < 0.0001", "p = 0.031"]


def test_methods_are_named_once_and_many_are_counted() -> None:
    few = [measured(1, 0, 2, "a"), None, measured(1, 0, 2, "b"), measured(3, 0, 5, "a")]
    assert methods(few) == ("95% intervals: a", "95% intervals: b")
    many = methods(measured(1, 0, 2, f"n={place}") for place in range(9))
    assert len(many) == 4
    assert many[-1].startswith("and 6 others")


def test_times() -> None:
    assert moment("2026-11-18T10:30:00+01:00") == "18 November 2026, 09:30 UTC"
    assert moment("<never>") == "<never>"  # escaped where it is shown
    assert [duration(one) for one in (None, 0.42, 41.5, 312, 9000)] == [
        "–",
        "0.42 s",
        "42 s",
        "5 min",
        "2.5 h",
    ]
    assert [plural(count, "query", "queries") for count in (0, 1, 1200)] == [
        "0 queries",
        "1 query",
        "1,200 queries",
    ]


@given(st.text(st.characters()))
def test_clean_text_can_be_written_and_has_no_control_characters(text: str) -> None:
    found = clean(text)
    assert found.isprintable()
    found.encode("utf-8")
    assert len(found) == len(text)


def test_what_would_turn_text_around_is_gone() -> None:
    assert clean("a\u202eb\x00c\ud800d\ne") == "a b c d e"
