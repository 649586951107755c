"""Which data points are repeats of an earlier one.

The first occurrence stays; from the second on a point is a duplicate, and screening writes the one mask for
it. Three ways of remembering what was seen:

* ``exact``: a keyed 128-bit hash of each distinct point (blake2b, its key drawn anew: nobody can prepare two
  texts that collide). Memory grows by some 100 bytes for each distinct point, not with their length.
* ``bloom``: a Bloom filter of fixed size. It never misses a repeat; with the stated probability it takes a
  new point for a repeat, which masks more. **Outside the proof of CRT**: a false repeat comes from the bits
  of other points, so that a secret, even a caught one, can change whether another point is masked. Its hash
  (xxh3) is fast and seeded, and its bits are not independent: no chance of that is added to delta.
* ``near``: MinHash over words, for near repeats too. **Outside the proof of CRT**: which points it merges
  depends on similarity, so one secret can change more points than the ones it stands in.

What was seen in one part of a partition never counts in another, not even through a shared filter.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from tacit.corpus.limits import require_whole
from tacit.errors import RecipeError

DedupKind = Literal["exact", "bloom", "near", "off"]

KEY_BYTES = 16
_DIGEST_BYTES = 16
_PERMUTATIONS = 128
_BANDS = 16
_WORD = re.compile(r"\w+")
_LEAST_FILTER = 10_000
_MOST_EXPECTED = 10**11


@dataclass(frozen=True)
class DedupSettings:
    """How repeats are found.

    ``expected_points`` and ``false_positives`` size a Bloom filter, in all parts together; ``similarity`` is
    the Jaccard index from which on two points are near. ``off`` finds none. **Outside the proof of
    CRT** as well: a secret in a repeated sentence changes as many points as there are repeats.
    """

    kind: DedupKind = "exact"
    expected_points: int = 10_000_000
    false_positives: float = 1e-4
    similarity: float = 0.8

    def __post_init__(self) -> None:
        if self.kind not in get_args(DedupKind):
            raise RecipeError(f"Expected dedup='{self.kind}' to be one of {', '.join(get_args(DedupKind))}.")
        require_whole("expected_points", self.expected_points, most=_MOST_EXPECTED, example=10_000_000)
        for name in ("false_positives", "similarity"):
            value = getattr(self, name)
            if not 0 < value < 1:
                raise RecipeError(f"Expected {name}={value} between 0 and 1, both excluded.")

    def to_json(self) -> dict[str, object]:
        """What decides which points are repeats, for reports."""
        content: dict[str, object] = {"kind": self.kind}
        if self.kind == "bloom":
            content |= {"expected_points": self.expected_points, "false_positives": self.false_positives}
        if self.kind == "near":
            content["similarity"] = self.similarity
        return content


class Deduplicator:
    """Remembers the points of every part; ``key`` decides the hashes, by default a fresh one.

    Two deduplicators with the same settings, parts and key give the same answers to the same points.
    """

    def __init__(self, settings: DedupSettings, *, parts: int = 1, key: bytes | None = None) -> None:
        self.settings = settings
        self.key = secrets.token_bytes(KEY_BYTES) if key is None else key
        self._parts = parts
        self._seen: dict[int, Callable[[Sequence[str]], list[bool]]] = {}

    def repeats(self, texts: Sequence[str], part: int = 0) -> list[bool]:
        """For each text in order whether this part had it before, in this call or in an earlier one."""
        seen = self._seen.get(part)
        if seen is None:
            if not 0 <= part < self._parts:
                raise ValueError(f"Expected part={part} in 0..{self._parts - 1}.")
            seen = self._seen[part] = self._memory()
        return seen(texts)

    def _memory(self) -> Callable[[Sequence[str]], list[bool]]:
        match self.settings.kind:
            case "exact":
                return _exact(self.key)
            case "bloom":
                # A share for each part that depends on their number alone, never on what other parts hold.
                expected = max(_LEAST_FILTER, self.settings.expected_points // self._parts)
                return _bloom(expected, self.settings.false_positives, self.key)
            case "near":
                return _near(self.settings.similarity, self.key)
            case "off":
                return lambda texts: [False] * len(texts)


def _exact(key: bytes) -> Callable[[Sequence[str]], list[bool]]:
    seen: set[bytes] = set()
    hashed = hashlib.blake2b(key=key, digest_size=_DIGEST_BYTES)

    def repeats(texts: Sequence[str]) -> list[bool]:
        flags = []
        for text in texts:
            state = hashed.copy()  # a copy of the keyed state: the key is one compression, saved here
            state.update(text.encode())
            digest = state.digest()
            flags.append(digest in seen)
            seen.add(digest)
        return flags

    return repeats


def _bloom(expected: int, false_positives: float, key: bytes) -> Callable[[Sequence[str]], list[bool]]:
    import xxhash
    from rbloom import Bloom

    seed = int.from_bytes(key[:8])
    hashed = xxhash.xxh3_64_intdigest
    seen = Bloom(expected, false_positives)

    def repeats(texts: Sequence[str]) -> list[bool]:
        flags = []
        for text in texts:
            # A number is its own hash to the filter, in every process; that of a string changes with each.
            number = hashed(text.encode(), seed)
            if number in seen:
                flags.append(True)
            else:
                seen.add(number)
                flags.append(False)
        return flags

    return repeats


def _near(similarity: float, key: bytes) -> Callable[[Sequence[str]], list[bool]]:
    from rensa import RMinHash, RMinHashDeduplicator

    seed = int.from_bytes(key[:4])
    seen: Any = RMinHashDeduplicator(
        threshold=similarity, num_perm=_PERMUTATIONS, use_lsh=True, num_bands=_BANDS, seed=seed
    )
    count = 0

    def repeats(texts: Sequence[str]) -> list[bool]:
        nonlocal count
        flags = []
        for text in texts:
            sketch = RMinHash(num_perm=_PERMUTATIONS, seed=seed)
            sketch.update(_WORD.findall(text.lower()) or [text])
            flags.append(not seen.add(str(count), sketch))
            count += 1
        return flags

    return repeats
