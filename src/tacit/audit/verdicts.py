"""From a lower bound to a verdict on a claim.

contradicted   the bound exceeds the claimed epsilon, for the same unit and neighbours, at a delta at which
               the claim holds. If the claim is true, this happens with probability at most 1 - confidence.
supported      the bound does not, and the audit had power: with perfect guesses it could have shown
               :data:`POWER` times the claimed epsilon, and on a control, trained on the same text without
               protection, the same attack did. "Supported" means that an attempt to refute failed, which
               would have succeeded where nothing protects. It proves nothing.
inconclusive   everything else, with the reason and what could have been detected.

The delta. A claim (epsilon, d) holds at every delta >= d as well, so a bound at delta >= d can contradict
it; a bound at a smaller delta cannot. A Renyi claim is first turned into (epsilon, delta) by
:mod:`tacit.privacy`. Operational privacy (ROP) is a statement about one corpus; no bound on epsilon is
comparable with it, only the audit of its transcripts. Where there is no guarantee there is nothing to
contradict: attacks that beat chance are leaks (:mod:`tacit.audit.attempts`), and not a verdict.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal

from tacit.audit.bounds import EpsilonLowerBound, Family, Neighbours
from tacit.privacy import Guarantee, Unit

Verdict = Literal["supported", "contradicted", "inconclusive"]

DELTA = 1e-5  # at which an audit bounds epsilon, where a claim has no delta of its own
POWER = 1.5  # times the claimed epsilon: what an audit must be able to show to support a claim


@dataclass(frozen=True)
class Claim:
    """What a guarantee promises, in the form that a lower bound can contradict.

    ``epsilon`` is None where nothing is promised that a bound on epsilon speaks about; ``incomparable`` says
    why.
    ``family`` is ``gaussian`` if the claim is one of Gaussian DP, which bounds of that family may contradict.
    """

    statement: str
    unit: Unit
    neighbours: Neighbours
    epsilon: float | None
    delta: float | None
    family: Family = "any"
    incomparable: str = ""

    @classmethod
    def of(
        cls, guarantee: Guarantee, *, neighbours: Neighbours, delta: float, family: Family = "any"
    ) -> Claim:
        """The claim of a guarantee; a Renyi guarantee is converted at ``delta``."""
        incomparable = ""
        if guarantee.kind == "rop":
            incomparable = (
                "operational privacy is a statement about this corpus only; compare it with an audit of its "
                "transcripts"
            )
        elif guarantee.kind not in ("rdp", "dp", "confidentiality") or not guarantee.promises:
            incomparable = "there is no guarantee that could be contradicted"
        converted = guarantee.to_dp(delta) if guarantee.kind == "rdp" else guarantee
        return cls(
            statement=str(guarantee),
            unit=guarantee.unit,
            neighbours=neighbours,
            epsilon=None if incomparable else converted.epsilon,
            delta=None if incomparable else converted.delta,
            family=family,
            incomparable=incomparable,
        )

    def why_not_comparable(self, bound: EpsilonLowerBound) -> str:
        """Why the bound says nothing about the claim; empty if it does."""
        if self.epsilon is None or self.delta is None:
            return self.incomparable
        if bound.unit != self.unit:
            return (
                f"the claim is per {self.unit} and the audit per {bound.unit or 'a unit that was not stated'}"
            )
        if bound.neighbours != self.neighbours:
            return f"the claim is for '{self.neighbours}' neighbours and the audit for '{bound.neighbours}'"
        if bound.delta < self.delta:
            return f"the claim has delta = {self.delta:g} and the audit {bound.delta:g}; audit at the claim's"
        if bound.family != "any" and bound.family != self.family:
            return f"the audit holds for {bound.family} mechanisms only, and the claim is not for those alone"
        return ""

    def to_json(self) -> dict[str, Any]:
        """JSON form. JSON has no infinity; it is written as a string."""
        infinite = self.epsilon is not None and math.isinf(self.epsilon)
        return asdict(self) | {"epsilon": str(self.epsilon) if infinite else self.epsilon}


@dataclass(frozen=True)
class Judgement:
    """A verdict with its reason and all it was made from."""

    verdict: Verdict
    reason: str
    claim: Claim
    bound: EpsilonLowerBound
    detectable: EpsilonLowerBound | None
    control: EpsilonLowerBound | None = None

    def to_json(self) -> dict[str, Any]:
        """JSON form."""
        return {
            "verdict": self.verdict,
            "reason": self.reason,
            "claim": self.claim.to_json(),
            "bound": self.bound.to_json(),
            "detectable": None if self.detectable is None else self.detectable.to_json(),
            "control": None if self.control is None else self.control.to_json(),
        }


def judge(
    claim: Claim,
    bound: EpsilonLowerBound,
    detectable: EpsilonLowerBound | None = None,
    *,
    control: EpsilonLowerBound | None = None,
) -> Judgement:
    """Compare a claim with the one bound that was declared for it.

    ``detectable`` is what this audit would have shown had every guess been right
    (:func:`tacit.audit.planning.detectable`). ``control`` is what the same attack shows where nothing
    protects: power is what the attack itself can do, not only what a perfect one could. Several
    bounds on one claim are joined by :func:`~tacit.audit.bounds.strongest` first.
    """
    verdict, reason = _judged(claim, bound, detectable, control)
    return Judgement(verdict, reason, claim, bound, detectable, control)


def _judged(
    claim: Claim,
    bound: EpsilonLowerBound,
    detectable: EpsilonLowerBound | None,
    control: EpsilonLowerBound | None,
) -> tuple[Verdict, str]:
    problem = claim.why_not_comparable(bound)
    if problem or claim.epsilon is None:
        return "inconclusive", f"{_sentence(problem)} {_power(bound, detectable)}".strip()
    shown = f"at least epsilon = {bound.epsilon:.3g} (confidence {bound.confidence:g})"
    claimed = f"the claimed {claim.epsilon:.3g}"
    if bound.epsilon > claim.epsilon:
        return "contradicted", f"The attack shows {shown}, more than {claimed}."
    needed = POWER * claim.epsilon
    if detectable is None or claim.why_not_comparable(detectable) or not _exceeds(detectable, claim):
        return "inconclusive", (
            f"The attack shows {shown}; to support {claimed} an audit must be able to show {needed:.3g}. "
            f"{_power(bound, detectable)}"
        ).strip()
    if control is None or claim.why_not_comparable(control):
        return "inconclusive", (
            f"The attack shows {shown}, not more than {claimed}. No control shows that it would find a leak: "
            f"audit against a Run of the same text without protection. {_power(bound, detectable)}"
        )
    if not _exceeds(control, claim):
        weak = f"where nothing protects, the same attack shows no more than epsilon = {control.epsilon:.3g}"
        return "inconclusive", f"The attack shows {shown}, but {weak}. {_power(bound, detectable)}"
    return "supported", (
        f"The attack shows {shown}, not more than {claimed}; where nothing protects, the same attack shows "
        f"at least {control.epsilon:.3g}."
    )


def _exceeds(bound: EpsilonLowerBound, claim: Claim) -> bool:
    """Whether a bound is as far above the claim as an audit with power must be able to show."""
    assert claim.epsilon is not None  # noqa: S101 - the caller looked
    return bound.epsilon >= POWER * claim.epsilon and bound.epsilon > claim.epsilon


def _power(bound: EpsilonLowerBound, detectable: EpsilonLowerBound | None) -> str:
    if detectable is None:
        return "What this audit could have detected was not stated."
    return (
        f"This audit could have detected epsilon = {detectable.epsilon:.3g} at delta = {detectable.delta:g} "
        f"with perfect guesses; it found {bound.epsilon:.3g}."
    )


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."
