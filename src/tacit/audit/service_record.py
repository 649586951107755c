"""What a client got out of a running service, kept beside the Run and made part of its audit.

`RUN/service_audit.json` is the operator's, as `audit.json` is. The audit of the Run takes it in whenever both
are about the same canaries, mechanism and budget: as an attack, and as a claim of its own tier, which can
contradict the audit's verdict and never replaces the stronger evidence of transcripts.

Answers are drawn afresh whenever a service is asked. So an earlier file is kept under its time
(`service_audit-TIME.json`), and a contradiction stands, whatever came back later, until its file is removed.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from tacit.attacks.np_extraction import extract, prompted
from tacit.audit.attempts import Attempt, judged_together, with_adjusted
from tacit.audit.audit_file import FORMAT, ServiceAudit, parse
from tacit.audit.audited import require_control
from tacit.audit.black_box_verdict import BlackBoxAudit, Terms
from tacit.audit.record import AuditRecord, ClaimRecord, keep_under_time, under_time
from tacit.corpus.canaries import CanaryManifest
from tacit.errors import InputError
from tacit.files import read_json, write_json
from tacit.models.trained import load_trained
from tacit.progress import Progress
from tacit.runs import Run

FILE: Final = "service_audit.json"
_LEFT_OUT: Final = f"{FILE} is about"
_STANDS: Final = "Asked again, the service"
_REMEDY: Final = "remove the file and audit the service again"


@dataclass(frozen=True)
class ServiceRecord:
    """One black-box audit: where, when, of what, with which canaries; ``section`` is the report's."""

    created: str
    url: str
    manifest_commitment: str
    terms: Terms
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
        attempt = found.attempt().to_json()
        return cls(created, url, manifest.commitment, found.terms, section, asdict(claim), attempt)

    def save(self, run: Run) -> None:
        """Write it for the owner alone; an earlier one is kept under the time at which it was made."""
        path = run.folder / FILE
        if path.exists():
            keep_under_time(path, str(read_json(path, _REMEDY).get("created")))
        write_json(path, {"format": FORMAT, **asdict(self)}, private=True)

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
            claims=(*claims, ClaimRecord.from_json(self.claim)),
            attempts=attempts,
            sections=with_adjusted(sections, attempts, record.level),
        )


def read_services(run: Run) -> list[ServiceRecord]:
    """What was kept of services of this Run, the latest first. What cannot be used is refused."""
    latest = [path for path in (run.folder / FILE,) if path.exists()]
    earlier = [_read(path) for path in run.folder.glob("service_audit-*.json")]
    return [*map(_read, latest), *sorted(earlier, key=lambda one: one.created, reverse=True)]


def _read(path: Path) -> ServiceRecord:
    content = read_json(path, _REMEDY)
    if content.get("format") != FORMAT:
        raise InputError(f"{path} was written by another version of tacit; {_REMEDY}.")
    found = parse(ServiceAudit, content, origin=str(path), remedy=_REMEDY)
    return ServiceRecord(
        found.created,
        found.url,
        found.manifest_commitment,
        Terms(**found.terms.model_dump()),
        section=content["section"],
        claim=content["claim"],
        attempt=content["attempt"],
    )


def with_service(record: AuditRecord, kept: Sequence[ServiceRecord]) -> AuditRecord:
    """An audit with what was kept of a service, where both are about the same canaries and terms.

    Of several, the latest contradiction; without one, the latest.
    """
    if not kept:
        return record
    notes = tuple(note for note in record.notes if not note.startswith((_LEFT_OUT, _STANDS)))
    alike = [one for one in kept if not _unlike(record, one)]
    if not alike:
        told = f"{_LEFT_OUT} {_unlike(record, kept[0])} and was left out; audit the Run with the service's "
        told += "own settings, or the service again, which costs budget."
        return replace(record, notes=(*notes, told))
    contradictions = [one for one in alike if one.claim["verdict"] == "contradicted"]
    if contradictions and contradictions[0] is not alike[0]:
        notes = (*notes, _stands(contradictions[0], len(contradictions), len(alike)))
    return (contradictions or alike)[0].into(replace(record, notes=notes))


def _stands(found: ServiceRecord, times: int, asked: int) -> str:
    return (
        f"{_STANDS} did not contradict its claim; it contradicted {times} of {asked} times. Answers are "
        f"drawn afresh, so that what was found at {found.created} stands until "
        f"{under_time(Path(FILE), found.created)} is removed by hand and the Run is audited again."
    )


def left_out(record: AuditRecord) -> str:
    """Why a service's audit is not part of this one; empty if it is, or if there is none."""
    return next((note for note in record.notes if note.startswith(_LEFT_OUT)), "")


def _unlike(record: AuditRecord, kept: ServiceRecord) -> str:
    """In what an audit and a service's are not about the same; empty if they are."""
    if kept.manifest_commitment != record.provenance.get("manifest_commitment"):
        return "other canaries"
    audited = record.mechanism or {}
    pairs = {
        "mechanism": (kept.terms.mechanism, audited.get("account", audited.get("name"))),
        "order": (kept.terms.order, audited.get("order")),
        "epsilon": (kept.terms.epsilon, audited.get("epsilon")),
        "number of queries": (kept.terms.queries, audited.get("queries")),
    }
    differing = [
        f"{name} {_said(served)} and not {_said(own)}"
        for name, (served, own) in pairs.items()
        if served != own
    ]
    return f"answers by another mechanism or budget ({', '.join(differing)})" if differing else ""


def _said(value: Any) -> str:
    return "unknown" if value is None else f"{value:g}" if isinstance(value, float) else f"{value}"


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
