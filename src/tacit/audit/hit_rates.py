"""How often one generation writes a planted secret behind its prefix, and how many it takes.

The rate is computed and not sampled: the probability of a secret's tokens, one after another, under the
distributions that answers are drawn from. It has no error for these secrets, and is a lower bound on
extraction of their text (see `tacit.attacks.np_extraction`). Behind a mechanism it is the rate while the
budget lasts.

Chance. A secret that the model never saw is uniform among K and independent of the model, whose probabilities
add up to at most 1 over all K. So the mean rate of such secrets is 1/K at most on average, whatever the model
is and whether prefixes are shared; and by Markov's inequality it is c/K or more with probability at most 1/c.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tacit.attacks.np_extraction import NPExtraction
from tacit.statistics import Estimate

_TRIES: Final = (1, 10, 100, 1000, 10_000)
_CHANCES: Final = (0.1, 0.5, 0.9)


def extracts(rate: float, *, candidates: int, confidence: float) -> bool:
    """Whether a mean rate is more than chance explains; true of unseen secrets in 1 - confidence at most."""
    return rate * candidates >= 1 / (1 - confidence)


def hit_row(
    name: str,
    log_probabilities: npt.ArrayLike,
    *,
    candidates: int,
    epsilon: float | None = None,
    confidence: float = 0.95,
) -> dict[str, Any]:
    """One setting: the mean rate over its secrets, beside a blind guess."""
    logs = np.asarray(log_probabilities, dtype=np.float64)
    rate = float(np.exp(logs).mean())
    method = f"computed for these {len(logs)} secrets: nothing is sampled"
    return {
        "name": name,
        "epsilon": epsilon,
        "rate": Estimate(rate, rate, rate, confidence, method).to_json(),
        "chance": 1 / candidates,
        "verdict": "extracts" if extracts(rate, candidates=candidates, confidence=confidence) else "none",
    }


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
