"""`tacit audit`: every attack that a Run allows, and a verdict on what the Run claims.

Nothing is planted here: canaries were drawn and planted before training, and their manifest is read. What is
released decides what may be held against a claim. Of one model the weights are: ranks and coins refute. Of an
ensemble drawn tokens are: transcripts refute, and exposure under the mechanism only describes. All results
are functions of private text and the operator's.
"""

from __future__ import annotations

import time
from dataclasses import replace

from tacit.audit.audited import split_texts
from tacit.audit.completion_findings import require_judge
from tacit.audit.ensemble_audit import EnsembleAudit
from tacit.audit.model_audit import ModelAudit
from tacit.audit.plans import AuditPlan
from tacit.audit.record import AuditRecord
from tacit.audit.service_record import read_services, with_service
from tacit.errors import InputError
from tacit.progress import Progress, Silent
from tacit.runs import Run


def audit_run(
    run: Run, plan: AuditPlan, *, device: str = "auto", progress: Progress | None = None
) -> AuditRecord:
    """Attack a Run; nothing is written."""
    began = time.perf_counter()
    progress = progress or Silent()
    is_ensemble = run.manifest.weights == "members"
    if is_ensemble and plan.answers is None:
        raise InputError(
            f"{run.folder} holds an ensemble, and its answers carry a guarantee only within a budget; give "
            "one, e.g. --mechanism certified --epsilon 2 --queries 1000."
        )
    if is_ensemble and plan.against is not None:
        raise InputError(
            f"{run.folder} holds an ensemble, whose answers are attacked directly; who pays and controls are "
            "for one model, so leave --against out."
        )
    if not is_ensemble and plan.answers is not None:
        raise InputError(
            f"{run.folder} holds one model, whose weights are released as a whole; leave mechanism and "
            "budget out."
        )
    if not is_ensemble:
        require_judge(plan.real, given=plan.against is not None)
    services = read_services(run)  # what cannot be used is refused before anything is computed
    with split_texts(run, progress) as texts:
        kind = EnsembleAudit if is_ensemble else ModelAudit
        record = kind(run, plan, texts, device, progress).record()
    timed = replace(record, provenance={**record.provenance, "seconds": time.perf_counter() - began})
    return with_service(timed, services)
