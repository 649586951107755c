"""The candidates of a secret as a tree of tokens behind one prefix.

What holds of a :class:`CandidateTrie`: each candidate is the canonical encoding of ``prefix + continuation``
by the model's own tokenizer; for *every* candidate it was checked that its tokens begin with the prefix's;
and no candidate is the beginning of another, so that candidates are disjoint events and their probabilities
sum to at most 1. The start token stands before the prefix, as in training.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final, Protocol

import numpy as np

from tacit.attacks.exposure.token_tree import (
    ROOT,
    BoolArray,
    FloatArray,
    IntArray,
    SmallIntArray,
    TokenRows,
    build_tree,
)
from tacit.errors import InputError, ModelError
from tacit.models.tokenizer import PublicTokenizer
from tacit.progress import Progress, Silent

UNKNOWN: Final = -1
"""The label of a candidate that is none of the known ones."""
_ENCODED_AT_ONCE: Final = 16_384


@dataclass(frozen=True, eq=False, repr=False)
class Children:
    """The children of some nodes: each one's parent (its place in the list asked for), token and node.

    leaf  a candidate ends here;  open  there are nodes below. A child can be both where candidates nest.
    """

    parent: IntArray
    token: IntArray
    node: IntArray
    leaf: BoolArray
    open: BoolArray


class CandidateTree(Protocol):
    """A set of candidates, walked from its root; nodes are numbers.

    Known candidates are those whose rank is wanted, or that may be left out of a rank. They are named by
    their place in ``known``.
    """

    root: int

    @property
    def prefix(self) -> tuple[int, ...]:
        """The start token and the prefix's tokens."""

    @property
    def known(self) -> Sequence[tuple[int, ...]]:
        """The tokens of the known candidates behind the prefix."""

    @property
    def candidates(self) -> int:
        """|R|, the known ones included."""

    @property
    def longest(self) -> int:
        """Tokens of the longest candidate."""

    @property
    def nested(self) -> int:
        """The most candidates that end on one way down: what their probabilities can sum to."""

    def child_counts(self, nodes: IntArray) -> IntArray:
        """How many children each node has."""

    def expand(self, nodes: IntArray) -> Children:
        """All children of some nodes."""

    def leaves_below(self, nodes: IntArray) -> FloatArray:
        """How many candidates lie below each node."""

    def longest_below(self, nodes: IntArray) -> IntArray:
        """How many more tokens the longest candidate below each node has."""

    def labels(self, nodes: IntArray, paths: SmallIntArray) -> IntArray:
        """Which known candidate ends at each node, or UNKNOWN; ``paths`` are the tokens from the root."""

    def sample(self, count: int, generator: np.random.Generator) -> TokenRows:
        """Independent uniform draws from the candidates that are not known."""


class CandidateTrie:
    """All candidates in memory."""

    root: int = ROOT

    def __init__(
        self,
        prefix: tuple[int, ...],
        rows: TokenRows,
        known: Sequence[tuple[int, ...]],
        *,
        nesting: bool = False,
    ) -> None:
        """``rows`` are the candidates' tokens behind the prefix, ``known`` some of them.

        With ``nesting`` one may be the beginning of another: for draws from a tree that knows how far.
        """
        if not len(rows) or int(rows.lengths.min()) < 1:
            raise InputError(
                "Every candidate has at least one token behind the prefix; leave empty ones out."
            )
        self.prefix = prefix
        self.known = tuple(known)
        self.tree = build_tree(rows)
        if self.tree.doubled():
            raise InputError(
                "Two candidates have the same tokens, so that the model cannot tell them apart; list each "
                "once, and use a tokenizer that knows their characters."
            )
        self.nested = self.tree.nested() if nesting else 1
        if not nesting and bool((self.tree.ends & self.tree.open).any()):
            raise InputError(
                "A candidate is the beginning of another in tokens, so that their probabilities overlap; "
                "append a terminator, such as a full stop, to every candidate."
            )
        found = [self.tree.find(sequence) for sequence in self.known]
        self._known_rows = np.array([-1 if row is None else row for row in found], dtype=np.int64)
        if (self._known_rows < 0).any():
            raise InputError("A known secret is not one of the candidates; give the space it was drawn from.")
        if len(set(self.known)) < len(self.known):
            raise InputError("Two known secrets behind one prefix are the same; give each once.")

    @property
    def candidates(self) -> int:
        """|R|."""
        return len(self.tree.order)

    @property
    def longest(self) -> int:
        """Tokens of the longest candidate."""
        return int(self.tree.longest[ROOT])

    @property
    def internal(self) -> int:
        """Nodes with children: the positions that a full enumeration asks the model for."""
        return int(self.tree.open.sum())

    def child_counts(self, nodes: IntArray) -> IntArray:
        """How many children each node has."""
        return self.tree.children[nodes].astype(np.int64)

    def expand(self, nodes: IntArray) -> Children:
        """All children of some nodes."""
        parent, child = self.tree.children_of(nodes)
        tokens = self.tree.token[child].astype(np.int64)
        return Children(parent, tokens, child, self.tree.ends[child], self.tree.open[child])

    def leaves_below(self, nodes: IntArray) -> FloatArray:
        """How many candidates lie below each node."""
        return self.tree.rows[nodes].astype(np.float64)

    def longest_below(self, nodes: IntArray) -> IntArray:
        """How many more tokens the longest candidate below each node has."""
        return self.tree.longest[nodes].astype(np.int64)

    def labels(self, nodes: IntArray, paths: SmallIntArray) -> IntArray:
        """Which known candidate ends at each node, or UNKNOWN."""
        found = np.full(len(nodes), UNKNOWN, dtype=np.int64)
        if len(self._known_rows):
            order = np.argsort(self._known_rows)
            rows = self.tree.first_row[nodes]
            place = np.minimum(np.searchsorted(self._known_rows[order], rows), len(order) - 1)
            same = self._known_rows[order][place] == rows
            found[same] = order[place[same]]
        return found

    def sample(self, count: int, generator: np.random.Generator) -> TokenRows:
        """Independent uniform draws from the candidates that are not known."""
        if self.candidates <= len(self.known):
            raise InputError("All candidates are known ones; there is nothing to draw from.")
        drawn: list[IntArray] = []
        missing = count
        while missing:  # known candidates are drawn and left out: what stays is uniform over the others
            rows = generator.integers(0, self.candidates, size=missing)
            drawn.append(rows[~np.isin(rows, self._known_rows)])
            missing -= len(drawn[-1])
        return self.tree.sorted_rows.at(np.concatenate(drawn))


def candidate_trie(
    tokenizer: PublicTokenizer,
    prefix: str,
    continuations: Iterable[str],
    *,
    known: Sequence[str] = (),
    progress: Progress | None = None,
) -> CandidateTrie:
    """Encode all candidates behind a prefix; ``known`` are continuations whose rank will be asked for.

    A continuation begins with whatever stands between prefix and secret, usually a space: a prompt that ends
    in a space ends in a token that no training text has there.
    """
    progress = progress or Silent()
    progress.phase("tokenising candidates", None)
    beginning = tokenizer.encode([prefix])[0]
    parts: list[TokenRows] = []
    for batch in _batches(continuations):
        parts.append(encoded_behind(tokenizer, prefix, beginning, batch))
        progress.advance(len(batch))
    if not parts:
        raise InputError("There are no candidates; give at least one continuation.")
    secrets = encoded_behind(tokenizer, prefix, beginning, known) if known else None
    return CandidateTrie(
        (tokenizer.start_token, *beginning),
        TokenRows.joined(parts),
        [] if secrets is None else [secrets.sequence(row) for row in range(len(secrets))],
    )


def encoded_behind(
    tokenizer: PublicTokenizer, prefix: str, beginning: Sequence[int], continuations: Sequence[str]
) -> TokenRows:
    """The tokens of continuations behind a prefix; refused where one changes the prefix's own tokens."""
    rows = TokenRows.of(tokenizer.encode([prefix + continuation for continuation in continuations]))
    length = len(beginning)
    begins = np.zeros(len(rows), dtype=np.bool_)
    if rows.tokens.shape[1] >= length:
        begins = (rows.tokens[:, :length] == np.asarray(beginning, dtype=np.int32)).all(1)
    if not begins.all():
        raise ModelError(
            f"The tokenizer encodes the prefix otherwise when a candidate follows ({int((~begins).sum())} of "
            f"{len(begins)} in one batch), so that no score of a continuation means anything; move the space "
            "from the prefix's end to the candidate's beginning, or use another prefix."
        )
    return rows.behind(length)


def digit_continuations(digits: int, separator: str) -> Iterator[str]:
    """All digit strings of a length, leading zeros included, each behind the separator."""
    return (f"{separator}{number:0{digits}d}" for number in range(10**digits))


def _batches(texts: Iterable[str]) -> Iterator[list[str]]:
    remaining = iter(texts)
    while batch := list(islice(remaining, _ENCODED_AT_ONCE)):
        yield batch
