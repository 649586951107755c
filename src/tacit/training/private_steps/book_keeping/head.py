"""The head's loss and its books: logits become their own gradient in place, example by example.

As in `models.likelihood`, but the weight's gradient waits for the clip factors. One example's logits stay in
cache from the product that makes them to the Gram matrix of their gradient.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tacit.models.likelihood import LOGITS_HELD, NO_LABEL, Head, Normaliser
from tacit.training.private_steps.book_keeping.books import Books, GramCache, Room
from tacit.training.private_steps.book_keeping.ghost import Bound, Gram, Grams, outer_bound
from tacit.training.private_steps.clipping import ParameterSum

_CACHED_LOGITS = 1 << 22  # 16 MB
_ROWS_AT_LEAST = 256  # for which a product with the head is fast


@dataclass(frozen=True)
class HeadEntry:
    """The head's gradient: ``logit_gradient_t hidden_t'`` over the labelled positions of every example."""

    logit_gradients: Tensor  # [N, V]
    hidden: Tensor  # [N, D]
    spans: Sequence[tuple[int, int]]  # rows of each example
    own_bound: Bound  # found while the logits were in cache

    def bound(self, grams: GramCache) -> Bound:
        """Of the squared norms."""
        return self.own_bound

    def of_example(self, example: int) -> tuple[Tensor, Tensor]:
        """Rows [T, R] and columns [T, C] of one example."""
        own = slice(*self.spans[example])
        return self.logit_gradients[own], self.hidden[own]

    def add_to(self, total: ParameterSum, factors: Tensor, room: Room) -> None:
        """Add the sum over examples, each times its factor."""
        sizes = torch.tensor([end - begin for begin, end in self.spans], device=factors.device)
        scaled = room.times(self.hidden, factors.repeat_interleave(sizes)[:, None])
        total.add_product(self.logit_gradients, scaled)


class BookedHeadLoss:
    """Weighted sum of next-token losses whose head keeps books; stands in for `NextTokenLoss.summed`."""

    def __init__(self, books: Books, vocabulary: int) -> None:
        self._books = books
        self._vocabulary = vocabulary
        self._room = Room()

    def has_room_for(self, labels: Tensor) -> bool:
        """Whether the logits of so many positions may be held; for one example they always are."""
        return labels.numel() * self._vocabulary <= LOGITS_HELD

    def __call__(self, hidden: Tensor, head: nn.Linear, labels: Tensor, weights: Tensor) -> Tensor:
        """The loss, differentiable in the hidden states; the head goes into the books."""
        chosen = labels != NO_LABEL
        counts: list[int] = chosen.sum(dim=1).tolist()
        ends = torch.tensor(counts).cumsum(0).tolist()
        spans = [(end - count, end) for end, count in zip(ends, counts, strict=True)]
        flat = hidden.reshape(-1, hidden.shape[-1])
        if not bool(chosen.all()):
            flat = flat[chosen.reshape(-1)]
        total: Tensor = _HeadLoss.apply(  # type: ignore[no-untyped-call]
            flat, head.weight, head.bias, labels[chosen], weights[chosen], spans, self._books, self._room
        )
        return total


class _HeadLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden_ND: Tensor,
        weight: nn.Parameter,
        bias: nn.Parameter | None,
        labels_N: Tensor,
        weights_N: Tensor,
        spans: Sequence[tuple[int, int]],
        books: Books,
        room: Room,
    ) -> Tensor:
        """Loss, the hidden states' gradient and the norms of the head's, in one sweep over the examples."""
        head = Head(weight.detach(), None if bias is None else bias.detach())
        wide_ND = hidden_ND.detach().float()
        gradients_NV = room.matrix(len(hidden_ND), len(weight), hidden_ND.device)
        grad_hidden = torch.empty_like(wide_ND)
        bounds: list[Bound] = []
        biases = None if bias is None else torch.empty(len(spans), len(weight), device=hidden_ND.device)
        total = torch.zeros((), dtype=torch.float64, device=hidden_ND.device)
        for group in _groups(spans, len(weight)):
            some = slice(spans[group.start][0], spans[group.stop - 1][1])
            losses = _logits_to_gradients(
                hidden_ND[some].to(weight.dtype), head, labels_N[some], weights_N[some], gradients_NV[some]
            )
            total += losses.sum(dtype=torch.float64)
            torch.mm(gradients_NV[some], head.weight.float(), out=grad_hidden[some])
            each = [slice(*spans[example]) for example in group]
            if weight.requires_grad:
                # The loss may run in bf16; the norms may not.
                with torch.autocast(wide_ND.device.type, enabled=False):
                    bounds.append(
                        _bound([gradients_NV[own] for own in each], [wide_ND[own] for own in each], books.how)
                    )
            if biases is not None:
                for example, own in zip(group, each, strict=True):
                    torch.sum(gradients_NV[own], dim=0, out=biases[example])
        ctx.found = (
            HeadEntry(gradients_NV, wide_ND, spans, Bound.stacked(bounds)) if bounds else None,
            biases,
            grad_hidden.to(hidden_ND.dtype),
        )
        ctx.layer = (weight, bias, books)
        return total.float()

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        """Hand out what forward found; the loss itself is what is differentiated, so nothing is scaled."""
        weight, bias, books = ctx.layer
        entry, biases, grad_hidden = ctx.found
        del ctx.found
        if float(upstream[0]) != 1.0:
            raise AssertionError("the head's loss must be what backward() starts from")
        if weight.requires_grad:
            books.dense(weight, entry)
        if biases is not None and bias.requires_grad:
            books.whole(bias, biases)
        return grad_hidden, None, None, None, None, None, None, None


def _groups(spans: Sequence[tuple[int, int]], vocabulary: int) -> Iterator[range]:
    """Examples whose logits are computed at a time: enough rows for fast products, few enough to cache."""
    most = max(_ROWS_AT_LEAST, _CACHED_LOGITS // vocabulary)
    first = 0
    for example in range(1, len(spans) + 1):
        if example == len(spans) or spans[example][1] - spans[first][0] > most:
            yield range(first, example)
            first = example


def _logits_to_gradients(
    hidden_ND: Tensor, head: Head, labels_N: Tensor, weights_N: Tensor, room_NV: Tensor
) -> Tensor:
    """Fill the room with the gradient of the weighted losses by the logits; returns the weighted losses."""
    whole = [slice(0, len(head.weight))]
    blocks = whole if room_NV.numel() <= _CACHED_LOGITS else head.blocks
    normaliser = Normaliser(labels_N)
    for block in blocks:
        normaliser.take(head.logits(hidden_ND, block, room_NV[:, block]), block)
    for number, block in enumerate(blocks):
        normaliser.gradient(room_NV[:, block], number, block, weights_N)
    return normaliser.losses() * weights_N


def _bound(gradients: Sequence[Tensor], hidden: Sequence[Tensor], how: Grams) -> Bound:
    """Of the squared norms of some examples' gradients of the head, from [T, V] and [T, D] of each."""
    stairs = how.stairs(max(len(own) for own in gradients), gradients[0].shape[1])
    return outer_bound(Gram.of_each(gradients, how, stairs), Gram.of_each(hidden, how, stairs))
