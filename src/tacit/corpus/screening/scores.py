"""What every detector of sensitive text gives: tokens with a score, and nothing else.

A scorer reads texts and says of each token how sure it is that the token is sensitive. It knows no
thresholds: pi and pi_c are two thresholds on the same score, and they belong to the policy. Characters that
no token covers have the score 0.

Scorers must be deterministic, and the scores of a text must not depend on the texts beside it in a batch:
otherwise screening a corpus twice would not tell what a secret changes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

MASK = "<MASK>"
"""What stands for a secret and for a repeated data point alike; raw text that spells it is changed first."""


class ScoredToken(NamedTuple):
    """``text[start:end]`` is sensitive, of the kind ``label``, with a score from 0 to 1."""

    start: int
    end: int
    label: str
    score: float


@runtime_checkable
class Scorer(Protocol):
    """Gives tokens their scores.

    ``name`` is shown in reports. ``contextual`` says whether a token's score may depend on the text around
    it: then masking one secret can change what is found elsewhere, and redaction runs the scorer again. A
    scorer meets ``<MASK>`` in such texts; what it says about those six characters is ignored.
    """

    @property
    def name(self) -> str:
        """A short name for reports, such as ``embedded``."""
        ...

    @property
    def contextual(self) -> bool:
        """Whether what is around a token can change its score."""
        ...

    @property
    def fingerprint(self) -> str:
        """Tells two scorers apart that could score differently: settings, a version, a hash of weights."""
        ...

    def score(self, texts: Sequence[str]) -> list[list[ScoredToken]]:
        """For each text its tokens, in any order; those with the score 0 may be left out."""
        ...


def checked_tokens(scorer: Scorer, text: str, tokens: Sequence[ScoredToken]) -> Sequence[ScoredToken]:
    """The tokens, where they lie in the text and their scores are scores; anything else is a scorer's bug."""
    for token in tokens:
        if not (0 <= token.start < token.end <= len(text)) or not _is_score(token.score):
            raise ValueError(
                f"The scorer '{scorer.name}' gave ({token.start}, {token.end}) with score={token.score} "
                f"for a text of {len(text)} characters; expected a span within it and a score in [0, 1]."
            )
    return tokens


def _is_score(score: float) -> bool:
    return not math.isnan(score) and 0 <= score <= 1
