"""What an audit found, as `audit.json` keeps it. The operator's: it is a function of private text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, Self

from tacit.audit.attempts import Attempt, leaking
from tacit.audit.verdicts import Judgement, Verdict
from tacit.errors import InputError
from tacit.files import read_json, write_json
from tacit.privacy import Guarantee
from tacit.runs import Run

FORMAT: Final = 2
FILE: Final = "audit.json"
SECTIONS: Final = ("utility", "exposure", "membership", "extraction", "prediction", "disparity")


@dataclass(frozen=True)
class ClaimRecord:
    """One claim and what the audit says of it."""

    claim: str
    verdict: Verdict
    reason: str
    claimed_epsilon: float | None
    measured_epsilon: float | None
    detectable_epsilon: float | None
    delta: float | None
    confidence: float
    method: str
    control_epsilon: float | None = None
    tier: Literal["main", "service"] = "main"

    @classmethod
    def of(cls, judgement: Judgement) -> Self:
        """From a claim that was compared with a lower bound."""
        return cls(
            claim=judgement.claim.statement,
            verdict=judgement.verdict,
            reason=judgement.reason,
            claimed_epsilon=judgement.claim.epsilon,
            measured_epsilon=judgement.bound.epsilon,
            detectable_epsilon=None if judgement.detectable is None else judgement.detectable.epsilon,
            delta=judgement.bound.delta,
            confidence=judgement.bound.confidence,
            method=judgement.bound.method,
            control_epsilon=None if judgement.control is None else judgement.control.epsilon,
        )


@dataclass(frozen=True)
class AuditRecord:
    """A whole audit. ``sections`` hold the numbers; a section that was not measured is None.

    ``attempts`` are all attacks that the headline looks at, corrected for each other; ``confidence`` is at
    what they are judged.
    """

    created: str
    run: Mapping[str, Any]
    guarantee: Mapping[str, Any]
    mechanism: Mapping[str, Any] | None
    claims: tuple[ClaimRecord, ...]
    attempts: tuple[Attempt, ...]
    confidence: float
    sections: Mapping[str, Any] = field(repr=False)
    not_covered: tuple[str, ...]
    notes: tuple[str, ...]
    provenance: Mapping[str, Any]

    @property
    def promises(self) -> bool:
        """Whether anything is claimed that could be refuted."""
        return Guarantee.from_json(dict(self.guarantee)).promises

    @property
    def level(self) -> float:
        """At most how likely anything is called a leak where nothing leaks."""
        return 1 - self.confidence

    @property
    def leaks(self) -> tuple[Attempt, ...]:
        """The attacks that chance does not explain, so many considered."""
        return leaking(self.attempts, self.level)

    @property
    def verdict(self) -> Verdict:
        """Contradicted by any claim; supported where every claim is; else inconclusive.

        A service that was asked from outside can contradict; where it shows nothing, what is known from
        inside stands.
        """
        if any(claim.verdict == "contradicted" for claim in self.claims):
            return "contradicted"
        inside = {claim.verdict for claim in self.claims if claim.tier == "main"}
        verdicts = inside or {claim.verdict for claim in self.claims}
        return "supported" if self.promises and verdicts == {"supported"} else "inconclusive"

    @property
    def line(self) -> str:
        """The whole audit in a sentence."""
        if not self.promises:
            if self.leaks:
                best = self.leaks[0]
                return (
                    f"No guarantee, and it leaks: {best.attack}: {best.measured}, by chance "
                    f"{best.chance:.3g}."
                )
            tried = "these attacks found nothing" if self.attempts else "nothing was attacked"
            return f"No guarantee; {tried}. That shows no safety."
        words = {
            "contradicted": "Contradicted: an attack shows more than is claimed.",
            "supported": "Supported: attacks that could have refuted the claim did not.",
            "inconclusive": "Inconclusive: this audit could neither refute the claim nor support it.",
        }
        within = self.leaks and self.verdict != "contradicted"
        return words[self.verdict] + (f" Attacks beat chance: {self.leaks[0].attack}." if within else "")

    def to_json(self) -> dict[str, Any]:
        """The content of `audit.json`."""
        return {
            "format": FORMAT,
            "created": self.created,
            "run": dict(self.run),
            "guarantee": dict(self.guarantee),
            "mechanism": None if self.mechanism is None else dict(self.mechanism),
            "verdict": {
                "line": self.line,
                "word": self.verdict,
                "leaks": bool(self.leaks) if self.attempts else None,
                "confidence": self.confidence,
                "attacks": [one.to_json() | {"leaks": one.leaks(self.level)} for one in self.attempts],
            },
            "claims": [asdict(claim) for claim in self.claims],
            **self.sections,
            "not_covered": list(self.not_covered),
            "notes": list(self.notes),
            "provenance": dict(self.provenance),
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self:
        """Inverse of :meth:`to_json`."""
        verdict = content["verdict"]
        return cls(
            created=content["created"],
            run=content["run"],
            guarantee=content["guarantee"],
            mechanism=content["mechanism"],
            claims=tuple(ClaimRecord(**claim) for claim in content["claims"]),
            attempts=tuple(Attempt.from_json(one) for one in verdict["attacks"]),
            confidence=verdict["confidence"],
            sections={name: content[name] for name in SECTIONS},
            not_covered=tuple(content["not_covered"]),
            notes=tuple(content["notes"]),
            provenance=content["provenance"],
        )

    def save(self, run: Run) -> Path | None:
        """Write `audit.json` for the owner alone.

        An earlier one is replaced, unless it is of another mechanism or budget: those are different claims,
        and it is kept beside the new one under the time at which it was made. Returns where.
        """
        kept = _keep_another(run, self.mechanism)
        write_json(run.folder / FILE, self.to_json(), private=True, overwrite=True)
        return kept


def _keep_another(run: Run, mechanism: Mapping[str, Any] | None) -> Path | None:
    path = run.folder / FILE
    try:
        earlier = read_audit(run)
    except InputError:  # none, or none that anybody could read
        return None
    if earlier.get("mechanism") == (None if mechanism is None else dict(mechanism)):
        return None
    made = "".join(one for one in str(earlier.get("created")) if one.isdigit())[:14]
    kept = path.with_name(f"audit-{made or 'earlier'}.json")
    path.replace(kept)
    return kept


def read_audit(run: Run) -> dict[str, Any]:
    """A Run's `audit.json`."""
    path = run.folder / FILE
    if not path.exists():
        raise InputError(f"{run.folder} has not been audited; run tacit audit {run.folder} first.")
    content = read_json(path, "audit the Run again")
    if content.get("format") != FORMAT:
        raise InputError(f"{path} was written by another version of tacit; audit the Run again.")
    return content
