"""The scorer: texts in, tokens with scores out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from tacit.corpus.screening.scores import MASK, ScoredToken
from tacit.corpus.screening.tagger.features import shortened, word_rows
from tacit.corpus.screening.tagger.network import GAP, TOP, UNIT, Floats
from tacit.corpus.screening.tagger.tokens import LINE_BREAK, Tokens, split_tokens
from tacit.corpus.screening.tagger.weights import (
    EMBEDDED,
    FLAGS,
    LABELS,
    SCORE_RANGE,
    SCORE_UNIT,
    SHIFT,
    Weights,
    load_weights,
)

REDACT, CONSERVATIVE = 0.3, 0.02
"""Defaults for pi and pi_c; docs/tagger.md says how they were chosen."""

LOWEST = 0.001
"""Tokens that score less are left out."""

_CLOSED = [LABELS.index(label) for label in ("ADDRESS", "ORGANISATION")]
_KEPT_WORDS = 1 << 16
_ROWS_AT_ONCE = 1 << 16


class EmbeddedTagger:
    """Finds names, places, organisations, addresses, groups, dates, ages, titles and codes, offline.

    A token's score depends on the text it is in, at most ``REACH`` tokens to each side and the holes that are
    closed between them, and on nothing else: not on the batch, the machine or earlier texts
    (``network`` says why). Words are remembered for speed only. One object serves one thread.
    """

    name = "embedded"
    contextual = True

    def __init__(self, weights: Weights | None = None) -> None:
        self._weights = load_weights() if weights is None else weights
        self._numbers: dict[str, int] = {}
        self._vectors: Floats = np.zeros((1024, EMBEDDED + FLAGS), np.float32)

    @property
    def fingerprint(self) -> str:
        """The hash of the weights."""
        return f"embedded-{self._weights.fingerprint[:16]}"

    def score(self, texts: Sequence[str]) -> list[list[ScoredToken]]:
        """Return each text's tokens whose score is at least ``LOWEST``, in order."""
        found: list[list[ScoredToken]] = []
        for some in _portions([split_tokens(text) for text in texts]):
            found += self._score_tokens(some)
        return found

    def logits(self, text: str) -> Floats:
        """Return the logits of each token of one text: that it is sensitive, then of each label."""
        tokens = split_tokens(text)
        logits, _, _ = self._run([tokens])
        return logits[GAP : GAP + len(tokens.words)] * np.float32(2.0 ** -(UNIT + SHIFT))

    def _score_tokens(self, texts: Sequence[Tokens]) -> list[list[ScoredToken]]:
        logits, inside, starts = self._run(texts)
        places = np.rint(logits[:, 0] * np.float32(SCORE_UNIT * 2.0 ** -(UNIT + SHIFT)))
        places = np.clip(places, -SCORE_RANGE, SCORE_RANGE).astype(np.intp) + SCORE_RANGE
        labels = logits[:, 1:].argmax(axis=1)
        scores = close_holes(np.where(inside, self._weights.scores[places], 0.0), labels)
        return [
            list(
                _scored(
                    tokens,
                    scores[start : start + len(tokens.words)],
                    labels[start : start + len(tokens.words)],
                )
            )
            for start, tokens in zip(starts, texts, strict=True)
        ]

    def _run(self, texts: Sequence[Tokens]) -> tuple[Floats, NDArray[np.bool_], list[int]]:
        """Return logits of all rows, which rows are tokens, and where each text starts."""
        starts, rows = [], GAP
        for tokens in texts:
            starts.append(rows)
            rows += len(tokens.words) + GAP
        embedded = np.zeros((rows, EMBEDDED + FLAGS), np.float32)
        inside = np.zeros(rows, bool)
        for start, tokens in zip(starts, texts, strict=True):
            end = start + len(tokens.words)
            # The numbers first: a new word may move the vectors.
            numbers = [self._number(word) for word in tokens.words]
            embedded[start:end] = self._vectors[numbers]
            embedded[start:end, EMBEDDED] = TOP * np.array(tokens.glued(), np.float32)
            inside[start:end] = True
            if len(self._numbers) > _KEPT_WORDS:
                self._numbers.clear()
        return self._weights.network.logits(embedded, inside), inside, starts

    def _number(self, word: str) -> int:
        word = shortened(word)
        known = self._numbers.get(word)
        if known is None:
            known = self._numbers[word] = len(self._numbers)
            if known == len(self._vectors):
                self._vectors = np.concatenate((self._vectors, np.zeros_like(self._vectors)))
            self._vectors[known] = self.embed(word)
        return known

    def embed(self, word: str) -> Floats:
        """Return a word's vector: whole numbers, the flags last (the second says that there is a word)."""
        rows, table = word_rows(word, self._weights.lists), self._weights.table
        total = table[[rows.word, *rows.lists, *rows.shape]].sum(axis=0, dtype=np.int32).astype(np.float32)
        if rows.pieces:
            total += table[list(rows.pieces)].sum(axis=0, dtype=np.int32) / np.float32(len(rows.pieces))
        vector = np.zeros(EMBEDDED + FLAGS, np.float32)
        vector[:EMBEDDED] = np.clip(np.rint(total), -TOP, TOP)
        vector[EMBEDDED + 1] = TOP
        return vector


def close_holes(scores: NDArray[np.float64], labels: NDArray[np.intp]) -> NDArray[np.float64]:
    """Give a token between two of one address or one organisation the lower of their scores.

    Not between two names: who and where may be masked, "and" and "to" need not be.
    """
    closed = scores.copy()
    within = (labels[:-2] == labels[2:]) & np.isin(labels[2:], _CLOSED)
    closed[1:-1] = np.where(
        within, np.maximum(scores[1:-1], np.minimum(scores[:-2], scores[2:])), scores[1:-1]
    )
    return closed


def _scored(tokens: Tokens, scores: NDArray[np.float64], labels: NDArray[np.intp]) -> Iterator[ScoredToken]:
    for i in np.flatnonzero(scores >= LOWEST):
        if tokens.words[i] not in (MASK, LINE_BREAK):
            yield ScoredToken(tokens.starts[i], tokens.ends[i], LABELS[labels[i]], float(scores[i]))


def _portions(texts: Sequence[Tokens]) -> Iterator[list[Tokens]]:
    """Cut a batch so that memory stays bounded; scores do not depend on the cuts."""
    portion: list[Tokens] = []
    rows = 0
    for tokens in texts:
        portion.append(tokens)
        rows += len(tokens.words) + GAP
        if rows >= _ROWS_AT_ONCE:
            yield portion
            portion, rows = [], 0
    if portion:
        yield portion
