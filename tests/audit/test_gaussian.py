"""The f-DP recursion against a linear program, and the Gaussian bound against Gaussians."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, optimize, stats

from tacit.audit import exposure_bound, gaussian_one_run_bound
from tacit.audit.trade_offs import approximate_inverse, gaussian_inverse, refutes
from tacit.errors import InputError
from tacit.privacy.gaussian import gaussian_delta, gaussian_epsilon, gaussian_mu

LEVEL = 0.05


def greatest_tail(
    correct: int, guesses: int, canaries: int, alphabet: int, size: int, epsilon: float, delta: float
) -> float:
    """The largest P[t >= correct] that the constraints allow, by a linear program over the law of t."""
    counts = np.arange(guesses + 1)
    rows, limits = [], []
    for index in range(guesses):
        right = np.where(counts >= index + 1, counts / canaries, 0.0) * (alphabet - size) / (alphabet - 1)
        wrong = np.where(counts >= index, (guesses - counts) / canaries, 0.0) * size / (alphabet - 1)
        # right <= delta + e^epsilon wrong, and 1 - right >= e^-epsilon (1 - delta - wrong).
        rows += [right - math.exp(epsilon) * wrong, right - math.exp(-epsilon) * wrong]
        limits += [delta, 1 - math.exp(-epsilon) * (1 - delta)]
    answer = optimize.linprog(
        -(counts >= correct).astype(float),
        A_ub=np.array(rows),
        b_ub=np.array(limits),
        A_eq=np.ones((1, guesses + 1)),
        b_eq=[1.0],
    )
    assert answer.success
    return float(-answer.fun)


@pytest.mark.parametrize("epsilon", [0.0, 0.7, 2.0])
@pytest.mark.parametrize("delta", [0.0, 0.01])
@pytest.mark.parametrize(
    ("correct", "guesses", "canaries", "alphabet", "size"),
    [
        (8, 10, 10, 2, 1),
        (1, 9, 9, 10, 1),
        (2, 9, 20, 10, 1),
        (5, 6, 12, 2, 1),
        (3, 9, 9, 10, 1),
        (6, 8, 20, 10, 3),
        (7, 7, 7, 5, 1),
    ],
)
def test_the_recursion_finds_the_largest_tail_that_the_constraints_allow(
    correct: int, guesses: int, canaries: int, alphabet: int, size: int, epsilon: float, delta: float
) -> None:
    tail = greatest_tail(correct, guesses, canaries, alphabet, size, epsilon, delta)

    def refuted(error: float) -> bool:
        return refutes(
            approximate_inverse(epsilon, delta),
            correct=correct,
            guesses=guesses,
            canaries=canaries,
            alphabet=alphabet,
            list_size=size,
            error=error,
        )

    assert not refuted(tail * 0.999)
    assert tail > 0.999 or refuted(min(1.0, tail * 1.001 + 1e-9))


def test_gaussian_goldens() -> None:
    """research/audit.md 4.2: K = 10^6, delta = 1e-5."""
    for correct, mu, epsilon in ((10, 4.20, 26.1), (1, 2.18, 11.1)):
        found = gaussian_one_run_bound(correct=correct, guesses=10, canaries=10, alphabet=10**6)
        assert found.mu == pytest.approx(mu, abs=0.005)
        assert found.epsilon == pytest.approx(epsilon, abs=0.05)
        assert found.family == "gaussian"
        assert found.neighbours == "replace"
        masked = gaussian_one_run_bound(
            correct=correct, guesses=10, canaries=10, alphabet=10**6, neighbours="mask", insertions=2
        )
        assert masked.mu == pytest.approx(found.mu / 4, rel=1e-5)  # type: ignore[operator]


def test_gaussian_delta_against_an_integral() -> None:
    for mu, epsilon in ((0.5, 0.3), (1.0, 2.0), (4.2, 26.1), (0.01, 0.001)):

        def excess(x: float, mu: float = mu, epsilon: float = epsilon) -> float:
            return max(0.0, float(stats.norm.pdf(x - mu) - math.exp(epsilon) * stats.norm.pdf(x)))

        edge = epsilon / mu + mu / 2
        expected = integrate.quad(excess, edge, edge + 12, epsabs=1e-16)[0]
        assert gaussian_delta(mu, epsilon) == pytest.approx(expected, rel=1e-6)
        assert gaussian_epsilon(mu, expected) == pytest.approx(epsilon, rel=1e-5)
        assert gaussian_mu(epsilon, expected) == pytest.approx(mu, rel=1e-5)
    assert gaussian_epsilon(0.0, 1e-5) == 0
    assert gaussian_delta(0.0, 1.0) == 0
    for solve in (gaussian_epsilon, gaussian_mu):
        with pytest.raises(InputError, match="delta"):
            solve(1.0, 0.0)


@cache
def refuted_mu(correct: int, guesses: int, canaries: int, alphabet: int, size: int = 1) -> float:
    found = gaussian_one_run_bound(
        correct=correct,
        guesses=guesses,
        canaries=canaries,
        alphabet=alphabet,
        list_size=size,
        neighbours="replace",
    )
    assert found.mu is not None
    return found.mu


@pytest.mark.parametrize("mu", [0.0, 0.5, 1.0, 2.0])
@pytest.mark.parametrize("guesses", [10, 60])
def test_gaussian_coins_are_not_refuted_more_often_than_the_level(mu: float, guesses: int) -> None:
    """Every coin is seen through N(0, 1) noise at distance mu; the surest are guessed."""
    rng, runs, canaries = np.random.default_rng(11), 3000, 60
    coins = rng.random((runs, canaries)) < 0.5
    seen = rng.standard_normal((runs, canaries)) + np.where(coins, mu / 2, -mu / 2)
    order = np.argsort(-abs(seen), axis=1)[:, :guesses]
    right = np.take_along_axis((seen > 0) == coins, order, axis=1).sum(axis=1)
    bounds = np.array([refuted_mu(int(count), guesses, canaries, 2) for count in right])
    assert (bounds > mu).mean() <= LEVEL + 4 * math.sqrt(LEVEL / runs)
    if mu >= 1:
        assert (bounds > 0).mean() > 0.55  # and it does see them


@pytest.mark.parametrize("size", [1, 4])
def test_gaussian_secrets_are_not_refuted_more_often_than_the_level(size: int) -> None:
    """One-hot secrets of 50 values with noise: two of them are sqrt(2) scale apart, so mu = sqrt(2) scale."""
    rng, runs, total, alphabet, scale = np.random.default_rng(12), 600, 15, 50, 2.0
    noise = rng.standard_normal((runs, total, alphabet))
    secret = noise[:, :, 0] + scale
    hits = ((noise[:, :, 1:] > secret[:, :, None]).sum(axis=2) < size).sum(axis=1)
    bounds = np.array([refuted_mu(int(count), total, total, alphabet, size) for count in hits])
    mu = math.sqrt(2) * scale
    assert (bounds > mu).mean() <= LEVEL
    assert (bounds > mu / 5).mean() > 0.8


@pytest.mark.parametrize(("epsilon", "delta"), [(0.0, 0.01), (2.0, 1e-3), (4.0, 0.02)])
def test_exposure_with_delta_is_wrong_at_most_as_often_as_it_says(epsilon: float, delta: float) -> None:
    """Randomised response that tells the secret with probability delta: each alone, or all together."""
    candidates, total = 100, 12
    counts = np.arange(total + 1)
    bounds = np.array(
        [
            exposure_bound(
                ranks=[1] * int(k) + [candidates] * (total - int(k)),
                candidates=candidates,
                list_sizes=(1,),
                delta=delta,
            ).epsilon
            for k in counts
        ]
    )
    share = math.exp(epsilon) / (math.exp(epsilon) + candidates - 1)
    alone = stats.binom.pmf(counts, total, delta + (1 - delta) * share)
    together = (1 - delta) * stats.binom.pmf(counts, total, share)
    together[-1] += delta
    assert alone[bounds > epsilon].sum() <= LEVEL
    assert together[bounds > epsilon].sum() <= LEVEL
    stronger = stats.binom.pmf(
        counts, total, math.exp(epsilon + 4) / (math.exp(epsilon + 4) + candidates - 1)
    )
    assert stronger[bounds > epsilon].sum() > 0.5


def test_a_gaussian_bound_is_no_bound_for_other_mechanisms() -> None:
    """Why the family is a field: it exceeds the bound that holds for every mechanism at the same delta."""
    ranks = [1] + [10**6] * 9
    any_mechanism = exposure_bound(ranks=ranks, candidates=10**6, list_sizes=(1,), delta=1e-5)
    gaussian = gaussian_one_run_bound(correct=1, guesses=10, canaries=10, alphabet=10**6, delta=1e-5)
    assert gaussian.epsilon > any_mechanism.epsilon + 2


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 30), st.integers(0, 30), st.integers(0, 10), st.sampled_from([2, 10, 10**6]))
def test_mu_grows_with_success(guesses: int, correct: int, abstained: int, alphabet: int) -> None:
    correct, canaries = min(correct, guesses), guesses + abstained
    found = refuted_mu(correct, guesses, canaries, alphabet)
    assert 0 <= found <= refuted_mu(guesses, guesses, canaries, alphabet) + 1e-6
    assert correct == 0 or refuted_mu(correct - 1, guesses, canaries, alphabet) <= found + 1e-6


def test_inverses_are_inverses() -> None:
    for rate in (0.001, 0.2, 0.7, 0.999):
        found = approximate_inverse(1.3, 0.01)(rate)
        reached = min(1.0, 0.01 + math.exp(1.3) * found, 1 - math.exp(-1.3) * (1 - 0.01 - found))
        assert reached >= rate - 1e-12
        assert found == 0 or reached == pytest.approx(rate)
        assert stats.norm.cdf(stats.norm.ppf(gaussian_inverse(1.3)(rate)) + 1.3) == pytest.approx(rate)
    with pytest.raises(InputError, match="list_size"):
        refutes(gaussian_inverse(1.0), correct=1, guesses=1, canaries=1, alphabet=4, list_size=4, error=0.05)
