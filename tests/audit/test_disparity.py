"""Who pays: least squares as an oracle, coverage over users, and what few users allow."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from scipy import stats

from tacit.audit import measure_disparity
from tacit.errors import InputError


def users(rng: np.random.Generator, number: int, slope: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    samples = np.ceil(rng.lognormal(3, 1, number))
    before = rng.uniform(20, 40, number)
    after = before + 5 + slope * np.log(samples) + rng.standard_normal(number)
    return after, before, samples


def test_values_against_numpy_and_linregress() -> None:
    after, before, samples = users(np.random.default_rng(1), 60, -0.8)
    samples += np.linspace(0, 0.5, 60)  # no ties
    found = measure_disparity(after, before, samples)
    change = after - before
    order = np.argsort(samples)
    assert found.mean.value == pytest.approx(change.mean())
    assert found.fewest.value == pytest.approx(change[order[:5]].mean())
    assert found.most.value == pytest.approx(change[order[-5:]].mean())
    assert found.gap.value == pytest.approx(found.fewest.value - found.most.value)
    assert found.slope is not None
    line = stats.linregress(np.log(samples), change)
    assert found.slope.value == pytest.approx(line.slope)
    width = found.slope.high - found.slope.low
    assert width == pytest.approx(2 * 1.96 * line.stderr, rel=0.35)
    assert found.slope.high < 0 < found.gap.low  # those who wrote little pay more, and it shows
    assert "5 with 5 users" in " ".join(found.caveats)
    content = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert content["slope"]["value"] == found.slope.value
    assert content["compared"] == 5


def test_slope_and_mean_cover_near_their_level_on_null_users() -> None:
    rng, runs = np.random.default_rng(2), 250
    slopes = means = narrow = gaps = 0
    for run in range(runs):
        after, before, samples = users(rng, 60, 0.0)
        found = measure_disparity(after, before, samples, resamples=300, seed=run)
        assert found.slope is not None
        slopes += found.slope.low <= 0 <= found.slope.high
        means += found.mean.low <= 5 <= found.mean.high
        gaps += found.gap.low <= 0 <= found.gap.high
        narrow += abs(found.slope.value) <= (found.slope.high - found.slope.low) / 4
    assert slopes / runs >= 0.89
    assert means / runs >= 0.90
    assert narrow / runs < 0.8
    # Five users a side: as the caveat says, too narrow, but not absurd.
    assert 0.7 <= gaps / runs <= 0.95


def test_resampled_slopes_are_those_of_copied_users() -> None:
    after, before, samples = users(np.random.default_rng(7), 12, -1.0)
    found = measure_disparity(after, before, samples, resamples=200, seed=3).slope
    counts = np.random.default_rng(3).multinomial(12, np.full(12, 1 / 12), size=200)
    slopes = [
        stats.linregress(np.repeat(np.log(samples), row), np.repeat(after - before, row)).slope
        for row in counts
    ]
    assert found is not None
    assert [found.low, found.high] == pytest.approx(np.quantile(slopes, [0.025, 0.975]).tolist())


def test_few_users_are_said() -> None:
    three = measure_disparity([30.0, 31.0, 35.0], [29.0, 29.0, 29.0], [100, 10, 1])
    assert three.compared == 1
    assert (three.most.value, three.fewest.value, three.gap.value) == (1, 6, 5)
    assert (three.gap.low, three.gap.high) == (-math.inf, math.inf)
    assert any("only 1 on each side" in caveat for caveat in three.caveats)
    assert any("3 users" in caveat for caveat in three.caveats)
    assert json.loads(json.dumps(three.to_json(), allow_nan=False))["gap"]["low"] is None
    after, before, _ = users(np.random.default_rng(3), 100, 0.0)
    assert measure_disparity(after, before, np.arange(100) + 1, compared=30).caveats == ()
    tied = measure_disparity(after, before, np.arange(100) // 40 + 1, compared=30)
    assert tied.caveats == ("Users with equally many samples stand on both sides of a cut, by their order.",)
    assert measure_disparity([2.0, 3.0], [1.0, 1.0], [7, 7]).slope is None
    assert measure_disparity(*users(np.random.default_rng(3), 30, 0.0), seed=4) == measure_disparity(
        *users(np.random.default_rng(3), 30, 0.0), seed=4
    )


def test_a_slope_does_not_depend_on_the_scale_of_samples_or_on_the_order_of_users() -> None:
    after, before, samples = users(np.random.default_rng(5), 40, -1.0)
    one, other = measure_disparity(after, before, samples), measure_disparity(after, before, samples * 1000)
    assert one.slope is not None
    assert other.slope is not None
    assert other.slope.value == pytest.approx(one.slope.value)
    assert other.slope.low == pytest.approx(one.slope.low)
    order = np.random.default_rng(6).permutation(40)
    turned = measure_disparity(after[order], before[order], samples[order])
    assert turned.mean.value == pytest.approx(one.mean.value)


def test_nonsense_is_refused() -> None:
    with pytest.raises(InputError, match="two users"):
        measure_disparity([1.0], [1.0], [1])
    with pytest.raises(InputError, match="two users"):
        measure_disparity([1.0, 2.0], [1.0], [1, 2])
    for bad in ([math.inf, 1.0], [math.nan, 1.0]):
        with pytest.raises(InputError, match="finite"):
            measure_disparity(bad, [1.0, 1.0], [1, 2])
    with pytest.raises(InputError, match="above 0"):
        measure_disparity([1.0, 2.0], [1.0, 1.0], [0, 2])
    with pytest.raises(InputError, match="compared"):
        measure_disparity([1.0, 2.0], [1.0, 1.0], [1, 2], compared=0)
