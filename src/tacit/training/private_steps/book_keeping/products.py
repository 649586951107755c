"""Inner products by whichever library is faster here.

On processors that MKL does not favour, oneDNN (which torch also carries, and uses itself where it compiles)
takes half the time for the same fp32 products. It is used for what book-keeping adds to a step, the Gram
matrices, and only on rows that lie together: for others it has no fast kernel.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

Inner = Callable[[Tensor, Tensor], Tensor]
"""``a b'`` of two matrices."""

_WORTH_IT = 1.5  # times as fast: below that the choice could differ from run to run


def torch_inner(a: Tensor, b: Tensor) -> Tensor:
    """By torch's own choice."""
    return a @ b.T


def onednn_inner(a: Tensor, b: Tensor) -> Tensor:
    """By oneDNN; both must be contiguous and fp32 on the CPU."""
    operation: Any = torch.ops.mkldnn._linear_pointwise
    product: Tensor = operation(a, b, None, "none", [], "")
    return product


@lru_cache(maxsize=1)
def faster_inner() -> Inner | None:
    """oneDNN's product where it is there, right and clearly faster; found out once, on made-up numbers."""
    rows = torch.linspace(-1, 1, 128 * 512).view(128, 512)
    try:
        right = torch.allclose(onednn_inner(rows, rows), rows @ rows.T, rtol=1e-4, atol=1e-3)
    except (AttributeError, RuntimeError, TypeError):
        return None
    if not right:
        return None
    return onednn_inner if _seconds(torch_inner, rows) > _WORTH_IT * _seconds(onednn_inner, rows) else None


def _seconds(inner: Inner, rows: Tensor) -> float:
    best = float("inf")
    for _ in range(7):
        began = time.thread_time()
        for _ in range(8):
            inner(rows, rows)
        best = min(best, time.thread_time() - began)
    return best
