"""What tab completion gets of secrets that a model never saw.

A model that is independent of a secret has, behind the secret's prefix, one greedy completion; that this is
the secret has probability at most 1/K, K being the number of equally likely secrets (a tie at the top aside).
Canaries with prefixes of their own are hit independently of each other: their number is at most binomial
with n and 1/K. Canaries that share a prefix never coincide, so that one completion holds one of them at most:
that any is hit has probability at most n/K. Both are exact; the public model is no yardstick, because one hit
of any number would beat its none.
"""

from __future__ import annotations

from tacit.attacks.tab import TabResult
from tacit.audit.verdicts import Leak
from tacit.corpus.canaries import CanaryManifest
from tacit.statistics import Estimate, clopper_pearson


def completion_leak(result: TabResult, manifest: CanaryManifest, *, confidence: float) -> Leak:
    """Whether more inserted canaries are completed than chance explains.

    A model that never saw them leaks by this test with probability at most 1 - confidence.
    """
    distinct = manifest.plan.prefix == "distinct"
    measured, chance = against_chance(
        result.hits,
        len(result.canaries),
        candidates=manifest.candidates,
        distinct=distinct,
        confidence=confidence,
    )
    which = "canaries" if distinct else "any canary of one prefix"
    return Leak(f"tab completion of {which}", measured, chance)


def against_chance(
    hits: int, canaries: int, *, candidates: int, distinct: bool, confidence: float
) -> tuple[Estimate, float]:
    """The share that is completed, with a lower end only, and what it is compared with.

    The lower end is above the chance if and only if so many hits have probability below 1 - confidence.
    """
    if distinct:
        return clopper_pearson(hits, canaries, confidence=confidence, side="lower"), 1 / candidates
    any_hit = clopper_pearson(min(1, hits), 1, confidence=confidence, side="lower")
    return any_hit, min(1.0, canaries / candidates)
