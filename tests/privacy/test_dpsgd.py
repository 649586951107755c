"""DP-SGD's curve: published values, other accountants, and bounds that hold and are tight."""

from __future__ import annotations

import json
import math
import warnings
from functools import cache
from typing import Any

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from dp_accounting.pld import PLDAccountant
from dp_accounting.privacy_accountant import NeighboringRelation
from hypothesis import given, settings
from hypothesis import strategies as st

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
from tacit.privacy.gaussian import gaussian_delta
from tacit.privacy.noise_calibration import LEAST_NOISE


def untyped(value: object) -> Any:
    """What a caller without types may give."""
    return value


BOTH: tuple[Adjacency, ...] = ("add-remove", "replace-one")
RELATIONS = {
    "add-remove": NeighboringRelation.ADD_OR_REMOVE_ONE,
    "replace-one": NeighboringRelation.REPLACE_ONE,
}


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


@pytest.mark.parametrize("adjacency", BOTH)
@pytest.mark.parametrize("case", ["more noise", "large corpus"])
def test_dp_accounting_agrees(case: str, adjacency: Adjacency) -> None:
    rate, noise, steps, delta = GOLDEN[case][:4]
    accountant = PLDAccountant(RELATIONS[adjacency], value_discretization_interval=1e-3)
    step = PoissonSampledDpEvent(rate, GaussianDpEvent(noise))
    accountant.compose(SelfComposedDpEvent(step, int(steps)))
    theirs = accountant.get_epsilon(delta)
    assert curve(rate, noise, int(steps), adjacency).epsilon_at(delta) == pytest.approx(theirs, rel=3e-4)


@pytest.mark.parametrize("case", GOLDEN)
def test_opacus_agrees(case: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecations of theirs
        from opacus.accountants import PRVAccountant, RDPAccountant
    rate, noise, steps, delta = GOLDEN[case][:4]
    found = curve(rate, noise, int(steps), "add-remove").epsilon_at(delta)
    theirs, loose = PRVAccountant(), RDPAccountant()
    for accountant in (theirs, loose):
        accountant.history = [(noise, rate, int(steps))]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the best order is the largest it tried
        # Theirs is an upper end, with an error of 0.01 in it.
        assert theirs.get_epsilon(delta) - 0.03 < found < theirs.get_epsilon(delta)
        assert 1.05 * found < loose.get_epsilon(delta) < 1.3 * found


def exact_delta(rate: float, noise: float, epsilon: float, adjacency: Adjacency) -> float:
    """One step, by integrating (p - e^epsilon q)+ over the line with mpmath, in both directions."""
    import mpmath

    with mpmath.workdps(20):
        other = -1 if adjacency == "replace-one" else 0
        scale = mpmath.exp(mpmath.mpf(epsilon))

        def mixture(x: mpmath.mpf, mean: int) -> mpmath.mpf:
            return (1 - rate) * mpmath.npdf(x, 0, noise) + rate * mpmath.npdf(x, mean, noise)

        def difference(x: mpmath.mpf) -> mpmath.mpf:
            return mixture(x, 1) - scale * mixture(x, other)

        def reverse(x: mpmath.mpf) -> mpmath.mpf:
            return mixture(x, other) - scale * mixture(x, 1)

        def positive_part(function: object, ends: tuple[float, float], rising: bool) -> mpmath.mpf:
            assert callable(function)
            low, high = (mpmath.mpf(end) for end in ends)
            if (function(high) if rising else function(low)) <= 0:
                return mpmath.mpf(0)
            for _ in range(60):  # where it changes its sign: the likelihood ratio is monotone
                middle = (low + high) / 2
                if (function(middle) > 0) == rising:
                    high = middle
                else:
                    low = middle
            far = 1 + 14 * noise
            pieces = np.linspace(float(low), far, 6) if rising else np.linspace(-far, float(low), 6)
            return mpmath.quad(function, list(pieces))

        far = 1 + 14 * noise
        forward = positive_part(difference, (-far, far), rising=True)
        return float(max(forward, positive_part(reverse, (-far, far), rising=False)))


@pytest.mark.parametrize("adjacency", BOTH)
@pytest.mark.parametrize(
    ("rate", "noise", "epsilons"),
    [
        (0.1, 1.0, (0.0, 0.2, 1.0, 2.0)),
        (1.0, 2.0, (0.0, 0.5, 2.0)),
        (0.01, 0.5, (0.01, 1.0, 4.0)),
        (0.5, 10.0, (0.0, 0.05, 0.3)),
    ],
)
def test_one_step_against_integration(
    rate: float, noise: float, epsilons: tuple[float, ...], adjacency: Adjacency
) -> None:
    found = curve(rate, noise, 1, adjacency)
    for epsilon in epsilons:
        exact = exact_delta(rate, noise, epsilon, adjacency)
        assert exact <= found.delta_at(epsilon) <= exact * 1.003 + 3e-12
        if exact > 1e-9:
            assert epsilon <= found.epsilon_at(exact) <= epsilon * 1.001 + 1e-4
            # Its wrong side: a smaller loss at the same delta is no bound.
            assert found.epsilon_at(exact * 1.1) < epsilon or epsilon == 0


def test_the_other_adjacency_is_no_bound() -> None:
    """What the authors of CRT accounted is less than what a replaced example shows."""
    for epsilon in (0.2, 1.0):
        assert curve(0.1, 1.0, 1, "add-remove").delta_at(epsilon) < exact_delta(
            0.1, 1.0, epsilon, "replace-one"
        )


@pytest.mark.parametrize("adjacency", BOTH)
@pytest.mark.parametrize(("noise", "steps"), [(10.0, 100), (2.0, 4), (100.0, 10_000)])
def test_many_steps_of_everybody_against_the_formula(noise: float, steps: int, adjacency: Adjacency) -> None:
    """Without sampling, steps are one Gaussian: composed numerically, the curve stays above it, and close."""
    mu = (2 if adjacency == "replace-one" else 1) * math.sqrt(steps) / noise
    found = curve(1.0, noise, steps, adjacency)
    for share in (0.1, 0.3, 0.6, 0.8, 0.95):
        epsilon = share * (mu * mu / 2 + 6 * mu)
        exact = gaussian_delta(mu, epsilon)
        assert exact <= found.delta_at(epsilon) <= exact * 1.01 + 3e-12


@pytest.mark.parametrize("adjacency", BOTH)
def test_composition_against_simulation(adjacency: Adjacency) -> None:
    """Thirty steps drawn a hundred thousand times: an oracle that knows nothing of grids and transforms."""
    rate, noise, steps, epsilon = 0.2, 1.5, 30, 1.5
    generator = np.random.default_rng(6)
    other = -1 if adjacency == "replace-one" else 0

    def log_mixture(x: np.ndarray, mean: int) -> np.ndarray:
        return np.log1p(rate * np.expm1((x * mean - mean * mean / 2) / noise**2))

    losses = np.zeros(100_000)
    for _ in range(steps):
        x = generator.normal(size=losses.size) * noise + (generator.random(losses.size) < rate)
        losses += log_mixture(x, 1) - log_mixture(x, other)
    values = np.maximum(0.0, -np.expm1(epsilon - losses))
    error = values.std() / math.sqrt(losses.size)
    found = curve(rate, noise, steps, adjacency).delta_at(epsilon)
    assert abs(found - values.mean()) < 4 * error
    assert error < 0.02 * found  # so that a curve that is off by a tenth fails


@pytest.mark.parametrize("adjacency", BOTH)
def test_rare_samples_and_many_steps(adjacency: Adjacency) -> None:
    """Batches of 10 from 84,000 for a million steps: where differences of divergences are all rounding."""
    found = curve(1.2e-4, 0.9, 840_000, adjacency)
    assert found.epsilon_at(1e-5) == pytest.approx(
        {"add-remove": 0.6176, "replace-one": 1.0319}[adjacency], rel=0.01
    )
    # Three times the noise in a third of the steps is less; half of it in as many is more.
    assert curve(1.2e-4, 2.7, 280_000, adjacency).epsilon_at(1e-5) < found.epsilon_at(1e-5) / 2


@settings(deadline=None, max_examples=60)
@given(st.floats(0, 30), st.floats(0, 30), st.floats(1e-11, 0.999))
def test_a_curve_falls_and_inverts(first: float, second: float, delta: float) -> None:
    law = curve(0.0256, 0.8, 391)
    low, high = sorted((first, second))
    assert law.delta_at(low) >= law.delta_at(high)
    epsilon = law.epsilon_at(delta)
    assert law.delta_at(epsilon) <= delta * (1 + 1e-9)
    if epsilon > 1e-6:
        assert law.delta_at(epsilon * (1 - 1e-6)) >= delta * (1 - 1e-9)


def test_between_its_points_a_curve_is_above_the_truth() -> None:
    """The table is coarse, and straight lines in exp(epsilon) lie above a convex function."""
    fine = curve(1.0, 1.0, 1, "add-remove")
    coarse = PrivacyCurve(fine.process, fine.adjacency, fine.epsilons[::40], fine.deltas[::40])
    for epsilon in np.linspace(0, 6, 61):
        assert gaussian_delta(1.0, epsilon) <= fine.delta_at(epsilon) <= coarse.delta_at(epsilon) + 1e-15
    for delta in (1e-9, 1e-5, 0.1):
        assert fine.epsilon_at(delta) <= coarse.epsilon_at(delta)


def test_a_table_is_read_between_at_and_beyond_its_points() -> None:
    table = PrivacyCurve(DpSgdProcess(1, 1, 1), "replace-one", np.array([0.0, 1.0]), np.array([0.5, 0.1]))
    assert [table.epsilon_at(delta) for delta in (0.9, 0.5, 0.1)] == [0, 0, 1]
    assert math.isinf(table.epsilon_at(0.09))
    assert table.epsilon_at(0.3) == pytest.approx(math.log1p(math.expm1(1) / 2))
    assert [table.delta_at(epsilon) for epsilon in (0.0, 1.0, 2.0, math.inf)] == [0.5, 0.1, 0.1, 0.1]
    assert table.delta_at(math.log1p(math.expm1(1) / 2)) == pytest.approx(0.3)


def test_what_is_never_sampled_is_never_revealed() -> None:
    for process in (DpSgdProcess(0.1, 1.0, 0), DpSgdProcess(0.0, 1.0, 100)):
        for adjacency in BOTH:
            nothing = dpsgd_curve(process, adjacency)
            assert (nothing.epsilon_at(1e-9), nothing.delta_at(0.0)) == (0, 0)
        assert gaussian_dp_mu(process).mu == 0
    rare = dpsgd_curve(DpSgdProcess(1e-8, 0.5, 10))
    assert rare.delta_at(0.0) <= 1e-7 * 1.0001
    assert rare.epsilon_at(2e-7) == 0


@pytest.mark.parametrize("noise", [0.0, 1e-300, 1e-4])
def test_without_noise_what_is_sampled_is_seen(noise: float) -> None:
    open_book = dpsgd_curve(DpSgdProcess(0.1, noise, 3))
    assert math.isinf(open_book.epsilon_at(0.2))
    assert open_book.delta_at(100.0) == pytest.approx(1 - 0.9**3)
    assert open_book.epsilon_at(0.28) == 0  # it may never have been sampled
    assert math.isinf(dpsgd_curve(DpSgdProcess(1.0, noise, 1)).epsilon_at(0.999))


def test_too_small_a_delta_has_no_epsilon() -> None:
    """Below what rounding can tell apart nothing is claimed."""
    assert math.isinf(curve(0.1, 2.0, 100).epsilon_at(1e-13))
    assert curve(0.1, 2.0, 100).epsilon_at(1e-10) < 20


def test_a_curve_survives_json() -> None:
    written = curve(0.1, 2.0, 100)
    read = PrivacyCurve.from_json(json.loads(json.dumps(written.to_json(), allow_nan=False)))
    assert (read.process, read.adjacency, read.group) == (written.process, "replace-one", 1)
    for delta in (1e-9, 8e-5, 0.3):
        assert read.epsilon_at(delta) == written.epsilon_at(delta)
        assert read.delta_at(delta) == written.delta_at(delta)
    with pytest.raises(InputError, match="another version"):
        PrivacyCurve.from_json(written.to_json() | {"format": 0})
    tables: tuple[dict[str, list[float]], ...] = (
        {"deltas": [0.5, 0.6], "epsilons": [0.0, 1.0]},
        {"deltas": [0.5, 0.4], "epsilons": [0.0]},
        {"deltas": [0.5, math.nan], "epsilons": [0.0, 1.0]},
        {"epsilons": [0.1], "deltas": [0.2]},
        {"epsilons": [], "deltas": []},
    )
    for spoiled in tables:
        with pytest.raises(InputError, match="epsilons that grow from 0"):
            PrivacyCurve.from_json(written.to_json() | spoiled)


def test_noise_for_epsilon_2_by_add_remove_gives_3_84_under_replace_one() -> None:
    noise = calibrate_noise(2, 8e-5, sampling_rate=0.1, steps=100, adjacency="add-remove")
    assert 1.995 <= curve(0.1, noise, 100, "add-remove").epsilon_at(8e-5) <= 2
    assert curve(0.1, noise, 100).epsilon_at(8e-5) == pytest.approx(3.84, abs=0.01)


@pytest.mark.parametrize(
    ("epsilon", "delta", "rate", "steps"),
    [(0.1, 1e-5, 0.01, 100), (8.0, 1e-6, 0.05, 300), (30.0, 1e-5, 1.0, 2), (0.5, 0.01, 1.0, 5)],
)
def test_calibrated_noise_is_enough_and_hardly_more(
    epsilon: float, delta: float, rate: float, steps: int
) -> None:
    noise = calibrate_noise(epsilon, delta, sampling_rate=rate, steps=steps)
    assert curve(rate, noise, steps).epsilon_at(delta) <= epsilon
    assert curve(rate, noise * 0.998, steps).epsilon_at(delta) > epsilon


def test_edges_of_calibration() -> None:
    assert calibrate_noise(1, 1e-5, sampling_rate=0.1, steps=0) == 0
    assert calibrate_noise(1, 1e-5, sampling_rate=0.0, steps=5) == 0
    assert calibrate_noise(1, 0.5, sampling_rate=0.01, steps=1) == LEAST_NOISE  # by never being sampled
    with pytest.raises(InputError, match=r"no noise multiplier up to 1000 reaches it \(that one gives 0"):
        calibrate_noise(0.01, 1e-6, sampling_rate=1.0, steps=10_000)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: DpSgdProcess(1.1, 1.0, 1), "sampling_rate=1.1"),
        (lambda: DpSgdProcess(-0.1, 1.0, 1), "sampling_rate=-0.1"),
        (lambda: DpSgdProcess(math.nan, 1.0, 1), "sampling_rate=nan"),
        (lambda: DpSgdProcess(untyped("0.1"), 1.0, 1), "sampling_rate is of type str"),
        (lambda: DpSgdProcess(0.1, -1.0, 1), "noise_multiplier=-1.0"),
        (lambda: DpSgdProcess(0.1, math.inf, 1), "noise_multiplier=inf"),
        (lambda: DpSgdProcess(0.1, 1.0, -1), "steps=-1"),
        (lambda: DpSgdProcess(0.1, 1.0, untyped(1.5)), "steps=1.5"),
        (lambda: DpSgdProcess(0.1, 1.0, 10**9), "steps=1000000000"),
        (lambda: dpsgd_curve(DpSgdProcess(0.1, 1.0, 1), untyped("substitute")), "adjacency='substitute'"),
        (lambda: dpsgd_curve(DpSgdProcess(0.1, 1.0, 1), group=-1), "group=-1"),
        (lambda: curve(0.1, 2.0, 100).epsilon_at(1.0), "delta=1.0"),
        (lambda: curve(0.1, 2.0, 100).epsilon_at(0.0), "delta=0.0"),
        (lambda: curve(0.1, 2.0, 100).epsilon_at(-1e-5), "delta=-1e-05"),
        (lambda: curve(0.1, 2.0, 100).delta_at(-1.0), "epsilon=-1.0"),
        (lambda: curve(0.1, 2.0, 100).delta_at(math.nan), "epsilon=nan"),
        (lambda: calibrate_noise(0, 1e-5, sampling_rate=0.1, steps=9), "epsilon=0"),
        (lambda: calibrate_noise(math.inf, 1e-5, sampling_rate=0.1, steps=9), "epsilon=inf"),
        (lambda: calibrate_noise(1, 1.0, sampling_rate=0.1, steps=9), "delta=1.0"),
        (lambda: calibrate_noise(1, 1e-5, sampling_rate=2.0, steps=9), "sampling_rate=2.0"),
        (lambda: shuffled_epsilon(noise_multiplier=1, epochs=-1, delta=1e-5), "epochs=-1"),
        (lambda: shuffled_epsilon(noise_multiplier=-1, epochs=1, delta=1e-5), "noise_multiplier=-1"),
    ],
)
def test_refusals(make: object, words: str) -> None:
    assert callable(make)
    with pytest.raises(InputError, match=words):
        make()


def test_shuffled_batches_get_no_credit() -> None:
    """An example is in one step of each epoch: with all steps known, that is a Gaussian per epoch."""
    assert shuffled_epsilon(noise_multiplier=1.0, epochs=0, delta=1e-5) == 0
    assert math.isinf(shuffled_epsilon(noise_multiplier=0.0, epochs=1, delta=1e-5))
    distances: dict[Adjacency, int] = {"add-remove": 1, "replace-one": 2}
    for adjacency, distance in distances.items():
        found = shuffled_epsilon(noise_multiplier=2.0, epochs=9, delta=1e-5, adjacency=adjacency)
        mu = distance * 3 / 2.0
        assert gaussian_delta(mu, found) <= 1e-5 <= gaussian_delta(mu, found * 0.999)
        assert found == pytest.approx(curve(1.0, 2.0, 9, adjacency).epsilon_at(1e-5), rel=1e-3)
