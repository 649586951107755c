"""The tagger's network, in whole numbers: four convolutions over the tokens of a text.

Formal guarantees. Activations are whole numbers within +-127, weights within +-127, and no sum of products
reaches 2**24 (checked when the weights are loaded); scales are powers of two. Every step is therefore exact
in single precision, whatever order a matrix library adds in, and a token's score is the same bits

* alone and in any batch,
* on every machine and with any number of threads,
* however a long text is cut into blocks (each has the ``REACH`` neighbours that its tokens can see).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]

TOP = 127  # of activations and weights
UNIT = 5  # an activation of 1 is stored as 2**5
DILATIONS = (1, 2, 4, 8)
REACH = sum(DILATIONS)
# Rows of zeros between texts: no convolution may see from one into the next.
GAP = max(DILATIONS)
_EXACT = 1 << 24
_BLOCK = 4096


@dataclass(frozen=True)
class Layer:
    """One convolution over three tokens, or the head: whole numbers as float32."""

    weight: Floats  # [inputs, outputs]
    bias: Floats
    shift: int  # products are divided by 2**shift

    def check(self) -> None:
        """Refuse weights with which a sum could be inexact."""
        worst = TOP * np.abs(self.weight.astype(np.float64)).sum(axis=0) + np.abs(self.bias)
        if worst.max() >= _EXACT or not np.array_equal(self.weight, np.rint(self.weight)):
            raise ValueError("weights too large to be exact")


@dataclass(frozen=True)
class Network:
    """Embeddings of tokens in, whole-numbered logits out."""

    convolutions: tuple[Layer, ...]
    head: Layer

    def __post_init__(self) -> None:
        for layer in (*self.convolutions, self.head):
            layer.check()

    @cached_property
    def outputs(self) -> int:
        """How many logits a token gets."""
        return int(self.head.weight.shape[1])

    def logits(self, embedded: Floats, inside: NDArray[np.bool_]) -> Floats:
        """Return logits [rows, outputs]; rows that are not ``inside`` a text separate texts and are zeros."""
        result = np.empty((len(embedded), self.outputs), np.float32)
        for low, high in _blocks(len(embedded)):
            first, last = max(0, low - REACH), min(len(embedded), high + REACH)
            result[low:high] = self._block(embedded[first:last], inside[first:last])[
                low - first : high - first
            ]
        return result

    def _block(self, embedded: Floats, inside: NDArray[np.bool_]) -> Floats:
        keep = inside[:, None].astype(np.float32)
        hidden, seen = embedded, []
        for depth, (layer, dilation) in enumerate(zip(self.convolutions, DILATIONS, strict=True)):
            products = _convolve(hidden, layer.weight, dilation)
            products += layer.bias
            products *= np.float32(2.0**-layer.shift)
            np.rint(products, out=products)
            if depth:
                products += hidden
            np.clip(products, 0, TOP, out=products)
            products *= keep
            hidden = products
            seen.append(hidden)
        return np.concatenate(seen, axis=1) @ self.head.weight + self.head.bias


def _convolve(rows: Floats, weight: Floats, dilation: int) -> Floats:
    """Return rows [n, C] convolved with [3 C, outputs]: the left neighbour's weights first."""
    width = rows.shape[1]
    left, middle, right = (weight[i * width : (i + 1) * width] for i in range(3))
    result = rows @ middle
    if len(rows) > dilation:
        result[dilation:] += rows[:-dilation] @ left
        result[:-dilation] += rows[dilation:] @ right
    return result


def _blocks(rows: int) -> Iterator[tuple[int, int]]:
    cuts = [*range(0, rows, _BLOCK), rows] if rows else [0]
    yield from pairwise(cuts)
