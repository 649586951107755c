"""What DP-SGD reveals: the whole curve of (epsilon, delta), for both notions of neighbours.

A *process* is Poisson sampling at a rate q, clipping to C, Gaussian noise of noise_multiplier * C on the sum,
for a number of steps, and nothing else that reads the text. Its curve is computed by dp-accounting's privacy
loss distributions, rounded to the safe side, and nothing else: Renyi accountants say 10 to 20 % too much, the
Gaussian approximation too little (:mod:`tacit.privacy.gaussian`).

Formal guarantee. ``delta_at(e)`` is at least the hockey-stick divergence at e between the weights (all of
them, after every step) of any two neighbouring corpora, in either direction; ``epsilon_at`` inverts it from
above. Between the points of the table the divergence is convex in exp(epsilon), so that straight lines lie
above it. :data:`ROUNDING` covers what floating point may lose.

Which neighbours
    add-remove   one example more or less. Says nothing about what stands in its place.
    replace-one  one example is another one. Twice the sensitivity; what confidential training needs, where
                 a secret is replaced by a mask and the example stays.

Which worst case. Fix which of the other examples are sampled. Let the n examples in which neighbours differ
contribute vectors of length at most 1 each, these in one world and those in the other, sampled by the same
coins. For an event A let a = N(0, s^2)(A), seen from the others' sum, and z the point beyond which N(0, s^2)
on a line has mass a. By Neyman-Pearson a Gaussian at distance at most j gives A at most what N(j, s^2) gives
the half-line beyond z, and at least what N(-j, s^2) gives it: all at once, with one half-line. So the
binomial mixture of N(j, s^2) against that of N(-j, s^2) (replace-one) or against N(0, s^2) (add-remove)
dominates every such pair, at every order of the hockey stick; averaging over the others' coins is joint
convexity; and dominating pairs compose (Zhu, Dong and Wang 2022, Theorem 10).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any, Final, Literal, get_args

import numpy as np
import numpy.typing as npt

from tacit.errors import InputError
from tacit.privacy.conversions import check_delta, check_epsilon, check_number, check_renyi
from tacit.privacy.loss_distributions import MOST_ORDER, Direction, WorstPair, loss_distribution

Adjacency = Literal["add-remove", "replace-one"]
FloatArray = npt.NDArray[np.float64]

MOST_STEPS: Final = 10**8
MOST_EPSILON: Final = 500.0  # where a curve ends: e^500 protects nobody
ROUNDING: Final = 1e-12  # added to every delta, and 1e-16 per step: ten times what FFTs were seen to lose
FORMAT: Final = 1
_POINTS = 400
_TAILS = 1e-13  # probability of a loss beyond the grid in any step; it counts as infinite
_HARDLY_NOISE = 1e-3  # with less, one sampled example shows in half a million nats
_METHOD = "privacy loss distribution (dp-accounting), rounded up"


@dataclass(frozen=True)
class DpSgdProcess:
    """Poisson-sampled DP-SGD.

    sampling_rate     probability with which each example is in a step's batch
    noise_multiplier  standard deviation of the noise, in clipping bounds; 0 protects nothing
    steps             how many steps were taken, empty batches included; 0 reveals nothing
    """

    sampling_rate: float
    noise_multiplier: float
    steps: int

    def __post_init__(self) -> None:
        check_number("sampling_rate", self.sampling_rate)
        check_number("noise_multiplier", self.noise_multiplier)
        if not 0 <= self.sampling_rate <= 1:
            raise InputError(
                f"sampling_rate={self.sampling_rate}: a probability from 0 to 1 is needed, the expected "
                "batch divided by the number of examples."
            )
        if not 0 <= self.noise_multiplier < math.inf:
            raise InputError(
                f"noise_multiplier={self.noise_multiplier}: a finite number of at least 0 is needed, e.g. 1."
            )
        if not isinstance(self.steps, int) or not 0 <= self.steps <= MOST_STEPS:
            raise InputError(f"steps={self.steps}: a whole number from 0 to {MOST_STEPS:,} is needed.")

    @property
    def reveals_nothing(self) -> bool:
        """Whether no example is ever looked at."""
        return self.steps == 0 or self.sampling_rate == 0

    def to_json(self) -> dict[str, Any]:
        """JSON form."""
        return asdict(self)

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> DpSgdProcess:
        """Inverse of :meth:`to_json`."""
        return cls(fields["sampling_rate"], fields["noise_multiplier"], fields["steps"])


@dataclass(frozen=True, eq=False)
class PrivacyCurve:
    """All (epsilon, delta) that a process satisfies, as a table that can be saved and read anywhere.

    epsilons  increasing, from 0
    deltas    not increasing; each an upper bound of the larger of both hockey-stick divergences
    group     how many examples differ between neighbours
    """

    process: DpSgdProcess
    adjacency: Adjacency
    epsilons: FloatArray
    deltas: FloatArray
    group: int = 1
    method: str = _METHOD

    def __post_init__(self) -> None:
        check_adjacency(self.adjacency)
        sound = (
            self.epsilons.ndim == 1
            and self.epsilons.shape == self.deltas.shape
            and len(self.epsilons) > 0
            and self.epsilons[0] == 0
            and bool(np.all(np.diff(self.epsilons) > 0))
            and bool(np.all((self.deltas >= 0) & (self.deltas <= 1)))
            and bool(np.all(np.diff(self.deltas) <= 0))
            and bool(np.isfinite(self.epsilons).all())
        )
        if not sound:
            raise InputError(
                "a privacy curve has epsilons that grow from 0 and as many deltas that fall, between 0 and "
                "1; compute it again from its process."
            )

    def delta_at(self, epsilon: float) -> float:
        """A delta with which the process is (epsilon, delta)-private."""
        check_epsilon(epsilon)
        after = int(np.searchsorted(self.epsilons, epsilon, side="right"))
        if after == len(self.epsilons):
            return float(self.deltas[-1])
        left, right = self.epsilons[after - 1], self.epsilons[after]
        # Straight in exp(epsilon), where the divergence is convex: the line lies above it.
        share = math.expm1(epsilon - left) / math.expm1(right - left)
        upper, lower = float(self.deltas[after - 1]), float(self.deltas[after])
        return min(upper, float(np.nextafter(upper + share * (lower - upper), 1)))

    def epsilon_at(self, delta: float) -> float:
        """An epsilon with which the process is (epsilon, delta)-private; infinite where there is none.

        A delta of 1 or more is refused; one that is too small to be told from rounding has no epsilon.
        """
        check_delta(delta)
        after = int(
            np.searchsorted(-self.deltas, -delta, side="left")
        )  # the first delta that is at most this
        if after == len(self.deltas):
            return math.inf
        if after == 0:
            return 0.0
        left, right = float(self.epsilons[after - 1]), float(self.epsilons[after])
        upper, lower = float(self.deltas[after - 1]), float(self.deltas[after])
        share = (upper - delta) / (upper - lower)
        found = left + math.log1p(share * math.expm1(right - left))
        return min(right, found * (1 + 1e-12))

    def to_json(self) -> dict[str, Any]:
        """The process and the whole table, as saved in a Run."""
        return {
            "format": FORMAT,
            "process": self.process.to_json(),
            "adjacency": self.adjacency,
            "group": self.group,
            "method": self.method,
            "epsilons": self.epsilons.tolist(),
            "deltas": self.deltas.tolist(),
        }

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> PrivacyCurve:
        """Inverse of :meth:`to_json`."""
        if fields.get("format") != FORMAT:
            raise InputError("the privacy curve was written by another version of tacit; compute it again.")
        return cls(
            DpSgdProcess.from_json(fields["process"]),
            fields["adjacency"],
            np.asarray(fields["epsilons"], dtype=np.float64),
            np.asarray(fields["deltas"], dtype=np.float64),
            fields["group"],
            fields["method"],
        )


def dpsgd_curve(
    process: DpSgdProcess, adjacency: Adjacency = "replace-one", *, group: int = 1
) -> PrivacyCurve:
    """The curve of a process, for neighbours that differ in ``group`` examples.

    Takes about a second. For groups the divergence is computed directly, from the mixture over how many of
    them are sampled together; (n epsilon, n e^(n epsilon) delta) is far larger.
    """
    check_adjacency(adjacency)
    check_group(group)
    if process.reveals_nothing or group == 0:
        return _flat(process, adjacency, group, 0.0)
    return _tabulated(process, adjacency, group)


def rdp_at(
    process: DpSgdProcess, order: float, adjacency: Adjacency = "replace-one", *, group: int = 1
) -> float:
    """The Renyi divergence of all steps at one order, in both directions: what a ledger books.

    Of the pair that dominates all neighbours, by quadrature, padded by a billionth. Losses of one order add
    up over steps, also adaptively.
    """
    check_adjacency(adjacency)
    check_renyi(order, 0.0)
    check_group(group)
    if process.reveals_nothing or group == 0:
        return 0.0
    if process.noise_multiplier == 0 or math.isinf(order):
        return math.inf
    if order > MOST_ORDER:
        raise InputError(f"order={order}: Renyi divergences are computed up to order {MOST_ORDER:g}.")
    pair = _worst_pair(process, adjacency, group)
    if pair.missed > 0:  # what hardly ever happens weighs much at high orders
        raise InputError(f"group={group}: too large for a Renyi divergence; take the curve of the group.")
    return process.steps * pair.renyi(order) * (1 + 1e-9)


def check_group(size: int) -> None:
    """Refuse what is no number of examples."""
    if not isinstance(size, int) or not 0 <= size <= MOST_STEPS:
        raise InputError(f"group={size}: a whole number of examples from 0 to {MOST_STEPS:,} is needed.")


def check_adjacency(adjacency: str) -> None:
    """Refuse neighbours that no curve is for."""
    if adjacency not in get_args(Adjacency):
        raise InputError(
            f"adjacency='{adjacency}' is unknown; choose one of {', '.join(get_args(Adjacency))}."
        )


def _flat(process: DpSgdProcess, adjacency: Adjacency, group: int, delta: float) -> PrivacyCurve:
    """Nothing is revealed, or all of it is with this probability."""
    return PrivacyCurve(process, adjacency, np.zeros(1), np.array([delta]), group)


@lru_cache(maxsize=64)  # a plan, its certificate and its statement ask for the same ones
def _tabulated(process: DpSgdProcess, adjacency: Adjacency, group: int) -> PrivacyCurve:
    # Neighbours are told apart only if one of the examples in which they differ is ever sampled.
    ever = 1.0
    if process.sampling_rate < 1:
        ever = -math.expm1(process.steps * group * math.log1p(-process.sampling_rate))
    tail = _TAILS / process.steps
    pair = _worst_pair(process, adjacency, group)
    if ever <= 10 * ROUNDING or _is_hopeless(process, adjacency, group) or pair.is_too_large(tail):
        return _flat(process, adjacency, group, ever)
    losses = loss_distribution(pair, process.steps, tail)
    slack = ROUNDING + process.steps * (1e-16 + pair.missed)
    end = min(MOST_EPSILON, losses.get_epsilon_for_delta(slack))
    epsilons = _spaced(end)
    found = np.asarray(losses.get_delta_for_epsilon(epsilons), dtype=np.float64) + slack
    # Rounding may make a later value larger than an earlier one; the larger is the safe one.
    deltas = np.minimum(ever, np.maximum.accumulate(found[::-1])[::-1])
    for shared in (epsilons, deltas):
        shared.setflags(write=False)
    return PrivacyCurve(process, adjacency, epsilons, deltas, group)


def _spaced(end: float) -> FloatArray:
    """Epsilons to tabulate: evenly, and more and more of them towards 0, where rare sampling bends curves."""
    if end <= 0:
        return np.zeros(1)
    return np.union1d(np.linspace(0.0, end, _POINTS), np.geomspace(end / _POINTS / 100, end, _POINTS // 4))


def _worst_pair(process: DpSgdProcess, adjacency: Adjacency, group: int) -> WorstPair:
    direction: Direction = "replace" if adjacency == "replace-one" else "remove"
    return WorstPair(process.sampling_rate, process.noise_multiplier, group, direction)


def _is_hopeless(process: DpSgdProcess, adjacency: Adjacency, group: int) -> bool:
    """Whether epsilon passes the end of every curve: what is sampled is seen, or all steps' mean tells."""
    if process.noise_multiplier < _HARDLY_NOISE:
        return True
    distance = 2 if adjacency == "replace-one" else 1
    moved = distance * group * process.sampling_rate / process.noise_multiplier
    return moved * math.sqrt(process.steps / 2) > math.sqrt(MOST_EPSILON)
