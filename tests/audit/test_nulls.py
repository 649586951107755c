"""The null of exposure: goldens, enumeration of small spaces, calibration."""

from __future__ import annotations

import json
import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from tacit.audit import exposure, exposure_band, exposure_p_value, memorisation
from tacit.errors import InputError

MILLION = 10**6


def test_published_bands() -> None:
    """research/audit.md 0 and 4.1: 1.44 and 4.32 bits for one, 4.23 and 7.61 for the largest of ten, 6.49 of
    50."""
    one = exposure_band(candidates=MILLION)
    assert one.mean == pytest.approx(1 / math.log(2), abs=1e-4)
    assert one.limit == pytest.approx(4.32, abs=0.005)
    assert one.median == pytest.approx(1, abs=1e-5)
    ten = exposure_band(candidates=MILLION, canaries=10)
    assert ten.mean == pytest.approx(4.23, abs=0.005)
    assert ten.limit == pytest.approx(7.61, abs=0.005)
    fifty = exposure_band(candidates=MILLION, canaries=50)
    assert fifty.mean == pytest.approx(6.49, abs=0.005)
    # Five words of 40,000: continuous.
    assert exposure_band(candidates=40_000**5, canaries=10).mean == pytest.approx(ten.mean, abs=1e-3)
    assert json.loads(json.dumps(exposure_band(candidates=40_000**5).to_json()))["candidates"] == str(
        40_000**5
    )
    # A largest of ten below one bit is rarer than one in a thousand.
    assert 1 - exposure_p_value(1.0, candidates=MILLION, canaries=10) == pytest.approx(2**-10, rel=1e-3)


@pytest.mark.parametrize(("candidates", "canaries"), [(5, 1), (7, 3), (20, 2), (2, 4)])
def test_against_all_outcomes(candidates: int, canaries: int) -> None:
    largest = np.array(
        [
            math.log2(candidates) - math.log2(min(ranks))
            for ranks in product(range(1, candidates + 1), repeat=canaries)
        ]
    )
    band = exposure_band(candidates=candidates, canaries=canaries, confidence=0.8)
    assert band.mean == pytest.approx(largest.mean())
    assert ((largest >= band.low - 1e-12) & (largest <= band.high + 1e-12)).mean() >= 0.8
    assert (largest > band.limit + 1e-12).mean() <= 0.2
    # Tight: the next lower value that occurs would be exceeded too often.
    lower = largest[largest < band.limit - 1e-12]
    if len(lower):
        assert (largest > lower.max() + 1e-12).mean() > 0.2
    for bits in np.unique(largest):
        expected = (largest >= bits - 1e-12).mean()
        assert exposure_p_value(float(bits), candidates=candidates, canaries=canaries) == pytest.approx(
            expected
        )
    assert exposure_p_value(0.0, candidates=candidates, canaries=canaries) == 1
    assert exposure_p_value(math.log2(candidates) + 0.1, candidates=candidates, canaries=canaries) == 0


@given(st.integers(2, 10**15), st.floats(0, 1))
def test_exposure_of_a_rank_is_its_p_value(candidates: int, share: float) -> None:
    rank = 1 + int(share * (candidates - 1))
    bits = exposure(rank, candidates)
    assert 0 <= bits <= math.log2(candidates)
    assert exposure_p_value(bits, candidates=candidates) == pytest.approx(rank / candidates, rel=1e-9)


@pytest.mark.parametrize("candidates", [20, MILLION])
def test_combinations_are_calibrated_and_conservative_for_few_candidates(candidates: int) -> None:
    rng, runs, canaries = np.random.default_rng(1), 4000, 8
    ranks = rng.integers(1, candidates + 1, (runs, canaries))
    fisher = stats.chi2.sf(-2 * np.log(ranks / candidates).sum(axis=1), 2 * canaries)
    rate = (fisher <= 0.05).mean()
    error = 4 * math.sqrt(0.05 / runs)
    assert rate <= 0.05 + error
    if candidates == 20:
        assert rate < 0.045  # whole ranks: conservative
        assert exposure_band(candidates=20).mean < 1 / math.log(2)
    else:
        assert rate >= 0.05 - error
    smallest = 1 - (1 - ranks.min(axis=1) / candidates) ** canaries
    assert (smallest <= 0.05).mean() <= 0.05 + error
    for row in range(5):
        found = memorisation(ranks[row], candidates=candidates)
        assert found.fisher == pytest.approx(fisher[row])
        assert found.largest == pytest.approx(smallest[row])


def test_what_each_combination_sees() -> None:
    somewhat = memorisation([12_000] * 10, candidates=100_000)  # 3 bits each
    wholly = memorisation([1] + [90_000] * 9, candidates=100_000)
    assert somewhat.fisher < 0.01 < somewhat.largest
    assert wholly.largest < 0.001
    assert memorisation([10, 10], candidates=10).largest == 1
    assert memorisation([10, 10], candidates=10).fisher == 1
    assert json.dumps(wholly.to_json())


def test_nonsense_is_refused() -> None:
    with pytest.raises(InputError, match="rank"):
        exposure(0, 10)
    with pytest.raises(InputError, match="candidates"):
        exposure_band(candidates=1)
    with pytest.raises(InputError, match="confidence"):
        exposure_band(candidates=10, confidence=1.0)
    for ranks in ([], [11], [0]):
        with pytest.raises(InputError, match="rank"):
            memorisation(ranks, candidates=10)
