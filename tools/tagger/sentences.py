"""Sentences with labelled spans, written from the templates, and the ways in which people mistype them."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from random import Random

from tools.tagger.values import HERE, Piece, Values

_SLOT = re.compile(r"\{(\w+)\}")
_WORD = re.compile(r"\w+")
_CHOICE = re.compile(r"<([^<>]*)>")


@dataclass(frozen=True)
class Span:
    """``text[start:end]`` has a label; "?" marks text that is not learnt from."""

    start: int
    end: int
    label: str


@dataclass(frozen=True)
class Example:
    """A text with all its labelled spans; what no span covers is public."""

    text: str
    spans: tuple[Span, ...]

    @classmethod
    def of(cls, pieces: Sequence[Piece]) -> Example:
        """Join pieces; a label of "" is public."""
        text, spans = "", []
        for piece, label in pieces:
            if label:
                spans.append(Span(len(text), len(text) + len(piece), label))
            text += piece
        return cls(text, tuple(spans))

    def then(self, other: Example, joint: str) -> Example:
        """Append another text."""
        shift = len(self.text) + len(joint)
        moved = (replace(span, start=span.start + shift, end=span.end + shift) for span in other.spans)
        return Example(self.text + joint + other.text, (*self.spans, *moved))


def read_templates(path: Path = HERE / "templates.txt") -> list[str]:
    """Read one template a line; a line break within one is written as a backslash and n."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return [
        line.replace("\\n", "\n").replace("\\t", "\t") for line in lines if line and not line.startswith("#")
    ]


def is_held_out(text: str, share: float = 0.15) -> bool:
    """Whether a template, or a document by its name, is kept for choosing thresholds; decided by its hash."""
    return int.from_bytes(sha256(text.encode()).digest()[:4], "big") < share * 2**32


def write_sentence(template: str, values: Values) -> Example:
    """Fill a template."""
    rng = values.rng
    # EMAIL slots stand in angle brackets in mail headers: those are no choices.
    text = template.replace("<{EMAIL}>", "\x00")
    while (choice := _CHOICE.search(text)) is not None:
        text = text[: choice.start()] + rng.choice(choice[1].split("|")) + text[choice.end() :]
    text = text.replace("\x00", "<{EMAIL}>").strip()
    if rng.random() < 0.5:
        text = text[:1].upper() + text[1:]
    pieces: list[Piece] = []
    for position, piece in enumerate(_SLOT.split(text)):
        if position % 2 == 0:
            pieces.append((piece, ""))
        elif piece in values.kinds:
            pieces += values.kinds[piece]()
        else:
            pieces.append((values.public[piece](), ""))
    return Example.of([piece for piece in pieces if piece[0]])


def disturb(example: Example, rng: Random, everyday: Collection[str] = ()) -> Example:
    """Write a text as people do: without capitals, all in capitals, with names in small letters.

    A name of ``everyday`` words only (a firm called Fresh Bread, the state OR) is not learnt from without its
    capitals: nothing tells it from the words.
    """
    kind = rng.random()
    if kind < 0.17:
        return _doubted(_same_length(example, example.text.lower()), everyday)
    if kind < 0.20:
        return _same_length(example, example.text.upper())
    if kind < 0.22:
        return _same_length(example, example.text.title())
    if kind < 0.29:
        return _doubted(_each_span(example, rng, 0.7, str.lower), everyday)
    if kind < 0.32:
        return _each_span(example, rng, 0.5, str.upper)
    if kind < 0.36:
        return _spaced_out(example)
    if kind < 0.40 and example.text.endswith((".", "!", "?")):
        return _cut(example, len(example.text) - 1)
    return example


def _cut(example: Example, end: int) -> Example:
    spans = (replace(span, end=min(span.end, end)) for span in example.spans)
    return Example(example.text[:end], tuple(span for span in spans if span.start < span.end))


def _doubted(example: Example, everyday: Collection[str]) -> Example:
    def doubtful(span: Span) -> bool:
        text = example.text[span.start : span.end]
        return text.islower() and all(word in everyday for word in _WORD.findall(text))

    spans = (replace(span, label="?") if doubtful(span) else span for span in example.spans)
    return Example(example.text, tuple(spans))


def _same_length(example: Example, text: str) -> Example:
    return Example(text, example.spans) if len(text) == len(example.text) else example


def _each_span(example: Example, rng: Random, chance: float, change: Callable[[str], str]) -> Example:
    text = example.text
    for span in example.spans:
        changed = change(text[span.start : span.end])
        if rng.random() < chance and len(changed) == span.end - span.start and span.label != "CODE":
            text = text[: span.start] + changed + text[span.end :]
    return Example(text, example.spans)


def mask(example: Example, rng: Random, chance: float = 0.5) -> Example:
    """Put the mask in the place of some spans, or of some words of them, as redaction does.

    What is sensitive stays so when its neighbours are hidden: redaction looks again at what it has masked,
    and must come out the same from either side.
    """
    pieces: list[Piece] = []
    end = 0
    for span in example.spans:
        pieces.append((example.text[end : span.start], ""))
        text = example.text[span.start : span.end]
        words = [] if span.label == "?" else list(_WORD.finditer(text))
        if not words or rng.random() >= chance:
            pieces.append((text, span.label))
        else:
            first, last = 0, len(words) - 1
            if len(words) > 1 and rng.random() < 0.6:  # the beginning, the end or the middle
                first, last = sorted((rng.randint(0, last), rng.randint(0, last)))
            start, stop = words[first].start(), words[last].end()
            if len(pieces) > 1 and pieces[-2][0] == "<MASK>" and not start and pieces[-1][0].isspace():
                pieces.pop()  # masks that only blanks separate are one
                pieces.append((text[stop:], span.label))
            else:
                pieces += ((text[:start], span.label), ("<MASK>", ""), (text[stop:], span.label))
            pieces = [piece for piece in pieces if piece[0]]
        end = span.end
    pieces.append((example.text[end:], ""))
    return Example.of([piece for piece in pieces if piece[0]])


def _spaced_out(example: Example) -> Example:
    """Set punctuation apart with spaces, as tokenised corpora have it."""
    shifts, text = [0], ""
    for i, mark in enumerate(example.text):
        before = mark in ".,!?;:'()" and i > 0 and not example.text[i - 1].isspace()
        text += f" {mark}" if before else mark
        shifts.append(len(text))
    starts = [shifts[span.start] + (text[shifts[span.start]] == " ") for span in example.spans]
    return Example(
        text,
        tuple(
            Span(start, shifts[span.end], span.label)
            for start, span in zip(starts, example.spans, strict=True)
        ),
    )
