"""What tab completion gets of secrets that a model never saw.

A model that is independent of a secret has, behind the secret's prefix, one greedy completion; that this is
the secret has probability at most 1/K, K being the number of equally likely secrets (a tie at the top aside).
Canaries with prefixes of their own are hit independently of each other: their number is at most binomial
with n and 1/K. Canaries that share a prefix never coincide, so that one completion holds one of them at most:
that any is hit has probability at most n/K. Where words of a list begin with others, one completion holds up
to ``nested`` secrets that begin each other, and both hold with nested/K in the place of 1/K. Both are exact;
the public model is no yardstick, because one hit of any number would beat its none.
"""

from __future__ import annotations

from scipy import stats

from tacit.attacks.tab import TabResult
from tacit.audit.attempts import Attempt
from tacit.corpus.canaries import CanaryManifest


def completion_attempt(
    result: TabResult, manifest: CanaryManifest, *, confidence: float, nested: int = 1
) -> Attempt:
    """Whether more inserted canaries are completed than chance explains."""
    distinct = manifest.plan.prefix == "distinct"
    hits, canaries = result.hits, len(result.canaries)
    apart = manifest.candidates / nested
    p_value = completion_p_value(hits, canaries, candidates=apart, distinct=distinct)
    return Attempt("tab completion of canaries", result.accuracy(confidence=confidence), 1 / apart, p_value)


def completion_p_value(hits: int, canaries: int, *, candidates: float, distinct: bool) -> float:
    """At most how likely so many or more are completed by a model that never saw them.

    ``candidates`` are K, or K / nested.
    """
    if hits == 0:
        return 1.0
    if distinct:
        return float(stats.binom.sf(hits - 1, canaries, 1 / candidates))
    return min(1.0, canaries / candidates)
