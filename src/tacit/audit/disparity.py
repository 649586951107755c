"""Who pays for privacy: the change of perplexity for each user, and whether it depends on how much they
wrote.

The paper compares the five users with most samples and the five with fewest. Five values carry little: the
gap has an interval here, and the slope over *all* users stands beside it. All intervals resample users.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tacit.errors import InputError
from tacit.statistics import (
    FEW_USERS,
    Estimate,
    FloatArray,
    bootstrap_over_users,
    percentile_interval,
    told_narrow,
)


@dataclass(frozen=True)
class Disparity:
    """Perplexity with protection minus without it, over users: positive = protection costs.

    mean     over all users
    most     over the ``compared`` users with most samples
    fewest   over the ``compared`` users with fewest
    gap      ``fewest`` - ``most``: positive = those who wrote little pay more
    slope    change of perplexity for e times as many samples, over all users; None if all wrote as much
    """

    users: int
    compared: int
    mean: Estimate
    most: Estimate
    fewest: Estimate
    gap: Estimate
    slope: Estimate | None
    caveats: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """JSON form."""
        estimates = {name: getattr(self, name) for name in ("mean", "most", "fewest", "gap", "slope")}
        return (
            asdict(self)
            | {name: None if one is None else one.to_json() for name, one in estimates.items()}
            | {"caveats": list(self.caveats)}
        )


def measure_disparity(
    mitigated: npt.ArrayLike,
    unmitigated: npt.ArrayLike,
    samples: npt.ArrayLike,
    *,
    compared: int = 5,
    confidence: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> Disparity:
    """From each user's perplexity with and without protection and number of training samples.

    Users with equally many samples are ordered as given; a caveat says where this decided who is compared.
    """
    with_it, without, counts = (
        np.asarray(one, dtype=np.float64) for one in (mitigated, unmitigated, samples)
    )
    if with_it.ndim != 1 or not with_it.shape == without.shape == counts.shape or len(with_it) < 2:
        raise InputError("Expected two perplexities and a number of samples for each of at least two users.")
    if not np.isfinite([with_it, without, counts]).all() or (counts <= 0).any():
        raise InputError("Expected finite perplexities and numbers of samples above 0.")
    if compared < 1:
        raise InputError(f"Expected compared={compared} >= 1 users on each side, e.g. 5.")
    change, users = with_it - without, len(with_it)
    each = min(compared, users // 2)
    order = np.argsort(-counts, kind="stable")
    most, fewest = change[order[:each]], change[order[users - each :]]

    def mean(values: FloatArray) -> Estimate:
        sums = np.stack([values, np.ones(len(values))], axis=1)
        return bootstrap_over_users(
            sums, lambda t: t[..., 0] / t[..., 1], confidence=confidence, resamples=resamples, seed=seed
        )

    return Disparity(
        users=users,
        compared=each,
        mean=mean(change),
        most=mean(most),
        fewest=mean(fewest),
        gap=_gap(most, fewest, confidence, resamples, seed),
        slope=_slope(change, np.log(counts), confidence, resamples, seed),
        caveats=_caveats(counts[order], each, compared),
    )


def _gap(most: FloatArray, fewest: FloatArray, confidence: float, resamples: int, seed: int) -> Estimate:
    value = float(fewest.mean() - most.mean())
    if len(most) == 1:
        return Estimate(value, -np.inf, np.inf, confidence, "one user on each side: no interval")
    rng = np.random.default_rng(seed)

    def drawn(values: FloatArray) -> FloatArray:
        return np.asarray(values[rng.integers(0, len(values), (resamples, len(values)))].mean(axis=1))

    method = told_narrow(
        f"bootstrap over {len(most)} + {len(fewest)} users, {resamples} resamples", len(most)
    )
    return percentile_interval(value, drawn(fewest) - drawn(most), confidence=confidence, method=method)


def _slope(
    change: FloatArray, log_samples: FloatArray, confidence: float, resamples: int, seed: int
) -> Estimate | None:
    """Least squares as a function of sums over users."""
    if np.ptp(log_samples) == 0:
        return None
    x, y = log_samples - log_samples.mean(), change - change.mean()  # centred: sums of products keep digits
    sums = np.stack([np.ones(len(x)), x, y, x * y, x * x], axis=1)
    smallest = 1e-12 * float((x * x).mean())

    def slope(totals: FloatArray) -> FloatArray:
        number, sum_x, sum_y, sum_xy, sum_xx = np.moveaxis(totals, -1, 0)
        spread = sum_xx / number - (sum_x / number) ** 2
        # A resample whose users all wrote as much has no slope: left out, not the rounding of 0/0.
        spread = np.where(spread > smallest, spread, np.nan)
        return np.asarray((sum_xy / number - sum_x * sum_y / number**2) / spread)

    return bootstrap_over_users(sums, slope, confidence=confidence, resamples=resamples, seed=seed)


def _caveats(falling: FloatArray, each: int, asked: int) -> tuple[str, ...]:
    found, users = [], len(falling)
    if each < asked:
        found.append(f"{users} users allow only {each} on each side, not {asked}.")
    if each < FEW_USERS:
        found.append(
            f"The gap compares {each} with {each} users: its interval is too narrow; read the slope over all."
        )
    if users < FEW_USERS:
        found.append(f"With {users} users, intervals that resample users are too narrow.")
    if falling[each - 1] == falling[each] or falling[users - each] == falling[users - each - 1]:
        found.append("Users with equally many samples stand on both sides of a cut, by their order.")
    return tuple(found)
