"""What an exposure measurement found. The operator's: exposure is a function of private text."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from tacit.attacks.exposure.ranking import Rank, ScoreKind
from tacit.statistics import Estimate

ExposureMethod = Literal["exact", "anytime", "sampled"]


@dataclass(frozen=True)
class CanaryExposure:
    """Exposure of one canary's secret: log2 |R| - log2 rank, in bits; never above log2 |R|.

    rank_*       among all candidates;  alone_* without the other inserted secrets behind the same prefix
    exposure     without the others;  raw_exposure with them. Each value counts every tie against memory. For
                 a secret which the model never saw P(value >= x) is at most 2^-x where all ranks behind a
                 prefix are enumerated; where the secret decides whether its rank is searched or sampled, it
                 can be 1.37 times that
    p_value      that the model never saw this secret: P(p_value <= u) <= u, however the rank was found
    certified    bits that the secret's own probability guarantees: exposure is at least this
    method       exact: nothing was left open; anytime: a budget ended the search, the interval is still
                 certain; sampled: the interval holds at its confidence
    positions    forward positions spent on all canaries of this prefix together
    """

    id: str
    inserted: bool
    repetitions: int
    candidates: int
    rank_low: int
    rank_high: int
    alone_low: int
    alone_high: int
    exposure: Estimate
    raw_exposure: Estimate
    p_value: float
    certified: float
    method: ExposureMethod
    tokens: int
    positions: int
    log_probability: float = field(repr=False)

    def __post_init__(self) -> None:
        most = math.log2(self.candidates)
        if max(self.exposure.high, self.raw_exposure.high, self.certified) > most + 1e-9:
            raise ValueError(f"Exposure above log2|R| = {most:.2f} bits is impossible.")

    def to_json(self) -> dict[str, Any]:
        """JSON form, for the operator. |R| and ranks are text: many readers round beyond 2**53."""
        large = ("candidates", "rank_low", "rank_high", "alone_low", "alone_high")
        return {
            **asdict(self),
            **{name: str(getattr(self, name)) for name in large},
            "exposure": self.exposure.to_json(),
            "raw_exposure": self.raw_exposure.to_json(),
        }


@dataclass(frozen=True)
class ExposureReport:
    """All canaries of a manifest, in its order, and what asking took.

    queries  places at which a mechanism was asked; every one would have been an answer that somebody pays for
    spent    nats that those answers would have cost each part; empty without a mechanism
    nested   the most candidates of which each begins the next, in tokens: such a beginning is never less
             likely than what goes on with it, so that a secret may stand behind nested - 1 of its own
    """

    score: ScoreKind
    target: str
    canaries: tuple[CanaryExposure, ...]
    positions: int
    queries: int
    spent: tuple[float, ...] = field(repr=False)
    nested: int = 1

    def to_json(self) -> dict[str, Any]:
        """JSON form, for the operator; secrets are not in it."""
        return {
            "score": self.score,
            "target": self.target,
            "canaries": [canary.to_json() for canary in self.canaries],
            "positions": self.positions,
            "queries": self.queries,
            "nested": self.nested,
            "spent": [None if math.isinf(nats) else nats for nats in self.spent],
        }


def exposure_estimate(
    low: int, high: int, candidates: int, *, confidence: float, method: str, p_value: float | None = None
) -> Estimate:
    """Exposure from a rank's interval; the value is that of the highest rank, or of a p-value if given."""
    bits = math.log2(candidates)
    least, most = max(0.0, bits - math.log2(high)), bits - math.log2(low)
    value = least if p_value is None else min(max(-math.log2(p_value), least), most)
    return Estimate(value, least, most, confidence, method)


def estimates(
    rank: Rank, *, confidence: float, method: str, p_value: float | None = None
) -> tuple[Estimate, Estimate]:
    """Exposure without and with the other inserted secrets."""
    alone = exposure_estimate(
        rank.alone_low,
        rank.alone_high,
        rank.alone_candidates,
        confidence=confidence,
        method=method,
        p_value=p_value,
    )
    raw = exposure_estimate(
        rank.low, rank.high, rank.candidates, confidence=confidence, method=method, p_value=p_value
    )
    return alone, raw
