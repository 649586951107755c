"""A corpus that a screening wrote: known by its layout, and which of its data points are private.

Wherever a screened corpus is read it must be, byte for byte, what its report is about, as long as there is a
report; what promises something about secrets refuses one without. The rule that all of confidential training
rests on (paper A.6.5) is checked again here, where it matters: a data point with a mask is private.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tacit.corpus.screening import MASK, read_screened
from tacit.corpus.screening.binding import report_of, report_path
from tacit.errors import CorpusError, Tampered
from tacit.recipes import CorpusSection

BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class PointFlags:
    """Of every data point in order: whether it is private, and whether nothing is left of it but the mask."""

    private: BoolArray
    bare: BoolArray

    @property
    def fingerprint(self) -> str:
        """Tells two divisions of one text into public and private apart."""
        return hashlib.sha256(np.packbits(self.private).tobytes() + len(self.private).to_bytes(8)).hexdigest()


def is_screened(section: CorpusSection) -> bool:
    """Whether a corpus is what a screening wrote: by the recipe's word, or by its first line."""
    if section.screened != "auto":
        return section.screened
    path = Path(section.path)
    jsonl = section.format == "jsonl" or (section.format == "auto" and path.name.lower().endswith(".jsonl"))
    if not jsonl or not path.is_file() or section.blocks is not None or section.messages is not None:
        return False
    if (section.user or "user", section.text or "text") != ("user", "text"):
        return False
    try:
        return next(read_screened(path), None) is not None
    except CorpusError:
        return False


def point_flags(path: Path) -> PointFlags:
    """Which points of a screened corpus are private, and which are bare: as many as its report says."""
    report = report_of(path)
    private, bare = [], []
    for number, point in enumerate(read_screened(path), 1):
        if (point.masked or MASK in point.text) and not point.private:
            raise CorpusError(
                f"{path}, line {number}: has a mask and is not private, which would tell what was masked; "
                "screen the corpus again."
            )
        private.append(point.private)
        bare.append(point.bare)
    found = {"points": len(private), "private": sum(private), "bare": sum(bare)}
    if report is not None and any(report["counts"].get(name) != count for name, count in found.items()):
        raise Tampered(
            f"{report_path(path)} counts other data points than {path.name} has; screen the corpus again."
        )
    return PointFlags(np.array(private, dtype=np.bool_), np.array(bare, dtype=np.bool_))
