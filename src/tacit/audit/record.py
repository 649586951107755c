"""What an audit found, as `audit.json` keeps it. The operator's: it is a function of private text."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, Self

from tacit.audit.attempts import Attempt, judged_together, leaking
from tacit.audit.audit_file import FORMAT, Claim, VerdictPart, parse, parse_audit
from tacit.audit.verdicts import Judgement, Verdict
from tacit.errors import InputError
from tacit.files import read_json, write_json
from tacit.privacy import Guarantee
from tacit.runs import Run

FILE: Final = "audit.json"
SECTIONS: Final = (
    "certificate",
    "utility",
    "exposure",
    "membership",
    "extraction",
    "prediction",
    "linkability",
    "disparity",
)


@dataclass(frozen=True)
class ClaimRecord:
    """One claim and what the audit says of it.

    p_claim         of a whole curve: at most how likely what was seen is if the claim holds
    gaussian_mu     the largest mu that guesses refute, for Gaussian mechanisms alone: it contradicts nothing
    gaussian_limit  the mu that the claimed process tends to, which is no bound on it
    """

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
    p_claim: float | None = None
    gaussian_mu: float | None = None
    gaussian_limit: float | None = None

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

    @classmethod
    def from_json(cls, content: Mapping[str, Any], *, confidence: float = 0.95) -> Self:
        """Inverse of ``asdict``; where a claim has no confidence of its own, it is the audit's."""
        part = parse(Claim, content, origin=FILE)
        named = {"confidence": part.confidence or confidence, "method": part.method or ""}
        return cls(**{**part.model_dump(), **named})


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
    def _by_charges_alone(self) -> bool:
        """Of an ensemble: whether the check of its charges had power, and no transcript had."""
        found = self.sections.get("prediction") or {}
        charges = (found.get("realised") or {}).get("verdict")
        transcripts = {row["verdict"] for row in found.get("likelihood_ratio", ())}
        return charges == "supported" and "supported" not in transcripts

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
            "supported": "Supported: no charge is below its loss, recomputed from the definition."
            if self._by_charges_alone
            else "Supported: attacks that could have refuted the claim did not.",
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
        """Inverse of :meth:`to_json`; what is missing or wrong is named."""
        found = parse_audit(content)
        verdict = found.verdict
        try:
            Guarantee.from_json(dict(content["guarantee"]))
        except (KeyError, TypeError, ValueError):
            raise InputError(f"{FILE}: 'guarantee' cannot be used; audit again.") from None
        if len({one.attack for one in verdict.attacks}) < len(verdict.attacks):
            raise InputError(f"{FILE}: two of 'verdict.attacks' have one name; audit again.")
        return cls(
            created=found.created,
            run=content["run"],
            guarantee=content["guarantee"],
            mechanism=content.get("mechanism"),
            claims=tuple(
                ClaimRecord.from_json(claim, confidence=verdict.confidence)
                for claim in content.get("claims", ())
            ),
            attempts=tuple(Attempt.from_json(one) for one in content["verdict"].get("attacks", ())),
            confidence=verdict.confidence,
            sections={name: content.get(name) for name in SECTIONS},  # absent: an earlier tacit did not ask
            not_covered=found.not_covered,
            notes=found.notes,
            provenance=content.get("provenance", {}),
        )

    def save(self, run: Run) -> Path | None:
        """Write `audit.json` for the owner alone.

        An earlier one is replaced if it asked the same: then the new one says all that it said. One of
        another mechanism or budget, with other canaries, settings or seeds, may have found what this one did
        not look for: it is kept beside the new one under the time at which it was made. Returns where.
        """
        content = self.to_json()
        kept = _keep_another(run, content)
        write_json(run.folder / FILE, content, private=True, overwrite=True)
        return kept


def _keep_another(run: Run, content: Mapping[str, Any]) -> Path | None:
    path = run.folder / FILE
    try:
        earlier = read_audit(run)
    except InputError:  # none, or none that this version could read: then somebody else may
        return keep_under_time(path, "") if path.exists() else None
    if _asked(earlier) == _asked(content):
        return None
    return keep_under_time(path, str(earlier["created"]))


def keep_under_time(path: Path, created: str) -> Path:
    """Move a file out of the way of a new one, to a name with its time. Returns where."""
    place = under_time(path, created)
    again = (place.with_stem(f"{place.stem}-{number}") for number in itertools.count(2))
    kept = next(one for one in itertools.chain([place], again) if not one.exists())
    path.replace(kept)
    return kept


def under_time(path: Path, created: str) -> Path:
    """A file's name with the time at which it was made."""
    made = "".join(one for one in created if one.isdigit())[:14] or "earlier"
    return path.with_stem(f"{path.stem}-{made}")


def _asked(content: Mapping[str, Any]) -> Any:
    """Of what an audit is, and with what it was made, as JSON has it."""
    made = content.get("provenance") or {}
    asked = [made.get(name) for name in ("manifest_commitment", "seeds", "settings")]
    return json.loads(json.dumps([content["run"].get("weights_fingerprint"), content["mechanism"], *asked]))


def read_record(run: Run) -> AuditRecord | None:
    """A Run's audit to go on with; None where it was not audited. What cannot be used is refused."""
    return AuditRecord.from_json(read_audit(run)) if (run.folder / FILE).exists() else None


def read_audit(run: Run) -> dict[str, Any]:
    """A Run's `audit.json`, every part of which can be used."""
    path = run.folder / FILE
    if not path.exists():
        raise InputError(f"{run.folder} has not been audited; run tacit audit {run.folder} first.")
    content = read_json(path, "audit the Run again")
    if content.get("format") != FORMAT:
        raise InputError(f"{path} was written by another version of tacit; audit the Run again.")
    found = parse_audit(content, origin=str(path)).verdict
    _require_own_words(found, str(path))
    return content


def _require_own_words(verdict: VerdictPart, origin: str) -> None:
    """Refuse a headline that its own p-values do not bear out: cards and comparisons repeat it."""
    attempts = [Attempt.of(one) for one in verdict.attacks]
    try:
        again = judged_together(attempts)
    except ValueError:
        again = ()
    level = verdict.level
    agree = len(again) == len(attempts) and all(
        math.isclose(own.adjusted, one.adjusted, rel_tol=1e-6, abs_tol=1e-12)
        and part.leaks == one.leaks(level)
        for own, one, part in zip(again, attempts, verdict.attacks, strict=True)
    )
    whole = any(one.leaks(level) for one in attempts) if attempts else None
    if not agree or verdict.leaks != whole:
        raise InputError(f"{origin}: the verdict is not what its p-values say; audit the Run again.")
