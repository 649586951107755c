"""Split, dedup, redact: in this order, and nothing moves.

The order is the paper's (CRT, Algorithm 1 and A.6), and each step of it carries the guarantee:

1. Documents are split into data points of whole sentences *first*, so that masking a secret cannot move any
   boundary: the corpus with a secret and the one without stay aligned, point by point.
2. A repeated point becomes the single mask; it is *replaced, never deleted*, within one part of a partition.
3. What pi labels becomes ``<MASK>``, the same mask.
4. A point is private if it has a mask, or if pi_c labels anything in it; without a pi_c every point is.

Points go through in batches, so memory does not grow with the corpus (exact dedup keeps a hash of each
point).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from tacit.corpus.screening.dedup import Deduplicator, DedupSettings
from tacit.corpus.screening.masks import LabelledSpan, count_spelt_masks, escaped, rendered
from tacit.corpus.screening.policy import Policy
from tacit.corpus.screening.redaction import Redaction, Redactor
from tacit.corpus.screening.report import ScreeningCounts
from tacit.corpus.screening.scores import MASK
from tacit.corpus.screening.screened_points import DUPLICATE, ScreenedPoint
from tacit.corpus.screening.sentences import SplitSettings, split_points

_BATCH_POINTS = 512
_BATCH_CHARACTERS = 1 << 18

PartOf = Callable[[str], int]


@dataclass(frozen=True)
class ScreenSettings:
    """Everything that decides what screening gives, but the corpus and who is in which part."""

    policy: Policy
    split: SplitSettings = field(default_factory=SplitSettings)
    dedup: DedupSettings = field(default_factory=DedupSettings)


@dataclass(frozen=True, slots=True)
class RawDocument:
    """A document to be screened; ``spans`` are the secrets that the corpus itself points out."""

    user: str
    text: str
    spans: Sequence[LabelledSpan] = ()


@dataclass(frozen=True, slots=True)
class RawPoint:
    """A data point before dedup and redaction.

    ``text`` spells no mask; ``known`` and ``known_conservative`` are what the corpus' own spans label in it.
    ``masked`` is empty, but in the neighbouring corpus, where a group of secrets is masked from the
    beginning.
    """

    user: str
    part: int
    document: int
    point: int
    start: int
    text: str
    known: tuple[LabelledSpan, ...] = ()
    known_conservative: bool = False
    masked: tuple[LabelledSpan, ...] = ()


@dataclass
class Screening:
    """One pass over a corpus; ``counts`` grow with it.

    ``parts`` and ``part_of`` belong to a partition: nothing is deduplicated across its parts. ``key`` is
    that of the hashes; two screenings with one key find the same repeats.
    """

    settings: ScreenSettings
    part_of: PartOf | None = None
    parts: int = 1
    key: bytes | None = None
    verify: bool = True
    counts: ScreeningCounts = field(default_factory=ScreeningCounts)

    def __post_init__(self) -> None:
        self._dedup = Deduplicator(self.settings.dedup, parts=self.parts, key=self.key)
        self._redactor = Redactor(self.settings.policy, verify=self.verify)

    @property
    def dedup_key(self) -> bytes:
        """The key of the hashes, for a second screening that has to find the same repeats."""
        return self._dedup.key

    def screen(self, documents: Iterable[RawDocument]) -> Iterator[ScreenedPoint]:
        """The points of all documents, in order."""
        for batch in batches(self.points(documents)):
            yield from self.screen_points(batch)

    def points(self, documents: Iterable[RawDocument]) -> Iterator[RawPoint]:
        """The data points of documents, before anything is masked."""
        policy = self.settings.policy
        for number, document in enumerate(documents):
            self.counts.documents += 1
            self.counts.escaped += count_spelt_masks(document.text, placeholders=policy.placeholders)
            text = escaped(document.text, placeholders=policy.placeholders)
            part = 0 if self.part_of is None else self.part_of(document.user)
            redact: Sequence[LabelledSpan] = ()
            conservative: Sequence[LabelledSpan] = ()
            if policy.gold is not None:
                redact, conservative = policy.gold.labelled(document.text, document.spans, number)
            bounds = split_points(text, self.settings.split)
            for index, (start, end) in enumerate(bounds):
                known = _within(redact, start, end)
                yield RawPoint(
                    document.user,
                    part,
                    number,
                    index,
                    start,
                    text[start:end],
                    known,
                    bool(_within(conservative, start, end)),
                )
                self.counts.cut_spans += sum(span.start < end < span.end for span in document.spans)

    def screen_points(self, points: Sequence[RawPoint]) -> Iterator[ScreenedPoint]:
        """Dedup and redact the next points of the corpus."""
        repeats = self._repeats(points)
        fresh = [point for point, repeat in zip(points, repeats, strict=True) if not repeat]
        redactions = iter(
            self._redactor.redact(
                [point.text for point in fresh],
                [point.known for point in fresh],
                [point.masked for point in fresh],
            )
        )
        for point, repeat in zip(points, repeats, strict=True):
            redaction = None if repeat else next(redactions)
            screened = self._screened(point, redaction)
            self.counts.add(screened, 0 if redaction is None else redaction.rounds)
            yield screened

    def _repeats(self, points: Sequence[RawPoint]) -> list[bool]:
        repeats: list[bool] = []
        for part, run in groupby(points, key=lambda point: point.part):
            # With what was masked beforehand written as a mask: equal as the trainer would see them.
            repeats += self._dedup.repeats(
                [rendered(p.text, p.masked).text if p.masked else p.text for p in run], part
            )
        return repeats

    def _screened(self, point: RawPoint, redaction: Redaction | None) -> ScreenedPoint:
        end = point.start + len(point.text)
        if redaction is None:
            text, settled, private = MASK, True, True
            masked: tuple[LabelledSpan, ...] = (LabelledSpan(point.start, end, DUPLICATE),)
        else:
            form = self._redactor.form(redaction)
            text, settled = form.text, redaction.settled
            masked = tuple(
                LabelledSpan(point.start + span.start, point.start + span.end, span.label)
                for span in form.masks
            )
            everything = self.settings.policy.conservative is None
            private = bool(masked) or everything or redaction.conservative or point.known_conservative
        return ScreenedPoint(
            user=point.user,
            document=point.document,
            point=point.point,
            start=point.start,
            end=end,
            text=text,
            private=private,
            duplicate=redaction is None,
            settled=settled,
            masked=masked,
        )


def batches(points: Iterable[RawPoint]) -> Iterator[list[RawPoint]]:
    """Points in lists of bounded size."""
    batch: list[RawPoint] = []
    characters = 0
    for point in points:
        batch.append(point)
        characters += len(point.text)
        if len(batch) >= _BATCH_POINTS or characters >= _BATCH_CHARACTERS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


def _within(spans: Iterable[LabelledSpan], start: int, end: int) -> tuple[LabelledSpan, ...]:
    """The parts of a document's spans that lie in one point, counted from its beginning."""
    return tuple(
        LabelledSpan(max(span.start, start) - start, min(span.end, end) - start, span.label)
        for span in spans
        if span.start < end and span.end > start
    )
