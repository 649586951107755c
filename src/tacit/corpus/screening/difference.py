"""How many data points a group of secrets changes: u, counted by screening twice.

D' is the corpus with every occurrence of every secret of the group masked. It has the data points of D,
since splitting comes before anything else, and the two screened corpora are compared point by point. u is
what group confidentiality multiplies eps by. It is not the number of missed secrets: dedup merges sentences
that masking has made equal, so that two caught secrets in one template differ in one point, and one missed
of seven may differ in all seven.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from tacit.corpus.screening.masks import LabelledSpan
from tacit.corpus.screening.phrases import PhraseIndex
from tacit.corpus.screening.screened_points import ScreenedPoint
from tacit.corpus.screening.screening import PartOf, RawDocument, RawPoint, Screening, ScreenSettings, batches

_SECRET = "SECRET"  # noqa: S105 - a label


@dataclass
class GroupDifference:
    """What a group of secrets changes.

    ``points`` is u. ``public`` of them are public in at least one of the two corpora: what differs there is
    trained on without noise, and no eps covers it. ``occurrences`` counts the data points in which a secret
    of the group was masked beforehand.

    ``most_points_of_one`` is the largest number of data points that hold one and the same secret, repeated
    sentences included. Masking that secret alone changes no more: what a point without it becomes depends on
    raw text that is the same, since no raw text equals a masked one. (With exact dedup; the others are
    outside the proof.)
    """

    secrets: int
    occurrences: int = 0
    points: int = 0
    public: int = 0
    most_points_of_one: int = 0

    def to_json(self) -> dict[str, int]:
        """JSON form, for reports."""
        return {
            "secrets": self.secrets,
            "occurrences": self.occurrences,
            "differing_points": self.points,
            "differing_public_points": self.public,
            "most_points_of_one": self.most_points_of_one,
        }


class ScreeningTwice:
    """Screens a corpus and its neighbour side by side; gives the corpus' own points, and counts."""

    def __init__(self, screening: Screening, secrets: Collection[str]) -> None:
        self._screening = screening
        self._neighbour = Screening(
            screening.settings,
            part_of=screening.part_of,
            parts=screening.parts,
            key=screening.dedup_key,
            verify=False,
        )
        self._index = PhraseIndex(secrets)
        self._unseen = set(self._index.phrases)
        self._points_of: Counter[str] = Counter()
        self.difference = GroupDifference(len(self._index.phrases))

    def notes(self) -> list[str]:
        """How many secrets were nowhere in the documents so far or in many points, and never which."""
        notes = []
        if self._unseen:
            nowhere = "occurs nowhere as it is" if len(self._unseen) == 1 else "occur nowhere as they are"
            notes.append(
                f"{len(self._unseen):,} of {self.difference.secrets:,} secrets {nowhere} spelt; what is not "
                "found is not counted in u."
            )
        repeated = sum(count > 1 for count in self._points_of.values())
        if repeated:
            notes.append(
                f"{repeated:,} of {self.difference.secrets:,} secrets stand in several data points, in up to "
                f"{self.difference.most_points_of_one:,} data points; what is promised of each secret is for "
                "one in confidentiality.secret_points of them."
            )
        return notes

    def screen(self, documents: Iterable[RawDocument]) -> Iterator[ScreenedPoint]:
        """The points of all documents, in order, as ``Screening.screen`` gives them."""
        for batch in batches(self._with_masks(documents)):
            own = [replace(point, masked=()) for point in batch]
            pairs = zip(
                batch, self._screening.screen_points(own), self._neighbour.screen_points(batch), strict=True
            )
            for raw, point, other in pairs:
                self.difference.occurrences += bool(raw.masked)
                if (point.text, point.private) != (other.text, other.private):
                    self.difference.points += 1
                    self.difference.public += not (point.private and other.private)
                yield point

    def _with_masks(self, documents: Iterable[RawDocument]) -> Iterator[RawPoint]:
        """The data points of D, each with what D' masks of it."""
        seen: list[RawDocument] = []

        def remembered() -> Iterator[RawDocument]:
            for document in documents:
                seen[:] = [document]
                yield document

        found: list[tuple[int, int]] = []
        current = None
        for point in self._screening.points(remembered()):
            if seen[0] is not current:
                # In the document, not in the point: an occurrence that a boundary cuts is masked on both
                # sides.
                current = seen[0]
                found = list(self._index.find(current.text, every=True))
                self._unseen.difference_update(current.text[start:end] for start, end in found)
            end = point.start + len(point.text)
            self._count_points_of({current.text[a:b] for a, b in found if a < end and b > point.start})
            yield replace(point, masked=_inside(found, point.start, end))

    def _count_points_of(self, secrets: Collection[str]) -> None:
        self._points_of.update(secrets)
        for secret in secrets:
            most = max(self.difference.most_points_of_one, self._points_of[secret])
            self.difference.most_points_of_one = most


def _inside(found: Sequence[tuple[int, int]], start: int, end: int) -> tuple[LabelledSpan, ...]:
    return tuple(
        LabelledSpan(max(low, start) - start, min(high, end) - start, _SECRET)
        for low, high in found
        if low < end and high > start
    )


def group_difference(
    documents: Iterable[RawDocument],
    secrets: Collection[str],
    settings: ScreenSettings,
    *,
    part_of: PartOf | None = None,
    parts: int = 1,
) -> GroupDifference:
    """What masking every occurrence of every secret beforehand would change in the screened corpus."""
    twice = ScreeningTwice(Screening(settings, part_of=part_of, parts=parts), secrets)
    for _ in twice.screen(documents):
        pass
    return twice.difference


def differing_points(
    documents: Iterable[RawDocument], secrets: Collection[str], settings: ScreenSettings
) -> int:
    """u: the number of data points that differ between screen(D) and screen(D')."""
    return group_difference(documents, secrets, settings).points
