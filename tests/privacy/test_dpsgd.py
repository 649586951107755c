"""DP-SGD's curve: published values, upper bounds that are tight, and nothing that is no process."""

from __future__ import annotations

import json
from functools import cache

import pytest

from tacit.errors import InputError
from tacit.privacy import (
    Adjacency,
    DpSgdProcess,
    PrivacyCurve,
    calibrate_noise,
    dpsgd_curve,
    gaussian_dp_mu,
    shuffled_epsilon,
)


@cache
def curve(
    rate: float, noise: float, steps: int, adjacency: Adjacency = "replace-one", group: int = 1
) -> PrivacyCurve:
    return dpsgd_curve(DpSgdProcess(rate, noise, steps), adjacency, group=group)


# Rate, noise, steps, delta; then epsilon by privacy loss distributions under add-remove and replace-one
# (dp-accounting 0.6), by the Gaussian approximation (Opacus 1.6), and un-amplified over that many epochs.
GOLDEN = {
    "10 epochs": (0.0256, 0.8, 391, 8e-5, 4.54, 6.27, 3.79, 22.0, 10),
    "more noise": (0.0256, 1.0, 391, 8e-5, 2.73, 4.26, 2.39, 16.3, 10),
    "large corpus": (0.01024, 0.7, 293, 1e-6, 3.84, 4.25, 2.03, 14.3, 3),
    "100 epochs": (0.0256, 2.0, 3906, 8e-5, 3.24, 6.82, 3.20, 30.6, 100),
}


@pytest.mark.parametrize("case", GOLDEN)
def test_published_values(case: str) -> None:
    rate, noise, steps, delta, removed, replaced, asymptotic, shuffled, epochs = GOLDEN[case]
    assert curve(rate, noise, steps, "add-remove").epsilon_at(delta) == pytest.approx(removed, abs=0.006)
    assert curve(rate, noise, steps).epsilon_at(delta) == pytest.approx(replaced, abs=0.006)
    limit = gaussian_dp_mu(DpSgdProcess(rate, noise, steps))
    assert limit.epsilon_at(delta) == pytest.approx(asymptotic, abs=0.02)
    assert limit.epsilon_at(delta) < removed  # why it is never called a bound
    assert "never a bound" in limit.label
    known = shuffled_epsilon(noise_multiplier=noise, epochs=epochs, delta=delta, adjacency="add-remove")
    assert known == pytest.approx(shuffled, abs=0.06)
    assert known > 3 * removed


def test_noise_for_epsilon_2_by_add_remove_gives_3_84_under_replace_one() -> None:
    noise = calibrate_noise(2, 8e-5, sampling_rate=0.1, steps=100, adjacency="add-remove")
    assert 1.998 <= curve(0.1, noise, 100, "add-remove").epsilon_at(8e-5) <= 2
    assert curve(0.1, noise, 100).epsilon_at(8e-5) == pytest.approx(3.84, abs=0.01)


def test_a_curve_survives_json() -> None:
    written = curve(0.1, 2.0, 100)
    read = PrivacyCurve.from_json(json.loads(json.dumps(written.to_json(), allow_nan=False)))
    assert (read.process, read.adjacency, read.group) == (written.process, "replace-one", 1)
    for delta in (1e-9, 8e-5, 0.3):
        assert read.epsilon_at(delta) == written.epsilon_at(delta)
        assert read.delta_at(delta) == written.delta_at(delta)
    with pytest.raises(InputError, match="another version"):
        PrivacyCurve.from_json(written.to_json() | {"format": 0})
    for spoiled in ({"deltas": [0.5, 0.6], "epsilons": [0.0, 1.0]}, {"epsilons": [0.1], "deltas": [0.2]}):
        with pytest.raises(InputError, match="epsilons that grow from 0"):
            PrivacyCurve.from_json(written.to_json() | spoiled)
