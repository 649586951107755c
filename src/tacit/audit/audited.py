"""A Run under audit: its text, its canaries, and what attacks on it have in common."""

from __future__ import annotations

import datetime
import math
import platform
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from tacit.attacks.exposure import MechanismTarget, measure_exposures
from tacit.audit.attempts import Attempt, judged_together, with_adjusted
from tacit.audit.canary_findings import ExposureFinding
from tacit.audit.membership_findings import MembershipFinding
from tacit.audit.membership_sets import NamedSet
from tacit.audit.plans import AuditPlan
from tacit.audit.record import AuditRecord, ClaimRecord
from tacit.corpus import read_corpus
from tacit.corpus.canaries import CanaryManifest
from tacit.errors import InputError
from tacit.evaluation.report import recipe_of
from tacit.models.trained import TrainedModel
from tacit.privacy import Guarantee
from tacit.progress import Progress
from tacit.runs import PublicModelRecord, Run
from tacit.statistics import FloatArray
from tacit.training.preparation import SplitCorpus, split, tokenizer_of

NOT_COVERED: Final = (
    "Attacks that nobody has thought of yet: an audit refutes claims and proves none.",
    "Text that was neither planted nor sampled: canaries stand for secrets like them, not for all text.",
    "The public model's own training data.",
    "Whoever controls the machine, reads the private folder or the members' weights.",
)


class AuditedRun:
    """What audits of one model and of an ensemble have in common."""

    def __init__(
        self, run: Run, plan: AuditPlan, texts: SplitCorpus, device: str, progress: Progress
    ) -> None:
        self.run, self.plan, self.texts = run, plan, texts
        self.device, self.progress = device, progress
        self.notes: list[str] = []
        self.tried: list[Attempt] = []  # judged when it is known how many share the error
        if plan.against is not None:
            require_control(run, plan.against)
        self.manifest = _trained_canaries(run, plan.manifest, texts, self.notes)

    def provenance(self) -> dict[str, Any]:
        manifest = self.plan.manifest
        return {
            "versions": dict(self.run.manifest.versions),
            "manifest_commitment": None if manifest is None else manifest.commitment,
            "seeds": {"audit": self.plan.seed},
            "settings": {
                "delta": self.plan.delta,
                "confidence": self.plan.confidence,
                "documents": self.plan.documents,
                "lines": self.plan.lines,
                "groups": f"{self.plan.groups.groups} of {self.plan.groups.size}",
                "preset": self.plan.preset,
                "exposure_score": self.plan.exposure.score,
                "exposure_budget": self.plan.exposure.budget,
            },
            "processor": platform.machine(),
        }

    def described(self) -> dict[str, Any]:
        manifest = self.run.manifest
        return {
            "name": self.run.folder.absolute().name,
            "method": manifest.method,
            "public_model": _without_folders(manifest.public_model),
            "family": manifest.public_model.family,
            "weights_fingerprint": manifest.weights_fingerprint,
            "seeded": manifest.seeded,
        }

    def exposure(
        self, target: TrainedModel | MechanismTarget, control: TrainedModel | None = None
    ) -> ExposureFinding | None:
        if self.manifest is None:
            return None
        own, public, *without = measure_exposures(
            [target, target.public, *([] if control is None else [control])],
            self.manifest,
            settings=self.plan.exposure,
            words=self.plan.words,
            progress=self.progress,
        )
        found = ExposureFinding(self.manifest, own, public, without[0] if without else None)
        if own.nested > 1:
            self.notes.append(
                f"Some words of the list begin with others: a secret may stand behind {own.nested - 1} of "
                "its own beginnings whatever the model knows, and its exposure be "
                f"{math.log2(own.nested):.1f} bits too low. p-values and bounds hold all the same."
            )
        return found

    def membership(self, chosen: NamedSet, scores: Mapping[str, FloatArray]) -> MembershipFinding:
        """What the scores of one set show."""
        found = MembershipFinding.of(
            chosen.name,
            chosen.what,
            chosen.found,
            scores,
            groups=self.plan.groups,
            primary=self.plan.primary,
            confidence=self.plan.confidence,
            seed=self.plan.seed,
        )
        if found.flagged:
            self.notes.append(
                f"The texts of the set '{found.name}' tell members from others without any model; its "
                "attacks show nothing about the model."
            )
        return found

    def finish(
        self,
        guarantee: Guarantee,
        claims: Sequence[ClaimRecord],
        sections: Mapping[str, Any],
        mechanism: Mapping[str, Any] | None = None,
    ) -> AuditRecord:
        attempts = judged_together(self.tried)
        return AuditRecord(
            created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            run=self.described(),
            guarantee=guarantee.to_json(),
            mechanism=mechanism,
            claims=tuple(claims),
            attempts=attempts,
            confidence=self.plan.confidence,
            sections=with_adjusted(sections, attempts),
            not_covered=NOT_COVERED,
            notes=tuple(self.notes),
            provenance=self.provenance(),
        )


def _without_folders(model: PublicModelRecord) -> str:
    """The public model's name; of a folder its last part alone, because the rest is the operator's."""
    return model.name if model.revision is not None else Path(model.name).name


@contextmanager
def split_texts(run: Run, progress: Progress) -> Iterator[SplitCorpus]:
    """The text that a Run was made from, split as its training split it."""
    recipe = recipe_of(run)
    whole = read_corpus(recipe.corpus, tokenizer_of(recipe.model), progress)
    try:
        run.check_corpus(whole.fingerprint, remedy="restore it, or train again")
        yield split(whole, recipe.held_out)
    finally:
        whole.close()


def canaries_as_trained(run: Run, manifest: CanaryManifest, progress: Progress) -> CanaryManifest:
    """The manifest as a Run's training saw it: canaries that were held out count as never inserted."""
    with split_texts(run, progress) as texts:
        return _as_trained(run, manifest, texts, [])


def require_control(run: Run, other: Run) -> None:
    """Before anything long begins: the other Run has the same text on both sides, and no protection."""
    if other.manifest.weights == "members":
        raise InputError(f"{other.folder} holds an ensemble; give a Run of one model without protection.")
    if other.corpus_fingerprint() != run.corpus_fingerprint():
        raise InputError(
            f"{other.folder} was trained on other text than {run.folder}; give a Run of the same corpus."
        )
    tokenizers = {one.manifest.public_model.tokenizer_fingerprint for one in (run, other)}
    if len(tokenizers) > 1:
        raise InputError(
            f"{other.folder} reads text with another tokenizer than {run.folder}, so that neither their "
            "perplexities nor their scores compare; give a Run of the same public model."
        )
    if recipe_of(other).held_out != recipe_of(run).held_out:
        raise InputError(
            f"{other.folder} held out other text than {run.folder}; give a Run with the same held_out."
        )
    if (kind := other.manifest.guarantee["kind"]) not in ("none", "public"):
        raise InputError(
            f"{other.folder} is protected itself (its guarantee is of kind '{kind}'); give a Run that is not."
        )


def _trained_canaries(
    run: Run, manifest: CanaryManifest | None, texts: SplitCorpus, notes: list[str]
) -> CanaryManifest | None:
    if manifest is None:
        notes.append("No canary manifest was given: exposure and extraction of canaries were not measured.")
        return None
    return _as_trained(run, manifest, texts, notes)


def _as_trained(run: Run, manifest: CanaryManifest, texts: SplitCorpus, notes: list[str]) -> CanaryManifest:
    if recipe_of(run).corpus.blocks is not None:
        raise InputError(
            f"{run.folder} cut its corpus in blocks, which tears canaries apart; audit a Run whose users are "
            "people."
        )
    inserted = {canary.text for canary in manifest.canaries if canary.inserted}
    if texts.whole.has_masks:  # where canaries are masked or cut into sentences: by whose they are
        present = frozenset(texts.train.users)
        trained = {one.text for one in manifest.canaries if one.inserted and one.user in present}
    else:
        trained = {one.text for one in texts.train.documents() if one.text in inserted}
    if inserted and not trained:
        raise InputError(
            f"None of the manifest's {len(inserted)} inserted canaries is in the text that {run.folder} was "
            "trained on; give the manifest that was planted into its corpus."
        )
    if lost := len(inserted - trained):
        notes.append(f"{lost} inserted canaries were held out with their users and count as not inserted.")
    kept = tuple(replace(one, inserted=one.inserted and one.text in trained) for one in manifest.canaries)
    return replace(manifest, canaries=kept)
