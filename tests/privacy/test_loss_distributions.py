"""The worst pair is the worst, groups are what they are, and Renyi divergences equal the formulas."""

from __future__ import annotations

import itertools
import math
from functools import cache

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
from dp_accounting.pld import privacy_loss_distribution as library
from dp_accounting.rdp import RdpAccountant
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

from tacit.errors import InputError
from tacit.privacy import Adjacency, DpSgdProcess, PrivacyCurve, dpsgd_curve, rdp_at, rdp_to_dp
from tacit.privacy.loss_distributions import Direction, WorstPair, discretised, loss_distribution

GRID = 5e-5  # what a rectangle rule makes of a kink: 1.5e-5 where the exact value is known


@cache
def pair_curve(rate: float, adjacency: Adjacency = "replace-one") -> PrivacyCurve:
    return dpsgd_curve(DpSgdProcess(rate, 1.0, 1), adjacency, group=2)


def plane_divergence(
    first: list[tuple[float, float]],
    second: list[tuple[float, float]],
    rate: float,
    noise: float,
    epsilon: float,
) -> float:
    """Hockey stick between two worlds in the plane: sums of sampled vectors plus noise, on a fine grid."""
    line = np.arange(-2 - 6 * noise, 2 + 6 * noise, noise / 8)
    x, y = np.meshgrid(line, line)

    def density(vectors: list[tuple[float, float]]) -> np.ndarray:
        total: np.ndarray = np.zeros_like(x)
        for taken in itertools.product((0, 1), repeat=len(vectors)):
            weight = math.prod(rate if one else 1 - rate for one in taken)
            means = [
                sum(one * vector[axis] for one, vector in zip(taken, vectors, strict=True)) for axis in (0, 1)
            ]
            square = (x - means[0]) ** 2 + (y - means[1]) ** 2
            total += weight * np.exp(-square / (2 * noise**2)) / (2 * math.pi * noise**2)
        return total

    gap = density(first) - math.exp(epsilon) * density(second)
    return float(np.maximum(gap, 0).sum() * (noise / 8) ** 2)


def vectors(count: int) -> st.SearchStrategy[list[tuple[float, float]]]:
    one = st.tuples(st.floats(0, 1), st.floats(0, 2 * math.pi))
    return st.lists(
        one.map(lambda polar: (polar[0] * math.cos(polar[1]), polar[0] * math.sin(polar[1]))),
        min_size=count,
        max_size=count,
    )


@settings(deadline=None, max_examples=25)
@given(vectors(2), vectors(2), st.sampled_from([0.1, 0.5, 1.0]), st.sampled_from([0.0, 0.3, 1.0]))
def test_no_other_contributions_are_further_apart(
    first: list[tuple[float, float]], second: list[tuple[float, float]], rate: float, epsilon: float
) -> None:
    """Two examples replaced by any two others within the clipping bound, in more than one dimension."""
    found = plane_divergence(first, second, rate, 1.0, epsilon)
    assert found <= pair_curve(rate).delta_at(epsilon) + GRID
    removed = plane_divergence(first, [], rate, 1.0, epsilon)
    added = plane_divergence([], first, rate, 1.0, epsilon)
    bound = pair_curve(rate, "add-remove").delta_at(epsilon)
    assert max(removed, added) <= bound + GRID


def test_the_worst_pair_is_attained() -> None:
    worst, opposite = [(1.0, 0.0)] * 2, [(-1.0, 0.0)] * 2
    for epsilon in (0.0, 0.5):
        replaced = plane_divergence(worst, opposite, 0.3, 1.0, epsilon)
        assert pair_curve(0.3).delta_at(epsilon) == pytest.approx(replaced, rel=2e-3)
        removed = plane_divergence(worst, [], 0.3, 1.0, epsilon)
        assert pair_curve(0.3, "add-remove").delta_at(epsilon) == pytest.approx(removed, rel=2e-3)


# Rate 0.0256, noise 1, 391 steps, delta 8e-5, add-remove, by dp-accounting's MixtureOfGaussiansDpEvent.
MIXTURES = {2: 6.16, 5: 19.24}


@pytest.mark.parametrize("size", MIXTURES)
def test_groups_equal_mixtures_of_gaussians(size: int) -> None:
    process = DpSgdProcess(0.0256, 1.0, 391)
    removed = dpsgd_curve(process, "add-remove", group=size).epsilon_at(8e-5)
    assert removed == pytest.approx(MIXTURES[size], abs=0.01)
    assert dpsgd_curve(process, group=size).epsilon_at(8e-5) > removed


@pytest.mark.parametrize(
    ("rate", "group"), [(0.5, 1), (1.0, 3), (0.01, 40), (0.3, 200), (1e-6, 10**6), (0.999, 10**4)]
)
def test_numbers_that_hardly_ever_happen_are_left_out(rate: float, group: int) -> None:
    pair = WorstPair(rate, 1.0, group, "replace")
    assert pair.counts[0] >= 0
    assert pair.counts[-1] <= group
    assert np.exp(pair.log_weights).sum() == pytest.approx(1)
    left_out = stats.binom.cdf(pair.counts[0] - 1, group, rate) + stats.binom.sf(pair.counts[-1], group, rate)
    assert pair.missed == pytest.approx(left_out, rel=1e-9)
    assert pair.missed <= 2e-20
    assert len(pair.counts) <= 2 + 24 * math.sqrt(group * rate * (1 - rate) + 1)  # and no more than needed


@pytest.mark.parametrize("direction", ["remove", "add", "replace"])
def test_discretised_losses_equal_dp_accounting(direction: Direction) -> None:
    """Its own mixture for a group that is added or removed, and its own step for one example replaced."""
    group = 1 if direction == "replace" else 3
    pair = WorstPair(0.2, 1.5, group, direction)
    ours = discretised(pair, 1e-2, 1e-16)
    if direction == "replace":
        theirs = library.from_gaussian_mechanism(
            1.5,
            sampling_prob=0.2,
            value_discretization_interval=1e-2,
            neighboring_relation=library.NeighborRel.REPLACE_ONE,
        )
    else:
        theirs = library.from_mixture_gaussian_mechanism(
            1.5,
            pair.counts.tolist(),
            np.exp(pair.log_weights).tolist(),
            value_discretization_interval=1e-2,
        )
    part = theirs._pmf_add if direction == "add" else theirs._pmf_remove
    for epsilon in (-0.5, 0.0, 0.1, 0.5, 1.0, 2.0):
        expected = part.get_delta_for_epsilon(epsilon)
        assert ours.get_delta_for_epsilon(epsilon) == pytest.approx(expected, rel=1e-6, abs=1e-14)


@pytest.mark.parametrize("direction", ["remove", "add", "replace"])
@pytest.mark.parametrize(
    ("rate", "noise", "group"), [(0.3, 1.0, 1), (0.05, 0.7, 4), (1e-6, 1.0, 1), (1.0, 3.0, 2)]
)
def test_discretised_losses_round_up(direction: Direction, rate: float, noise: float, group: int) -> None:
    """Against sums over thresholds on the line; at a coarse interval the difference shows."""
    pair = WorstPair(rate, noise, group, direction)
    weights = np.exp(pair.log_weights)

    def divergence(epsilon: float) -> float:
        places = np.linspace(-14 * noise - group, 14 * noise + group, 40_001)
        above = stats.norm.sf((places[:, None] - pair.uppers) / noise) @ weights
        below = stats.norm.sf((places[:, None] - pair.lowers) / noise) @ weights
        return max(0.0, float(np.max(above - math.exp(epsilon) * below)))

    deviation = float(np.std(pair.losses(np.linspace(-3 * noise, 3 * noise + group, 99))))
    rough, fine = (discretised(pair, deviation * share, 1e-16) for share in (0.5, 0.02))
    assert rough.get_delta_for_epsilon(-50.0) == pytest.approx(1, abs=1e-12)
    for share in (0.0, 0.3, 1.0, 2.0):
        exact = divergence(share * deviation)
        assert rough.get_delta_for_epsilon(share * deviation) >= exact - 1e-15
        found = fine.get_delta_for_epsilon(share * deviation)
        assert exact - 1e-15 <= found <= exact * 1.01 + 1e-15


def test_both_directions_are_composed() -> None:
    """At an epsilon below 0 the added example is the further one: H_a(Q||P) = 1 - a + a H_(1/a)(P||Q)."""
    losses = loss_distribution(WorstPair(0.3, 1.0, 1, "remove"), 4, 1e-14)
    for epsilon in (0.3, 1.0):
        removed = losses.get_delta_for_epsilon(epsilon)
        added = -math.expm1(-epsilon) + math.exp(-epsilon) * removed
        assert losses.get_delta_for_epsilon(-epsilon) == pytest.approx(added, rel=1e-6)


@pytest.mark.parametrize("order", [2, 8, 32])
@pytest.mark.parametrize(("rate", "noise"), [(0.0256, 0.8), (0.1, 2.0), (1.0, 3.0)])
def test_renyi_divergences_equal_the_accountants(rate: float, noise: float, order: int) -> None:
    accountant = RdpAccountant([order])
    accountant.compose(PoissonSampledDpEvent(rate, GaussianDpEvent(noise)), 7)
    process = DpSgdProcess(rate, noise, 7)
    assert rdp_at(process, order, "add-remove") == pytest.approx(float(accountant._rdp[0]), rel=1e-6)
    assert rdp_at(process, order) > rdp_at(process, order, "add-remove")


@pytest.mark.parametrize("order", [1.1, 2.0, 5.5])
def test_renyi_divergences_equal_an_integral(order: float) -> None:
    rate, noise = 0.2, 1.3

    def ratio(x: float, mean: int) -> float:
        return 1 - rate + rate * math.exp((x * mean - mean * mean / 2) / noise**2)

    def integrand(x: float) -> float:
        return float(stats.norm.pdf(x, 0, noise) * ratio(x, 1) ** order * ratio(x, -1) ** (1 - order))

    exact = math.log(integrate.quad(integrand, -25, 40, epsabs=1e-13, limit=400)[0]) / (order - 1)
    found = rdp_at(DpSgdProcess(rate, noise, 1), order)
    assert exact * (1 - 1e-9) <= found <= exact * (1 + 1e-6)


def test_renyi_divergences_of_everybody() -> None:
    """Without sampling: order times the squared distance over twice the variance."""
    distances: dict[Adjacency, int] = {"add-remove": 1, "replace-one": 2}
    for adjacency, distance in distances.items():
        for order in (1.5, 2.0, 64.0):
            found = rdp_at(DpSgdProcess(1.0, 4.0, 10), order, adjacency)
            assert found == pytest.approx(10 * order * distance**2 / (2 * 16), rel=1e-8)


def test_edges_of_renyi_divergences() -> None:
    assert rdp_at(DpSgdProcess(0.1, 1.0, 0), 2) == 0
    assert math.isinf(rdp_at(DpSgdProcess(0.1, 0.0, 1), 2))
    assert math.isinf(rdp_at(DpSgdProcess(0.1, 1.0, 1), math.inf))
    for order, words in ((1.0, "order=1.0"), (1e5, "up to order 10000")):
        with pytest.raises(InputError, match=words):
            rdp_at(DpSgdProcess(0.1, 1.0, 1), order)
    assert rdp_at(DpSgdProcess(0.1, 1.0, 1), 2, group=0) == 0
    # An integral of scipy's over the mixtures of two sampled together, times a hundred steps.
    assert rdp_at(DpSgdProcess(0.1, 4.0, 100), 2, group=2) == pytest.approx(0.98958039, rel=1e-7)
    with pytest.raises(InputError, match="take the curve of the group"):
        rdp_at(DpSgdProcess(0.01, 1.0, 1), 2, group=40)
    with pytest.raises(InputError, match="smaller order or more noise"):
        rdp_at(DpSgdProcess(0.1, 0.01, 1), 1e3)


@pytest.mark.parametrize("adjacency", ["add-remove", "replace-one"])
def test_the_curve_is_within_what_renyi_divergences_imply(adjacency: Adjacency) -> None:
    process = DpSgdProcess(0.05, 1.2, 200)
    found = dpsgd_curve(process, adjacency).epsilon_at(1e-5)
    implied = min(
        rdp_to_dp(order=order, epsilon=rdp_at(process, order, adjacency), delta=1e-5)
        for order in (2, 3, 4, 6, 8, 12, 16)
    )
    assert found < implied < 1.5 * found
