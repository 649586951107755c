"""The Gaussian mechanism by itself: exact formulas, and what they say about DP-SGD without its sampling.

``gaussian_delta``, ``gaussian_epsilon`` and ``gaussian_mu`` are exact. Of the two statements about DP-SGD one
is a bound and one is not:
    :func:`shuffled_epsilon`   a bound for batches that are shuffled instead of sampled; no credit for chance.
    :func:`gaussian_dp_mu`     the limit for many steps at a small rate. *Not a bound*: for usual settings its
                               epsilon is up to 47 % too small.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

from scipy import optimize, special

from tacit.errors import InputError
from tacit.privacy.conversions import check_delta, check_number
from tacit.privacy.dpsgd import Adjacency, DpSgdProcess, check_adjacency

ASYMPTOTIC: Final = "asymptotic (Gaussian DP, central limit): under-reports, never a bound"
UNAMPLIFIED: Final = "un-amplified: batches are shuffled, and the order is taken to be known"


def gaussian_delta(mu: float, epsilon: float) -> float:
    """The delta of mu-Gaussian DP at epsilon (Dong, Roth and Su 2022, Corollary 2.13)."""
    if mu == 0:
        return 0.0
    above = special.log_ndtr(mu / 2 - epsilon / mu)
    below = epsilon + special.log_ndtr(-mu / 2 - epsilon / mu)
    return float(-math.exp(above) * math.expm1(min(0.0, below - above)))


def gaussian_epsilon(mu: float, delta: float) -> float:
    """The epsilon of mu-Gaussian DP at delta; inverse of :func:`gaussian_delta`."""
    if not 0 < delta < 1:
        raise InputError(f"Expected 0 < delta={delta} < 1: a Gaussian has no finite epsilon at delta = 0.")
    if gaussian_delta(mu, 0.0) <= delta:
        return 0.0
    high = mu * mu / 2 + mu * math.sqrt(2 * math.log(1 / delta))  # the zCDP bound: delta is smaller there
    return float(optimize.brentq(lambda epsilon: gaussian_delta(mu, epsilon) - delta, 0.0, high))


def gaussian_mu(epsilon: float, delta: float) -> float:
    """The mu whose epsilon at delta is this one: :func:`gaussian_epsilon` solved for mu."""
    if not 0 < delta < 1:
        raise InputError(f"Expected 0 < delta={delta} < 1: a Gaussian has no finite epsilon at delta = 0.")
    high = 1.0
    while gaussian_delta(high, epsilon) <= delta:
        high *= 2
    return float(optimize.brentq(lambda mu: gaussian_delta(mu, epsilon) - delta, 0.0, high))


@dataclass(frozen=True)
class AsymptoticMu:
    """A Gaussian that DP-SGD tends to. For comparison with other tools only."""

    mu: float
    label: str = ASYMPTOTIC

    def __str__(self) -> str:
        return f"Gaussian mu {self.mu:.3g} (add-remove), {self.label}"

    def epsilon_at(self, delta: float) -> float:
        """What other tools would print. Not an upper bound."""
        check_delta(delta)
        return math.inf if math.isinf(self.mu) else gaussian_epsilon(self.mu, delta)

    def to_json(self) -> dict[str, Any]:
        """JSON form; an infinite mu as a word."""
        return {"mu": self.mu if math.isfinite(self.mu) else str(self.mu), "label": self.label}


def gaussian_dp_mu(process: DpSgdProcess) -> AsymptoticMu:
    """q sqrt(T (e^(1/sigma^2) - 1)) of Poisson-sampled DP-SGD, add-remove (Bu et al. 2020, section 3.2)."""
    if process.reveals_nothing:
        return AsymptoticMu(0.0)
    exponent = process.noise_multiplier**-2 if process.noise_multiplier else math.inf
    if exponent > 700:
        return AsymptoticMu(math.inf)
    return AsymptoticMu(process.sampling_rate * math.sqrt(process.steps * math.expm1(exponent)))


def shuffled_epsilon(
    *,
    noise_multiplier: float,
    epochs: int,
    delta: float,
    adjacency: Adjacency = "replace-one",
) -> float:
    """The epsilon of DP-SGD whose batches are shuffled: each example once in every epoch.

    Given the order of the batches, an example is in one step of each epoch, so the loss is that of one
    Gaussian of mu = sqrt(epochs) / noise_multiplier, or twice that where it is replaced. Averaging over
    orders makes nothing worse; that it makes anything better is not credited. ``add-remove`` means here that
    the example's gradient is left out of its batch while the batches stay as they are.
    """
    check_number("noise_multiplier", noise_multiplier)
    check_delta(delta)
    check_adjacency(adjacency)
    if not isinstance(epochs, int) or epochs < 0:
        raise InputError(f"epochs={epochs}: a whole number of at least 0 is needed.")
    if not 0 <= noise_multiplier < math.inf:
        raise InputError(f"noise_multiplier={noise_multiplier}: a finite number of at least 0 is needed.")
    if epochs == 0:
        return 0.0
    if noise_multiplier == 0:
        return math.inf
    distance = 2 if adjacency == "replace-one" else 1
    return gaussian_epsilon(distance * math.sqrt(epochs) / noise_multiplier, delta) * (1 + 1e-9)
