"""A lower bound within the Gaussian family: which Gaussian mechanism would let an attacker do so well.

Many mechanisms that add Gaussian noise are close to mu-Gaussian DP, and against that whole curve one run
shows more than against one (epsilon, delta). But a mechanism may be (epsilon, delta)-DP without being
Gaussian. So the result is of the family ``gaussian``: it contradicts a claim of Gaussian DP, and is a
description otherwise.
"""

from __future__ import annotations

from tacit.audit.bounds import (
    EpsilonLowerBound,
    Neighbours,
    check_guesses,
    check_insertions,
    check_levels,
    last_refuted,
)
from tacit.audit.trade_offs import gaussian_inverse, refutes
from tacit.privacy.gaussian import gaussian_epsilon


def gaussian_one_run_bound(
    *,
    correct: int,
    guesses: int,
    canaries: int,
    alphabet: int = 2,
    list_size: int = 1,
    delta: float = 1e-5,
    confidence: float = 0.95,
    neighbours: Neighbours | None = None,
    insertions: int = 1,
) -> EpsilonLowerBound:
    """The largest mu that the guesses refute, and its epsilon at ``delta``.

    ``alphabet`` = 2 is the coin of one canary (in or out, or which of two). With more, a guess is a list of
    ``list_size`` values of a secret that is uniform over the alphabet; two values are then one step apart
    under ``replace`` and two otherwise. Steps of a Gaussian add up: n steps of mu are one of n mu.
    ``neighbours`` is ``add/remove`` for a coin and ``replace`` for a secret, if not given.
    """
    check_levels(delta, confidence)
    check_guesses(correct, guesses, canaries)
    check_insertions(insertions)
    neighbours = neighbours or ("add/remove" if alphabet == 2 else "replace")
    steps = insertions * (2 if alphabet > 2 and neighbours != "replace" else 1)

    def refuted(mu: float) -> bool:
        return refutes(
            gaussian_inverse(mu),
            correct=correct,
            guesses=guesses,
            canaries=canaries,
            alphabet=alphabet,
            list_size=list_size,
            error=1 - confidence,
        )

    mu = last_refuted(refuted, highest=64.0, width=1e-7) / steps
    method = (
        f"one run, Gaussian DP (Mahloujifar et al. 2024): {correct} of {guesses} guesses right, "
        f"{canaries} canaries, {alphabet:,} values"
    )
    epsilon = gaussian_epsilon(mu, delta)
    return EpsilonLowerBound(epsilon, delta, confidence, method, neighbours, family="gaussian", mu=mu)
