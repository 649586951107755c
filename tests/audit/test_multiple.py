"""Holm's procedure against its definition, and the error rate of a whole family."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from tacit.audit import holm
from tacit.errors import InputError


def test_a_worked_example() -> None:
    """Holm (1979) as in R: p.adjust(c(0.01, 0.04, 0.03, 0.005), "holm") = 0.03 0.06 0.06 0.02."""
    rows = holm({"a": 0.01, "b": 0.04, "c": 0.03, "d": 0.005})
    assert [row.name for row in rows] == ["a", "b", "c", "d"]
    assert [row.adjusted for row in rows] == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert [row.leaks for row in rows] == [True, False, False, True]
    assert rows[0].to_json() == {"name": "a", "p_value": 0.01, "adjusted": 0.03, "leaks": True}
    assert holm({}) == ()


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8), st.sampled_from([0.01, 0.05, 0.3]))
def test_step_down_by_hand(values: list[float], level: float) -> None:
    rows = holm({str(i): value for i, value in enumerate(values)}, level=level)
    rejected: set[int] = set()
    for step, index in enumerate(sorted(range(len(values)), key=lambda i: values[i])):
        if values[index] * (len(values) - step) > level:
            break
        rejected.add(index)
    assert {i for i, row in enumerate(rows) if row.leaks} == rejected
    assert all(row.p_value <= row.adjusted <= 1 for row in rows)


@pytest.mark.parametrize("correlation", [0.0, 0.9])
def test_no_true_null_is_called_a_leak_more_often_than_the_level(correlation: float) -> None:
    """Eight attacks, three of which really work; those that do not are correlated or not."""
    rng, runs = np.random.default_rng(1), 3000
    shared, own = rng.standard_normal((runs, 1)), rng.standard_normal((runs, 8))
    scores = np.sqrt(correlation) * shared + np.sqrt(1 - correlation) * own
    scores[:, :3] += 4
    p_values = stats.norm.sf(scores)
    rows = [holm({str(i): float(p) for i, p in enumerate(run)}) for run in p_values]
    false = np.mean([any(row.leaks for row in run[3:]) for run in rows])
    assert false <= 0.05 + 4 * np.sqrt(0.05 / runs)
    assert np.mean([run[0].leaks for run in rows]) > 0.8
    uncorrected = (p_values[:, 3:] <= 0.05).any(axis=1).mean()
    assert uncorrected > (0.2 if correlation == 0 else 0.06)


def test_nonsense_is_refused() -> None:
    with pytest.raises(InputError, match="p-values"):
        holm({"a": 1.2})
    with pytest.raises(InputError, match="p-values"):
        holm({"a": float("nan")})
    with pytest.raises(InputError, match="level"):
        holm({"a": 0.5}, level=0.0)
