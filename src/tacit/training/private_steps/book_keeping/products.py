"""Inner products by either of the libraries that torch carries.

On processors that MKL does not favour, oneDNN (which torch uses itself where it compiles) takes half the time
for the same fp32 products. It is for what book-keeping adds to a step: the Gram matrices, and the recurrences
that are written out, which torch itself leaves to oneDNN. And only on rows that lie together: for others it
has no fast kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Inner = Callable[[Tensor, Tensor], Tensor]
"""``a b'`` of two matrices."""


def add_inner(total: Tensor, a: Tensor, b: Tensor, inner: Inner | None) -> Tensor:
    """Add ``a b'`` in place, by another library or by torch's own choice."""
    return total.addmm_(a, b.T) if inner is None else total.add_(inner(a, b))


def onednn_inner(a: Tensor, b: Tensor) -> Tensor:
    """By oneDNN; both must be contiguous and fp32 on the CPU."""
    operation: Any = torch.ops.mkldnn._linear_pointwise
    product: Tensor = operation(a, b, None, "none", [], "")
    return product
