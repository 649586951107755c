"""Data points of whole sentences, found before anything is masked.

What holds, and the tests check:

* Points lie in order and do not overlap; what is between them, and before and after them, is white space.
* A boundary is a line's end (with ``lines``; without, a blank line) or the end of a sentence. A sentence is
  never cut, however long it is: part of a secret in one point and part in the next would be two secrets.
* A point has ``sentences`` sentences of one document, the last one maybe fewer.

Whether a full stop ends a sentence is a guess, and only one mistake is harmful: a cut inside a sentence. So a
full stop is taken for an end only where nothing speaks against it: not after an abbreviation, an initial or
an ellipsis, not before a lower-case letter or a number. Missing an end only makes a point longer.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from tacit.corpus.limits import require_whole

_MOST_SENTENCES = 10_000
_CLOSING = "\"'”’»)\\]"
_OPENING = "\"'“‘«(\\[¿¡*–—-"
_END = re.compile(rf"[.!?][{_CLOSING}]*\s+|\n|[。！？]+[”’」』）]*")
_BLANK_LINE = re.compile(r"\n[^\S\n]*\n")
_BEFORE_STOP = re.compile(r"[^\s(\[\"'“‘]*\Z")
_BEGINNING = re.compile(rf"[\s{_OPENING}]*")
_ABBREVIATION = re.compile(
    "mr|mrs|ms|mx|dr|prof|st|ste|mt|ft|rev|hon|gen|col|capt|lt|sgt|maj|cpl|pte|gov|sen|rep|pres|sr|jr|esq|messrs|"
    "mme|mlle|fr|no|nos|nr|vol|vols|figs?|eqs?|sec|ch|pp|eds?|approx|est|ca|cf|vs|viz|etc|al|ext|tel|fax|mob|dept|"
    "div|inc|ltd|co|corp|plc|llc|gmbh|bros|assn|univ|inst|ave?|blvd|rd|ln|hwy|pkwy|sq|ct|pl|apt|bldg|rm|flr?|jan|"
    "feb|mar|apr|jun|jul|aug|sept?|oct|nov|dec|mon|tues?|wed|thu|thurs?|fri|sat|sun|min|max|refs?|acct|attn|cust|"
    "ord|art|para|op"
)


class PointBounds(NamedTuple):
    """Where a data point lies in its document: ``text[start:end]``."""

    start: int
    end: int


@dataclass(frozen=True)
class SplitSettings:
    """How many sentences a data point has, and whether a line's end (a dialogue's turn) bounds it."""

    sentences: int = 1
    lines: bool = True

    def __post_init__(self) -> None:
        require_whole("sentences", self.sentences, most=_MOST_SENTENCES, example=1)

    def to_json(self) -> dict[str, object]:
        """JSON form, for reports."""
        return {"sentences": self.sentences, "lines": self.lines}


def split_points(text: str, settings: SplitSettings) -> list[PointBounds]:
    """The data points of one document; a document of white space has none."""
    sentences = list(_sentences(text, lines=settings.lines))
    return [
        PointBounds(
            sentences[first].start, sentences[min(first + settings.sentences, len(sentences)) - 1].end
        )
        for first in range(0, len(sentences), settings.sentences)
    ]


def _sentences(text: str, *, lines: bool) -> Iterator[PointBounds]:
    start = 0
    for end in _END.finditer(text):
        if _is_boundary(text, end, lines=lines):
            if stripped := _stripped(text, start, end.end()):
                yield stripped
            start = end.end()
    if stripped := _stripped(text, start, len(text)):
        yield stripped


def _stripped(text: str, start: int, end: int) -> PointBounds | None:
    piece = text[start:end]
    left = len(piece) - len(piece.lstrip())
    return PointBounds(start + left, start + len(piece.rstrip())) if left < len(piece) else None


def _is_boundary(text: str, end: re.Match[str], *, lines: bool) -> bool:
    found = end.group()
    if "\n" in found:
        if lines:
            return True
        if found == "\n":  # what follows a full stop has its white space with it; a bare line feed has not
            return _BLANK_LINE.match(text, end.start()) is not None
        if found.count("\n") > 1 and _BLANK_LINE.search(found):
            return True
    if found[0] in "。！？":
        return True
    after = _BEGINNING.match(text, end.end())
    following = text[after.end() : after.end() + 1] if after else ""
    if not following or following.islower():
        return not following
    if found[0] in "!?":
        return True
    if following.isdigit():
        return False
    return not _is_abbreviation(text, end.start())


def _is_abbreviation(text: str, stop: int) -> bool:
    before = _BEFORE_STOP.search(text, max(0, stop - 20), stop)
    word = before.group().lower() if before else ""
    # An initial, an ellipsis, or dots within (U.S., p.m.) end no sentence for sure.
    return bool(_ABBREVIATION.fullmatch(word)) or (len(word) == 1 and word.isalpha()) or "." in word
