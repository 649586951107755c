"""Candidates that are sequences of symbols (words of a list, digits) without a tree in memory.

40,000 words make 40,000^5 secrets of five: nobody can enumerate them, and nobody has to. A search opens only
nodes that are as likely as its target; this tree makes their children when asked. It needs the tokens of one
symbol at the first place and at any later one; a candidate's tokens are those of its symbols in a row.

What is checked, and refused where it does not hold: every symbol at the first place leaves the prefix's
tokens as they are; no two symbols have the same tokens; where a symbol can end, no token both goes on with it
and begins another, so that tokens are cut into symbols in one way only; and for the known secrets, a fixed
random sample and *every candidate that is scored*, the tokens in a row are the canonical encoding of the
text. What is not checked: the canonical encoding of the candidates that no search reaches.

A candidate may be the beginning of another (`` bake`` of `` bakers``). It is then never less likely, so that
longer ones stand behind their beginnings whatever the model knows; for a secret that was drawn uniformly and
never seen, ranks are uniform all the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from tacit.attacks.exposure.candidates import UNKNOWN, Children, encoded_behind
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

_CHECKED_AT_RANDOM: Final = 2_000
_ENCODED_AT_ONCE: Final = 16_384
_JOINS: Final = (
    "The tokenizer joins neighbouring symbols into tokens of their own, so that candidates cannot be put "
    "together from symbols; enumerate them (check='every'), or use another tokenizer."
)


class SymbolTree:
    """All sequences of ``length`` symbols behind a prefix. Node ``place * size + n`` is node n of a place.

    ``separator`` stands between prefix and secret, ``between`` between two symbols.
    """

    def __init__(
        self,
        tokenizer: PublicTokenizer,
        prefix: str,
        symbols: Sequence[str],
        length: int,
        *,
        separator: str,
        between: str,
        known: Sequence[str] = (),
    ) -> None:
        """``known`` are secrets, without the separator before them."""
        if length < 1 or len(symbols) < 2 or len(set(symbols)) < len(symbols):
            raise InputError(
                "A space of secrets needs a length of 1 or more and two or more distinct symbols."
            )
        self._tokenizer, self._prefix, self._symbols = tokenizer, prefix, symbols
        self._length, self._separator, self._between = length, separator, between
        self._beginning = tokenizer.encode([prefix])[0]
        self.prefix = (tokenizer.start_token, *self._beginning)
        first = self._encoded([separator + symbol for symbol in symbols])
        later = first
        if length > 1:
            # Behind another symbol, as they stand in a secret.
            lead = separator + symbols[0]
            later = self._encoded([lead + between + symbol for symbol in symbols], lead)
        self._rows = (first, later)
        self._trees = (build_tree(first), build_tree(later))
        self._refuse_ambiguity()
        self._size = max(map(len, self._trees))
        self.candidates = len(symbols) ** length
        self.longest = int(first.lengths.max()) + (length - 1) * int(later.lengths.max())
        self.nested = self._trees[length > 1].nested()
        self.root = ROOT
        self._check_canonical(self._drawn(_CHECKED_AT_RANDOM, np.random.default_rng(0)))
        self.known = tuple(self._known_tokens(known))
        self._label = {sequence: number for number, sequence in enumerate(self.known)}
        if len(self._label) < len(self.known):
            raise InputError("Two known secrets behind one prefix are the same; give each once.")

    def child_counts(self, nodes: IntArray) -> IntArray:
        """How many children each node has."""
        place, inner = np.divmod(nodes, self._size)
        counts = np.zeros(len(nodes), dtype=np.int64)
        for later, tree in enumerate(self._trees):
            here = (place > 0) == bool(later)
            counts[here] = tree.children[inner[here]]
        return counts + self._finished(place, inner) * int(self._trees[1].children[ROOT])

    def expand(self, nodes: IntArray) -> Children:
        """The rest of a symbol, and the first tokens of the next where one can end."""
        place, inner = np.divmod(nodes, self._size)
        parts = []
        for later, tree in enumerate(self._trees):
            here = np.flatnonzero((place > 0) == bool(later))
            parent, child = tree.children_of(inner[here])
            parts.append(self._children(here[parent], place[here][parent], child))
        ended = np.flatnonzero(self._finished(place, inner))
        parent, child = self._trees[1].children_of(np.full(len(ended), ROOT))
        parts.append(self._children(ended[parent], place[ended][parent] + 1, child))
        names = ("parent", "token", "node", "leaf", "open")
        return Children(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))

    def leaves_below(self, nodes: IntArray) -> FloatArray:
        """How many candidates lie below each node."""
        place, inner = np.divmod(nodes, self._size)
        rows = self._per_place("rows", place, inner).astype(np.float64)
        return rows * float(len(self._symbols)) ** (self._length - 1 - place)

    def longest_below(self, nodes: IntArray) -> IntArray:
        """How many more tokens the longest candidate below each node has."""
        place, inner = np.divmod(nodes, self._size)
        most = int(self._rows[1].lengths.max())
        longest: IntArray = self._per_place("longest", place, inner) + (self._length - 1 - place) * most
        return longest

    def labels(self, nodes: IntArray, paths: SmallIntArray) -> IntArray:
        """Which known candidate ends at each node; every one is checked to be its text's encoding."""
        sequences = [tuple(path) for path in paths.tolist()]
        self._check_canonical([self._numbers(sequence) for sequence in sequences])
        return np.array([self._label.get(sequence, UNKNOWN) for sequence in sequences], dtype=np.int64)

    def sample(self, count: int, generator: np.random.Generator) -> TokenRows:
        """Independent uniform draws from the candidates that are not known."""
        if self.candidates <= len(self.known):
            raise InputError("All candidates are known ones; there is nothing to draw from.")
        kept: list[tuple[int, ...]] = []
        while len(kept) < count:
            drawn = self._drawn(count - len(kept), generator)
            self._check_canonical(drawn)
            kept += [tokens for tokens in map(self._tokens, drawn) if tokens not in self._label]
        return TokenRows.of(kept)

    def _encoded(self, continuations: list[str], lead: str = "") -> TokenRows:
        beginning = self._beginning
        if lead:
            beginning = self._tokenizer.encode([self._prefix + lead])[0]
        prefix = self._prefix + lead
        rests = [text.removeprefix(lead) for text in continuations]
        try:
            parts = [
                encoded_behind(self._tokenizer, prefix, beginning, rests[first : first + _ENCODED_AT_ONCE])
                for first in range(0, len(rests), _ENCODED_AT_ONCE)
            ]
        except ModelError:
            if not lead:
                raise
            raise ModelError(_JOINS) from None
        return TokenRows.joined(parts)

    def _refuse_ambiguity(self) -> None:
        starts = self._trees[1].token[self._trees[1].depth == 1]
        for tree in self._trees:
            if tree.doubled() or bool(tree.ends[ROOT]):
                raise ModelError(
                    "The tokenizer does not tell all symbols apart (two have the same tokens, or one has "
                    "none); take those out of the list, or use another tokenizer."
                )
            _, onward = tree.children_of(np.flatnonzero(tree.ends & tree.open))
            if self._length > 1 and bool(np.isin(tree.token[onward], starts).any()):
                raise ModelError(
                    "The tokenizer begins a symbol with a token that another symbol goes on with, so that a "
                    "secret's tokens cannot be cut into symbols; enumerate the candidates (check='every'), "
                    "or use another tokenizer."
                )

    def _finished(self, place: IntArray, inner: IntArray) -> BoolArray:
        """Where a symbol can end and another has to follow."""
        return (self._per_place("ends", place, inner) > 0) & (place + 1 < self._length)

    def _per_place(self, name: str, place: IntArray, inner: IntArray) -> IntArray:
        first, later = (getattr(tree, name).astype(np.int64) for tree in self._trees)
        found: IntArray = np.where(
            place > 0, later[np.minimum(inner, len(later) - 1)], first[np.minimum(inner, len(first) - 1)]
        )
        return found

    def _children(self, parent: IntArray, place: IntArray, child: IntArray) -> Children:
        ends = self._per_place("ends", place, child) > 0
        last = place + 1 == self._length
        return Children(
            parent=parent,
            token=self._per_place("token", place, child),
            node=place * self._size + child,
            leaf=ends & last,
            open=(self._per_place("children", place, child) > 0) | (ends & ~last),
        )

    def _drawn(self, count: int, generator: np.random.Generator) -> list[tuple[int, ...]]:
        return [
            tuple(row) for row in generator.integers(len(self._symbols), size=(count, self._length)).tolist()
        ]

    def _tokens(self, numbers: Sequence[int]) -> tuple[int, ...]:
        first, later = self._rows
        parts = [first.sequence(numbers[0]), *(later.sequence(number) for number in numbers[1:])]
        return tuple(token for part in parts for token in part)

    def _text(self, numbers: Sequence[int]) -> str:
        return self._separator + self._between.join(self._symbols[number] for number in numbers)

    def _numbers(self, tokens: tuple[int, ...]) -> tuple[int, ...]:
        """The symbols that a candidate's tokens are cut into."""
        numbers: list[int] = []
        node = ROOT
        for token in tokens:
            tree = self._trees[bool(numbers)]
            onward = tree.child(node, token)
            if onward is None:
                numbers.append(int(tree.order[tree.first_row[node]]))
                onward = self._trees[1].child(ROOT, token)
            node = ROOT if onward is None else onward
        tree = self._trees[bool(numbers)]
        return (*numbers, int(tree.order[tree.first_row[node]]))

    def _check_canonical(self, candidates: Sequence[tuple[int, ...]]) -> None:
        for begin in range(0, len(candidates), _ENCODED_AT_ONCE):
            some = candidates[begin : begin + _ENCODED_AT_ONCE]
            encoded = encoded_behind(
                self._tokenizer, self._prefix, self._beginning, [self._text(numbers) for numbers in some]
            )
            if any(encoded.sequence(row) != self._tokens(numbers) for row, numbers in enumerate(some)):
                raise ModelError(_JOINS)

    def _known_tokens(self, known: Sequence[str]) -> list[tuple[int, ...]]:
        numbers = {symbol: number for number, symbol in enumerate(self._symbols)}
        found = []
        for secret in known:
            pieces = secret.split(self._between) if self._between else list(secret)
            if len(pieces) != self._length or any(piece not in numbers for piece in pieces):
                raise InputError(
                    "A known secret is not one of the candidates; give the space it was drawn from."
                )
            found.append(tuple(numbers[piece] for piece in pieces))
        self._check_canonical(found)
        return [self._tokens(one) for one in found]
