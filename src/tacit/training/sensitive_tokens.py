"""Documents as tokens with a mark on those that a screening would have masked: for selective DP-SGD.

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
from tacit.corpus.screening import read_screened
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


def sensitive_spans(screened: Path, corpus: UserCorpus) -> list[list[tuple[int, int]]]:
    """Of each document of the whole corpus the characters that its screening masked, in order."""
    remedy = "screen this corpus again with tacit corpus screen"
    spans: list[list[tuple[int, int]]] = [[] for _ in range(len(corpus))]
    users = [corpus.users[code] for code in corpus.user_codes()]
    for point in read_screened(screened):
        if point.document >= len(spans) or users[point.document] != point.user:
            raise CorpusError(f"{screened} is not of the same documents as the corpus; {remedy}.")
        spans[point.document] += [(span.start, span.end) for span in point.masked]
    return [sorted(own) for own in spans]


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
        if end > len(text):
            raise CorpusError("A masked span lies beyond its document; screen this corpus again.")
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
