"""The audit of an ensemble behind a mechanism, whose drawn tokens are what is released.

Transcripts may refute a claim. Exposure and membership are measured on the distribution that answers are
drawn from, which never leaves: they describe.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tacit.attacks.ensemble_membership import score_texts_of_ensemble
from tacit.attacks.exposure import MechanismTarget
from tacit.attacks.np_extraction import NPExtraction, Sampling
from tacit.audit.attempts import judged_together, with_adjusted
from tacit.audit.audited import AuditedRun
from tacit.audit.hit_rates import GENERATION, generation_attempt, hit_row, tries_rows
from tacit.audit.membership_findings import MembershipFinding, named
from tacit.audit.membership_sets import NamedSet, canaries_by_coin
from tacit.audit.noise_losses import adds_noise
from tacit.audit.plans import AnswerPlan, AuditPlan
from tacit.audit.record import AuditRecord, ClaimRecord
from tacit.audit.transcripts import TranscriptAudit
from tacit.audit.transcripts_run import PredictionAudit, audit_private_prediction
from tacit.audit.verdicts import Verdict
from tacit.mechanisms.choice import MechanismChoice
from tacit.models.ensemble import Ensemble, load_ensemble
from tacit.prediction import Answering
from tacit.privacy import Guarantee


class EnsembleAudit(AuditedRun):
    """An ensemble behind a mechanism, whose drawn tokens are what is released."""

    def record(self) -> AuditRecord:
        answers = self.plan.answers
        assert answers is not None  # noqa: S101 - audit_run refuses otherwise
        shape = self.run.manifest.ensemble
        assert shape is not None  # noqa: S101 - a Run of members has one
        noisy = adds_noise(answers.choice.build(shape.parts))
        # Every token is mixed anew: lines are scored where a preset asks for them.
        lines = self.lines(scored=self.plan.preset is not None and not noisy)
        ensemble = load_ensemble(self.run, device=self.device)
        guarantee = Answering(
            answers.choice, parts=ensemble.parts, halves=ensemble.halves, budget=answers.budget
        ).guarantee
        found = audit_private_prediction(
            self.run,
            answers.choice,
            answers.prediction,
            manifest=self.plan.manifest,
            device=self.device,
            progress=self.progress,
        )
        exposure = None if noisy else self.exposure(MechanismTarget(ensemble, answers.choice))
        sets = [] if noisy else self._membership(ensemble, answers.choice, lines)
        described = [] if exposure is None else exposure.attempts()
        described += [attempt for one in sets for attempt in one.attempts()]
        extraction = self._extraction(found, answers, 1 if exposure is None else exposure.target.nested)
        if extraction is not None:
            described += [generation_attempt(row) for row in extraction["codes"]]
        sections = {
            "certificate": None,
            "utility": self._utility(answers),
            "exposure": None if exposure is None else exposure.to_json(),
            "membership": {"sets": [one.to_json() for one in sets]} if sets else None,
            "extraction": extraction,
            "prediction": _prediction(found, ensemble.parts),
            "linkability": None,
            "disparity": None,
        }
        self.notes.append(
            "Noise is drawn anew for every answer, which has no fixed distribution: charges were recomputed, "
            "and transcripts, exposure and membership were not measured."
            if noisy
            else "Exposure and membership behind a mechanism are measured on the distribution that answers "
            "are drawn from, which never leaves: they describe, and refute nothing."
        )
        mechanism = {
            "name": answers.choice.label,
            "account": _account(answers.choice),
            "order": answers.choice.order,
            "epsilon": answers.budget.epsilon,
            "queries": answers.budget.queries,
            "target": answers.choice.target,
            "guard": answers.choice.guard,
            "parts": ensemble.parts,
        }
        shown = with_adjusted(sections, judged_together(described), 1 - self.plan.confidence)
        return self.finish(guarantee, _claims_of(guarantee, found, self.plan), shown, mechanism)

    def _membership(
        self, ensemble: Ensemble, choice: MechanismChoice, lines: NamedSet | None
    ) -> list[MembershipFinding]:
        canaries = None if self.manifest is None else canaries_by_coin(self.manifest)
        sets = []
        for one in (canaries, lines):
            if one is not None:
                scored = score_texts_of_ensemble(ensemble, choice, one.found.texts, progress=self.progress)
                sets.append(self.membership(one, named(scored.scores)))
        return sets

    def _extraction(self, found: PredictionAudit, answers: AnswerPlan, nested: int) -> dict[str, Any] | None:
        """How often answers write planted secrets, while the budget lasts."""
        if self.manifest is None or not found.secrets:
            return None
        confidence = self.plan.confidence
        logs = np.array(found.secrets)
        tries = NPExtraction(tuple(str(number) for number in range(len(logs))), logs, Sampling())
        row = hit_row(
            answers.choice.label,
            logs,
            candidates=self.manifest.candidates / nested,
            epsilon=answers.budget.epsilon,
            confidence=confidence,
            attempt=GENERATION,
        )
        return {
            "tab": None,
            "tab_real": None,
            "tries": {"rows": tries_rows(tries, confidence=confidence)},
            "codes": [row],
        }

    def _utility(self, answers: AnswerPlan) -> dict[str, Any] | None:
        """What `tacit evaluate` found under this mechanism and budget, if it was asked."""
        measured = self.run.metrics().get("mechanisms")
        rows = measured.get("rows", []) if isinstance(measured, dict) else []
        for row in rows:
            same = (row.get("mechanism"), row.get("epsilon"), row.get("queries"), row.get("order"))
            if same == (
                answers.choice.name,
                answers.budget.epsilon,
                answers.budget.queries,
                answers.choice.order,
            ):
                return {
                    "public": row.get("public"),
                    "run": row["perplexity"],
                    "unmitigated": row.get("ensemble"),
                    "text": "held-out text, by tacit evaluate",
                }
        self.notes.append(
            "Utility was not measured under this mechanism and budget: tacit evaluate does that."
        )
        return None


def _account(choice: MechanismChoice) -> str:
    """What a ledger calls the mechanism, and a service that answers by it; the label where none would."""
    if choice.label != MechanismChoice("submix").label:
        return choice.label
    return "submix" if choice.guard is None else "submix-guarded"


def _prediction(found: PredictionAudit, parts: int) -> dict[str, Any]:
    """The section of the report; everything behind it is under ``detail``."""
    losses = [one for one in (found.on_canaries, found.on_held_out) if one is not None]
    realised = None
    if losses:
        verdicts = {one.verdict for one in losses}
        order: tuple[Verdict, ...] = ("contradicted", "supported", "inconclusive")
        realised = {
            "excess": sum(one.excess for one in losses),
            "largest_excess": max(one.largest for one in losses),
            "queries": sum(one.queries for one in losses),
            "verdict": next(verdict for verdict in order if verdict in verdicts),
            "statement": " ".join(dict.fromkeys(one.reason for one in losses)),
        }
    return {
        "queries": sum(one.queries for one in losses),
        "parts": parts,
        "realised": realised,
        "likelihood_ratio": [
            {
                "part": one.part,
                "transcripts": one.transcripts,
                "queries": one.queries,
                "auc": one.auc.to_json(),
                **_shown(one),
                "verdict": one.verdict,
            }
            for one in (*found.repeated, *found.adaptive)
        ],
        "black_box": None,
        "detail": found.to_json(),
    }


def _shown(one: TranscriptAudit) -> dict[str, Any]:
    """What transcripts show, in the claim's own terms: SubMix claims a divergence, no epsilon at a delta.

    An epsilon at a delta for one corpus would be read as differential privacy, which is not claimed.
    """
    if one.instance_specific:
        return {
            "measure": "divergence",
            "epsilon_lower": one.divergence.low,
            "claimed_epsilon": one.claimed,
            "delta": None,
        }
    return {
        "measure": "epsilon",
        "epsilon_lower": one.separation.epsilon,
        "claimed_epsilon": one.claimed_dp,
        "delta": one.delta,
    }


def _claims_of(guarantee: Guarantee, found: PredictionAudit, plan: AuditPlan) -> list[ClaimRecord]:
    instance = guarantee.kind == "rop"
    differing = max((one.divergence.low for one in (*found.repeated, *found.adaptive)), default=None)
    reason = " ".join(found.reasons) or "Nothing was found that could speak for or against it."
    converted = guarantee.to_dp(plan.delta).epsilon if guarantee.kind == "rdp" else None
    return [
        ClaimRecord(
            claim=str(guarantee),
            verdict=found.verdict,
            reason=reason,
            claimed_epsilon=guarantee.epsilon if instance else converted,
            measured_epsilon=differing if instance else found.shown,
            detectable_epsilon=None,
            delta=plan.delta if converted is not None else None,
            confidence=plan.confidence,
            method=(
                f"realised losses against charges; Renyi divergence of order {guarantee.order:g} of this "
                "corpus's transcripts in nats, cut at one stop"
                if instance
                else "realised losses against charges; exact likelihood ratios of transcripts"
            ),
        )
    ]
