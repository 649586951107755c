"""Token sequences as a tree in flat arrays: a million of them in seconds and some tens of megabytes.

Nodes are numbered level by level, so that the children of a node stand side by side. Below a node lie the
sequences ``first_row .. first_row + rows`` of the sorted matrix, which also says how many they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]
SmallIntArray = npt.NDArray[np.int32]
BoolArray = npt.NDArray[np.bool_]

NO_TOKEN: Final = -1
ROOT: Final = 0


@dataclass(frozen=True, eq=False, repr=False)
class TokenRows:
    """Token sequences side by side: ``tokens`` [N, longest] with NO_TOKEN behind the end, ``lengths`` [N]."""

    tokens: SmallIntArray
    lengths: IntArray

    def __len__(self) -> int:
        """Number of sequences."""
        return len(self.lengths)

    @classmethod
    def of(cls, sequences: Sequence[Sequence[int]]) -> TokenRows:
        """From lists of token ids."""
        lengths = np.fromiter(map(len, sequences), dtype=np.int64, count=len(sequences))
        flat = np.fromiter(chain.from_iterable(sequences), dtype=np.int32, count=int(lengths.sum()))
        tokens = np.full((len(lengths), int(lengths.max(initial=0))), NO_TOKEN, dtype=np.int32)
        tokens[np.arange(tokens.shape[1]) < lengths[:, None]] = flat
        return cls(tokens, lengths)

    @classmethod
    def joined(cls, parts: Sequence[TokenRows]) -> TokenRows:
        """One after the other."""
        width = max(part.tokens.shape[1] for part in parts)
        padded = [
            np.pad(part.tokens, ((0, 0), (0, width - part.tokens.shape[1])), constant_values=NO_TOKEN)
            for part in parts
        ]
        return cls(np.concatenate(padded), np.concatenate([part.lengths for part in parts]))

    def at(self, rows: npt.NDArray[Any]) -> TokenRows:
        """Some of the sequences."""
        return TokenRows(self.tokens[rows], self.lengths[rows])

    def behind(self, tokens: int) -> TokenRows:
        """What follows the first ``tokens`` of each sequence."""
        return TokenRows(self.tokens[:, tokens:], self.lengths - tokens)

    def sequence(self, row: int) -> tuple[int, ...]:
        """One of the sequences."""
        return tuple(self.tokens[row, : self.lengths[row]].tolist())


@dataclass(frozen=True, eq=False, repr=False)
class TokenTree:
    """Arrays over nodes; node 0 is the root. ``order`` [N] is the sequence that each sorted row was.

    token        the last token of a node's path (the root has none)
    first_row    the first sorted row below a node, and ``rows`` how many there are
    first_child  the first of ``children`` nodes that lie side by side
    longest      tokens of the longest way down from a node
    depth        tokens from the root
    ends         whether a sequence ends here; it is then the one in ``first_row``
    """

    token: SmallIntArray
    first_row: SmallIntArray
    rows: SmallIntArray
    first_child: SmallIntArray
    children: SmallIntArray
    longest: SmallIntArray
    depth: SmallIntArray
    ends: BoolArray
    order: IntArray
    sorted_rows: TokenRows

    def __len__(self) -> int:
        """Number of nodes."""
        return len(self.token)

    @property
    def open(self) -> BoolArray:
        """Which nodes have children: those whose prediction has to be asked for."""
        return self.children > 0

    def children_of(self, nodes: IntArray) -> tuple[IntArray, IntArray]:
        """The children of some nodes one after the other, and the place in ``nodes`` of each one's parent."""
        counts = self.children[nodes].astype(np.int64)
        parent = np.repeat(np.arange(len(nodes)), counts)
        before = np.cumsum(counts) - counts
        child = self.first_child[nodes][parent] + (np.arange(len(parent)) - before[parent])
        return parent, child.astype(np.int64)

    def child(self, node: int, token: int) -> int | None:
        """The child of a node by its token."""
        first, count = int(self.first_child[node]), int(self.children[node])
        place = int(np.searchsorted(self.token[first : first + count], token))
        return first + place if place < count and self.token[first + place] == token else None

    def find(self, sequence: Sequence[int]) -> int | None:
        """The sorted row of a sequence, if it is one of the tree's."""
        node: int | None = ROOT
        for token in sequence:
            node = None if node is None else self.child(node, token)
        return int(self.first_row[node]) if node is not None and self.ends[node] else None

    def nested(self) -> int:
        """The most sequences that end on one way down: 1 if none is the beginning of another."""
        ends = self.ends.astype(np.int64)
        for node_level in range(1, int(self.depth.max(initial=0)) + 1):
            parents = np.flatnonzero((self.depth == node_level - 1) & self.open)
            parent, child = self.children_of(parents)
            ends[child] += ends[parents[parent]]
        return int(ends.max(initial=0))

    def doubled(self) -> bool:
        """Whether some sequence is there twice."""
        tokens = self.sorted_rows.tokens
        return bool((tokens[1:] == tokens[:-1]).all(1).any())


def build_tree(rows: TokenRows) -> TokenTree:
    """Sort the sequences and number the nodes, level by level."""
    tokens, lengths = rows.tokens, rows.lengths
    width = tokens.shape[1]
    order = np.lexsort(tokens.T[::-1]) if width else np.arange(len(rows))
    tokens, lengths = tokens[order], lengths[order]
    changed = np.zeros(len(rows), dtype=np.bool_)
    changed[0] = True
    levels = [_Level.root(len(rows), int(lengths.max()), bool(lengths[0] == 0))]
    for depth in range(1, width + 1):
        column = tokens[:, depth - 1]
        changed[1:] |= column[1:] != column[:-1]
        # A node's rows end where the next change is, be that a node of this level or a shorter sequence.
        starts = np.flatnonzero(changed)
        reached = lengths[starts] >= depth
        ends = np.append(starts[1:], len(rows))
        longest = np.maximum.reduceat(lengths, starts)
        levels.append(
            _Level(
                column[starts][reached],
                starts[reached],
                (ends - starts)[reached],
                longest[reached] - depth,
                lengths[starts][reached] == depth,
            )
        )
    return _joined(levels, order, TokenRows(tokens, lengths))


@dataclass(frozen=True, eq=False, repr=False)
class _Level:
    token: SmallIntArray
    first_row: IntArray
    rows: IntArray
    longest: IntArray
    ends: BoolArray

    @classmethod
    def root(cls, rows: int, longest: int, ends: bool) -> _Level:
        return cls(
            np.array([NO_TOKEN], dtype=np.int32),
            np.array([0]),
            np.array([rows]),
            np.array([longest]),
            np.array([ends]),
        )


def _joined(levels: Sequence[_Level], order: IntArray, sorted_rows: TokenRows) -> TokenTree:
    sizes = [len(level.token) for level in levels]
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    first_child, children = [], []
    for number, level in enumerate(levels):
        count = np.zeros(len(level.token), dtype=np.int64)
        if number + 1 < len(levels):
            parent = np.searchsorted(level.first_row, levels[number + 1].first_row, side="right") - 1
            count = np.bincount(parent, minlength=len(level.token)).astype(np.int64)
        children.append(count)
        first_child.append(offsets[number + 1] + np.cumsum(count) - count)

    def small(parts: list[IntArray]) -> SmallIntArray:
        return np.concatenate(parts).astype(np.int32)

    return TokenTree(
        token=np.concatenate([level.token for level in levels]),
        first_row=small([level.first_row for level in levels]),
        rows=small([level.rows for level in levels]),
        first_child=small(first_child),
        children=small(children),
        longest=small([level.longest for level in levels]),
        depth=np.repeat(np.arange(len(levels), dtype=np.int32), sizes),
        ends=np.concatenate([level.ends for level in levels]),
        order=order,
        sorted_rows=sorted_rows,
    )
