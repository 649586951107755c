"""What a Renyi bound says to the person who asks "can they get my secret out?"."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tacit.errors import InputError
from tacit.privacy.conversions import check_renyi


@dataclass(frozen=True)
class ExtractionCertificate:
    """Upper bounds on the probability of guessing a secret confined to ``whose`` text, e.g. one part's.

    hoelder  (e^epsilon / m)^((a-1)/a), from Hoelder's inequality around the law of the world without it
    fano     (epsilon + log 2) / log m, SubMix's Theorem D.2 for one user, centred in the same way
    chance   1 / m, what guessing without any access achieves
    """

    order: float
    epsilon: float
    candidates: float
    hoelder: float
    fano: float
    chance: float
    whose: str = "one part"

    @property
    def bound(self) -> float:
        """The smaller of both: each holds by itself."""
        return min(self.hoelder, self.fano)

    def __str__(self) -> str:
        return (
            f"a secret with {self.candidates:.6g} equally likely values, confined to {self.whose}, is "
            f"guessed with probability at most {self.bound:.3g} (Hoelder {self.hoelder:.3g}, "
            f"Fano {self.fano:.3g}; chance {self.chance:.3g})"
        )


def extraction_certificate(
    *, order: float, epsilon: float, candidates: float, whose: str = "one part"
) -> ExtractionCertificate:
    """Bound the guessing of a secret drawn uniformly from ``candidates`` values.

    Needs (order, epsilon) for *every* corpus, and the secret in the text of one unit only: ``whose``.
    """
    check_renyi(order, epsilon)
    if not 2 <= candidates < math.inf:
        raise InputError(f"candidates={candidates}: a secret has at least 2 possible values.")
    exponent = 1.0 if math.isinf(order) else (order - 1) / order
    logarithm = exponent * (epsilon - math.log(candidates))
    return ExtractionCertificate(
        order=order,
        epsilon=epsilon,
        candidates=candidates,
        hoelder=math.exp(min(0.0, logarithm)),
        fano=min(1.0, (epsilon + math.log(2)) / math.log(candidates)),
        chance=1 / candidates,
        whose=whose,
    )
