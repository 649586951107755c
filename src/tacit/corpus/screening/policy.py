"""What is sensitive: scorers united, with two thresholds on one score.

``redact`` is the paper's pi: what reaches it is masked. ``conservative`` is pi_c: a data point in which
anything reaches it is private, and trained on with noise. Where there is no pi_c, everything is private.
Since pi_c is the lower threshold on the same score, it labels whatever pi labels.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from tacit.corpus.screening.gold_spans import GoldSpans
from tacit.corpus.screening.scores import ScoredToken, Scorer, checked_tokens
from tacit.errors import RecipeError

MOST_ROUNDS = 100
_CACHED_TEXTS = 65_536
_CHEAP = ("patterns", "regex", "gazetteer")  # scorers that are faster than a look into the cache is worth


@dataclass(frozen=True)
class Policy:
    """Scorers, spans that come with the corpus, and the thresholds pi and pi_c.

    ``max_rounds`` bounds how often redaction runs the scorers again on what it has masked. ``placeholders``
    writes each secret's kind instead of ``<MASK>``, which is outside the paper's proof: a kind is
    information.
    """

    scorers: tuple[Scorer, ...]
    redact: float
    conservative: float | None = None
    gold: GoldSpans | None = None
    placeholders: bool = False
    max_rounds: int = 8
    _cache: OrderedDict[bytes, list[ScoredToken]] = field(
        default_factory=OrderedDict, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        if not self.scorers and self.gold is None:
            raise RecipeError("The policy has no scorer and no spans, so it would mask nothing; name one.")
        if not 0 < self.redact <= 1:
            raise RecipeError(
                f"Expected redact={self.redact} in (0, 1]; it is pi, the score from which on text is masked, "
                "e.g. 0.5."
            )
        if self.conservative is not None and not 0 < self.conservative <= self.redact:
            raise RecipeError(
                f"Expected conservative={self.conservative} in (0, redact={self.redact}]; it is pi_c, the "
                "score from which on a data point is private; leave it out to make everything private."
            )
        if not 1 <= self.max_rounds <= MOST_ROUNDS:
            raise RecipeError(f"Expected max_rounds={self.max_rounds} from 1 to {MOST_ROUNDS}, e.g. 8.")

    @property
    def contextual(self) -> bool:
        """Whether masking one thing can change what is found elsewhere in the sentence."""
        return any(scorer.contextual for scorer in self.scorers)

    @property
    def lowest(self) -> float:
        """The lower of the two thresholds: no token under it matters."""
        return self.redact if self.conservative is None else self.conservative

    @property
    def fingerprint(self) -> str:
        """SHA-256 over everything that decides what is masked and what is private."""
        parts = [scorer.fingerprint for scorer in self.scorers]
        parts += [] if self.gold is None else [self.gold.fingerprint]
        parts += [repr((self.redact, self.conservative, self.placeholders, self.max_rounds))]
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()

    def to_json(self) -> dict[str, object]:
        """What a report says about it."""
        return {
            "redact": self.redact,
            "conservative": self.conservative,
            "scorers": [scorer.fingerprint for scorer in self.scorers],
            "spans": None if self.gold is None else self.gold.fingerprint,
            "placeholders": self.placeholders,
            "max_rounds": self.max_rounds,
            "fingerprint": self.fingerprint,
        }

    def tokens(self, texts: Sequence[str], least: float | None = None) -> list[list[ScoredToken]]:
        """For each text the tokens of all scorers that reach the lower threshold, or ``least`` below that.

        Texts that were seen lately are not scored again.
        """
        if least is not None and least < self.lowest:  # for calibration, which asks once
            return _scored(self.scorers, texts, least)
        result = _scored(self._cheap, texts, self.lowest)
        if self._costly:
            for found, tokens in zip(result, self._remembered(texts), strict=True):
                found += tokens
        return result

    @cached_property
    def _cheap(self) -> list[Scorer]:
        return [scorer for scorer in self.scorers if scorer.name.startswith(_CHEAP)]

    @cached_property
    def _costly(self) -> list[Scorer]:
        return [scorer for scorer in self.scorers if not scorer.name.startswith(_CHEAP)]

    def _remembered(self, texts: Sequence[str]) -> list[list[ScoredToken]]:
        keys = [hashlib.blake2b(text.encode(), digest_size=16).digest() for text in texts]
        missing = {key: text for key, text in zip(keys, texts, strict=True) if key not in self._cache}
        fresh = dict(zip(missing, _scored(self._costly, list(missing.values()), self.lowest), strict=True))
        found = [fresh[key] if key in fresh else self._cache[key] for key in keys]
        self._cache.update(fresh)
        while len(self._cache) > _CACHED_TEXTS:
            self._cache.popitem(last=False)
        return found


def _scored(scorers: Sequence[Scorer], texts: Sequence[str], least: float) -> list[list[ScoredToken]]:
    result: list[list[ScoredToken]] = [[] for _ in texts]
    for scorer in scorers:
        given = scorer.score(texts)
        if len(given) != len(texts):
            raise ValueError(f"The scorer '{scorer.name}' gave {len(given)} lists for {len(texts)} texts.")
        for found, text, tokens in zip(result, texts, given, strict=True):
            found += [t for t in checked_tokens(scorer, text, tokens) if t.score >= least and t.score > 0]
    return result
