"""What screening writes: one line for each data point, in the order of the corpus.

A line keeps where the point lies in its document and which raw characters each mask hides, so that every
position maps back; the hidden text itself is nowhere in it. The file is a corpus of its own: any command
reads it with ``--user user --text text``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tacit.corpus.screening.masks import LabelledSpan
from tacit.corpus.screening.scores import MASK
from tacit.errors import CorpusError

DUPLICATE = "DUPLICATE"
"""The label, in the list of masks, of the one that stands for a repeated point; its text is ``<MASK>``."""

_ENCODER = json.JSONEncoder(ensure_ascii=False)
_TYPES: dict[str, type] = {
    "user": str,
    "document": int,
    "point": int,
    "start": int,
    "end": int,
    "text": str,
    "private": bool,
    "duplicate": bool,
    "settled": bool,
    "masked": list,
}


@dataclass(frozen=True, slots=True)
class ScreenedPoint:
    """One data point after screening.

    ``text`` is what training may see; ``document[start:end]`` is what it was. ``masked`` are the spans of the
    document that its masks hide, one for each mask, in order. ``private`` points are trained on with noise.
    """

    user: str
    document: int
    point: int
    start: int
    end: int
    text: str
    private: bool
    duplicate: bool
    settled: bool
    masked: tuple[LabelledSpan, ...]

    @property
    def bare(self) -> bool:
        """Whether nothing is left but the mask: such a point trains nothing, and still counts."""
        return self.text == MASK

    def to_line(self) -> bytes:
        """The point as a line of JSON."""
        return _ENCODER.encode({name: getattr(self, name) for name in _TYPES}).encode() + b"\n"


def read_screened(path: Path) -> Iterator[ScreenedPoint]:
    """The points of a screened corpus, in order."""
    remedy = "give a file that 'tacit corpus screen' wrote"
    try:
        with path.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                try:
                    yield _point(json.loads(line))
                except (ValueError, KeyError, TypeError, RecursionError):
                    raise CorpusError(
                        f"{path}, line {number}: is not a screened data point; {remedy}."
                    ) from None
    except OSError as problem:
        raise CorpusError(f"{path}: cannot be read ({problem.strerror}); {remedy}.") from None


def _point(content: dict[str, Any]) -> ScreenedPoint:
    fields = {name: content[name] for name in _TYPES}
    for name, value in fields.items():
        if type(value) is not _TYPES[name]:
            raise TypeError(name)
    fields["masked"] = tuple(
        LabelledSpan(int(start), int(end), str(kind)) for start, end, kind in fields["masked"]
    )
    return ScreenedPoint(**fields)
