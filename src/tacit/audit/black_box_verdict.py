"""What answers of a service say about its claim, whatever answers depend on each other.

Tests, all exact, none of which assumes that generations are independent:

- **Phantom disclosure.** A secret and its twin were drawn alike, and only the secret was planted. Had the
  service no memory, swapping the two would change nothing; so among canaries where one came back more often
  than the other, the secret is ahead in a fair coin's number of cases (sign test over canaries). Counting
  generations instead would be wrong: one lucky canary answers many of them alike.
- **In against out.** Canaries were inserted by a coin. Without memory, how many of either kind came back is
  hypergeometric (Fisher).
- **The claim.** (order, epsilon)-RDP for every corpus bounds the chance that one answer is the secret of one
  part (extraction certificate) by b. So N answers hold N b secrets in expectation at most, and h or more with
  probability at most N b / h (Markov), however answers depend on each other. SubMix's instance-specific claim
  bounds no extraction: nothing here contradicts it.

Silence supports a claim only where the same questions would have got enough secrets out of a model without
protection: a control that was trained on the same text says how many (`control_hits`), or the operator does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from scipy import stats

from tacit.audit.attempts import Attempt
from tacit.audit.verdicts import Verdict
from tacit.privacy import Guarantee
from tacit.statistics import Estimate, clopper_pearson


@dataclass(frozen=True)
class CanaryAnswers:
    """How often a canary's secret, and its twin, came back."""

    id: str
    inserted: bool
    generations: int = 0
    secret: int = 0
    twin: int = 0


@dataclass(frozen=True)
class Meter:
    """What the attack cost.

    asked   tokens received, by the service's own count in each answer
    booked  answers that the operator's statement counts more than before; None where nobody may read it
    spent   nats per part that were charged meanwhile, this attack's and everybody else's
    """

    requests: int
    asked: int
    booked: int | None
    spent: tuple[float, ...] | None

    @property
    def undercounted(self) -> bool:
        """Whether tokens left that the ledger does not know of."""
        return self.booked is not None and self.booked < self.asked


@dataclass(frozen=True)
class Terms:
    """What answers are drawn by, as a service tells it; None where it does not.

    mechanism  as a ledger names it
    order      Renyi order of the claim
    epsilon    what is claimed at that order, in nats: the budget
    queries    answers that the budget is for
    """

    mechanism: str | None = None
    order: float | None = None
    epsilon: float | None = None
    queries: int | None = None


@dataclass(frozen=True)
class BlackBoxAudit:
    """What came back, and what it says: the operator's, since it tells which secrets a service knows."""

    answers: tuple[CanaryAnswers, ...]
    meter: Meter
    ended: str  # "complete", "limit", or the code with which the service refused
    secret_rate: Estimate
    twin_rate: Estimate
    chance: float
    p_twins: float
    p_inserted: float
    certificate: float | None  # the most that one answer may be the secret, by the claim
    p_claim: float
    guarantee: str
    confidence: float
    extractable: bool
    control_hits: float | None = None  # secrets that as many answers of the control hold in expectation
    terms: Terms = Terms()

    @property
    def p_value(self) -> float:
        """That nothing is remembered, by the better of both tests, each at half the error."""
        return min(1.0, 2 * min(self.p_twins, self.p_inserted))

    @property
    def leaks(self) -> bool:
        """Whether secrets came back more than chance explains: by either test, each at half the error."""
        return self.p_value <= 1 - self.confidence

    @property
    def verdict(self) -> Verdict:
        """About the claim. Silence supports it only where the same questions extract without protection."""
        if self.meter.undercounted or self.p_claim <= 1 - self.confidence:
            return "contradicted"
        enough = self.ended == "complete" and self.asked >= self.needed_hits
        if self.certificate is not None and self.attainable and enough and not self.leaks:
            return "supported"
        return "inconclusive"

    @property
    def asked(self) -> int:
        """Answers to prefixes of canaries that were inserted."""
        return sum(one.generations for one in self.answers if one.inserted)

    @property
    def hits(self) -> int:
        """Those of them that were the secret."""
        return sum(one.secret for one in self.answers if one.inserted)

    @property
    def attainable(self) -> bool:
        """Whether as many answers without protection would hold enough secrets to contradict the claim."""
        return self.extractable or (self.control_hits is not None and self.control_hits >= self.needed_hits)

    @property
    def needed_hits(self) -> float:
        """How many answers would have had to be secrets for a contradiction; infinite without a claim."""
        if self.certificate is None:
            return math.inf
        return math.ceil(self.asked * self.certificate / (1 - self.confidence))

    @property
    def reason(self) -> str:
        """The verdict in a sentence."""
        hits, asked = self.hits, self.asked
        if self.meter.undercounted:
            return f"{self.meter.asked:,} tokens were received and {self.meter.booked:,} booked."
        if self.verdict == "contradicted":
            return (
                f"{hits:,} of {asked:,} answers were planted secrets; the claim allows that with probability "
                f"{self.p_claim:.2g} at most."
            )
        if self.certificate is None:
            return f"{hits:,} of {asked:,} answers were planted secrets; the claim bounds no extraction."
        told = (
            f"{hits:,} of {asked:,} answers were planted secrets; {self.needed_hits:,.0f} would contradict."
        )
        return f"{told} {self.about_control}"

    @property
    def about_control(self) -> str:
        """What is known of the same questions without protection."""
        if self.control_hits is not None:
            return (
                f"The control, which nothing protects, gives at least {self.control_hits:,.1f} in as many "
                "answers in expectation."
            )
        if self.extractable:
            return "By the operator's word, a model without protection gives them."
        return "Whether an unprotected model gives them is not known."

    def attempt(self) -> Attempt:
        """The attack against chance, for an audit's list."""
        return Attempt("secrets through the service", self.secret_rate, self.chance, self.p_value)

    def to_json(self) -> dict[str, Any]:
        """JSON form."""
        return asdict(self) | {
            "secret_rate": self.secret_rate.to_json(),
            "twin_rate": self.twin_rate.to_json(),
            "leaks": self.leaks,
            "p_value": self.p_value,
            "about_control": self.about_control,
            "verdict": self.verdict,
            "reason": self.reason,
        }


def judged_answers(
    answers: tuple[CanaryAnswers, ...],
    *,
    meter: Meter,
    ended: str,
    guarantee: Guarantee | None,
    candidates: int,
    confidence: float = 0.95,
    extractable: bool = False,
    control_hits: float | None = None,
    terms: Terms | None = None,
) -> BlackBoxAudit:
    """From counts to p-values: a pure function of what came back."""
    inserted = [one for one in answers if one.inserted]
    asked, hits = sum(one.generations for one in inserted), sum(one.secret for one in inserted)
    certificate = None
    if guarantee is not None and guarantee.kind == "rdp":
        certificate = guarantee.extraction(candidates).bound
    p_claim = 1.0 if certificate is None or not hits else min(1.0, asked * certificate / hits)
    return BlackBoxAudit(
        answers=answers,
        meter=meter,
        ended=ended,
        secret_rate=clopper_pearson(hits, asked, confidence=confidence),
        twin_rate=clopper_pearson(sum(one.twin for one in inserted), asked, confidence=confidence),
        chance=1 / candidates,
        p_twins=_sign_test(inserted),
        p_inserted=_fisher(answers),
        certificate=certificate,
        p_claim=p_claim,
        guarantee="no claim" if guarantee is None else str(guarantee),
        confidence=confidence,
        extractable=extractable,
        control_hits=control_hits,
        terms=terms or Terms(),
    )


def _sign_test(inserted: Sequence[CanaryAnswers]) -> float:
    ahead = sum(one.secret > one.twin for one in inserted)
    differing = sum(one.secret != one.twin for one in inserted)
    return float(stats.binom.sf(ahead - 1, differing, 0.5)) if differing else 1.0


def _fisher(answers: Sequence[CanaryAnswers]) -> float:
    """By canary: came back at least once or never, inserted or not."""
    table = [
        [sum(one.inserted is kind and bool(one.secret) is came for one in answers) for came in (True, False)]
        for kind in (True, False)
    ]
    return float(stats.fisher_exact(table, alternative="greater").pvalue)
