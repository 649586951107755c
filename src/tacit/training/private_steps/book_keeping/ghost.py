"""Norms of per-example gradients that are never formed.

The gradient of a matrix for one example is ``G = sum over positions t of r_t c_t'``, where r_t and c_t are
known (a layer's output gradient and its input). Then ``|G|^2 = sum over t, s of <r_t, r_s> <c_t, c_s>``: two
small Gram matrices instead of a large gradient. A row of an embedding is the case where r_t is one-hot.

Rounding: these sums can cancel where a gradient is much smaller than its terms, and a norm that came out too
small would let an example pass the clip. So every squared norm gets a margin of 2^-23 of the square of
``sum |r_t| |c_t|``, the largest that it could be: a few millionths in practice, on the safe side.

Shapes: B examples, T and S positions, R and C rows and columns of the matrix.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

_MARGIN = 2.0**-23
_STAIR = 32  # positions of a stair: narrower products are slow, and T / 32 of them save nearly half


class Gram:
    """Inner products of all pairs of positions, as a staircase: what lies above it is there by symmetry."""

    def __init__(self, vectors_BTX: Tensor) -> None:
        time = vectors_BTX.shape[1]
        self._stairs = stairs(time)
        across = vectors_BTX.transpose(1, 2)
        self._products = [
            torch.bmm(vectors_BTX[:, begin:end], across[:, :, :end]) for begin, end in self._stairs
        ]

    def lengths(self) -> Tensor:
        """Norm of every position's vector, [B, T]."""
        squares = [
            product[:, :, begin:].diagonal(dim1=1, dim2=2)
            for product, (begin, _) in zip(self._products, self._stairs, strict=True)
        ]
        return torch.cat(squares, dim=1).clamp(min=0).sqrt()

    def times(self, other: Gram) -> Tensor:
        """Sum of products of two Gram matrices of one size, [B]: twice the staircase but for its diagonal."""
        total = torch.zeros(())
        for mine, theirs, (begin, _) in zip(self._products, other._products, self._stairs, strict=True):
            product = mine * theirs
            total = total + 2 * product.sum(dim=(1, 2)) - product[:, :, begin:].sum(dim=(1, 2))
        return total


def stairs(time: int) -> list[tuple[int, int]]:
    """Positions in at most four runs of at least 32."""
    count = max(1, min(4, time // _STAIR))
    cuts = [time * number // count for number in range(count + 1)]
    return list(pairwise(cuts))


def outer_squares(rows: Gram, columns: Gram) -> Tensor:
    """Squared norms [B] of sums of outer products, with their margin."""
    return rows.times(columns) + margin(rows.lengths() * columns.lengths())


def margin(terms_BT: Tensor) -> Tensor:
    """What rounding may have taken from a squared norm whose terms have these norms, [B]."""
    return _MARGIN * terms_BT.sum(dim=1).square()


def lookup_squares(ids_BS: Tensor, gradients_BSC: Tensor) -> Tensor:
    """Squared norms [B] of an embedding's gradient: positions of one token add up before they are squared."""
    products = torch.bmm(gradients_BSC, gradients_BSC.transpose(1, 2))
    same = ids_BS[:, :, None] == ids_BS[:, None, :]
    lengths = products.diagonal(dim1=1, dim2=2).clamp(min=0).sqrt()
    return (products * same).sum(dim=(1, 2)) + margin(lengths)


def cross_terms(rows_BTR: Tensor, columns_BTC: Tensor, ids_BS: Tensor, gradients_BSC: Tensor) -> Tensor:
    """Inner products [B] of a matrix's two gradients: as a linear layer and as an embedding.

    For a head that is tied to the embedding: ``sum over t, s of g_t[id_s] <a_t, b_s>``.
    """
    wanted = ids_BS[:, None, :].expand(-1, rows_BTR.shape[1], -1)
    picked_BTS = torch.gather(rows_BTR, 2, wanted)
    return (picked_BTS * torch.bmm(columns_BTC, gradients_BSC.transpose(1, 2))).sum(dim=(1, 2))


def is_smaller_whole(time: int, rows: int, columns: int) -> bool:
    """Whether per-example gradients take less room and work than the positions they come from."""
    return rows * columns <= time * (rows + columns)


def instantiated(rows_BTR: Tensor, columns_BTC: Tensor) -> Tensor:
    """Per-example gradients [B, R, C], where they are small."""
    return torch.bmm(rows_BTR.transpose(1, 2), columns_BTC)
