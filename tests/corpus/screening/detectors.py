"""Detectors of which the tests know everything: word lists, and two that look at what is around a word."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from tacit.corpus.screening import (
    DedupSettings,
    Policy,
    RawDocument,
    ScoredToken,
    ScreenSettings,
    SplitSettings,
)


@dataclass(frozen=True)
class WordScores:
    """Gives each word of a list its score, wherever it stands."""

    scores: dict[str, float]
    name: str = "words"
    contextual: bool = False
    fingerprint: str = "words"
    read: list[str] = field(default_factory=list)

    def score(self, texts: Sequence[str]) -> list[list[ScoredToken]]:
        self.read.extend(texts)
        return [
            [
                ScoredToken(word.start(), word.end(), "WORD", self.scores[word.group()])
                for word in re.finditer(r"[\w']+", text)
                if word.group() in self.scores
            ]
            for text in texts
        ]


@dataclass(frozen=True)
class Expressions:
    """A detector given by expressions; what group 1 matches is labelled, whatever the context does to it."""

    expressions: tuple[str, ...]
    name: str = "expressions"
    contextual: bool = True
    fingerprint: str = "expressions"

    def score(self, texts: Sequence[str]) -> list[list[ScoredToken]]:
        return [
            [
                ScoredToken(*match.span(1), "FOUND", 0.9)
                for expression in self.expressions
                for match in re.finditer(expression, text)
            ]
            for text in texts
        ]


def words(*listed: str) -> WordScores:
    return WordScores(dict.fromkeys(listed, 1.0))


def settings(
    *scorers: object,
    conservative: float | None = 0.5,
    dedup: str = "exact",
    sentences: int = 1,
    **policy: object,
) -> ScreenSettings:
    made = Policy(scorers, redact=0.5, conservative=conservative, **policy)  # type: ignore[arg-type]
    return ScreenSettings(made, SplitSettings(sentences=sentences), DedupSettings(kind=dedup))  # type: ignore[arg-type]


def documents(*texts: str, users: Iterable[str] | None = None) -> list[RawDocument]:
    owners = list(users) if users is not None else [f"u{number}" for number in range(len(texts))]
    return [RawDocument(owner, text) for owner, text in zip(owners, texts, strict=True)]
