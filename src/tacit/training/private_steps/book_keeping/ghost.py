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

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from tacit.training.private_steps.book_keeping.products import Inner, torch_inner

_MARGIN = 2.0**-23
_STAIR = 32  # positions of a stair: narrower products are slow, and T / 32 of them save nearly half
_LONG_STAIR = 128  # where a product is fast but calling it is not
_LONG_VECTOR = 4096  # from which half of that is long enough


class Grams:
    """How Gram matrices are computed: staircases, since what lies above the diagonal is there by symmetry.

    ``inner`` is another library's product of contiguous rows, where it is faster than torch's.
    """

    def __init__(self, inner: Inner | None) -> None:
        self._inner = inner

    def stairs(self, time: int, width: int = 0) -> list[tuple[int, int]]:
        """Positions in at most four runs; a Gram matrix is computed from each run to all positions before."""
        long = _LONG_STAIR // 2 if width >= _LONG_VECTOR else _LONG_STAIR
        count = min(4, time // _STAIR) if self._inner is None else min(2, time // long)
        cuts = [time * number // max(1, count) for number in range(max(1, count) + 1)]
        return list(pairwise(cuts))

    def of_example(self, vectors_TX: Tensor, stairs: Sequence[tuple[int, int]]) -> list[Tensor]:
        """The stairs [t, T so far] of one example."""
        inner = self._inner
        if inner is None or len(vectors_TX) < _STAIR or not vectors_TX.is_contiguous():
            inner = torch_inner
        return [inner(vectors_TX[begin:end], vectors_TX[:end]) for begin, end in stairs]

    def of(self, vectors_BTX: Tensor) -> list[Tensor]:
        """The stairs [B, t, T so far] of all examples."""
        time = vectors_BTX.shape[1]
        stairs = self.stairs(time)
        if self._inner is not None and time >= _STAIR:
            examples = [self.of_example(own, stairs) for own in vectors_BTX.contiguous()]
            return [torch.stack(stair) for stair in zip(*examples, strict=True)]
        across = vectors_BTX.transpose(1, 2)
        return [torch.bmm(vectors_BTX[:, begin:end], across[:, :, :end]) for begin, end in stairs]


class Gram:
    """Inner products of all pairs of positions of every example."""

    def __init__(self, vectors_BTX: Tensor, grams: Grams) -> None:
        self._stairs = grams.stairs(vectors_BTX.shape[1])
        self._products = grams.of(vectors_BTX)

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
