"""What screening did, in numbers. They are functions of private text, so the report is its owner's alone."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from tacit.corpus.screening.screened_points import ScreenedPoint


@dataclass
class ScreeningCounts:
    """Counts over the points of one screening.

    ``private`` is |D_pri| and ``public`` |D_pub|. ``bare`` points are private ones of which only the mask is
    left: they train nothing but make |D_pri| larger, which flatters eps, so that it is to be shown with and
    without them. ``unsettled`` points count as missed. ``cut_spans`` are spans of the corpus that a boundary
    between points cuts in two: choose boundaries that cut none.
    """

    documents: int = 0
    points: int = 0
    characters: int = 0
    masked_characters: int = 0
    private: int = 0
    public: int = 0
    bare: int = 0
    duplicates: int = 0
    redacted: int = 0
    unsettled: int = 0
    masks: int = 0
    labels: Counter[str] = field(default_factory=Counter)
    rounds: Counter[int] = field(default_factory=Counter)
    escaped: int = 0
    cut_spans: int = 0

    def add(self, point: ScreenedPoint, rounds: int) -> None:
        """Count one point."""
        self.points += 1
        self.characters += point.end - point.start
        self.masked_characters += sum(span.end - span.start for span in point.masked)
        self.private += point.private
        self.public += not point.private
        self.bare += point.bare
        self.duplicates += point.duplicate
        self.unsettled += not point.settled
        if not point.duplicate:
            self.rounds[rounds] += 1
            self.redacted += bool(point.masked)
            self.masks += len(point.masked)
            for span in point.masked:
                self.labels.update(span.label.split("+"))

    @property
    def private_without_bare(self) -> int:
        """|D_pri| without the points of which only the mask is left."""
        return self.private - self.bare

    def to_json(self) -> dict[str, Any]:
        """JSON form, for the report."""
        content = {name: getattr(self, name) for name in self.__dataclass_fields__}
        content["private_without_bare"] = self.private_without_bare
        content["labels"] = dict(self.labels.most_common())
        content["rounds"] = {str(number): self.rounds[number] for number in sorted(self.rounds)}
        return content

    def notes(
        self, *, placeholders: bool, near: bool, bloom: bool, repeats: bool, everything_private: bool
    ) -> list[str]:
        """What an operator should know before training on the result."""
        notes = []
        if not self.private:
            notes.append("D_pri is empty: nothing will be trained on with noise.")
        if not self.public:
            why = " because the policy has no pi_c" if everything_private else ""
            notes.append(f"D_pub is empty: every data point is private{why}.")
        if self.bare:
            notes.append(f"{self.bare} of {self.private} private points are bare masks: they train nothing.")
        if self.unsettled:
            notes.append(
                f"{self.unsettled} points did not settle: masking a secret changes what is found beside it, "
                "or one point has too many secrets to tell. They are private and count as missed."
            )
        if self.cut_spans:
            notes.append(
                f"{self.cut_spans} spans of the corpus lie across a boundary of data points; use larger ones."
            )
        if placeholders:
            notes.append("Placeholders tell the kind of a secret: outside the proof of CRT.")
        if near:
            notes.append("Near-duplicates are merged by similarity: outside the proof of CRT.")
        if bloom:
            notes.append("A Bloom filter's false repeats depend on other points: outside the proof of CRT.")
        if repeats:
            notes.append("Repeated sentences were left as they are: outside the proof of CRT.")
        return notes
