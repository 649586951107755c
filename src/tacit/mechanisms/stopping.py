"""Random stopping: SubMix's appendix C.4, kept for fidelity and labelled `paper`.

It hides the moment of STOP in one direction only; :func:`tacit.privacy.random_stopping` has the price. Prefer
certified or individual mixing, which do not stop at all.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass

from tacit.mechanisms.sampling import RandBelow
from tacit.privacy.conversions import stopping_horizon


@dataclass(frozen=True)
class RandomStopping:
    """Stop before the tau-th answer, tau uniform in 1 .. expansion * queries, whatever the budgets say."""

    queries: int
    expansion: float

    def __post_init__(self) -> None:
        stopping_horizon(self.queries, self.expansion)

    def draw(self, randbelow: RandBelow = secrets.randbelow) -> int:
        """The number of the first answer that is public."""
        return 1 + randbelow(stopping_horizon(self.queries, self.expansion))
