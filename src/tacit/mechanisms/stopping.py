"""Random stopping: SubMix's appendix C.4, kept for fidelity and labelled `paper`.

It hides the moment of STOP in one direction only; :func:`tacit.privacy.random_stopping` has the price. Prefer
certified or individual mixing, which do not stop at all.
"""

from __future__ import annotations

import math
import secrets
from dataclasses import dataclass

from tacit.errors import InputError
from tacit.mechanisms.sampling import RandBelow


@dataclass(frozen=True)
class RandomStopping:
    """Stop before the tau-th answer, tau uniform in 1 .. expansion * queries, whatever the budgets say."""

    queries: int
    expansion: float

    def __post_init__(self) -> None:
        if self.queries < 1:
            raise InputError(f"queries={self.queries}: at least one query is needed.")
        if not 0.5 < self.expansion < math.inf:
            raise InputError(f"expansion={self.expansion}: must be a finite number above 1/2.")

    def draw(self, randbelow: RandBelow = secrets.randbelow) -> int:
        """The number of the first answer that is public."""
        return 1 + randbelow(math.floor(self.queries * self.expansion))
