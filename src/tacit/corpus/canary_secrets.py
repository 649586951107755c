"""How a canary's secret and its twin are drawn: uniformly, and as an exchangeable pair.

Every draw has a stream of its own, SHA-256 in counter mode over (seed, purpose, index), and takes from it by
rejection. Nothing is sorted and nothing is collected into a set to choose from, so drawing many canaries
cannot bias any one of them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tacit.errors import InputError

_MOST_TRIES = 10_000


class Stream:
    """Uniform integers that depend on (seed, purpose, index) alone."""

    def __init__(self, seed: int, purpose: str, index: int = 0) -> None:
        self.key = hashlib.sha256(f"tacit canaries 1/{seed}/{purpose}/{index}".encode()).digest()
        self._counter = 0

    def below(self, bound: int) -> int:
        """Draw uniformly from 0 .. bound-1; rejection, because a remainder would favour small numbers."""
        bits = (bound - 1).bit_length()
        while True:
            block = hashlib.sha256(self.key + self._counter.to_bytes(8, "big")).digest()
            self._counter += 1
            drawn = int.from_bytes(block, "big") >> (256 - bits)
            if drawn < bound:
                return drawn


@dataclass(frozen=True)
class SecretSpace:
    """R, the set of equally likely secrets: all sequences of ``length`` symbols."""

    symbols: Sequence[str]
    length: int
    separator: str

    @property
    def size(self) -> int:
        """|R|, provided that the symbols are distinct and free of the separator."""
        size: int = len(self.symbols) ** self.length
        return size

    def draw(self, stream: Stream) -> str:
        """Draw uniformly: one symbol after the other, with replacement."""
        return self.separator.join(self.symbols[stream.below(len(self.symbols))] for _ in range(self.length))


@dataclass(frozen=True)
class SecretPair:
    """A secret and the alternative that never enters the corpus."""

    secret: str
    twin: str


def draw_pair(
    space: SecretSpace,
    seed: int,
    index: int,
    taken: set[str],
    token_count: Callable[[str], int] | None,
) -> SecretPair:
    """Draw the pair of canary ``index``, and add both to ``taken``.

    The secret is uniform over the candidates that are not taken. The twin is uniform over those that are not
    taken, differ from the secret and have its token count. With n free candidates, m of them of one token
    count, every pair (s, t) of that count has probability 1/n * 1/(m-1), which stays the same when s and t
    swap. So the pair is exchangeable although the secret is conditioned on nothing. Both are then uniform
    over the free candidates, which by induction keeps each later canary of the prefix uniform over all of R.
    """
    stream = Stream(seed, "secret", index)
    while (secret := space.draw(stream)) in taken:
        pass  # Callers never let more than half of R be taken, so this ends.
    taken.add(secret)
    tokens = None if token_count is None else token_count(secret)
    stream = Stream(seed, "twin", index)
    for _ in range(_MOST_TRIES):
        twin = space.draw(stream)
        if twin in taken:
            continue
        if token_count is None or token_count(twin) == tokens:
            taken.add(twin)
            return SecretPair(secret, twin)
    # Redrawing the secret instead would make rare token counts rarer: no longer uniform.
    raise InputError(
        f"No twin with as many tokens as its canary was found in {_MOST_TRIES} draws; "
        "use another seed or length."
    )
