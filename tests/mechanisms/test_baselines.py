"""Subsample-and-aggregate and GNMax: prices against integrals, bounds checked on both sides."""

from __future__ import annotations

import functools
import math

import mpmath
import numpy as np
import pytest
import torch
from scipy import integrate, stats

from tacit.mechanisms import GNMax, SubsampleAggregate
from tacit.mechanisms.baselines import laplace_divergence, to_simplex
from tacit.mechanisms.choice import MechanismChoice


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("order", [1.5, 2.0, 8.0])
@pytest.mark.parametrize("shift", [0.01, 1.0, 5.0])
def test_laplace_divergence_is_the_integral(order: float, shift: float) -> None:
    def integrand(x: float) -> float:
        return math.exp(order * stats.laplace.logpdf(x - shift) + (1 - order) * stats.laplace.logpdf(x))

    pieces = [(-60, 0), (0, shift), (shift, 60 + shift)]
    total = sum(integrate.quad(integrand, a, b, epsabs=1e-13)[0] for a, b in pieces)
    assert laplace_divergence(shift, order) == pytest.approx(math.log(total) / (order - 1), rel=1e-6)


@pytest.mark.parametrize("order", [1.01, 2.0, 32.0])
@pytest.mark.parametrize("shift", [1e-12, 1e-8, 1e-6, 1e-4, 1e-3, 0.02, 0.03, 0.49, 0.51, 2.0, 60.0])
def test_laplace_divergence_keeps_its_digits_at_every_shift(order: float, shift: float) -> None:
    with mpmath.workdps(60):
        a, x = mpmath.mpf(order), mpmath.mpf(shift)
        grow, fall = a / (2 * a - 1) * mpmath.exp((a - 1) * x), (a - 1) / (2 * a - 1) * mpmath.exp(-a * x)
        true = float(mpmath.log(grow + fall) / (a - 1))
    assert laplace_divergence(shift, order) == pytest.approx(true, rel=1e-12)
    assert SubsampleAggregate(order, 1 / (3 * shift)).price(3) >= 2 * true > 0


def test_a_tiny_price_is_still_a_price() -> None:
    choice = MechanismChoice("subsample_aggregate", target=1e-17)
    built = choice.build(4)
    assert isinstance(built, SubsampleAggregate)
    assert 0.99e-17 < built.price(4) <= 1e-17


def test_subsample_and_aggregate_is_priced_for_two_moving_tokens() -> None:
    """The paper's sensitivity of 1/k would charge half: moving one part's mass moves two coordinates."""
    mechanism = SubsampleAggregate(order=2.0, scale=0.5)
    k = 4
    assert mechanism.price(k) == pytest.approx(2 * laplace_divergence(1 / (k * 0.5), 2.0))
    before, after = np.zeros((k, 3)), np.zeros((k, 3))
    before[:, 0] = after[:, 0] = 1
    after[0] = [0, 1, 0]  # one part changes its mind
    move = np.abs(after.mean(0) - before.mean(0))
    assert move.sum() == pytest.approx(2 / k)
    true = sum(laplace_divergence(float(step) / 0.5, 2.0) for step in move)
    assert true == pytest.approx(mechanism.price(k))  # attained, so nothing smaller would do


def test_subsample_and_aggregate_noise_has_the_stated_scale() -> None:
    scale, V = 0.01, 200_000  # small noise, so that the projection keeps many entries
    parts = np.full((2, V), 1 / V)
    mechanism = SubsampleAggregate(scale=scale, noise=seeded())
    mixture = mechanism.mix(parts, parts[0])
    assert float(mixture.pmf.sum()) == pytest.approx(1)
    # The projection subtracts one constant and cuts at 0: differences between kept entries are pure noise.
    kept = mixture.pmf[mixture.pmf > 0].numpy()
    excess = kept - kept.min()  # beyond any threshold, Laplace noise is exponential with the same scale
    assert len(kept) > 50
    assert stats.kstest(excess[excess > 0], stats.expon(scale=scale).cdf).pvalue > 1e-3
    assert stats.kstest(excess[excess > 0], stats.expon(scale=scale * 2).cdf).pvalue < 1e-2
    assert stats.kstest(excess[excess > 0], stats.expon(scale=scale / 2).cdf).pvalue < 1e-2


def test_projection_to_the_simplex_is_the_nearest_pmf() -> None:
    rng = np.random.default_rng(0)
    values = torch.tensor(rng.normal(size=(50, 6)))
    projected = to_simplex(values)
    torch.testing.assert_close(projected.sum(-1), torch.ones(50, dtype=torch.float64))
    assert float(projected.min()) >= 0
    others = torch.tensor(rng.dirichlet(np.ones(6), size=2000))
    for row, nearest in zip(values, projected, strict=True):
        assert bool((((others - row) ** 2).sum(-1) >= ((nearest - row) ** 2).sum() - 1e-12).all())


def votes(*counts: int) -> np.ndarray:
    """Parts that vote as counted."""
    rows = [np.eye(len(counts))[token] for token, count in enumerate(counts) for _ in range(count)]
    return np.array(rows) * 0.9 + 0.1 / len(counts)


@functools.cache
def winners_law(counts: tuple[int, ...], sigma: float) -> np.ndarray:
    """Who wins the noisy vote, by integration over the winner's noisy count."""
    winners = []
    for token, own in enumerate(counts):
        rivals = [c for other, c in enumerate(counts) if other != token]

        def density(x: float, own: int = own, rivals: list[int] = rivals) -> float:
            others = math.prod(stats.norm.cdf(x, rival, sigma) for rival in rivals)
            return float(stats.norm.pdf(x, own, sigma) * others)

        ends = (min(counts) - 12 * sigma, max(counts) + 12 * sigma)
        winners.append(integrate.quad(density, *ends, epsabs=1e-14, limit=300)[0])
    return np.asarray(np.array(winners) / sum(winners))


def exact_loss(first: tuple[int, ...], second: tuple[int, ...], sigma: float, order: float) -> float:
    """Renyi divergence between the winners' laws."""
    P, Q = winners_law(first, sigma), winners_law(second, sigma)
    return math.log(float((P**order * Q ** (1 - order)).sum())) / (order - 1)


@pytest.mark.parametrize("order", [2.0, 4.0])
@pytest.mark.parametrize("sigma", [2.0, 4.0])
def test_gnmax_price_covers_every_changed_vote(order: float, sigma: float) -> None:
    for counts in ((30, 2, 0), (18, 14, 0), (11, 11, 10)):
        price = float(GNMax(order, sigma).mix(votes(*counts), np.full(3, 1 / 3)).charges[0])
        assert price <= order / sigma**2
        for source in range(3):
            for goal in range(3):
                if source != goal and counts[source]:
                    changed = list(counts)
                    changed[source] -= 1
                    changed[goal] += 1
                    assert exact_loss(counts, tuple(changed), sigma, order) <= price


@pytest.mark.parametrize(
    ("counts", "changed", "charged", "reverse"),
    [
        ((12, 1, 0), (11, 2, 0), 0.0027246, 0.0092752),
        ((20, 0, 0), (19, 1, 0), 5.8078e-10, 1.24693e-8),
    ],
)
def test_the_data_dependent_price_of_gnmax_holds_in_one_direction_only(
    counts: tuple[int, ...], changed: tuple[int, ...], charged: float, reverse: float
) -> None:
    """Kept as it was published, and labelled so: what one direction is charged, the other exceeds."""
    price = float(GNMax(2.0, 2.0).mix(votes(*counts), np.full(3, 1 / 3)).charges[0])
    assert price == pytest.approx(charged, rel=1e-3)
    assert exact_loss(counts, changed, 2.0, 2.0) < price
    back = exact_loss(changed, counts, 2.0, 2.0)
    assert back == pytest.approx(reverse, rel=1e-3)
    assert back > 3 * price
    everywhere = GNMax(2.0, 2.0, data_dependent=False).mix(votes(*counts), np.full(3, 1 / 3)).charges
    assert everywhere.tolist() == [2.0 / 2.0**2] * sum(counts)
    assert back < float(everywhere[0])


@pytest.mark.parametrize("order", [2.0, 8.0])
@pytest.mark.parametrize("sigma", [1.0, 4.0])
def test_gnmax_without_data_dependence_is_symmetric(order: float, sigma: float) -> None:
    for counts in ((9, 3, 0), (18, 14, 0), (11, 11, 10), (1, 0, 0)):
        mixture = GNMax(order, sigma, data_dependent=False).mix(votes(*counts), np.full(3, 1 / 3))
        assert mixture.charges.tolist() == [order / sigma**2] * sum(counts)
        changed = (counts[0] - 1, counts[1] + 1, counts[2])
        for first, second in ((counts, changed), (changed, counts)):
            assert exact_loss(first, second, sigma, order) <= order / sigma**2


def theorem_6(counts: tuple[int, ...], sigma: float, order: float) -> tuple[float, float]:
    """The bound as it is printed, without its conditions, and the largest order that it is proven for."""
    q = sum(math.erfc((max(counts) - c) / (2 * sigma)) / 2 for c in sorted(counts)[:-1])
    mu2 = sigma * math.sqrt(-math.log(q))
    mu1 = mu2 + 1
    A = (1 - q) / (1 - (q * math.exp(mu2 / sigma**2)) ** ((mu2 - 1) / mu2))
    B = math.exp(mu1 / sigma**2) / q ** (1 / (mu1 - 1))
    return math.log((1 - q) * A ** (order - 1) + q * B ** (order - 1)) / (order - 1), mu1


@pytest.mark.parametrize(
    ("counts", "order", "proven"),
    [
        ((12, 1, 0), 2.0, True),
        ((12, 1, 0), 6.0, True),
        ((12, 1, 0), 16.0, False),
        ((6, 3, 0), 8.0, False),
    ],
)
def test_theorem_6_is_charged_only_for_the_orders_that_it_is_proven_for(
    counts: tuple[int, ...], order: float, proven: bool
) -> None:
    sigma = 2.0
    printed, most = theorem_6(counts, sigma, order)
    assert (order <= most) == proven
    assert printed < 0.99 * order / sigma**2  # so that it matters which one is charged
    charge = float(GNMax(order, sigma).mix(votes(*counts), np.full(3, 1 / 3)).charges[0])
    assert charge == pytest.approx(printed if proven else order / sigma**2, rel=1e-9)


def test_a_clear_vote_is_cheap_and_an_even_one_is_not() -> None:
    clear = GNMax(2.0, 4.0).mix(votes(60, 0, 0), np.full(3, 1 / 3)).charges
    even = GNMax(2.0, 4.0).mix(votes(20, 20, 20), np.full(3, 1 / 3)).charges
    assert float(clear[0]) < 1e-3 * float(even[0])
    assert float(even[0]) == pytest.approx(2 / 16)
    fixed = GNMax(2.0, 4.0, data_dependent=False).mix(votes(60, 0, 0), np.full(3, 1 / 3)).charges
    assert float(fixed[0]) == pytest.approx(2 / 16)


def test_gnmax_winner_follows_its_law_and_the_bound_on_it() -> None:
    counts, sigma = (6, 4, 0), 2.0
    mechanism = GNMax(2.0, sigma, noise=seeded(1))
    draws = 4000
    parts = np.broadcast_to(votes(*counts), (draws, 10, 3))
    won = mechanism.mix(parts, np.full(3, 1 / 3)).pmf.mean(0)
    bound = mechanism.probability_bound(
        torch.tensor(counts, dtype=torch.float64).expand(3, 3), torch.arange(3)
    )
    assert bool((won <= bound + 4 * torch.sqrt(bound * (1 - bound) / draws) + 1e-9).all())
    exact = torch.tensor(winners_law(counts, sigma))
    torch.testing.assert_close(won, exact, rtol=0, atol=0.03)
    assert bool((exact <= bound).all())
    assert float(exact[0] / bound[0]) > 0.8  # the bound is not idle
