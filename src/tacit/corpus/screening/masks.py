"""Text with parts of it masked, and the way back to the places in the raw text.

A masked text is its raw characters and the spans of them that are masked; the written form is made when it is
needed. So the positions of masks are always those of the raw text, a mask is never found by reading "<MASK>"
back, and text that spells a mask of its own accord is told apart: it is changed before anything else.

Masks that touch, or that only blanks and a comma or the like separate, are written as one. Detectors label
tokens, and where one of them ends must not tell how many words a secret had; nor must masking the street of a
labelled address beforehand, as in the neighbouring corpus, give two masks where the whole gives one.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tacit.corpus.screening.scores import MASK

_SPELT_MASK = re.compile(re.escape(MASK))
_SPELT_PLACEHOLDER = re.compile(r"<([A-Z][A-Z0-9_+]*)>")
_BETWEEN = re.compile(r"\s*[,;:/&–—-]?\s*")


class LabelledSpan(NamedTuple):
    """``text[start:end]`` is sensitive, of the kind ``label``."""

    start: int
    end: int
    label: str


class Rendered(NamedTuple):
    """A written form: mask i is ``text[starts[i]:ends[i]]`` and hides the raw span ``masks[i]``."""

    text: str
    starts: tuple[int, ...]
    ends: tuple[int, ...]
    masks: tuple[LabelledSpan, ...]


def escaped(text: str, *, placeholders: bool = False) -> str:
    """Raw text that cannot be taken for masked text, character for character as long as before.

    "<MASK>" becomes "(MASK)"; with ``placeholders``, so does every name in capitals between angle brackets.
    """
    if "<" not in text:
        return text
    if placeholders:
        return _SPELT_PLACEHOLDER.sub(r"(\1)", text)
    return text.replace(MASK, f"({MASK[1:-1]})")


def count_spelt_masks(text: str, *, placeholders: bool = False) -> int:
    """How many places ``escaped`` would change."""
    if "<" not in text:
        return 0
    return len((_SPELT_PLACEHOLDER if placeholders else _SPELT_MASK).findall(text))


def united(text: str, spans: Iterable[LabelledSpan], *, same_label: bool = False) -> tuple[LabelledSpan, ...]:
    """Spans in order, where those that overlap, touch or have only blanks and a comma between them are one.

    A united span has the labels of all of them ("NAME+PHONE"). With ``same_label``, neighbours of different
    kinds stay apart; those that overlap are one thing that two detectors found, of the longer one's kind:
    half of a phone number is no secret of its own.
    """
    result: list[LabelledSpan] = []
    for span in sorted(set(spans)):
        # What has become longer, or of another kind, may be one with what stands before it.
        while result and (joined := _joined(text, result[-1], span, same_label=same_label)):
            result.pop()
            span = joined
        result.append(span)
    return tuple(result)


def _joined(text: str, last: LabelledSpan, span: LabelledSpan, *, same_label: bool) -> LabelledSpan | None:
    """Both as one, or nothing where they stay apart; ``span`` does not begin before ``last``."""
    overlap = span.start < last.end
    if same_label and last.label != span.label:
        if not overlap:
            return None
        label = span.label if span.end - span.start > last.end - last.start else last.label
    else:
        if not overlap and _BETWEEN.fullmatch(text, last.end, span.start) is None:
            return None
        label = _both(last.label, span.label)
    return LabelledSpan(last.start, max(last.end, span.end), label)


def _both(first: str, second: str) -> str:
    return first if second in first.split("+") else f"{first}+{second}"


def rendered(text: str, spans: Sequence[LabelledSpan], *, placeholders: bool = False) -> Rendered:
    """The written form of raw text with ``spans`` masked: by ``<MASK>``, or by each span's kind."""
    masks = united(text, spans, same_label=placeholders)
    pieces: list[str] = []
    starts: list[int] = []
    ends: list[int] = []
    written = position = 0
    for span in masks:
        mask = placeholder(span.label) if placeholders else MASK
        pieces += (text[position : span.start], mask)
        starts.append(written + span.start - position)
        written = starts[-1] + len(mask)
        ends.append(written)
        position = span.end
    pieces.append(text[position:])
    return Rendered("".join(pieces), tuple(starts), tuple(ends), masks)


def placeholder(label: str) -> str:
    """The mask that tells the kind of what it hides."""
    return f"<{re.sub('[^A-Z0-9_+]', '_', label.upper())}>"


def raw_spans(form: Rendered, start: int, end: int) -> list[tuple[int, int]]:
    """The raw places of what ``form.text[start:end]`` shows; what lies in masks is left out."""
    spans = []
    # From the last mask that begins before the place on: a text may have hundreds of masks.
    for number in range(max(0, bisect_right(form.starts, start) - 1), len(form.masks) + 1):
        # The stretch before mask ``number``, or after the last one.
        begin = form.ends[number - 1] if number else 0
        stop = form.starts[number] if number < len(form.masks) else len(form.text)
        if begin >= end:
            break
        low, high = max(start, begin), min(end, stop)
        if low < high:
            shift = form.masks[number - 1].end - begin if number else 0
            spans.append((low + shift, high + shift))
    return spans
