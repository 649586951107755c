"""What a client got out of a running service, kept beside the Run and made part of its audit.

`RUN/service_audit.json` is the operator's, as `audit.json` is. The audit of the Run takes it in whenever it
was made with the same canaries: as an attack, and as a claim of its own tier, which can contradict the
audit's verdict and never replaces the stronger evidence of transcripts.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

import numpy as np

from tacit.attacks.np_extraction import extract, prompted
from tacit.audit.attempts import Attempt, judged_together, with_adjusted
from tacit.audit.audited import require_control
from tacit.audit.black_box_verdict import BlackBoxAudit
from tacit.audit.record import AuditRecord, ClaimRecord
from tacit.corpus.canaries import CanaryManifest
from tacit.errors import InputError
from tacit.files import read_json, write_json
from tacit.models.trained import load_trained
from tacit.progress import Progress
from tacit.runs import Run

FORMAT: Final = 2
FILE: Final = "service_audit.json"


@dataclass(frozen=True)
class ServiceRecord:
    """One black-box audit: where, when, with which canaries; ``section`` is the report's."""

    created: str
    url: str
    manifest_commitment: str
    section: Mapping[str, Any]
    claim: Mapping[str, Any]
    attempt: Mapping[str, Any]

    @classmethod
    def of(cls, found: BlackBoxAudit, *, url: str, manifest: CanaryManifest) -> ServiceRecord:
        """From what came back."""
        created = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        section = {
            "url": url,
            "created": created,
            "generations": found.asked,
            "hits_inserted": found.hits,
            "hits_twins": sum(one.twin for one in found.answers if one.inserted),
            "chance": found.chance,
            "p_value": found.p_value,
            "attempt": found.attempt().attack,
            "adjusted": None,
            "p_claim": None if found.certificate is None else found.p_claim,
            "queries_used": found.meter.asked,
            "booked": found.meter.booked,
            "ended": found.ended,
            "verdict": found.verdict,
            "reason": found.reason,
            "secret_rate": found.secret_rate.to_json(),
            "twin_rate": found.twin_rate.to_json(),
            "control": found.about_control,
        }
        claim = ClaimRecord(
            claim=f"Through the service: {found.guarantee}",
            verdict=found.verdict,
            reason=found.reason,
            claimed_epsilon=None,
            measured_epsilon=None,
            detectable_epsilon=None,
            delta=None,
            confidence=found.confidence,
            method="secrets in answers of the running service; the extraction certificate; the meter",
            tier="service",
        )
        return cls(created, url, manifest.commitment, section, asdict(claim), found.attempt().to_json())

    def save(self, run: Run) -> None:
        """Write it for the owner alone; an earlier one is replaced."""
        write_json(run.folder / FILE, {"format": FORMAT, **asdict(self)}, private=True, overwrite=True)

    def into(self, record: AuditRecord) -> AuditRecord:
        """The audit with this attack in it, in the place of an earlier one."""
        prediction = dict(record.sections.get("prediction") or {"queries": 0, "parts": 0})
        claims = [claim for claim in record.claims if claim.tier != "service"]
        own = Attempt.from_json(self.attempt)
        others = [one for one in record.attempts if one.attack != own.attack]
        attempts = judged_together([*others, own])
        sections = {**record.sections, "prediction": {**prediction, "black_box": dict(self.section)}}
        return replace(
            record,
            claims=(*claims, ClaimRecord(**self.claim)),
            attempts=attempts,
            sections=with_adjusted(sections, attempts),
        )


def read_service(run: Run) -> ServiceRecord | None:
    """What was kept of a service of this Run; None if nothing was."""
    path = run.folder / FILE
    if not path.exists():
        return None
    content = read_json(path, "audit the service again")
    if content.pop("format", None) != FORMAT:
        raise InputError(f"{path} was written by another version of tacit; audit the service again.")
    return ServiceRecord(**content)


def with_service(record: AuditRecord, run: Run) -> AuditRecord:
    """An audit with what was kept of a service, where both are about the same canaries."""
    kept = read_service(run)
    if kept is None:
        return record
    if kept.manifest_commitment != record.provenance.get("manifest_commitment"):
        told = f"{FILE} is about other canaries and was left out; audit the service again."
        return replace(record, notes=(*record.notes, told))
    return kept.into(record)


def rates_of_control(
    control: Run,
    manifest: CanaryManifest,
    *,
    served: Run | None = None,
    device: str = "auto",
    progress: Progress | None = None,
) -> dict[str, float]:
    """By canary, how often at least one sampled answer of an unprotected model is the secret, by one pass.

    Spellings of the secret in other tokens would come on top. Where the served Run is known, the control must
    have read the same text.
    """
    require_control(served or control, control)
    found = extract(prompted(manifest), load_trained(control, device=device), progress=progress)
    return dict(zip(found.ids, np.exp(found.log_probabilities).tolist(), strict=True))
