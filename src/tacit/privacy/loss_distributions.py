"""One step of DP-SGD at its worst, as two mixtures of Gaussians on a line, and what many steps add up to.

The mixture is over how many of a group are sampled: binomial. Why it is the worst case is proven in
:mod:`tacit.privacy.dpsgd`. Single examples are dp-accounting's. Of groups it knows those that are added or
removed, and takes a minute; here their hockey-stick divergences, and those of groups that are replaced, are
computed and handed to its connect-the-dots discretisation, which rounds up.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final, Literal, Protocol

import numpy as np
import numpy.typing as npt
from scipy import optimize, special, stats

from tacit.errors import InputError

FloatArray = npt.NDArray[np.float64]
Direction = Literal["replace", "remove", "add"]

MOST_ORDER: Final = 1e4
_TAIL = 1e-20  # of a binomial: more sampled together than ever happens; counted as a failure
_REACH = 12.0  # standard deviations, beyond which a normal has less than 1e-32
_INTERVAL = 1e-3  # losses are multiples of it, or of less: epsilon is right to 3e-4 of itself
_PER_LOSS = 30  # cells in one standard deviation of a step's loss, at least
_CELLS = 2e5  # of a grid, at most
_WORK = 4e6  # cells times components, at most


class LossDistribution(Protocol):
    """What is used of dp-accounting's privacy loss distributions: upper bounds in both directions."""

    def get_delta_for_epsilon(self, epsilon: Any) -> Any:
        """The divergence at one epsilon or at many."""

    def get_epsilon_for_delta(self, delta: float) -> float:
        """The epsilon at a delta."""


@dataclass(frozen=True)
class WorstPair:
    """Two mixtures with the binomial weights of j of a group sampled; the loss grows along the line.

    replace  N(j, s^2) against N(-j, s^2)
    remove   N(j, s^2) against N(0, s^2)
    add      N(0, s^2) against N(-j, s^2), which is the reverse of ``remove`` seen in a mirror
    """

    sampling_rate: float
    noise_multiplier: float
    group: int
    direction: Direction

    @cached_property
    def counts(self) -> FloatArray:
        """How many of the group are sampled: those numbers that ever happen."""
        rate, most = self.sampling_rate, self.group
        middle = math.floor(most * rate)
        fewer = bisect_left(range(middle + 1), True, key=lambda j: stats.binom.cdf(j, most, rate) > _TAIL)
        more = bisect_left(range(middle, most), True, key=lambda j: stats.binom.sf(j, most, rate) <= _TAIL)
        return np.arange(fewer, middle + more + 1, dtype=np.float64)

    @cached_property
    def log_weights(self) -> FloatArray:
        """Logarithms of their probabilities, of sum 1."""
        found = np.asarray(stats.binom.logpmf(self.counts, self.group, self.sampling_rate))
        return np.asarray(found - special.logsumexp(found))

    @property
    def missed(self) -> float:
        """The probability of numbers that are left out: a failure in each step, to be added to delta."""
        rate, most = self.sampling_rate, self.group
        below = float(stats.binom.cdf(self.counts[0] - 1, most, rate))
        return below + float(stats.binom.sf(self.counts[-1], most, rate))

    @property
    def uppers(self) -> FloatArray:
        """Means of the first mixture."""
        return self.counts if self.direction != "add" else np.zeros_like(self.counts)

    @property
    def lowers(self) -> FloatArray:
        """Means of the second."""
        return -self.counts if self.direction != "remove" else np.zeros_like(self.counts)

    def log_ratios(self, places: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Of both densities to that of N(0, s^2); their difference is the privacy loss, which grows."""
        return self._log_ratio(places, self.uppers), self._log_ratio(places, self.lowers)

    def _log_ratio(self, places: FloatArray, means: FloatArray) -> FloatArray:
        if not means.any():
            return np.zeros_like(places)
        terms = self.log_weights + (places[:, None] * means - means**2 / 2) / self.noise_multiplier**2
        return np.asarray(special.logsumexp(terms, axis=1))

    def losses(self, places: FloatArray) -> FloatArray:
        """The privacy loss at places on the line."""
        upper, lower = self.log_ratios(places)
        return np.asarray(upper - lower)

    def log_normal(self, places: FloatArray) -> FloatArray:
        """The density of N(0, s^2)."""
        noise = self.noise_multiplier
        return np.asarray(-((places / noise) ** 2) / 2 - math.log(noise) - math.log(2 * math.pi) / 2)

    @property
    def width(self) -> float:
        """Between places that are close enough for sums as integrals: the densities bend over s^2/j."""
        noise = self.noise_multiplier
        return min(noise, noise**2 / max(1.0, float(self.counts[-1]))) / 32

    def ends(self, tail: float) -> tuple[float, float]:
        """Places beyond which the first mixture has a mass of at most ``tail`` each."""
        noise, furthest = self.noise_multiplier, float(self.counts[-1]) + _REACH * self.noise_multiplier

        def surplus(place: float, side: int) -> float:
            beyond = self.log_weights + special.log_ndtr(side * (self.uppers - place) / noise)
            return float(special.logsumexp(beyond)) - math.log(tail)

        # By a hair on the wrong side at most: the mass beyond is counted twice where it is used.
        low, high = (
            float(optimize.brentq(surplus, -furthest, furthest, args=(side,), xtol=1e-9 * noise))
            for side in (-1, 1)
        )
        return low, high

    def grid(self, tail: float) -> FloatArray:
        """Places from end to end."""
        low, high = self.ends(tail)
        return np.linspace(low, high, math.ceil((high - low) / self.width) + 1)

    def is_too_large(self, tail: float) -> bool:
        """Whether its grid has more cells than are worth it: so little noise that no epsilon is of use."""
        low, high = self.ends(tail)
        return (high - low) / self.width * len(self.counts) > _WORK

    def renyi(self, order: float) -> float:
        """The larger Renyi divergence of both directions, to nine digits."""
        end = 2 * order * float(self.counts[-1]) + _REACH * self.noise_multiplier
        cells = 2 * end / self.width
        if cells * len(self.counts) > 10 * _WORK:
            raise InputError(
                f"order={order:g}: too much for a noise multiplier of {self.noise_multiplier:g}; take a "
                "smaller order or more noise."
            )
        places = np.linspace(-end, end, math.ceil(cells) + 1)
        upper, lower = self.log_ratios(places)
        base = self.log_normal(places) + math.log(places[1] - places[0])
        forward = special.logsumexp(order * upper + (1 - order) * lower + base)
        backward = special.logsumexp(order * lower + (1 - order) * upper + base)
        return max(0.0, float(max(forward, backward))) / (order - 1)


def loss_distribution(pair: WorstPair, steps: int, tail: float) -> LossDistribution:
    """The composed loss of all steps, and of its reverse; ``pair.missed`` per step is to be added to delta.

    ``pair.direction`` is ``replace`` or ``remove``; losses of probability ``tail`` in a step are infinite.
    """
    # Imported when needed: a second of imports that most commands do without.
    from dp_accounting.pld import privacy_loss_distribution as library

    interval = _interval(pair, steps, tail)
    reverse = None
    if pair.direction == "remove":
        reverse = discretised(replace(pair, direction="add"), interval, tail)
    one = library.PrivacyLossDistribution(discretised(pair, interval, tail), reverse)
    composed: LossDistribution = one.self_compose(steps)
    return composed


def discretised(pair: WorstPair, interval: float, tail: float) -> Any:
    """One step's loss on multiples of an interval, rounded up by connecting the dots.

    The mass of each cell goes to its two ends, so that the masses under both worlds stay what they are
    (Doroshenko et al. 2022): a mixture of two losses that reveals at least as much as the cell did. The
    shares are integrals of positive functions. Differences of divergences, which dp-accounting takes, leave
    nothing but rounding where sampling is rare and steps are many.
    """
    from dp_accounting.pld import pld_pmf

    uniform = pair.grid(tail)
    lowest, highest = pair.losses(uniform[[0, -1]])
    first, last = math.floor(lowest / interval), math.ceil(highest / interval)
    edges = np.union1d(uniform, _thresholds(pair, uniform, interval))
    middles, halves = (edges[1:] + edges[:-1]) / 2, np.diff(edges) / 2
    cells = np.clip(np.floor(pair.losses(middles) / interval).astype(np.int64) - first, 0, last - first - 1)
    to_left, to_right = np.zeros_like(middles), np.zeros_like(middles)
    for node, weight in zip(*np.polynomial.legendre.leggauss(3), strict=True):
        places = middles + node * halves
        upper, lower = pair.log_ratios(places)
        mass = np.exp(upper + pair.log_normal(places)) * weight * halves
        above = (upper - lower) - (cells + first) * interval
        to_right += mass * np.expm1(-above) / math.expm1(-interval)
        to_left += mass * np.expm1(interval - above) / math.expm1(interval)
    size = last - first + 1
    masses = np.bincount(cells, to_left, size) + np.bincount(cells + 1, to_right, size)
    # Mass below the grid is rounded up to its first cell, mass above it to infinity.
    masses = np.maximum(masses, 0.0)
    masses[0] += max(0.0, 1 - float(masses.sum()))
    return pld_pmf.DensePLDPmf(interval, first, masses, 2 * tail, True)


def _thresholds(pair: WorstPair, uniform: FloatArray, interval: float) -> FloatArray:
    """Where the loss passes multiples of the interval."""
    losses = np.maximum.accumulate(pair.losses(uniform))
    first, last = math.ceil(losses[0] / interval), math.floor(losses[-1] / interval)
    wanted = np.arange(first, last + 1, dtype=np.float64) * interval
    right = np.clip(np.searchsorted(losses, wanted), 1, len(losses) - 1)
    low, high = uniform[right - 1], uniform[right]
    places = np.interp(wanted, losses, uniform)
    for _ in range(3):  # the secant through a cell's own slope; a threshold need not be exact
        nearby = (high - low) * 1e-4
        slope = (pair.losses(places + nearby) - pair.losses(places - nearby)) / (2 * nearby)
        places = np.clip(places - (pair.losses(places) - wanted) / np.maximum(slope, 1e-300), low, high)
    return places


def _interval(pair: WorstPair, steps: int, tail: float) -> float:
    """Fine where a step's loss is small, coarse where the grid would have too many cells."""
    places = pair.grid(tail)
    upper, lower = pair.log_ratios(places)
    weights = np.exp(upper + pair.log_normal(places)) * (places[1] - places[0])
    losses = upper - lower
    mean = float(weights @ losses)
    deviation = math.sqrt(float(weights @ (losses - mean) ** 2))
    once = float(losses[-1] - losses[0])
    all_steps = abs(mean) * steps + _REACH * deviation * math.sqrt(steps)
    fine = min(_INTERVAL, deviation / _PER_LOSS)
    return max(fine, once / _CELLS, all_steps / _CELLS, once * len(pair.counts) / _WORK)
