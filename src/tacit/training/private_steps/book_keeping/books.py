"""What a backward pass leaves behind for each parameter, and the two questions asked of it afterwards.

Layers write down, instead of computing weight gradients, what these are made of. When the backward pass is
over, the books give every example's norm over *all* parameters, and then, clip factors being known, the sum
of clipped gradients by one matrix product per layer. No example's gradient of a large matrix ever exists.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Protocol

import torch
from torch import Tensor, nn

from tacit.errors import ModelError
from tacit.training.private_steps.book_keeping.ghost import (
    TINY,
    Bound,
    Gram,
    Grams,
    cross_bound,
    in_float64,
    instantiated,
    is_cheaper_whole,
    lookup_bound,
    outer_bound,
    rounding,
)
from tacit.training.private_steps.clipping import ADDED_AT_ONCE, GradientSum, ParameterSum, norms_of_rows

_GRAMS_KEPT = 4  # who shares one asks for it soon
_DOUBTFUL = 2.0**-5  # of a square: a margin that would clip by more than a 64th too much


class Room:
    """Memory for one scaled copy at a time, kept from step to step: fresh pages cost more than using them."""

    def __init__(self) -> None:
        self._memory = torch.empty(0)

    def matrix(self, rows: int, columns: int, device: torch.device) -> Tensor:
        """An fp32 matrix; what it held before is lost."""
        if len(self._memory) < rows * columns or self._memory.device != device:
            self._memory = torch.empty(rows * columns, dtype=torch.float32, device=device)
        return self._memory[: rows * columns].view(rows, columns)

    def times(self, vectors: Tensor, factors: Tensor) -> Tensor:
        """The product, one operation of broadcasting; the one before it is lost."""
        width = vectors.shape[-1]
        out = self.matrix(vectors.numel() // width, width, vectors.device)
        return torch.mul(vectors, factors, out=out.view(vectors.shape))


@dataclass(frozen=True)
class Lookup:
    """An embedding's gradient: row ``ids`` of the matrix gets ``gradients``."""

    ids: Tensor  # [B, S]
    gradients: Tensor  # [B, S, C]

    def of_example(self, example: int) -> tuple[Tensor, Tensor]:
        """Ids [S] and gradients [S, C] of one example."""
        return self.ids[example], self.gradients[example]

    def add_to(self, total: ParameterSum, factors: Tensor, room: Room) -> None:
        """Add the sum over examples, each times its factor."""
        scaled = room.times(self.gradients, factors[:, None, None])
        total.add_at(self.ids.flatten(), scaled.flatten(0, 1))


class Dense(Protocol):
    """A matrix's gradient as a sum of outer products over positions."""

    def bound(self, grams: GramCache) -> Bound:
        """Of the squared norms."""
        ...

    def of_example(self, example: int) -> tuple[Tensor, Tensor]:
        """Rows [T, R] and columns [T, C] of one example."""
        ...

    def add_to(self, total: ParameterSum, factors: Tensor, room: Room) -> None:
        """Add the sum over examples, each times its factor."""
        ...


class GramCache:
    """Gram matrices by tensor: layers that share an input, or a residual's gradient, share them too."""

    def __init__(self, how: Grams) -> None:
        self.how = how
        self._known: dict[tuple[int, torch.Size, tuple[int, ...]], tuple[Tensor, Gram]] = {}

    def of(self, vectors: Tensor) -> Gram:
        """The Gram matrix over positions of [B, T, X]."""
        key = (vectors.data_ptr(), vectors.shape, vectors.stride())
        if key not in self._known:  # the tensor is kept too, or its address could be given to another
            while len(self._known) >= _GRAMS_KEPT:
                del self._known[next(iter(self._known))]
            self._known[key] = (vectors, Gram(vectors, self.how))
        return self._known[key][1]


@dataclass(frozen=True)
class Outer:
    """Positions of a linear map: the matrix gets ``rows_t columns_t'`` from every position."""

    rows: Tensor  # [B, T, R]
    columns: Tensor  # [B, T, C]

    def bound(self, grams: GramCache) -> Bound:
        """Of the squared norms."""
        return outer_bound(grams.of(self.rows), grams.of(self.columns))

    def of_example(self, example: int) -> tuple[Tensor, Tensor]:
        """Rows [T, R] and columns [T, C] of one example."""
        return self.rows[example], self.columns[example]

    def add_to(self, total: ParameterSum, factors: Tensor, room: Room) -> None:
        """Add the sum over examples, each times its factor: the narrower side is scaled."""
        rows, columns, factors = self.rows, self.columns, factors[:, None, None]
        if rows.stride(0) < rows.stride(1):  # recurrent layers work time first: then so does this sum
            rows, columns, factors = rows.transpose(0, 1), columns.transpose(0, 1), factors.transpose(0, 1)
        if rows.shape[2] < columns.shape[2]:
            rows = room.times(rows, factors)
        else:
            columns = room.times(columns, factors)
        total.add_product(rows.flatten(0, 1), columns.flatten(0, 1))

    def joined(self, other: Outer) -> Outer:
        """Both, as of one layer that was used twice."""
        return Outer(
            torch.cat([self.rows, other.rows], dim=1),
            torch.cat([self.columns, other.columns], dim=1),
        )


class _Page:
    """What is written down for one parameter."""

    def __init__(self, name: str, *, shared: bool) -> None:
        self.name = name
        self.shared = shared  # by several layers: then positions are kept, since products of them are needed
        self.whole: Sequence[Tensor] | None = None  # per-example gradients [b, ...] of all, in pieces
        self.whole_squares: Tensor | None = None  # their squared norms
        self.dense: Dense | None = None
        self.dense_bound: Bound | None = None  # of `dense`, where it has been found already
        self.lookup: Lookup | None = None

    def bound(self, grams: GramCache) -> Bound:
        """Of the squared norms of all that is written here together."""
        if self.whole is not None:
            if self.dense is not None or self.lookup is not None:
                raise ModelError(
                    f"{self.name} is shared by layers of kinds that book-keeping cannot add up; choose the "
                    "loop engine."
                )
            return Bound.exact(_squares(self.whole) if self.whole_squares is None else self.whole_squares)
        parts: list[Bound] = []
        if self.dense is not None:
            parts.append(self.dense.bound(grams) if self.dense_bound is None else self.dense_bound)
        if self.lookup is not None:
            parts.append(lookup_bound(self.lookup.ids, self.lookup.gradients))
            if self.dense is not None:
                examples = range(len(self.lookup.ids))
                pairs = [(*self.dense.of_example(own), *self.lookup.of_example(own)) for own in examples]
                parts.append(Bound.stacked([cross_bound(*pair) for pair in pairs]))
        return reduce(add, parts)

    def in_float64(self, bound: Bound, example: int) -> tuple[Tensor, Tensor]:
        """Square and margin of one example, once more."""
        if self.whole is not None:
            return bound.squares[example], bound.margins[example]
        dense = None if self.dense is None else self.dense.of_example(example)
        lookup = None if self.lookup is None else self.lookup.of_example(example)
        return in_float64(dense, lookup, bound.terms[example])

    def add_to(self, total: ParameterSum, factors: Tensor, room: Room) -> None:
        if self.whole is not None:
            own = torch.split(factors, [len(piece) for piece in self.whole])
            for piece, factors_of_piece in zip(self.whole, own, strict=True):
                total.add_weighted(piece.flatten(1), factors_of_piece)
        if self.dense is not None:
            self.dense.add_to(total, factors, room)
        if self.lookup is not None:
            self.lookup.add_to(total, factors, room)


def _squares(pieces: Sequence[Tensor]) -> Tensor:
    return torch.cat([norms_of_rows(piece.flatten(1)) for piece in pieces]).square()


class Books:
    """The pages of all trained parameters, for the rows of one microbatch; ``how`` norms are found."""

    def __init__(
        self, names: dict[nn.Parameter, str], shared: set[nn.Parameter], how: Grams | None = None
    ) -> None:
        self.how = how or Grams(None)
        self._names = names
        self._shared = shared
        self._pages: dict[nn.Parameter, _Page] = {}
        self._grams = GramCache(self.how)
        self._room = Room()
        self.examples = 0

    def open(self, examples: int) -> None:
        """Begin with empty pages for so many examples."""
        self.close()
        self.examples = examples

    def outer(self, parameter: nn.Parameter, rows: Tensor, columns: Tensor) -> None:
        """A matrix [R, C] gets ``rows_t columns_t'`` from every position of [B, ..., R] and [B, ..., C]."""
        page = self._page(parameter)
        entry = Outer(self._positions(rows, page), self._positions(columns, page))
        sides = entry.rows.shape[2], entry.columns.shape[2]
        if page.whole is not None or (
            not page.shared and page.dense is None and is_cheaper_whole(self.how.width, *sides)
        ):
            self._add_whole(page, instantiated(entry.rows, entry.columns))
        elif isinstance(page.dense, Outer):
            page.dense, page.dense_bound = page.dense.joined(entry), None
        else:
            self.dense(parameter, entry)
            # At once, while the gradient that has just been computed is in cache.
            page.dense_bound = entry.bound(self._grams)

    def dense(self, parameter: nn.Parameter, entry: Dense) -> None:
        """A matrix gets a gradient that is kept in a form of its own."""
        page = self._page(parameter)
        if page.dense is not None:
            raise ModelError(
                f"{page.name} is used by the head and by another linear layer, which book-keeping cannot add "
                "up; choose the loop engine."
            )
        page.dense = entry

    def lookup(self, parameter: nn.Parameter, ids: Tensor, gradients: Tensor) -> None:
        """Rows ``ids`` [B, ...] of a matrix get ``gradients`` [B, ..., C]."""
        page = self._page(parameter)
        gradients = self._positions(gradients, page)
        ids = ids.reshape(self.examples, -1)
        if page.lookup is not None:
            ids = torch.cat([page.lookup.ids, ids], dim=1)
            gradients = torch.cat([page.lookup.gradients, gradients], dim=1)
        page.lookup = Lookup(ids, gradients)

    def whole(self, parameter: nn.Parameter, gradients: Tensor) -> None:
        """Per-example gradients [B, ...] of a parameter."""
        page = self._page(parameter)
        self._check(gradients, page)
        self._add_whole(page, [gradients.detach().float()])

    def summed(self, parameter: nn.Parameter, gradients: Tensor) -> None:
        """A vector [X] gets the sum over positions of [B, ..., X]."""
        page = self._page(parameter)
        self.whole(parameter, self._positions(gradients, page).sum(dim=1))

    @torch.no_grad()
    def norms(self) -> Tensor:
        """Norm of every example's gradient over all parameters, [B] in float64; never too small.

        A function of the example alone, up to rounding: see `ghost`.
        """
        pages = {page: page.bound(self._grams) for page in self._pages.values()}
        squares = torch.stack([bound.squares for bound in pages.values()]).sum(dim=0)
        margins = torch.stack([bound.margins for bound in pages.values()]).sum(dim=0)
        doubtful = torch.isfinite(squares) & ~(margins <= _DOUBTFUL * squares + TINY)
        for example in doubtful.nonzero()[:, 0].tolist():
            again = [torch.stack(page.in_float64(bound, example)) for page, bound in pages.items()]
            squares[example], margin = torch.stack(again).sum(dim=0)
            # No less than what the next example to be in no doubt has: whether one is must make no jump.
            margins[example] = torch.maximum(margin, _DOUBTFUL * squares[example])
        added = [rounding(ADDED_AT_ONCE + 2) * bound.terms for bound in pages.values()]
        return (squares + margins + TINY).sqrt() + torch.stack(added).square().sum(dim=0).sqrt()

    @torch.no_grad()
    def add_to(self, into: GradientSum, factors: Tensor) -> None:
        """Add the sum of all examples' gradients, each times its factor."""
        factors = factors.float()
        for parameter, page in self._pages.items():
            page.add_to(into[parameter], factors, self._room)

    def close(self) -> None:
        """Forget everything: pages hold activations of private text."""
        self._pages = {}
        self._grams = GramCache(self.how)

    def _add_whole(self, page: _Page, pieces: Sequence[Tensor]) -> None:
        if page.whole is None:
            page.whole, page.whole_squares = pieces, _squares(pieces)  # while they are in cache
        else:
            page.whole, page.whole_squares = [torch.cat([*page.whole]) + torch.cat([*pieces])], None

    def _page(self, parameter: nn.Parameter) -> _Page:
        if parameter not in self._pages:
            self._pages[parameter] = _Page(self._names[parameter], shared=parameter in self._shared)
        return self._pages[parameter]

    def _positions(self, vectors: Tensor, page: _Page) -> Tensor:
        """[B, ..., X] as [B, T, X] in fp32."""
        self._check(vectors, page)
        return vectors.detach().reshape(self.examples, -1, vectors.shape[-1]).float()

    def _check(self, vectors: Tensor, page: _Page) -> None:
        if vectors.shape[0] != self.examples:
            raise ModelError(
                f"{page.name} sees {vectors.shape[0]} rows where there are {self.examples} examples, so that "
                "their gradients cannot be told apart; choose the loop engine."
            )
