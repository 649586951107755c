"""Renyi divergences against arithmetic with 60 digits."""

from __future__ import annotations

import math
from typing import Any

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.errors import InputError
from tacit.privacy import renyi_divergence, symmetric_renyi_divergence

ORDERS = (1, 1.0001, 1.5, 2, 3, 8, 32, math.inf)


def oracle(p: list[float], q: list[float], order: float) -> float:
    """The definition, literally, with 60 digits and exact normalisation."""
    with mpmath.workdps(60):
        P = [mpmath.mpf(value) / mpmath.fsum(p) for value in p]
        Q = [mpmath.mpf(value) / mpmath.fsum(q) for value in q]
        pairs = [(a, b) for a, b in zip(P, Q, strict=True) if a > 0]
        if any(b == 0 for _, b in pairs):
            return math.inf
        if order == 1:
            return float(mpmath.fsum(a * mpmath.log(a / b) for a, b in pairs))
        if math.isinf(order):
            return float(max(mpmath.log(a / b) for a, b in pairs))
        total = mpmath.fsum(a ** mpmath.mpf(order) * b ** (1 - mpmath.mpf(order)) for a, b in pairs)
        return float(mpmath.log(total) / (mpmath.mpf(order) - 1))


HARD = {
    "equal": ([0.25, 0.75], [0.25, 0.75]),
    "nearly equal": ([0.5 + 1e-7, 0.5 - 1e-7], [0.5, 0.5]),
    "one-hot against spread": ([1.0, 0.0, 0.0], [0.2, 0.3, 0.5]),
    "spread against one-hot": ([0.2, 0.3, 0.5], [1.0, 0.0, 0.0]),
    "1e-300 against one": ([1.0, 0.0], [1e-300, 1.0]),
    "1e-300 on both sides": ([1e-300, 1.0], [3e-300, 1.0]),
    "far below the smallest normal number": ([1.0, 0.0], [5e-320, 1.0]),
    "opposite one-hots": ([1.0, 0.0], [0.0, 1.0]),
    "common zeros": ([0.5, 0.5, 0.0], [0.4, 0.6, 0.0]),
}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("case", HARD)
def test_hard_cases_agree_with_the_definition(case: str, order: float) -> None:
    p, q = HARD[case]
    expected = oracle(p, q, order)
    found = float(renyi_divergence(p, q, order))
    assert found >= 0
    if math.isinf(expected):
        assert found == math.inf
    else:
        assert found == pytest.approx(expected, rel=1e-8, abs=1e-30)


weights = st.lists(st.floats(1e-12, 1.0), min_size=2, max_size=6)


@given(weights, weights, st.sampled_from(ORDERS))
def test_random_pmfs_agree_with_the_definition(a: list[float], b: list[float], order: float) -> None:
    size = min(len(a), len(b))
    p, q = (np.array(values[:size]) / math.fsum(values[:size]) for values in (a, b))
    expected = oracle(list(p), list(q), order)
    # Normalising in double precision leaves 1e-16 of the sum, which order 32 multiplies.
    assert float(renyi_divergence(p, q, order)) == pytest.approx(expected, rel=1e-8, abs=1e-14)


@given(weights, st.sampled_from(ORDERS))
def test_never_negative_and_zero_for_equals(a: list[float], order: float) -> None:
    p = np.array(a) / math.fsum(a)
    nudged = p * (1 + 1e-9 * np.arange(len(p)))
    assert float(renyi_divergence(p, p, order)) == 0
    assert float(renyi_divergence(p, nudged / nudged.sum(), order)) >= 0


def test_grows_with_the_order() -> None:
    p, q = [0.7, 0.2, 0.1], [0.2, 0.5, 0.3]
    values = [float(renyi_divergence(p, q, order)) for order in ORDERS]
    assert values == sorted(values)
    assert values[0] < values[-1]


def test_batches_broadcast_over_leading_axes() -> None:
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.ones(5), size=(3, 4))
    q = rng.dirichlet(np.ones(5), size=4)
    found = renyi_divergence(p, q, 2.5)
    assert found.shape == (3, 4)
    assert found[2, 1] == pytest.approx(oracle(list(p[2, 1]), list(q[1]), 2.5), rel=1e-10)
    both = symmetric_renyi_divergence(p, q, 2.5)
    assert np.array_equal(both, np.maximum(found, renyi_divergence(q, p, 2.5)))


@pytest.mark.parametrize(
    ("p", "order", "words"),
    [
        ([0.5, 0.4], 2, "sum is off by 0.1"),
        ([1.5, -0.5], 2, "negative"),
        ([math.nan, 1.0], 2, "non-finite"),
        ([], 2, "empty"),
        ([0.5, 0.5], 0.5, "order=0.5"),
        ([0.5, 0.5], math.nan, "order=nan"),
    ],
)
def test_what_is_no_pmf_or_order_is_refused(p: list[float], order: float, words: str) -> None:
    with pytest.raises(InputError, match=words):
        renyi_divergence(p, [0.5, 0.5] if len(p) == 2 else p, order)


@pytest.mark.parametrize(
    ("p", "q", "words"),
    [
        ([1.0], [0.2, 0.3, 0.5], "p has 1 outcomes and q 3"),
        ([0.5, 0.5], [0.2, 0.3, 0.5], "p has 2 outcomes and q 3"),
        ([[0.5, 0.5]] * 2, [[0.5, 0.5]] * 3, "leading axes must agree"),
    ],
)
def test_outcomes_are_never_broadcast(p: list[Any], q: list[Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        renyi_divergence(p, q, 2)
