"""Drawing a token from exactly the distribution that was charged.

Probabilities become integer weights ``floor(p * 2^62) + 1`` and the draw is uniform over their sum, by the
operating system's generator. Single-precision samplers cannot reach rare tokens at all, which would make
supports differ between worlds; seeded generators can be predicted from their outputs.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tacit.errors import InputError

# Sums of up to 2^62 + V stay below 2^63 in a signed integer.
_SCALE = 2.0**62

RandBelow = Callable[[int], int]


def integer_weights(pmf: Tensor) -> npt.NDArray[np.int64]:
    """Positive integers proportional to a pmf [V]."""
    values = pmf.detach().cpu().to(torch.float64).numpy()
    total = values.sum()  # not finite where an entry is not
    if values.ndim != 1 or not abs(total - 1) <= 1e-6 or values.min() < 0:
        raise InputError("only a distribution [V] that sums to one can be sampled.")
    weights: npt.NDArray[np.int64] = (values * (_SCALE / total)).astype(np.int64)
    weights += 1
    return weights


def sample(pmf: Tensor, randbelow: RandBelow = secrets.randbelow) -> int:
    """One token index. ``randbelow`` is replaced only by tests and seeded experiments."""
    cumulative = np.cumsum(integer_weights(pmf))
    return int(np.searchsorted(cumulative, randbelow(int(cumulative[-1])), side="right"))
