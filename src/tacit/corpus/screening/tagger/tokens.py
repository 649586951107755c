"""Cutting a text into the tokens that the tagger scores.

A token is a run of letters and digits (with the marks that belong to them), one character of a script that
writes without spaces, one other visible character, a line break, or the mask. ``text[start:end]`` is the
token; tokens are in order and disjoint, and every letter and digit of the text is in one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from tacit.corpus.screening.scores import MASK

LINE_BREAK = "\n"

# Marks are no letters to Python's \w: without them a name in Devanagari, or one typed with combining accents,
# would fall to pieces.
_MARKS = (
    "\u0300-\u036f\u0591-\u05bd\u064b-\u065f\u0670\u0900-\u0903\u093a-\u094f\u0e31\u0e34-\u0e3a\u0e47-\u0e4e"
)
_UNSPACED = "\u3005-\u3007\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_LETTER = rf"[^\W_{_UNSPACED}]"
_TOKEN = re.compile(rf"{MASK}|{_LETTER}+(?:[{_MARKS}]+{_LETTER}*)*|\n|\S")


@dataclass(frozen=True, slots=True)
class Tokens:
    """The tokens of one text, column by column."""

    words: list[str]
    starts: list[int]
    ends: list[int]

    def glued(self) -> list[bool]:
        """Whether each token touches the one before it."""
        return [False, *(start == end for start, end in zip(self.starts[1:], self.ends, strict=False))][
            : len(self.words)
        ]


def split_tokens(text: str) -> Tokens:
    """Return the tokens of a text; the longest run of letters is one token, however long."""
    found = list(_TOKEN.finditer(text))
    return Tokens(
        [match.group() for match in found],
        [match.start() for match in found],
        [match.end() for match in found],
    )
