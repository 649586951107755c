"""How much noise a wanted (epsilon, delta) takes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final, NamedTuple

from tacit.errors import InputError
from tacit.privacy.conversions import check_delta, check_epsilon
from tacit.privacy.dpsgd import Adjacency, DpSgdProcess, check_adjacency, dpsgd_curve
from tacit.privacy.gaussian import gaussian_mu

MOST_NOISE: Final = 1000.0  # beyond it, nothing of a gradient is left
LEAST_NOISE: Final = 0.05  # below it, no epsilon is worth a calibration
PRECISION: Final = 1e-3


class _Trial(NamedTuple):
    noise: float
    epsilon: float


def calibrate_noise(
    epsilon: float,
    delta: float,
    *,
    sampling_rate: float,
    steps: int,
    adjacency: Adjacency = "replace-one",
) -> float:
    """The least noise multiplier, to one part in a thousand, whose curve is within (epsilon, delta).

    At least :data:`LEAST_NOISE`; 0 where nothing is sampled. Where no multiplier up to :data:`MOST_NOISE`
    reaches the target, that is refused.
    """
    check_adjacency(adjacency)
    check_epsilon(epsilon)
    check_delta(delta)
    if epsilon == 0 or math.isinf(epsilon):
        raise InputError(f"epsilon={epsilon}: noise is calibrated to a finite epsilon above 0, e.g. 8.")
    if DpSgdProcess(sampling_rate, 1.0, steps).reveals_nothing:
        return 0.0

    def reached(noise: float) -> float:
        return dpsgd_curve(DpSgdProcess(sampling_rate, noise, steps), adjacency).epsilon_at(delta)

    # Where the central limit would put it.
    distance = 2 if adjacency == "replace-one" else 1
    spread = gaussian_mu(epsilon, delta) / (distance * sampling_rate * math.sqrt(steps))
    return _least_noise(reached, epsilon, 1 / math.sqrt(math.log1p(spread**2)))


def _least_noise(reached: Callable[[float], float], wanted: float, guess: float) -> float:
    """Where a falling function of the noise reaches what is wanted, from the safe side."""
    short: _Trial | None = None  # the most noise that was too little
    enough: _Trial | None = None
    noise = guess
    for round_number in range(100):
        noise = min(max(noise, LEAST_NOISE), MOST_NOISE)
        found = reached(noise)
        if found <= wanted:
            enough = _Trial(noise, found)
            if noise <= LEAST_NOISE:
                return noise
        else:
            short = _Trial(noise, found)
            if noise >= MOST_NOISE:
                raise InputError(
                    f"epsilon={wanted:g}: no noise multiplier up to {MOST_NOISE:g} reaches it (that one "
                    f"gives {found:.3g}); take fewer steps, a smaller sampling rate, or a larger target."
                )
        if short is None or enough is None:
            noise *= min(max(found / wanted, 1 / 3), 3.0) * (
                1 + PRECISION if enough is None else 1 - PRECISION
            )
            continue
        if enough.noise <= short.noise * (1 + PRECISION):
            return enough.noise
        noise = _between(short, enough, wanted, round_number)
    raise AssertionError("a bracket that is halved every third time ends")  # pragma: no cover


def _between(short: _Trial, enough: _Trial, wanted: float, round_number: int) -> float:
    """By the line through both in logarithms, a little to either side in turn; or the middle."""
    middle = math.sqrt(short.noise * enough.noise)
    if round_number % 3 == 2 or math.isinf(short.epsilon) or enough.epsilon <= 0:
        return middle
    share = math.log(short.epsilon / wanted) / math.log(short.epsilon / enough.epsilon)
    aim = short.noise * (enough.noise / short.noise) ** share
    aim *= 1 + PRECISION / 3 * (1 if round_number % 2 else -1)
    inside = short.noise * (1 + PRECISION / 10) < aim < enough.noise / (1 + PRECISION / 10)
    return aim if inside else middle
