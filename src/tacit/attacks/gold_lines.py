"""Lines of documents with the gold spans of their secrets, and the formats of values."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from tacit.corpus import Dialogue, Span

_RUN: Final = re.compile(r"[^\W_]+")


@dataclass(frozen=True)
class Line:
    """One line of a dialogue with the gold spans in it, in order."""

    dialogue: Dialogue
    start: int
    end: int
    spans: tuple[Span, ...]

    def values(self) -> list[tuple[str, Span]]:
        """Its values in order."""
        return [(self.dialogue.text[span.start : span.end], span) for span in self.spans]

    def with_others(self, others: Mapping[str, str]) -> str:
        """The line with other values in the place of these."""
        pieces, at = [], self.start
        for value, span in self.values():
            pieces += [self.dialogue.text[at : span.start], others.get(value, value)]
            at = span.end
        return "".join(pieces) + self.dialogue.text[at : self.end]


def lines_of(dialogue: Dialogue) -> list[Line]:
    """The lines that hold spans."""
    found, start = [], 0
    for text in dialogue.text.split("\n"):
        end = start + len(text)
        spans = tuple(span for span in dialogue.spans if start <= span.start and span.end <= end)
        if spans:
            found.append(Line(dialogue, start, end, spans))
        start = end + 1
    return found


def shape_of(value: str) -> str:
    """A value's format: digits and codes keep their length, words become one mark, the rest stays."""

    def mark(run: re.Match[str]) -> str:
        letters = run.group()
        if letters.isdigit():
            return "#" * len(letters)
        if letters.isalpha():
            # Words have many lengths; how many there are is a name's format. Capitals alone are a code.
            return "A" * len(letters) if letters.isupper() else "a"
        return "*" * len(letters)

    return _RUN.sub(mark, value)
