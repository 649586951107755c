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
from dataclasses import dataclass
from typing import NamedTuple

from tacit.corpus.limits import require_whole

_MOST_SENTENCES = 10_000
_CANDIDATE = re.compile(r"[.!?\n。！？]")
_GAP = re.compile(r"[\"'”’»)\]]*\s+")
_WIDE_END = re.compile(r"[。！？]+[”’」』）]*")
_BLANK_LINE = re.compile(r"\n[^\S\n]*\n")
_BEFORE_STOP = re.compile(r"[^\s(\[\"'“‘]*\Z")
_BEGINNING = re.compile(r"[\s\"'“‘«(\[¿¡*–—-]*")
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
    sentences = _sentences(text, lines=settings.lines)
    if settings.sentences == 1:
        return sentences
    return [
        PointBounds(
            sentences[first].start, sentences[min(first + settings.sentences, len(sentences)) - 1].end
        )
        for first in range(0, len(sentences), settings.sentences)
    ]


def _sentences(text: str, *, lines: bool) -> list[PointBounds]:
    found: list[PointBounds] = []
    start = 0
    for candidate in _CANDIDATE.finditer(text):
        place = candidate.start()
        if place < start:
            continue
        end = _boundary(text, place, lines=lines)
        if end:
            piece = text[start:end]
            if kept := piece.strip():
                begin = start + len(piece) - len(piece.lstrip())
                found.append(PointBounds(begin, begin + len(kept)))
            start = end
    rest = text[start:]
    if kept := rest.strip():
        begin = start + len(rest) - len(rest.lstrip())
        found.append(PointBounds(begin, begin + len(kept)))
    return found


def _boundary(text: str, place: int, *, lines: bool) -> int:
    """Where the sentence ends that ``text[place]`` may end, white space after it included; 0 where it does
    not.
    """
    mark = text[place]
    if mark == "\n":
        return place + 1 if lines or _BLANK_LINE.match(text, place) else 0
    if mark in "。！？":
        wide = _WIDE_END.match(text, place)
        return wide.end() if wide else place + 1
    gap = _GAP.match(text, place + 1)
    if gap is None:
        return 0
    if "\n" in gap.group() and (lines or _BLANK_LINE.search(gap.group())):
        return gap.end()
    return gap.end() if _ends_a_sentence(text, place, gap.end()) else 0


def _ends_a_sentence(text: str, place: int, after: int) -> bool:
    beginning = _BEGINNING.match(text, after)
    following = text[beginning.end() : beginning.end() + 1] if beginning else ""
    if not following:
        return True
    if following.islower():
        return False
    if text[place] != ".":
        return True
    return not following.isdigit() and not _is_abbreviation(text, place)


def _is_abbreviation(text: str, stop: int) -> bool:
    before = _BEFORE_STOP.search(text, max(0, stop - 20), stop)
    word = before.group().lower() if before else ""
    # An initial, an ellipsis, or dots within (U.S., p.m.) end no sentence for sure.
    return bool(_ABBREVIATION.fullmatch(word)) or (len(word) == 1 and word.isalpha()) or "." in word
