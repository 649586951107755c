"""What the tagger knows of a word by looking at it: rows of one table of embeddings.

A word's rows depend on the word alone, so that its embedding is computed once and kept. Words are hashed
(CRC-32): nothing is looked up in a vocabulary, and a word never seen still has its beginning, end, pieces,
shape and the lists it is on. Case shows in the shape only; accents are taken off before pieces are cut.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from tacit.corpus.screening.scores import MASK
from tacit.corpus.screening.tagger.tokens import LINE_BREAK

WORD_ROWS, PIECE_ROWS, SHAPE_ROWS = 1 << 14, 1 << 14, 1 << 11
FIRST_PIECE = WORD_ROWS
FIRST_SHAPE = FIRST_PIECE + PIECE_ROWS
ROWS = FIRST_SHAPE + SHAPE_ROWS

# The lists, one Bloom filter each; what they hold, and how they are made, is in docs/tagger.md.
LISTS = ("first", "last", "place", "common", "frequent", "very-frequent")
_PROBES = 5
# Longer words keep their beginning and end: nobody's name needs more, and work per word stays bounded.
_HEAD, _TAIL = 20, 12

_ACCENTLESS = str.maketrans("øłđðþıæœßħŧŋ", "oldothaoshtn")
_CASES = re.compile(r"[a-z]+|[A-Z]+|[0-9]+")
_SCRIPTS = (
    ("latin", 0x0000, 0x024F), ("greek", 0x0370, 0x03FF), ("cyrillic", 0x0400, 0x052F),
    ("armenian", 0x0530, 0x058F), ("hebrew", 0x0590, 0x05FF), ("arabic", 0x0600, 0x077F),
    ("indic", 0x0900, 0x0DFF), ("thai", 0x0E00, 0x0E7F), ("georgian", 0x10A0, 0x10FF),
    ("latin", 0x1E00, 0x1EFF), ("kana", 0x3040, 0x30FF), ("han", 0x3400, 0x9FFF), ("hangul", 0xAC00, 0xD7AF),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class WordRows:
    """Rows of the table: those of the whole word are added up, of its pieces the mean is taken."""

    word: int  # its own row, shared with the words of the same hash
    lists: tuple[int, ...]
    shape: tuple[int, ...]
    pieces: tuple[int, ...]


@dataclass(frozen=True)
class WordLists:
    """Which words are on which list, to within a few false positives in a hundred."""

    bits: dict[str, NDArray[np.uint8]]

    def on(self, word: str) -> tuple[str, ...]:
        """Name the lists that hold a word in lower case."""
        first, second = _two_hashes(word)
        return tuple(name for name, bits in self.bits.items() if self._holds(bits, first, second))

    @staticmethod
    def _holds(bits: NDArray[np.uint8], first: int, second: int) -> bool:
        size = 8 * len(bits)
        for probe in range(_PROBES):
            place = (first + probe * second) % size
            if not bits[place >> 3] >> (place & 7) & 1:
                return False
        return True

    @classmethod
    def of(cls, words: dict[str, list[str]], *, bits_per_word: int = 8) -> WordLists:
        """Make the filters of lists of words."""
        filters = {}
        for name, members in words.items():
            bits = np.zeros(max(1, len(members) * bits_per_word // 8), np.uint8)
            for word in members:
                first, second = _two_hashes(word)
                for probe in range(_PROBES):
                    place = (first + probe * second) % (8 * len(bits))
                    bits[place >> 3] |= np.uint8(1 << (place & 7))
            filters[name] = bits
        return cls(filters)


def word_rows(word: str, lists: WordLists) -> WordRows:
    """Return the rows of a token."""
    if not word[0].isalnum() or word in (MASK, LINE_BREAK):
        return WordRows(_word_row(word), (), (_shape_row("mark"),), ())
    word = shortened(word)
    plain = plain_form(word)
    shape = _shape(word)
    shapes = [
        f"shape {shape}",
        f"outline {_outline(shape)}",
        f"length {min(len(word), 12)}",
        _case(word),
        _script(word),
    ]
    numeric = any(mark.isdigit() for mark in plain)
    if numeric:
        # Of a number only its form counts: what is learnt about one phone number holds for all.
        shapes += _number_shapes(plain)
        plain = re.sub(r"\d", "0", plain)
    found = () if numeric else lists.on(plain)
    pieces = () if plain.isdigit() else _pieces(plain)
    return WordRows(
        _word_row(plain),
        tuple(_shape_row(f"list {name}") for name in (found or ("none",))),
        tuple(map(_shape_row, shapes)),
        pieces,
    )


def shortened(word: str) -> str:
    """Return what is looked at of a word; it has the rows of the whole."""
    return word if len(word) <= _HEAD + _TAIL else word[:_HEAD] + word[-_TAIL:]


def plain_form(word: str) -> str:
    """Return a word in lower case and without accents: the form in which lists and pieces hold it."""
    if word.isascii():
        return word.lower()
    bare = "".join(
        mark for mark in unicodedata.normalize("NFKD", word.lower()) if not unicodedata.combining(mark)
    )
    return bare.translate(_ACCENTLESS)


def _pieces(word: str) -> tuple[int, ...]:
    held = f"^{word}$"
    ends = [
        f"{side}{size} {part}"
        for size in (2, 3, 4)
        for side, part in (("b", word[:size]), ("e", word[-size:]))
    ]
    inner = [held[i : i + size] for size in (3, 4) for i in range(len(held) - size + 1)]
    return tuple(
        FIRST_PIECE + crc32(piece.encode(errors="replace")) % PIECE_ROWS for piece in (*ends, *inner)
    )


def _number_shapes(plain: str) -> list[str]:
    if not plain.isdigit() or not plain.isascii():
        return ["digits among letters"]
    value = int(plain) if len(plain) <= 6 else 10**6
    found = [f"first {plain[0]}"]
    ranges = (
        ("month", 1, 12),
        ("day", 1, 31),
        ("adult", 18, 99),
        ("child", 1, 17),
        ("year", 1900, 2039),
        ("round", 0, 0),
    )
    found += [name for name, low, high in ranges if low <= value <= high and plain[0] != "0"]
    if value % 100 == 0:
        found.append("hundreds")
    elif value % 10 == 0:
        found.append("tens")
    return found


def _shape(word: str) -> str:
    return "".join(
        "0" if mark.isdigit() else "X" if mark.isupper() else "x" if mark.isalpha() else "-"
        for mark in word[:12]
    )


def _outline(shape: str) -> str:
    """Return a shape with every run as one mark: Xx, 0X0."""
    return re.sub(r"(.)\1+", r"\1", shape)


def _case(word: str) -> str:
    if word.islower():
        return "case lower"
    if word.isupper():
        return "case upper" if len(word) > 1 else "case initial"
    return "case title" if word.istitle() else "case mixed"


def _script(word: str) -> str:
    point = ord(word[0])
    return next((f"script {name}" for name, low, high in _SCRIPTS if low <= point <= high), "script other")


def _word_row(word: str) -> int:
    return crc32(word.encode(errors="replace"), 1) % WORD_ROWS


def _shape_row(shape: str) -> int:
    return FIRST_SHAPE + crc32(shape.encode(errors="replace"), 2) % SHAPE_ROWS


def _two_hashes(word: str) -> tuple[int, int]:
    encoded = word.encode(errors="replace")
    return crc32(encoded, 3), crc32(encoded, 4) | 1
