"""Renyi divergences of floored pmfs on tensors: what is charged.

The same arithmetic as :mod:`tacit.privacy.divergence`, which is its oracle, restricted to distributions
without zeros and arranged for speed: sums run over blocks of the vocabulary that stay in the processor's
cache, because on a few rows of 50,000 float64 values memory is the bottleneck, not arithmetic.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

# Entries per row block: some dozen rows of this many float64 values fit a level-2 cache.
_BLOCK_ELEMENTS = 65_536
_SERIES_BELOW = 1e-2
_SERIES_TERMS = 8


def blocks_of(vocabulary: int, rows: int) -> Iterator[slice]:
    """Cut a vocabulary so that ``rows`` rows of one block fit the cache."""
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


def symmetric_divergence(first: Tensor, second: Tensor, order: float) -> Tensor:
    """The larger of D(first || second) and D(second || first) over the last axis; shapes broadcast."""
    shape = (first[..., :1] + second[..., :1]).shape[:-1] + first.shape[-1:]
    forward = torch.zeros(shape[:-1], dtype=torch.float64, device=first.device)
    backward = torch.zeros_like(forward)
    for block in blocks_of(shape[-1], max(1, math.prod(shape[:-1]))):
        P, Q = first[..., block], second[..., block]
        gap = P - Q
        if order == 2:
            gap.mul_(gap)
            forward += (gap / Q).sum(-1)
            backward += gap.div_(P).sum(-1)
        else:
            forward += (Q * phi(gap / Q, order)).sum(-1)
            backward += (P * phi(gap.div_(P).neg_(), order)).sum(-1)
    excess = torch.maximum(forward, backward)
    divergence = torch.log1p(excess) / (order - 1)
    overflown = ~torch.isfinite(excess)
    if bool(overflown.any()):
        exact = torch.maximum(_by_logarithms(first, second, order), _by_logarithms(second, first, order))
        divergence = torch.where(overflown, exact, divergence)
    return divergence


def _by_logarithms(P: Tensor, Q: Tensor, order: float) -> Tensor:
    """For sums that overflow: far from 1, so that logarithms lose nothing."""
    return torch.logsumexp(order * P.log() + (1 - order) * Q.log(), dim=-1) / (order - 1)
