"""Renyi divergences of floored pmfs on tensors: what is charged.

The same arithmetic as :mod:`tacit.privacy.divergence`, which is its oracle, restricted to distributions
without zeros, with sums that run over blocks of the vocabulary, so that batches of queries fit memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

# Entries of one block: 32 MB in float64. One query of a usual ensemble is one block, because the calls of
# many small ones cost more than cache saves (measured); batches of queries are cut to bound memory.
_BLOCK_ELEMENTS = 2**22
_SERIES_BELOW = 1e-2
_SERIES_TERMS = 8


def blocks_of(vocabulary: int, rows: int) -> Iterator[slice]:
    """Cut a vocabulary so that ``rows`` rows of one block stay small."""
    size = max(256, _BLOCK_ELEMENTS // max(1, rows))
    for start in range(0, vocabulary, size):
        yield slice(start, min(vocabulary, start + size))


def phi(x: Tensor, order: float) -> Tensor:
    """(1+x)^order - 1 - order x, never negative, exact near 0."""
    if order == 2:
        return x * x
    direct = (1 + x) * torch.expm1((order - 1) * torch.log1p(x)) - (order - 1) * x
    return torch.where(x.abs() < _SERIES_BELOW / order, _series(x, order), direct)


def _series(x: Tensor, order: float) -> Tensor:
    coefficients, value = [], order
    for j in range(2, 2 + _SERIES_TERMS):
        value *= (order - j + 1) / j
        coefficients.append(value)
    total = torch.full_like(x, coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        total.mul_(x).add_(coefficient)
    return total.mul_(x).mul_(x)


class DivergenceSum:
    """Both directions of a divergence, added up block by block over a vocabulary."""

    def __init__(self, shape: tuple[int, ...], order: float) -> None:
        self._order = order
        self._forward = torch.zeros(shape, dtype=torch.float64)
        self._backward = torch.zeros(shape, dtype=torch.float64)
        # The same sums by logarithms, for orders and ratios whose powers overflow.
        self._logs = torch.full((2, *shape), -math.inf, dtype=torch.float64)

    def add(self, P: Tensor, Q: Tensor) -> None:
        """One more block [..., n] of both distributions; shapes broadcast to [*shape, n]."""
        gap = P - Q
        if self._order == 2:
            gap.square_()
            self._forward += (gap / Q).sum(-1)
            self._backward += gap.div_(P).sum(-1)
            return
        forward = (Q * phi(gap / Q, self._order)).sum(-1)
        backward = (P * phi(gap.div_(P).neg_(), self._order)).sum(-1)
        self._forward += forward
        self._backward += backward
        log_p, log_q = P.log(), Q.log()
        for i, (a, b) in enumerate(((log_p, log_q), (log_q, log_p))):
            power = torch.logsumexp(self._order * a + (1 - self._order) * b, -1)
            self._logs[i] = torch.logaddexp(self._logs[i], power)

    def symmetric(self) -> Tensor:
        """The larger of both directions."""
        excess = torch.maximum(self._forward, self._backward)
        if self._order == 2:  # floored distributions: no term is beyond 1e18
            return torch.log1p(excess)
        exact = torch.log1p(excess) / (self._order - 1)
        return torch.where(torch.isfinite(excess), exact, self._logs.amax(0) / (self._order - 1))


def symmetric_divergence(first: Tensor, second: Tensor, order: float) -> Tensor:
    """The larger of D(first || second) and D(second || first) over the last axis; shapes broadcast."""
    shape = (first[..., :1] + second[..., :1]).shape[:-1]
    total = DivergenceSum(shape, order)
    for block in blocks_of(first.shape[-1], math.prod(shape)):
        total.add(first[..., block], second[..., block])
    return total.symmetric()
