"""How often one generation writes a planted secret behind its prefix, and how many it takes.

The rate is computed and not sampled: the probability of a secret's tokens, one after another, under the
distributions that answers are drawn from. It has no error for these secrets, and is a lower bound on
extraction of their text (see `tacit.attacks.np_extraction`). Behind a mechanism it is the rate while the
budget lasts.

Chance. A secret that the model never saw is uniform among K and independent of the model, whose probabilities
add up to at most 1 over all K. So the mean rate of such secrets is 1/K at most on average, whatever the model
is and whether prefixes are shared; and by Markov's inequality it is c/K or more with probability at most 1/c.
Where words of a list begin with others, up to ``nested`` secrets are written at once, and K is K / nested.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tacit.attacks.np_extraction import NPExtraction
from tacit.audit.attempts import Attempt
from tacit.statistics import Estimate

_TRIES: Final = (1, 10, 100, 1000, 10_000)
_CHANCES: Final = (0.1, 0.5, 0.9)


GENERATION: Final = "one generation behind each canary's prefix, share of secrets written"


def rate_p_value(rate: float, *, candidates: float) -> float:
    """At most how likely secrets that a model never saw have so high a mean rate."""
    return min(1.0, 1 / (rate * candidates)) if rate > 0 else 1.0


def hit_row(
    name: str,
    log_probabilities: npt.ArrayLike,
    *,
    candidates: float,
    epsilon: float | None = None,
    confidence: float = 0.95,
    attempt: str | None = None,
) -> dict[str, Any]:
    """One setting: the mean rate over its secrets, beside a blind guess.

    ``attempt``: under which name the headline looks at it; then its p-value is corrected before it counts.
    """
    logs = np.asarray(log_probabilities, dtype=np.float64)
    rate = float(np.exp(logs).mean())
    method = f"computed for these {len(logs)} secrets: nothing is sampled"
    return {
        "name": name,
        "epsilon": epsilon,
        "rate": Estimate(rate, rate, rate, confidence, method).to_json(),
        "chance": 1 / candidates,
        "p_value": (p_value := rate_p_value(rate, candidates=candidates)),
        "attempt": attempt,
        "adjusted": None,
        "verdict": _ASIDE if attempt is None else _word(p_value <= 1 - confidence),
    }


_ASIDE = "not judged"  # a row to compare with: its p-value is one that nobody corrected


def _word(extracts: bool) -> str:
    return "extracts" if extracts else "none"


def generation_attempt(row: Mapping[str, Any]) -> Attempt:
    """The row of the model that is audited, as an attack among others."""
    rate = Estimate.from_json(row["rate"])
    return Attempt(GENERATION, rate, row["chance"], row["p_value"], named=False)


def tries_rows(found: NPExtraction, *, confidence: float = 0.95) -> list[dict[str, Any]]:
    """For several chances, the median number of tries, and how many secrets come out within some tries."""
    return [
        {
            "p": chance,
            "median_tries": _median(found.tries(chance)),
            "within": [
                {"tries": many, "share": found.share(many, chance, confidence=confidence).to_json()}
                for many in _TRIES
            ],
        }
        for chance in _CHANCES
    ]


def _median(values: Any) -> float | None:
    ordered = sorted(float(value) for value in values)
    middle = ordered[len(ordered) // 2]
    return middle if middle < float("inf") else None
