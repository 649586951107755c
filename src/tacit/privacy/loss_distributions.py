"""One step of DP-SGD at its worst, as two mixtures of Gaussians on a line, and what many steps add up to.

The mixture is over how many of a group are sampled: binomial. Why it is the worst case is proven in
:mod:`tacit.privacy.dpsgd`. Single examples, and groups that are added or removed, are dp-accounting's;
groups that are replaced it does not know, and their hockey-stick divergence is computed here and handed to
its connect-the-dots discretisation, which rounds up.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt
from scipy import special, stats

from tacit.errors import InputError

FloatArray = npt.NDArray[np.float64]
_TAIL = 1e-20  # of a binomial: more sampled together than ever happens; counted as a failure
_REACH = 11.0  # standard deviations, beyond which a normal has less than e^-60
_INTERVAL = 1e-3  # losses are multiples of it, or of less: epsilon is right to 3e-4 of itself
_PER_LOSS = 30  # steps of the grid in one standard deviation of a step's loss, at least
_CELLS = 1e6  # of a grid, at most
_WORK = 2e7  # cells times components, at most
MOST_ORDER: Final = 1e4


class LossDistribution(Protocol):
    """What is used of dp-accounting's privacy loss distributions: upper bounds in both directions."""

    def get_delta_for_epsilon(self, epsilon: Any) -> Any:
        """The divergence at one epsilon or at many."""

    def get_epsilon_for_delta(self, delta: float) -> float:
        """The epsilon at a delta."""


@dataclass(frozen=True)
class WorstPair:
    """The mixture of N(j, s^2), j of a group sampled, against that of N(-j, s^2) or against N(0, s^2).

    group     how many examples differ
    replaced  whether they are replaced (N(-j, s^2)) or removed (N(0, s^2))
    """

    sampling_rate: float
    noise_multiplier: float
    group: int
    replaced: bool

    @cached_property
    def counts(self) -> FloatArray:
        """How many of the group are sampled: those numbers that ever happen."""
        rate, most = self.sampling_rate, self.group
        low = max(0, int(stats.binom.ppf(_TAIL, most, rate)) - 1)
        high = min(most, int(stats.binom.isf(_TAIL, most, rate)) + 1)
        return np.arange(low, high + 1, dtype=np.float64)

    @cached_property
    def log_weights(self) -> FloatArray:
        """Logarithms of their probabilities, of sum 1."""
        found = np.asarray(stats.binom.logpmf(self.counts, self.group, self.sampling_rate))
        return np.asarray(found - special.logsumexp(found))

    @property
    def missed(self) -> float:
        """The probability of numbers that are left out: a failure in each step, added to delta."""
        rate, most = self.sampling_rate, self.group
        below = float(stats.binom.cdf(self.counts[0] - 1, most, rate))
        return below + float(stats.binom.sf(self.counts[-1], most, rate))

    def log_densities(self, places: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Of the two mixtures, but for the normal's constant."""
        scaled = places[:, None] / self.noise_multiplier
        steps = self.counts / self.noise_multiplier
        upper = special.logsumexp(self.log_weights - (scaled - steps) ** 2 / 2, axis=1)
        if not self.replaced:
            return upper, -(scaled[:, 0] ** 2) / 2
        return upper, special.logsumexp(self.log_weights - (scaled + steps) ** 2 / 2, axis=1)

    def losses(self, places: FloatArray) -> FloatArray:
        """The privacy loss at places on the line; grows with them."""
        upper, lower = self.log_densities(places)
        return np.asarray(upper - lower)

    def grid(self, reach: float = 1.0) -> FloatArray:
        """Places that hold both mixtures, ``reach`` times as far, close enough for sums as integrals."""
        noise, most = self.noise_multiplier, float(self.counts[-1])
        end = reach * most + _REACH * noise
        width = min(noise, noise**2 / max(1.0, most)) / 32
        points = math.ceil(2 * end / width) + 1
        if points * len(self.counts) > _WORK:
            raise InputError(
                f"noise_multiplier={noise}: too little noise for a group of {self.group} to be accounted; "
                "there is no protection worth a number."
            )
        return np.linspace(-end, end, points)

    def renyi(self, order: float) -> float:
        """The larger Renyi divergence of both directions, to nine digits."""
        places = self.grid(2 * order)
        upper, lower = self.log_densities(places)
        width = math.log(places[1] - places[0]) - math.log(self.noise_multiplier) - math.log(2 * math.pi) / 2
        forward = special.logsumexp(order * upper + (1 - order) * lower) + width
        backward = special.logsumexp(order * lower + (1 - order) * upper) + width
        return max(0.0, float(max(forward, backward))) / (order - 1)

    def deltas(self, epsilons: FloatArray) -> FloatArray:
        """Hockey-stick divergences of a replaced group at epsilons that are symmetric about 0."""
        upward = np.sort(np.abs(epsilons[epsilons >= 0]))
        found = self._deltas_above_zero(upward)
        # H_a(P||Q) = 1 - a + a H_(1/a)(Q||P), and both directions are alike.
        downward = -np.expm1(-upward[::-1]) + np.exp(-upward[::-1]) * found[::-1]
        return np.concatenate([downward[: len(epsilons) - len(upward)], found])

    def _deltas_above_zero(self, epsilons: FloatArray) -> FloatArray:
        most, noise = float(self.counts[-1]), self.noise_multiplier
        places = np.linspace(0.0, 2 * (most + _REACH * noise), 4001)
        guesses = np.interp(epsilons, self.losses(places), places)
        found = np.empty_like(epsilons)
        block = max(1, int(_WORK / 10 / len(self.counts)))
        for start in range(0, len(epsilons), block):
            part = slice(start, start + block)
            found[part] = self._divergence(guesses[part], epsilons[part])
        return found

    def _divergence(self, places: FloatArray, epsilons: FloatArray) -> FloatArray:
        """At a test {x > place}; Newton finds the best place, about which the divergence is flat."""
        steps, noise = self.counts, self.noise_multiplier
        for _ in range(4):
            upper = self.log_weights - ((places[:, None] - steps) / noise) ** 2 / 2
            lower = self.log_weights - ((places[:, None] + steps) / noise) ** 2 / 2
            loss = special.logsumexp(upper, axis=1) - special.logsumexp(lower, axis=1)
            slope = (special.softmax(upper, axis=1) + special.softmax(lower, axis=1)) @ steps / noise**2
            places = places - (loss - epsilons) / slope
        above = special.logsumexp(
            self.log_weights + special.log_ndtr((steps - places[:, None]) / noise), axis=1
        )
        below = epsilons + special.logsumexp(
            self.log_weights + special.log_ndtr((-steps - places[:, None]) / noise), axis=1
        )
        return np.asarray(-np.exp(above) * np.expm1(np.minimum(0.0, below - above)))


def loss_distribution(pair: WorstPair, steps: int) -> LossDistribution:
    """The composed loss of all steps; ``pair.missed`` times the steps is to be added to its deltas."""
    # Imported when needed: a second of imports that most commands do without.
    from dp_accounting.pld import privacy_loss_distribution as library
    from dp_accounting.privacy_accountant import NeighboringRelation

    interval = _interval(pair, steps)
    if pair.group == 1:
        relation = NeighboringRelation.REPLACE_ONE if pair.replaced else NeighboringRelation.ADD_OR_REMOVE_ONE
        one = library.from_gaussian_mechanism(
            pair.noise_multiplier,
            value_discretization_interval=interval,
            sampling_prob=pair.sampling_rate,
            neighboring_relation=relation,
        )
    elif pair.replaced:
        one = _replaced_group(pair, interval)
    else:
        one = library.from_mixture_gaussian_mechanism(
            pair.noise_multiplier,
            sensitivities=pair.counts.tolist(),
            sampling_probs=np.exp(pair.log_weights).tolist(),
            value_discretization_interval=interval,
        )
    composed: LossDistribution = one.self_compose(steps)
    return composed


def _replaced_group(pair: WorstPair, interval: float) -> Any:
    from dp_accounting.pld import pld_pmf
    from dp_accounting.pld import privacy_loss_distribution as library

    end = float(pair.losses(np.array([pair.counts[-1] + _REACH * pair.noise_multiplier]))[0])
    most = math.ceil(end / interval)
    grid = np.arange(-most, most + 1, dtype=np.float64) * interval
    deltas = np.clip(pair.deltas(grid), 0.0, 1.0)
    pmf = pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(
        interval, -most, most, np.minimum.accumulate(deltas)
    )
    return library.PrivacyLossDistribution(pmf)


def _interval(pair: WorstPair, steps: int) -> float:
    """Fine where a step's loss is small, coarse where the grid would have too many cells."""
    places = pair.grid()
    upper, lower = pair.log_densities(places)
    weights = special.softmax(upper)
    losses = upper - lower
    mean = float(weights @ losses)
    deviation = math.sqrt(max(0.0, float(weights @ losses**2) - mean**2))
    once = float(losses[-1] - losses[0])
    all_steps = abs(mean) * steps + _REACH * deviation * math.sqrt(steps)
    fine = min(_INTERVAL, deviation / _PER_LOSS)
    return max(fine, once / _CELLS, all_steps / _CELLS, once * len(pair.counts) / _WORK)
