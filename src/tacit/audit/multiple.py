"""Several attacks on the same data: the more are tried, the likelier one succeeds by luck.

Holm's procedure keeps the chance that *any* true null is called a leak at the level, however the attacks
depend on each other. An attack that was named as the primary one beforehand needs no correction.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from tacit.errors import InputError


@dataclass(frozen=True)
class AdjustedAttack:
    """One attack's p-value, alone and among all that were tried; ``leaks`` at the given level."""

    name: str
    p_value: float
    adjusted: float
    leaks: bool

    def to_json(self) -> dict[str, Any]:
        """JSON form."""
        return asdict(self)


def holm(p_values: Mapping[str, float], *, level: float = 0.05) -> tuple[AdjustedAttack, ...]:
    """Holm's step-down adjustment, in the order given.

    The i-th smallest of m p-values is multiplied by m - i + 1; an adjusted one is never below an earlier one.
    """
    if not 0 < level < 1:
        raise InputError(f"Expected 0 < level={level} < 1, e.g. 0.05.")
    names = list(p_values)
    values = np.array([p_values[name] for name in names], dtype=np.float64)
    if not ((values >= 0) & (values <= 1)).all():
        raise InputError("Expected p-values from 0 to 1.")
    order = np.argsort(values, kind="stable")
    adjusted = np.empty_like(values)
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate(values[order] * np.arange(len(names), 0, -1)))
    return tuple(
        AdjustedAttack(name, float(value), float(higher), bool(higher <= level))
        for name, value, higher in zip(names, values, adjusted, strict=True)
    )
