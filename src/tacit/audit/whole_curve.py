"""DP-SGD's whole trade-off curve against ranks, and which Gaussian mechanism would let secrets be ranked so.

The process of a DP-SGD Run (sampling rate, noise, steps) claims a whole curve of (epsilon, delta), of which
its guarantee tells one point. Ranks refute curves as they refute points, by the recursion of
:func:`tacit.audit.trade_offs.refutes`, and see more: at a delta of 1e-5 no number of canaries shows more than
some epsilon against a point, because a mechanism with such a delta may tell a secret in one case of 10^5. A
Gaussian hardly ever does.

Formal guarantee. If the process was as it is claimed, it is called contradicted with probability at most the
level at which its point is judged, *both verdicts together*: the curve holds the point, so that g^-1 of the
curve is never below that of the point, and ranks that refute the point at the same lists and the same error
refute the curve. One event of probability at most the level holds both. (Coins are held against the point
alone, at their own share of the error.)

Neighbours. Two values of a secret in n examples are those n examples replaced, at one step of the process's
replace-one curve for a group of n. A mask in between, as in confidential training, makes it two steps.

The Gaussian bound (Mahloujifar et al. 2024) is a number: the largest mu that ranks and coins refute. DP-SGD
is not Gaussian where examples are sampled, and the mu that it tends to is no bound on it: this describes, and
contradicts nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tacit.audit.bounds import LIST_SIZES, EpsilonLowerBound
from tacit.audit.claimed import JudgedClaim
from tacit.audit.gaussian import gaussian_one_run_bound
from tacit.audit.record import ClaimRecord
from tacit.audit.thresholds import CoinScores
from tacit.audit.trade_offs import (
    Inverse,
    approximate_inverse,
    both,
    curve_inverse,
    iterated,
    least_error,
)
from tacit.audit.verdicts import Judgement, Verdict
from tacit.corpus.canaries import CanaryManifest
from tacit.privacy import DpSgdProcess, dpsgd_curve, gaussian_dp_mu
from tacit.statistics import FloatArray

_METHOD: Final = "f-DP (Mahloujifar et al. 2024) against the process's whole curve of (epsilon, delta)"


@dataclass(frozen=True)
class WholeCurve:
    """The trade-off curve between two values of a secret, and the process that claims it.

    inverse  g^-1 of the curve
    """

    process: DpSgdProcess
    inverse: Inverse

    @classmethod
    def of(cls, process: DpSgdProcess, judged: JudgedClaim) -> WholeCurve | None:
        """The curve behind a claim; None where its point says nothing about canaries."""
        claim = judged.claim
        if claim.epsilon is None or claim.delta is None:
            return None
        found = dpsgd_curve(process, "replace-one", group=judged.examples)
        steps = 2 if judged.neighbours == "mask" else 1
        whole = iterated(curve_inverse(found.epsilons, found.deltas), steps)
        # Rounding may put the table below the point, whose verdict would then need an error of its own.
        point = iterated(approximate_inverse(claim.epsilon, claim.delta), 2 * judged.insertions)
        return cls(process, both(whole, point))

    def p_value(
        self, ranks: Sequence[int], candidates: int, *, list_sizes: Sequence[int] = LIST_SIZES
    ) -> float:
        """At most how likely such ranks are if the claim holds; corrected over the lists."""
        sizes = [size for size in list_sizes if size < candidates]
        found = [
            least_error(
                self.inverse,
                correct=sum(rank <= size for rank in ranks),
                guesses=len(ranks),
                canaries=len(ranks),
                alphabet=candidates,
                list_size=size,
            )
            for size in sizes
        ]
        return min(1.0, len(sizes) * min(found))


def gaussian_bound(
    ranks: Sequence[int],
    candidates: int,
    judged: JudgedClaim,
    *,
    delta: float,
    confidence: float,
    list_sizes: Sequence[int] = LIST_SIZES,
) -> EpsilonLowerBound:
    """The largest mu that ranks refute, corrected over the lists."""
    sizes = [size for size in list_sizes if size < candidates]
    bounds = [
        gaussian_one_run_bound(
            correct=sum(rank <= size for rank in ranks),
            guesses=len(ranks),
            canaries=len(ranks),
            alphabet=candidates,
            list_size=size,
            delta=delta,
            confidence=1 - (1 - confidence) / len(sizes),
            neighbours=judged.neighbours,
            insertions=judged.insertions,
        )
        for size in sizes
    ]
    return max(bounds, key=lambda one: one.epsilon)


def gaussian_coin_bound(
    manifest: CanaryManifest, scores: FloatArray, *, delta: float, confidence: float, seed: int
) -> EpsilonLowerBound:
    """The largest mu that guesses of all coins refute; that all are guessed was fixed beforehand."""
    coins = CoinScores.of(scores, [canary.inserted for canary in manifest.canaries])
    return gaussian_one_run_bound(
        correct=int(coins.right_by_confidence(seed).sum()),
        guesses=len(coins),
        canaries=len(coins),
        delta=delta,
        confidence=confidence,
        neighbours="add/remove",
    )


@dataclass(frozen=True)
class CurveFinding:
    """What ranks show against a whole curve.

    p_value    corrected over the lists; at most ``level`` contradicts
    perfect    the same had every secret been the first of its candidates
    control    the same in a model without protection; None where there is none
    gaussian   the largest mu that the canaries refute, for Gaussian mechanisms alone
    """

    curve: WholeCurve
    p_value: float
    perfect: float
    control: float | None
    gaussian: EpsilonLowerBound
    level: float

    def claim(self, point: Judgement) -> ClaimRecord:
        """The claim of the whole curve beside that of its point, which it holds."""
        process = self.curve.process
        verdict, reason = self._judged(point)
        return ClaimRecord(
            claim=(
                f"DP-SGD as accounted, all of its curve: sampling rate {process.sampling_rate:.4g}, noise "
                f"multiplier {process.noise_multiplier:.4g}, {process.steps:,} steps "
                f"(unit: {point.claim.unit})"
            ),
            verdict=verdict,
            reason=f"{reason} {self._about_mu()}",
            claimed_epsilon=None,
            measured_epsilon=None,
            detectable_epsilon=None,
            delta=None,
            confidence=1 - self.level,
            method=_METHOD,
            p_claim=self.p_value,
            gaussian_mu=self.gaussian.mu,
            gaussian_limit=_finite(gaussian_dp_mu(process).mu),
        )

    def _judged(self, point: Judgement) -> tuple[Verdict, str]:
        shown = (
            "If DP-SGD's whole curve is as accounted, secrets rank so well with a probability of at most "
            f"{_p(self.p_value)}"
        )
        if self.p_value <= self.level:
            return "contradicted", f"{shown}; {self.level:.3g} contradicts."
        if point.verdict == "contradicted":
            return "contradicted", f"{shown}. It holds more than the claim that is contradicted above."
        best = f"had every one been the first of its candidates, {_p(self.perfect)}"
        if self.perfect > self.level:
            return "inconclusive", f"{shown}; {best}. This audit could not have told."
        without = "" if self.control is None else f"; where nothing protects, {_p(self.control)}"
        return point.verdict, f"{shown}; {best}{without}. It is judged as the claim above, which it holds."

    def _about_mu(self) -> str:
        limit = gaussian_dp_mu(self.curve.process).mu
        found = self.gaussian
        refuted = "no mu is refuted"
        if found.mu:
            below = f"epsilon below {found.epsilon:.3g} at delta {found.delta:g}"
            refuted = f"mu below {found.mu:.3g} is refuted ({below})"
        return (
            f"Of Gaussian mechanisms {refuted}; many steps of this process tend to mu = {limit:.3g}, which "
            "is no bound."
        )


def _p(value: float) -> str:
    return "1e-12" if value <= 4e-12 else f"{value:.2g}"


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
