"""Which way of computing Gram matrices is the fastest on this processor: found out once, on made-up numbers.

By symmetry half of a Gram matrix is enough, but halves are made of smaller products. Where wide registers
make large products fast (AVX-512), small ones lag so far behind that the whole matrix takes less time;
elsewhere four stairs do, or two and another library. The result is the same up to rounding, which margins
cover.
"""

from __future__ import annotations

import time
from functools import lru_cache
from typing import Final

import torch

from tacit.training.private_steps.book_keeping.ghost import Grams
from tacit.training.private_steps.book_keeping.products import Inner, onednn_inner

_WORTH_IT: Final = 1.1  # times as fast, for another library than torch's own
_STAIRS: Final = (4, 2, 1)
_EXAMPLES, _LENGTH = 4, 2048
_WIDTHS: Final = 32, 512  # what is measured: beyond these the answer is that for the nearest


def fastest_grams(width: int) -> Grams:
    """For rows of at most so many positions."""
    inner, stairs = _fastest(min(max(width, _WIDTHS[0]), _WIDTHS[1]))
    return Grams(inner, width, stairs)


@lru_cache(maxsize=8)
def _fastest(width: int) -> tuple[Inner | None, int]:
    made_up = torch.linspace(-1, 1, _EXAMPLES * width * _LENGTH).view(_EXAMPLES, width, _LENGTH)
    own = {stairs: _seconds(Grams(None, width, stairs), made_up) for stairs in _STAIRS}
    best = min(own, key=lambda stairs: own[stairs])
    if not _is_right(made_up[0]) or own[best] < _WORTH_IT * _seconds(Grams(onednn_inner, width), made_up):
        return None, best
    return onednn_inner, best


def _is_right(rows: torch.Tensor) -> bool:
    """Whether the other library is there, and computes what it should."""
    try:
        return torch.allclose(onednn_inner(rows, rows), rows @ rows.T, rtol=1e-4, atol=1e-3)
    except (AttributeError, RuntimeError, TypeError):
        return False


def _seconds(grams: Grams, vectors: torch.Tensor) -> float:
    stairs = grams.stairs(vectors.shape[1])
    best = float("inf")
    for _ in range(5):
        began = time.thread_time()
        grams.of(vectors, stairs)
        best = min(best, time.thread_time() - began)
    return best
