"""Norms of per-example gradients that are never formed, and how far rounding can have moved them.

The gradient of a matrix for one example is ``G = sum over positions t of r_t c_t'``, where r_t and c_t are
known (a layer's output gradient and its input). Then ``|G|^2 = sum over t, s of <r_t, r_s> <c_t, c_s>``: two
small Gram matrices instead of a large gradient. A row of an embedding is the case where r_t is one-hot.

These sums cancel where a gradient is much smaller than its terms, and a norm that came out too small would
let an example pass the clip. So every square comes with a margin, and where the margins of an example are
more than a 32nd of its square, `Books` computes it again in float64. Let u = 2^-24 and e(k) = 1.01 k u.

**A margin is a function of its example and of public constants**, never of the examples beside it: not of how
many they are, nor of how far they are padded. Otherwise one example would change how far others are clipped,
and move the sum by more than the bound. So lengths of pieces, numbers of roundings and whether a gradient is
formed go by the public ``width``; a margin that is given up for float64 leaves a 32nd in its place, without a
jump.

Proven, for arithmetic that rounds to nearest, with or without fused products and in any order of summation:

- An inner product is off by at most e(k) |a| |b|, where k counts the roundings that a term goes through: its
  length n, or L + n / L if pieces of length L are added up. `Grams` cuts at 2^17 / width or 512 (oneDNN
  2^18).
- With Gram matrices K and C of vectors of lengths k_t and c_t, the sum of products is hence off by at most
  ``sum over t, s of e(K) k_t k_s |C_ts| + e(C) c_t c_s |K_ts| + e(K) e(C) k_t k_s c_t c_s``, with the entries
  as they were computed. The two roundings after that (a product in fp32, sums in float64) count with K's.
  A head that is tied to the embedding has more pairs of positions, and the margins of all of them.
- What underflows, or is flushed to zero, is less than 2^-90 in a squared length and 2^-80 in a square, which
  are added.
- The clipped sum is computed in fp32 as well, over at most N = 512 positions at once. That leaves an
  example's own part off by at most ``e(N) sum |r_t| |c_t|``, which is added to its norm: what cancels only in
  exact arithmetic would otherwise leave rounding errors of any size. Beside that, float64 is always precise
  enough.
- 1.01 covers terms of second order and the arithmetic of the margins themselves, up to 2^16 positions.

Assumed: products are sums of fp32 products (no TF32 or bf16 inside, no Strassen), as torch computes them
unless it is told otherwise. Not covered: an example also changes how the *others'* terms are rounded.

Shapes: B examples, T and S positions, R and C rows and columns of the matrix.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from tacit.training.private_steps.book_keeping.products import Inner

TINY = 2.0**-80  # of a square: beyond what underflow can have taken from it
_TINY_LENGTH = 2.0**-90  # of a squared length
_AFTERWARDS = 2  # roundings of a product of two inner products and of their sum
_PIECE = 512  # inner products are cut at this length in long texts: shorter ones are more precise and slower
_PIECES = 1 << 17  # and at this over the width in short ones, since margins grow with both
_INNER_PIECES = 1 << 18  # for the other library, to which pieces have to be copied
_GRADIENTS = 1 << 20  # values of per-example gradients in one piece of memory
_STAIR = 32  # positions of a stair at least: narrower products are slow everywhere
_LONG_STAIR = 128  # where a product is fast but calling it is not
_LONG_VECTOR = 4096  # from which half of that is long enough


def rounding(roundings: int, unit: float = 2.0**-24) -> float:
    """e(k): how far, relative to the sum of their sizes, terms can be off that are rounded so many times."""
    return 1.01 * roundings * unit


@dataclass(frozen=True)
class Bound:
    """What is known of squared norms, [B] each in float64."""

    squares: Tensor
    margins: Tensor  # the true squares are at most this far away
    terms: Tensor  # sums of the norms of what is added up

    @classmethod
    def exact(cls, squares: Tensor) -> Bound:
        """Of gradients that were formed, and are added as they are."""
        return cls(squares, torch.zeros_like(squares), torch.zeros_like(squares))

    @classmethod
    def stacked(cls, each: Sequence[Bound]) -> Bound:
        """Of examples, one after the other."""
        return cls(
            torch.cat([own.squares for own in each]),
            torch.cat([own.margins for own in each]),
            torch.cat([own.terms for own in each]),
        )

    def __add__(self, other: Bound) -> Bound:
        """Of pairs of positions of one matrix together."""
        return Bound(self.squares + other.squares, self.margins + other.margins, self.terms + other.terms)


class Grams:
    """How Gram matrices are computed: staircases, since what lies above the diagonal is there by symmetry.

    ``inner`` is another library's product of contiguous rows, where it is faster than torch's. Of
    ``most_stairs``, four save nearly half of the work where small products are as fast as large ones; see
    `fastest`. ``width`` is how long rows are at most: a public figure.
    """

    def __init__(self, inner: Inner | None, width: int = 128, most_stairs: int = 4) -> None:
        self._inner = inner
        self._most_stairs = most_stairs
        self.width = width
        self._piece = max(_PIECE, (_PIECES if inner is None else _INNER_PIECES) // max(1, width))

    def inner_for(self, vectors: Tensor) -> Inner | None:
        """The other library's product, where it is to be used and can be."""
        return self._inner if vectors.dtype == torch.float32 else None

    def stairs(self, time: int, width: int = 0) -> list[tuple[int, int]]:
        """Positions in a few runs; a Gram matrix is computed from each run to all positions before."""
        long = _LONG_STAIR // 2 if width >= _LONG_VECTOR else _LONG_STAIR
        least, most = (_STAIR, self._most_stairs) if self._inner is None else (long, 2)
        count = min(most, time // least)
        cuts = [time * number // max(1, count) for number in range(max(1, count) + 1)]
        return list(pairwise(cuts))

    def roundings(self, length: int) -> int:
        """How often a term of an inner product of vectors so long is rounded at most."""
        return min(length, self._piece) + -(-length // self._piece)

    def of(self, vectors_BTX: Tensor, stairs: Sequence[tuple[int, int]]) -> list[Tensor]:
        """The stairs [B, t, T so far] of all examples."""
        time = vectors_BTX.shape[1]
        if self._inner is not None and time >= _STAIR:
            examples = [self._of_example(own, self._inner, stairs) for own in vectors_BTX]
            return [torch.stack(stair) for stair in zip(*examples, strict=True)]
        first, *others = torch.split(vectors_BTX, self._piece, dim=2)
        found = [torch.bmm(first[:, begin:end], first[:, :end].transpose(1, 2)) for begin, end in stairs]
        for piece in others:
            for product, (begin, end) in zip(found, stairs, strict=True):
                product.baddbmm_(piece[:, begin:end], piece[:, :end].transpose(1, 2))
        return found

    def _of_example(
        self, vectors_TX: Tensor, inner: Inner, stairs: Sequence[tuple[int, int]]
    ) -> list[Tensor]:
        found: list[Tensor] = []
        for piece in (own.contiguous() for own in torch.split(vectors_TX, self._piece, dim=1)):
            products = [inner(piece[begin:end], piece[:end]) for begin, end in stairs]
            found = [a.add_(b) for a, b in zip(found, products, strict=True)] if found else products
        return found


class Gram:
    """Inner products of all pairs of positions of every example."""

    def __init__(
        self, vectors_BTX: Tensor, grams: Grams, stairs: Sequence[tuple[int, int]] | None = None
    ) -> None:
        _refuse_low_precision(vectors_BTX)
        self.stairs = grams.stairs(vectors_BTX.shape[1]) if stairs is None else stairs
        self._finish(grams.of(vectors_BTX, self.stairs), grams.roundings(vectors_BTX.shape[2]))

    @classmethod
    def of_each(cls, vectors: Sequence[Tensor], grams: Grams, stairs: Sequence[tuple[int, int]]) -> Gram:
        """Of examples [T, X] of different lengths, each by itself; ``stairs`` are for the longest."""
        _refuse_low_precision(vectors[0])
        gram = cls.__new__(cls)
        gram.stairs = stairs
        products = [vectors[0].new_zeros(len(vectors), end - begin, end) for begin, end in stairs]
        for example, vectors_TX in enumerate(vectors):
            own = [(begin, min(end, len(vectors_TX))) for begin, end in stairs if begin < len(vectors_TX)]
            for room, product, (begin, end) in zip(
                products, grams.of(vectors_TX[None], own), own, strict=False
            ):
                room[example, : end - begin, :end] = product[0]
        gram._finish(products, grams.roundings(vectors[0].shape[1]))
        return gram

    def _finish(self, products: list[Tensor], roundings: int) -> None:
        self.products, self.roundings = products, roundings
        squares = [
            product[:, :, begin:].diagonal(dim1=1, dim2=2)
            for product, (begin, _) in zip(products, self.stairs, strict=True)
        ]
        self.lengths = (torch.cat(squares, dim=1) + _TINY_LENGTH).sqrt()  # of every position's vector, [B, T]

    def sizes(self, lengths_BT: Tensor) -> Tensor:
        """Sum over t, s of the product's size times both lengths, [B]."""
        total = torch.zeros((), dtype=torch.float64)
        for product, (begin, end) in zip(self.products, self.stairs, strict=True):
            across = lengths_BT[:, None, :end].clone()
            across[:, :, :begin] *= 2  # by symmetry
            sums_Bt = torch.linalg.vector_norm(product * across, ord=1, dim=2)
            total = total + (sums_Bt * lengths_BT[:, begin:end]).sum(dim=1)
        return total


def _refuse_low_precision(vectors: Tensor) -> None:
    if vectors.dtype != torch.float32 or torch.is_autocast_enabled(vectors.device.type):
        raise AssertionError("norms of examples are computed in fp32, or their margins would be too small")


def outer_bound(rows: Gram, columns: Gram) -> Bound:
    """Of sums of outer products; both Gram matrices have the same stairs."""
    squares = torch.zeros((), dtype=torch.float64)
    for mine, theirs, (begin, _) in zip(rows.products, columns.products, rows.stairs, strict=True):
        sums_BT = (mine * theirs).sum(dim=1, dtype=torch.float64)
        squares = squares + 2 * sums_BT[:, :begin].sum(dim=1) + sums_BT[:, begin:].sum(dim=1)
    terms = (rows.lengths.double() * columns.lengths).sum(dim=1)
    of_rows, of_columns = rounding(rows.roundings + _AFTERWARDS), rounding(columns.roundings)
    margins = of_rows * columns.sizes(rows.lengths) + of_columns * rows.sizes(columns.lengths)
    return Bound(squares, margins + of_rows * of_columns * terms.square(), terms)


def lookup_bound(ids_BS: Tensor, gradients_BSC: Tensor) -> Bound:
    """Of an embedding's gradient: positions of one token add up before they are squared."""
    products = torch.bmm(gradients_BSC, gradients_BSC.transpose(1, 2))
    same = (ids_BS[:, :, None] == ids_BS[:, None, :]).float()
    lengths = (products.diagonal(dim1=1, dim2=2) + _TINY_LENGTH).sqrt()
    sizes = (lengths * torch.bmm(same, lengths[:, :, None])[:, :, 0]).sum(dim=1, dtype=torch.float64)
    return Bound(
        (products * same).sum(dim=1, dtype=torch.float64).sum(dim=1),
        rounding(gradients_BSC.shape[2] + _AFTERWARDS) * sizes,
        lengths.sum(dim=1, dtype=torch.float64),
    )


def cross_bound(rows_TR: Tensor, columns_TC: Tensor, ids_S: Tensor, gradients_SC: Tensor) -> Bound:
    """Of twice the inner product of a matrix's gradients as a linear layer and as an embedding; one example.

    For a head that is tied to the embedding: ``2 sum over t, s of r_t[id_s] <c_t, b_s>``.
    """
    picked_TS = rows_TR.index_select(1, ids_S)
    products = (picked_TS * (columns_TC @ gradients_SC.T)).sum(dim=0, dtype=torch.float64)
    lengths_T, lengths_S = (
        (vectors.square().sum(dim=1) + _TINY_LENGTH).sqrt() for vectors in (columns_TC, gradients_SC)
    )
    sizes = (picked_TS.abs().T @ lengths_T).double() @ lengths_S.double()
    error = rounding(columns_TC.shape[1] + _AFTERWARDS)
    return Bound(2 * products.sum()[None], 2 * error * sizes[None], torch.zeros_like(sizes)[None])


def in_float64(
    dense: tuple[Tensor, Tensor] | None, lookup: tuple[Tensor, Tensor] | None, terms: Tensor
) -> tuple[Tensor, Tensor]:
    """Square and margin of one example's matrix, out of rows and columns and of ids and gradients."""
    total = torch.zeros((), dtype=torch.float64)
    roundings = 4  # sums over T of sums over T, a product of products
    if dense is not None:
        rows_TR, columns_TC = dense[0].double(), dense[1].double()
        roundings += 2 * len(rows_TR) + rows_TR.shape[1] + columns_TC.shape[1]
        total = total + ((rows_TR @ rows_TR.T) * (columns_TC @ columns_TC.T)).sum(dim=1).sum()
    if lookup is not None:
        ids_S, gradients_SC = lookup[0], lookup[1].double()
        roundings += 2 * len(ids_S) + gradients_SC.shape[1]
        same = ids_S[:, None] == ids_S
        total = total + ((gradients_SC @ gradients_SC.T) * same).sum(dim=1).sum()
        if dense is not None:
            picked_TS = rows_TR.index_select(1, ids_S)
            total = total + 2 * (picked_TS * (columns_TC @ gradients_SC.T)).sum(dim=1).sum()
    return total, rounding(roundings, 2.0**-53) * terms.square()


def is_cheaper_whole(time: int, rows: int, columns: int) -> bool:
    """Whether per-example gradients cost less than Gram matrices over so many positions.

    They take the product that the sum takes anyway, then once through memory, up to twice of what positions
    take. Measured at 128 positions of 256 by 1024: 12.1 ms for 16 examples, against 16.6.
    """
    return rows * columns <= 2 * time * (rows + columns)


def instantiated(rows_BTR: Tensor, columns_BTC: Tensor) -> list[Tensor]:
    """Per-example gradients [b, R, C] of some examples after the other.

    In one piece they would find no room where a backward pass has freed activations.
    """
    some = max(1, _GRADIENTS // (rows_BTR.shape[2] * columns_BTC.shape[2]))
    pairs = zip(torch.split(rows_BTR, some), torch.split(columns_BTC, some), strict=True)
    return [torch.bmm(rows.transpose(1, 2), columns) for rows, columns in pairs]
