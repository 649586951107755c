"""Measured numbers and how sure they are.

Every number that tacit shows is an :class:`Estimate`: the value, the interval, the confidence and the
method that made the interval. Three methods serve the whole project:

- :func:`clopper_pearson` for shares (hits of trials): exact, so its coverage is at least the stated one.
- :func:`bootstrap_over_users` for anything that is a function of sums over users (perplexity, bits per
  byte, gaps between models). Users are resampled, not tokens or documents: the texts of one person
  resemble each other, and an interval that treats them as independent is too narrow. Its coverage is
  approximate and falls short with few users: for a nominal 0.95 on log-normal values it was 0.80 with 5
  users, 0.88 with 10, 0.91 with 20 and 0.94 with 100 (1,000 simulations each).
- :func:`bounded_mean` for means of what has a least and a most value (exposure, shares of a user's
  canaries): that bootstrap from :data:`FEW_USERS` on, and below it, or where all values are equal and a
  bootstrap would claim certainty, Hoeffding's inequality, whose coverage is at least the stated one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from scipy import stats

from tacit.errors import InputError

FloatArray = npt.NDArray[np.float64]
Side = Literal["two-sided", "lower", "upper"]

FEW_USERS = 20  # below this, bootstrap intervals are noticeably too narrow
_RESAMPLE_CELLS = 4_000_000  # cells of one block of resampling counts: bounds memory at 32 MB


@dataclass(frozen=True)
class Estimate:
    """A measured value with its interval; ``low`` or ``high`` is infinite where nothing is claimed."""

    value: float
    low: float
    high: float
    confidence: float
    method: str

    def __post_init__(self) -> None:
        """Refuse an interval that does not hold its own value: it would be shown as evidence."""
        if math.isnan(self.value) or not self.low <= self.value <= self.high:
            raise ValueError(f"Expected low <= value <= high; got {self.low}, {self.value}, {self.high}.")
        if not 0 < self.confidence < 1:
            raise ValueError(f"Expected 0 < confidence={self.confidence} < 1.")

    def __str__(self) -> str:
        """Print as ``12.3 [11.8, 12.9]``."""
        return f"{self.value:.4g} [{self.low:.4g}, {self.high:.4g}]"

    def to_json(self) -> dict[str, Any]:
        """JSON form; an infinite bound is null, because JSON has no infinity."""
        fields = asdict(self)
        for bound in ("low", "high"):
            if math.isinf(fields[bound]):
                fields[bound] = None
        return fields

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Estimate:
        """Inverse of :meth:`to_json`."""
        low = -math.inf if fields["low"] is None else fields["low"]
        high = math.inf if fields["high"] is None else fields["high"]
        return cls(fields["value"], low, high, fields["confidence"], fields["method"])


def _require_confidence(confidence: float) -> None:
    if not 0 < confidence < 1:
        raise InputError(f"Expected 0 < confidence={confidence} < 1, e.g. 0.95.")


def clopper_pearson(
    hits: int, trials: int, *, confidence: float = 0.95, side: Side = "two-sided"
) -> Estimate:
    """Exact interval for a share.

    The chance that the interval misses the true share is at most ``1 - confidence``, whatever the share
    and the number of trials. ``side="upper"`` gives ``[0, high]`` with all of the error on one side (and
    ``"lower"`` gives ``[low, 1]``): the form to quote for a miss rate.

    Edge cases: 0 hits give ``low = 0``; all hits give ``high = 1``; no trials give ``[0, 1]`` around 0.5.
    """
    _require_confidence(confidence)
    if trials < 0 or not 0 <= hits <= trials:
        raise InputError(f"Expected 0 <= hits={hits} <= trials={trials}.")
    error = 1 - confidence
    tail = error / 2 if side == "two-sided" else error
    low, high = 0.0, 1.0
    if side != "upper" and hits > 0:
        low = float(stats.beta.ppf(tail, hits, trials - hits + 1))
    if side != "lower" and hits < trials:
        high = float(stats.beta.ppf(1 - tail, hits + 1, trials - hits))
    value = hits / trials if trials else 0.5
    # At a confidence below a half, the bound of one side lies beyond the share that was seen; an interval
    # widened to hold it still covers at least what it states.
    low, high = min(low, value), max(high, value)
    return Estimate(value, low, high, confidence, f"Clopper-Pearson, {side}, n={trials}")


def bootstrap_over_users(
    sums: npt.ArrayLike,
    statistic: Callable[[FloatArray], npt.ArrayLike],
    *,
    confidence: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> Estimate:
    """Percentile bootstrap of a function of sums over users.

    Args:
        sums: ``[users, m]``; row u holds what user u contributes to each of m totals.
        statistic: maps totals ``[..., m]`` to values ``[...]``, e.g. ``lambda t: t[..., 0] / t[..., 1]``.
        confidence: nominal coverage of the interval.
        resamples: how many times the users are drawn anew.
        seed: of the resampling; the same seed gives the same interval.

    A resample in which the statistic is undefined (all users with a denominator missed) is left out. With
    one user nothing can be said about other users: the interval is infinite on both sides.
    """
    _require_confidence(confidence)
    totals = np.asarray(sums, dtype=np.float64)
    if totals.ndim != 2 or len(totals) == 0 or not np.isfinite(totals).all():
        raise InputError("Expected finite sums of shape [users, m] with at least one user.")
    users = len(totals)
    value = float(np.asarray(statistic(totals.sum(axis=0))))
    method = told_narrow(f"bootstrap over {users} users, {resamples} resamples", users)
    if users == 1:
        return Estimate(value, -math.inf, math.inf, confidence, "one user: no interval")
    generator = np.random.default_rng(seed)
    rows = max(1, min(resamples, _RESAMPLE_CELLS // users))
    parts = []
    for start in range(0, resamples, rows):
        counts = generator.multinomial(users, np.full(users, 1 / users), size=min(rows, resamples - start))
        with np.errstate(divide="ignore", invalid="ignore"):
            parts.append(np.asarray(statistic(counts.astype(np.float64) @ totals), dtype=np.float64))
    return percentile_interval(value, np.concatenate(parts), confidence=confidence, method=method)


def told_narrow(method: str, resampled: int) -> str:
    """A bootstrap's method, which says so where too few (on a side) were resampled for its interval."""
    return method if resampled >= FEW_USERS else f"{method}; too narrow, because they are few"


def bounded_mean(
    values: npt.ArrayLike,
    *,
    least: float,
    most: float,
    of: str,
    weights: npt.ArrayLike | None = None,
    confidence: float = 0.95,
    seed: int = 0,
) -> Estimate:
    """The mean of independent values between ``least`` and ``most``.

    Args:
        values: of ``of``, a plural such as "canaries", which the method names.
        least: the least that a value can be.
        most: the most.
        of: what each value belongs to.
        weights: how much each counts, e.g. how many texts its user has; equal by default.
        confidence: coverage: nominal from :data:`FEW_USERS` values on, at least that with fewer.
        seed: of the resampling.
    """
    _require_confidence(confidence)
    found = np.asarray(values, dtype=np.float64)
    shares = np.ones(len(found)) if weights is None else np.asarray(weights, dtype=np.float64)
    if found.ndim != 1 or len(found) == 0 or shares.shape != found.shape or not (shares > 0).all():
        raise InputError("Expected at least one value, and a positive weight for each.")
    slack = 1e-9 * (most - least)  # a mean of values at an end may round beyond it
    if not (least - slack <= found).all() or not (found <= most + slack).all():
        raise InputError(f"Expected values from least={least} to most={most}.")
    value = float(np.clip(shares @ found / shares.sum(), least, most))
    shares = shares / shares.sum()
    if len(found) >= FEW_USERS and np.ptp(found) > 0:
        sums = np.stack([shares * found, shares], axis=1)
        drawn = bootstrap_over_users(
            sums, lambda totals: totals[..., 0] / totals[..., 1], confidence=confidence, seed=seed
        )
        low, high = max(least, drawn.low), min(most, drawn.high)
        return Estimate(
            value, min(low, value), max(high, value), confidence, f"bootstrap over {len(found)} {of}"
        )
    reach = (most - least) * math.sqrt(math.log(2 / (1 - confidence)) / 2 * float(shares @ shares))
    method = f"Hoeffding, {len(found)} {of} from {least:.3g} to {most:.3g}"
    return Estimate(value, max(least, value - reach), min(most, value + reach), confidence, method)


def percentile_interval(value: float, draws: FloatArray, *, confidence: float, method: str) -> Estimate:
    """An estimate and the middle share of its resampled values; undefined ones are left out.

    The percentile interval of a skewed statistic can miss the estimate itself. It must not be shown so, and
    is widened to hold it. Where no resample is defined, nothing is claimed.
    """
    _require_confidence(confidence)
    draws = draws[np.isfinite(draws)]
    if len(draws) == 0:
        return Estimate(value, -math.inf, math.inf, confidence, f"{method}: none defined")
    low, high = np.quantile(draws, [(1 - confidence) / 2, (1 + confidence) / 2])
    return Estimate(value, min(float(low), value), max(float(high), value), confidence, method)
