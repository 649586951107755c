"""Stands in for ``tacit.audit.bounds`` until that is here: the same names and signature, the least of it."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from tacit.statistics import clopper_pearson


@dataclass(frozen=True)
class EpsilonLowerBound:
    """With this confidence, no smaller epsilon is true; 0 shows nothing."""

    epsilon: float
    delta: float
    confidence: float
    method: str

    def to_json(self) -> dict[str, Any]:
        """JSON form."""
        return asdict(self)


def separation_bound(
    *,
    true_positives: int,
    members: int,
    false_positives: int,
    non_members: int,
    delta: float,
    confidence: float = 0.95,
) -> EpsilonLowerBound:
    """Clopper-Pearson: both directions need the same two events, at half of the error each."""
    each = 1 - (1 - confidence) / 2
    hit = clopper_pearson(true_positives, members, confidence=each, side="lower").low
    alarm = clopper_pearson(false_positives, non_members, confidence=each, side="upper").high
    pairs = ((hit - delta, alarm), (1 - alarm - delta, 1 - hit))
    epsilon = max((math.log(low / high) for low, high in pairs if low > high > 0), default=0.0)
    return EpsilonLowerBound(epsilon, delta, confidence, "Clopper-Pearson, in against out")
