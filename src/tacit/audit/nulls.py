"""What exposure looks like when nothing was memorised.

A secret is uniform over K candidates and independent of a model that never saw it. Its rank is then uniform
on 1..K, and exposure = log2 K - log2 rank is -log2 of an exact p-value, rank/K. So "no memorisation" is not
zero bits: one canary has 1.44 bits on average and exceeds 4.32 in one case of twenty, and the largest of ten
has 4.23 on average. Every measured exposure belongs beside its band.

All numbers are exact for K values, ties aside. Above ``_MOST_TERMS`` candidates the mean is that of
continuous ranks, which is too high by less than (m/K) log2 K bits.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import special, stats

from tacit.errors import InputError

_MOST_TERMS = 2**24


@dataclass(frozen=True)
class ExposureBand:
    """Exposure in bits of the largest of ``canaries`` that nothing memorised; 1 canary is one alone.

    low, high   hold a null exposure with at least probability ``confidence``, half of the rest on each side
    limit       is exceeded with probability at most 1 - ``confidence``: compare a measured exposure with it
    """

    mean: float
    median: float
    low: float
    high: float
    limit: float
    confidence: float
    canaries: int
    candidates: int

    def to_json(self) -> dict[str, Any]:
        """JSON form; the number of candidates may be beyond what JSON readers count and is a string."""
        return asdict(self) | {"candidates": str(self.candidates)}


@dataclass(frozen=True)
class Memorisation:
    """Whether ranks are better than chance: each p-value is rank/K, in two combinations.

    ``fisher`` is sensitive to many canaries that are somewhat memorised, ``largest`` to one that is wholly.
    Report the one that was named beforehand, or both by Holm.
    """

    fisher: float
    largest: float
    canaries: int

    def to_json(self) -> dict[str, Any]:
        """JSON form."""
        return asdict(self)


def exposure(rank: float, candidates: int) -> float:
    """Bits: log2 of the candidates over the rank; at least 0 and at most log2 of the candidates."""
    if not 1 <= rank <= candidates:
        raise InputError(f"Expected 1 <= rank={rank} <= candidates={candidates}.")
    return math.log2(candidates) - math.log2(rank)


def exposure_band(*, candidates: int, canaries: int = 1, confidence: float = 0.95) -> ExposureBand:
    """The null of one canary, or of the largest exposure among several with independent ranks."""
    _check(candidates, canaries)
    if not 0 < confidence < 1:
        raise InputError(f"Expected 0 < confidence={confidence} < 1, e.g. 0.95.")

    def quantile(level: float) -> float:
        return exposure(_rank_at(level, candidates, canaries), candidates)

    return ExposureBand(
        mean=_mean(candidates, canaries),
        median=quantile(0.5),
        low=quantile((1 - confidence) / 2),
        high=quantile((1 + confidence) / 2),
        limit=quantile(confidence),
        confidence=confidence,
        canaries=canaries,
        candidates=candidates,
    )


def exposure_p_value(bits: float, *, candidates: int, canaries: int = 1) -> float:
    """How likely the largest of so many null exposures is at least ``bits``."""
    _check(candidates, canaries)
    # A measured exposure is log2(K/rank) with rounding: without the margin, its own rank might be missed.
    ranks = min(candidates, math.floor(candidates * 2.0 ** -max(bits, 0.0) * (1 + 1e-12) + 1e-9))
    return float(-math.expm1(canaries * math.log1p(-ranks / candidates))) if ranks < candidates else 1.0


def memorisation(ranks: npt.ArrayLike, *, candidates: int) -> Memorisation:
    """p-values that canaries with independent secrets and distinct prefixes were not memorised.

    Fisher: -2 sum log(rank/K) against chi-square with 2m degrees of freedom. Ranks are whole numbers, so a
    p-value rank/K is never too small and both combinations err on the safe side.
    """
    found = np.asarray(ranks, dtype=np.float64)
    if found.ndim != 1 or len(found) == 0 or not ((found >= 1) & (found <= candidates)).all():
        raise InputError(f"Expected at least one rank, each from 1 to candidates={candidates}.")
    p_values = found / candidates
    fisher = float(stats.chi2.sf(-2 * np.log(p_values).sum(), 2 * len(found)))
    smallest = float(p_values.min())
    largest = 1.0 if smallest == 1 else -math.expm1(len(found) * math.log1p(-smallest))
    return Memorisation(fisher, largest, len(found))


def _rank_at(level: float, candidates: int, canaries: int) -> int:
    """The largest rank r with P[smallest rank >= r] = ((K-r+1)/K)^m >= level: exposure's quantile."""
    below = -math.expm1(math.log(level) / canaries)  # 1 - level^(1/m)
    return min(candidates, math.floor(candidates * below + 1e-9) + 1)


@lru_cache(maxsize=64)
def _mean(candidates: int, canaries: int) -> float:
    """log2 K - E[log2 of the smallest rank], by E[log2 R] = sum_{r >= 2} P[R >= r] log2(r/(r-1))."""
    if candidates > _MOST_TERMS:
        return float(special.digamma(canaries + 1) - special.digamma(1)) / math.log(2)  # H_m / ln 2
    ranks = np.arange(2, candidates + 1, dtype=np.float64)
    reached = np.exp(canaries * np.log1p(-(ranks - 1) / candidates))
    return math.log2(candidates) - float((reached * np.log1p(1 / (ranks - 1))).sum()) / math.log(2)


def _check(candidates: int, canaries: int) -> None:
    if candidates < 2 or canaries < 1:
        raise InputError(f"Expected candidates={candidates} >= 2 and canaries={canaries} >= 1.")
