"""From a tagger's tags to one score: how sensitive a token is.

A tagger gives each token a tag, "O" for plain text, with a probability. Two rules make one score of that:

* ``probability``: one minus the probability of plain text. pi and pi_c are thresholds on it.
* ``paper``: what CRT did (appendix A.4): pi takes every token with a tag whose score is at least 0.3; pi_c
  takes every token with any tag, and plain text scored under 0.9. Here too pi and pi_c are thresholds on one
  score, ``PAPER_REDACT`` and ``PAPER_CONSERVATIVE``: a tag has its own score, but never less than pi_c's
  threshold; plain text has one minus its score, but stays under pi's threshold, and under pi_c's from 0.9
  on.
"""

from __future__ import annotations

import math
from typing import Literal

Rule = Literal["probability", "paper"]

PAPER_REDACT = 0.3
PAPER_CONSERVATIVE = 0.1
_PAPER_PLAIN = 0.9
OUTSIDE = "O"


def paper_score(tag: str, score: float) -> float:
    """The score by which the paper's two policies are two thresholds; ``score`` is that of the tag given."""
    if tag != OUTSIDE:
        return max(score, PAPER_CONSERVATIVE)
    if score >= _PAPER_PLAIN:
        return 0.0
    return min(max(1 - score, PAPER_CONSERVATIVE), math.nextafter(PAPER_REDACT, 0))


def kind_of(tag: str) -> str:
    """A tag without its place in an entity: B-PER, I-PER and S-PER are all PER."""
    prefix, dash, kind = tag.partition("-")
    return kind if dash and prefix in ("B", "I", "E", "S", "L", "U") else tag
