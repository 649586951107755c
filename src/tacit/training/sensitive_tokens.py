"""Documents as tokens with a mark on those that a screening would have masked: for selective DP-SGD.

What the screening did not look at it did not mark either. So its data points must cover every document, and
show the document's own text wherever they mask nothing: a screening of other text, or of some of it, is
refused.

The text is encoded stretch by stretch, sensitive ones apart from others, so that every token is wholly one
or the other. A document stays one example; it is cut into pieces as everywhere, and each piece starts
afresh.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tacit.corpus import UserCorpus
from tacit.corpus.screening import LabelledSpan, ScreenedPoint, read_screened
from tacit.corpus.screening.binding import required_report
from tacit.corpus.screening.masks import escaped, rendered
from tacit.errors import CorpusError
from tacit.models.tokenizer import PublicTokenizer
from tacit.training.encoding import IntArray, piece_sizes

BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class MarkedPiece:
    """Tokens, and which of them are sensitive."""

    tokens: IntArray
    sensitive: BoolArray


@dataclass(frozen=True)
class MarkedDocuments:
    """The pieces of each document, in the order of the corpus."""

    pieces: Sequence[Sequence[MarkedPiece]]

    def __len__(self) -> int:
        """Number of documents."""
        return len(self.pieces)

    @property
    def fingerprint(self) -> str:
        """Tells two markings of one text apart."""
        digest = hashlib.sha256()
        for own in self.pieces:
            for piece in own:
                digest.update(len(piece.sensitive).to_bytes(8) + np.packbits(piece.sensitive).tobytes())
        return digest.hexdigest()

    @property
    def tokens(self) -> int:
        """Tokens in all."""
        return sum(len(piece.tokens) for own in self.pieces for piece in own)

    @property
    def sensitive_tokens(self) -> int:
        """Those that are sensitive."""
        return sum(int(piece.sensitive.sum()) for own in self.pieces for piece in own)


def sensitive_spans(
    screened: Path, corpus: UserCorpus, *, promised: bool = False
) -> list[list[tuple[int, int]]]:
    """Of each document of the whole corpus the characters that its screening masked, in order.

    Where a finite epsilon is ``promised``, a deduplicated screening is refused: whether a sentence is a
    repeat, and sensitive as a whole, depends on what a secret says in another document.
    """
    report = required_report(screened, "selective")
    if promised and report.get("dedup", {}).get("kind") != "off":
        raise CorpusError(
            f"{screened} was deduplicated, so that one document's secret decides what is sensitive in "
            "another, and selective.perfect=true could promise nothing; screen the corpus again with "
            "--dedup off."
        )
    placeholders = bool(report.get("policy", {}).get("placeholders"))
    points = read_screened(screened)
    point = next(points, None)
    spans: list[list[tuple[int, int]]] = []
    for number, document in enumerate(corpus.documents()):
        own: list[ScreenedPoint] = []
        while point is not None and point.document == number:
            own.append(point)
            point = next(points, None)
        text = escaped(document.text, placeholders=placeholders)
        if any(one.user != document.user for one in own) or not _covers(own, text, placeholders=placeholders):
            raise CorpusError(
                f"{screened} does not match document {number + 1} of the corpus: a screening of the same "
                "documents covers all of their text; screen this corpus again with tacit corpus screen."
            )
        spans.append([(span.start, span.end) for one in own for span in one.masked])
    if point is not None:
        raise CorpusError(
            f"{screened} has more documents than the corpus, which has {len(spans)}; screen this corpus "
            "again with tacit corpus screen."
        )
    return spans


def _covers(points: Sequence[ScreenedPoint], text: str, *, placeholders: bool) -> bool:
    """Whether points follow one another through the whole text, and show it where they mask nothing."""
    position = 0
    for point in points:
        if not position <= point.start <= point.end <= len(text) or text[position : point.start].strip():
            return False
        within = [
            LabelledSpan(span.start - point.start, span.end - point.start, span.label)
            for span in point.masked
        ]
        length = point.end - point.start
        if any(not 0 <= span.start < span.end <= length for span in within):
            return False
        if point.duplicate:  # is one mask, whatever it was, and sensitive as a whole
            shown = [(span.start, span.end) for span in within] == [(0, length)]
        else:
            form = rendered(text[point.start : point.end], within, placeholders=placeholders)
            shown = form.text == point.text and form.masks == tuple(within)
        if not shown:
            return False
        position = point.end
    return not text[position:].strip()


def mark(
    corpus: UserCorpus,
    spans: Sequence[Sequence[tuple[int, int]]],
    tokenizer: PublicTokenizer,
    *,
    block_size: int,
    end_token: int | None,
) -> MarkedDocuments:
    """Encode the documents of a selection of that corpus."""
    marked = []
    for document, row in zip(corpus.documents(), corpus.row_numbers(), strict=True):
        stretches = list(_stretches(document.text, spans[row]))
        encoded = tokenizer.encode([text for text, _ in stretches])
        ids = [token for tokens in encoded for token in tokens]
        bits = [bit for tokens, (_, bit) in zip(encoded, stretches, strict=True) for _ in tokens]
        if end_token is not None:
            ids, bits = [*ids, end_token], [*bits, False]
        marked.append(_cut(ids, bits, block_size))
    return MarkedDocuments(marked)


def _stretches(text: str, spans: Sequence[tuple[int, int]]) -> Iterator[tuple[str, bool]]:
    position = 0
    for start, end in spans:
        if start > position:
            yield text[position:start], False
        if end > max(start, position):
            yield text[max(start, position) : end], True
        position = max(position, end)
    if position < len(text):
        yield text[position:], False


def _cut(ids: Sequence[int], bits: Sequence[bool], block_size: int) -> list[MarkedPiece]:
    pieces, begin = [], 0
    for size in piece_sizes(len(ids), block_size):
        tokens = np.array(ids[begin : begin + size], dtype=np.int64)
        pieces.append(MarkedPiece(tokens, np.array(bits[begin : begin + size], dtype=np.bool_)))
        begin += size
    return pieces
