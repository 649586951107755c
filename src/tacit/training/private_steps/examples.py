"""What an example is: one row, or all rows of a document or user, whose gradient is clipped as a whole."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from tacit.errors import InputError
from tacit.models.likelihood import NO_LABEL
from tacit.training.encoding import Batch, IntArray, Rows


@dataclass(frozen=True)
class Examples:
    """The records that the guarantee protects one by one.

    rows        row numbers of each example; every row belongs to exactly one. An example without rows is
                legal and contributes nothing.
    lengths     positions that each row uses; rows of like length are computed together
    make_batch  rows as the model takes them. A row must not share a position with another example: packed
                rows would merge records, and what is clipped would no longer be one of them.
    """

    rows: Sequence[IntArray]
    lengths: IntArray
    make_batch: Callable[[IntArray], Batch]

    def __len__(self) -> int:
        """Number of examples."""
        return len(self.rows)

    @classmethod
    def of_tokens(cls, tokens_BT: Tensor, *, padding: int | None = None) -> Examples:
        """Every row of token ids is an example, as `token_batch` takes it: for text that is no corpus."""
        lengths = token_batch(tokens_BT, padding=padding).pieces.ge(0).sum(dim=1).numpy()
        rows = [np.array([row]) for row in range(len(tokens_BT))]
        return cls(rows, lengths, lambda own: token_batch(tokens_BT[torch.from_numpy(own)], padding=padding))

    @classmethod
    def one_per_row(cls, rows: Rows, make_batch: Callable[[IntArray], Batch]) -> Examples:
        """Every row is an example: a guarantee for one piece of text."""
        _refuse_packed(rows)
        return cls([np.array([row]) for row in range(len(rows))], rows.lengths, make_batch)

    @classmethod
    def grouped(cls, rows: Rows, owner_of_row: IntArray, make_batch: Callable[[IntArray], Batch]) -> Examples:
        """Rows with the same owner (0 to n - 1) are one example: a guarantee for a document or a user."""
        _refuse_packed(rows)
        order = np.argsort(owner_of_row, kind="stable")
        counts = np.bincount(owner_of_row)
        return cls(np.split(order, np.cumsum(counts)[:-1]), rows.lengths, make_batch)


def token_batch(tokens_BT: Tensor, *, padding: int | None = None) -> Batch:
    """Rows of token ids, each token predicted from those before it in its row.

    ``padding`` is an id that fills short rows on their right and stands nowhere else: it predicts nothing and
    is not predicted.
    """
    if tokens_BT.ndim != 2 or tokens_BT.shape[1] < 2:
        raise InputError(
            f"Expected tokens of shape {tuple(tokens_BT.shape)} as rows of at least two ids [rows, width]."
        )
    labels = tokens_BT[:, 1:].contiguous()
    if padding is not None:
        labels = labels.masked_fill(labels == padding, NO_LABEL)
    pieces = torch.arange(len(labels))[:, None].expand(labels.shape)
    pieces = pieces.masked_fill((labels == NO_LABEL).cpu(), -1)
    inputs = {"input_ids": tokens_BT[:, :-1], "use_cache": False}
    return Batch(inputs, labels, pieces, np.arange(len(labels)))


def _refuse_packed(rows: Rows) -> None:
    if rows.packed:
        raise InputError(
            "Packed rows put several records into one example, which changes what is protected; lay the rows "
            "out with packing off."
        )
