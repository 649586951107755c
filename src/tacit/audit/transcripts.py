"""The strongest attack on private answers, and what it says about the claim.

With the ensemble at hand the law of a transcript is explicit in the world with a part and in the world
without it. So the best test between the two is known (Neyman and Pearson): the log-likelihood ratio
``L = sum_t ln p_t(y_t) / q_t(y_t)``. Transcripts are simulated in both worlds, scored by L, and separated by
a threshold that a pilot chose: a lower bound on epsilon at delta. Beside it stands the divergence of the
claim's own order, exact or simulated (:mod:`tacit.audit.transcripts_divergence`).

What is compared. Certified and individual mixing claim (order, epsilon)-RDP for every corpus, so for this one
too; it is compared at its order, and as (epsilon, delta). SubMix claims as much for this corpus alone, with
both worlds cut at the real one's stop: the same comparison, and labelled instance-specific.

Error. A claim that is true is contradicted with probability at most 1 - confidence: half of it for the
threshold, half for the simulated divergence. An audit of several parts or prompts splits it further
(:func:`shared_confidence`).

Power. "Supported" means that twice the claim would have shown. Where the transcripts differ by less than half
of the claim, an accountant that charges half would not be found by this attack: inconclusive.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import numpy as np

from tacit.audit.bounds import EpsilonLowerBound, separation_bound
from tacit.audit.realised_loss import ABSOLUTE_TOLERANCE, MEANINGFUL_FACTOR, RELATIVE_TOLERANCE
from tacit.audit.transcripts_divergence import (
    MOST_ENUMERATED,
    Law,
    exact_divergence,
    simulate,
    simulated_divergence,
)
from tacit.audit.transcripts_worlds import Questions, TwoWorlds, check_halves_of
from tacit.audit.verdicts import Verdict
from tacit.errors import InputError
from tacit.mechanisms.choice import Mechanism
from tacit.privacy import rdp_to_dp
from tacit.privacy.conversions import check_delta
from tacit.progress import Progress, Silent
from tacit.statistics import Estimate, FloatArray, clopper_pearson

_THRESHOLDS: Final = 64  # that the pilot chooses among
_FEWEST: Final = 100


@dataclass(frozen=True, eq=False)
class TranscriptAudit:
    """What the likelihood-ratio attack found about one part: the operator's, like all of a part's losses.

    claimed      nats at ``order`` that transcripts may differ by, as the mechanism claims
    claimed_dp   the same as an epsilon at ``delta``
    divergence   what they do differ by at that order; exact, or simulated from below
    separation   the epsilon at ``delta`` that the separated transcripts show
    auc          how often a transcript with the part scores above one without it
    """

    part: int
    queries: int
    adaptive: bool
    neighbours: str
    instance_specific: bool
    order: float
    claimed: float
    delta: float
    claimed_dp: float
    divergence: Estimate
    separation: EpsilonLowerBound
    auc: Estimate
    transcripts: int
    scores_with: FloatArray = field(repr=False)
    scores_without: FloatArray = field(repr=False)

    @property
    def detectable(self) -> float:
        """By which factor an accountant would have to be wrong for its charges to be contradicted here."""
        return math.inf if self.divergence.low == 0 else max(1.0, self.claimed / self.divergence.low)

    @property
    def verdict(self) -> Verdict:
        """What this says about the claim."""
        room = 1 + RELATIVE_TOLERANCE
        if self.divergence.low > self.claimed * room + self.queries * ABSOLUTE_TOLERANCE:
            return "contradicted"
        if self.separation.epsilon > self.claimed_dp * room:
            return "contradicted"
        return "supported" if self.detectable <= MEANINGFUL_FACTOR else "inconclusive"

    @property
    def reason(self) -> str:
        """The verdict in a sentence."""
        scope = " (this corpus, both worlds cut at one stop)" if self.instance_specific else ""
        claim = f"{self.claimed:.4g} nats at order {self.order:g}"
        if self.verdict == "contradicted":
            return (
                f"{claim} were claimed{scope}; the transcripts differ by {self.divergence}, and their "
                f"separation shows epsilon {self.separation.epsilon:.3g} where at most "
                f"{self.claimed_dp:.3g} is claimed at delta {self.delta:g}."
            )
        if self.verdict == "supported":
            return f"The transcripts differ by {self.divergence} of {claim} claimed{scope}."
        return (
            f"The transcripts differ by {self.divergence} of {claim} claimed{scope}: only an accountant that "
            f"is wrong by a factor of {self.detectable:.3g} would have shown."
        )

    def roc(self) -> FloatArray:
        """[2, thresholds + 1] false-positive and true-positive rates, from the highest threshold down."""
        scores = np.concatenate([self.scores_with, self.scores_without])
        levels = np.unique(scores)[::-1]
        rates = [
            1 - np.searchsorted(np.sort(of), levels, side="left") / len(of)
            for of in (self.scores_without, self.scores_with)
        ]
        return np.concatenate([np.zeros((2, 1)), np.array(rates)], axis=1)

    def to_json(self) -> dict[str, Any]:
        """JSON form, without the single scores."""
        content = {
            name: value
            for name, value in asdict(self).items()
            if name not in ("scores_with", "scores_without")
        }
        return content | {
            "divergence": self.divergence.to_json(),
            "separation": self.separation.to_json(),
            "auc": self.auc.to_json(),
            "detectable": None if math.isinf(self.detectable) else self.detectable,
            "verdict": self.verdict,
            "reason": self.reason,
        }


def audit_transcripts(
    mechanism: Mechanism,
    questions: Questions,
    *,
    parts: int,
    part: int,
    epsilon: float,
    transcripts: int = 2000,
    delta: float = 1e-5,
    confidence: float = 0.95,
    seed: int = 0,
    most_enumerated: int = MOST_ENUMERATED,
    progress: Progress | None = None,
) -> TranscriptAudit:
    """Attack a mechanism's answers to these questions under a budget of ``epsilon`` nats a part.

    ``transcripts`` are simulated in each world, and a quarter as many before them as the pilot. Nothing is
    released, so that the draws may come from a ``seed``. Up to ``most_enumerated`` transcripts the divergence
    is exact.
    """
    if transcripts < _FEWEST:
        raise InputError(f"transcripts={transcripts}: at least {_FEWEST} show anything, e.g. 2000.")
    if not 0 < confidence < 1:
        raise InputError(f"Expected 0 < confidence={confidence} < 1, e.g. 0.95.")
    check_delta(delta)
    worlds = TwoWorlds(mechanism, parts=parts, part=part, epsilon=epsilon)
    first = questions.place(())
    check_halves_of(mechanism, first)
    half = 1 - (1 - confidence) / 2
    divergence = exact_divergence(worlds, questions, vocabulary=first.public.shape[-1], most=most_enumerated)
    pilot = transcripts // 4
    laws: tuple[Law, ...] = ("with", "without")
    if divergence is None:
        laws = (*laws, "tilted", "tilted back")
    found = simulate(
        worlds,
        questions,
        dict.fromkeys(laws, pilot + transcripts),
        seed=seed,
        progress=progress or Silent(),
    )
    if divergence is None:
        divergence = simulated_divergence(found, pilot=pilot, order=worlds.order, confidence=half)
    members, others = found["with"].ratios, found["without"].ratios
    threshold = _threshold(members[:pilot], others[:pilot], transcripts / pilot, delta, half)
    members, others = members[pilot:], others[pilot:]
    claimed = worlds.claim(questions.queries)
    return TranscriptAudit(
        part=part,
        queries=questions.queries,
        adaptive=questions.adaptive,
        neighbours=worlds.neighbours,
        instance_specific=worlds.instance_specific,
        order=worlds.order,
        claimed=claimed,
        delta=delta,
        claimed_dp=rdp_to_dp(order=worlds.order, epsilon=claimed, delta=delta),
        divergence=divergence,
        separation=_separated(members, others, threshold, delta, half),
        auc=_auc(members, others, confidence, seed),
        transcripts=transcripts,
        scores_with=members,
        scores_without=others,
    )


def shared_confidence(confidence: float, audits: int) -> float:
    """What each of several audits must have so that all of them together have ``confidence`` (Bonferroni)."""
    return 1 - (1 - confidence) / max(1, audits)


def _threshold(
    members: FloatArray, others: FloatArray, growth: float, delta: float, confidence: float
) -> float:
    """The score above which the pilot, were it as large as what follows, shows the largest epsilon."""
    levels = np.unique(np.quantile(np.concatenate([members, others]), np.linspace(0, 1, _THRESHOLDS)))
    # Between two scores that occur, so that a score is never on the border.
    between = np.concatenate([(levels[1:] + levels[:-1]) / 2, levels[-1:]])

    def shown(threshold: float) -> float:
        many = [np.repeat(of, max(1, round(growth))) for of in (members, others)]
        return _separated(many[0], many[1], threshold, delta, confidence).epsilon

    best: float = max(between.tolist(), key=shown)
    return best


def _separated(
    members: FloatArray, others: FloatArray, threshold: float, delta: float, confidence: float
) -> EpsilonLowerBound:
    return separation_bound(
        true_positives=int((members > threshold).sum()),
        members=len(members),
        false_positives=int((others > threshold).sum()),
        non_members=len(others),
        delta=delta,
        confidence=confidence,
    )


def _auc(members: FloatArray, others: FloatArray, confidence: float, seed: int) -> Estimate:
    """Transcripts in pairs, one of each world: the share of pairs in the right order is binomial."""
    coins = np.random.default_rng((seed, 1)).random(len(members)) < 0.5
    right = np.where(members == others, coins, members > others)
    found = clopper_pearson(int(right.sum()), len(right), confidence=confidence)
    return Estimate(found.value, found.low, found.high, confidence, f"{len(right)} pairs, {found.method}")
