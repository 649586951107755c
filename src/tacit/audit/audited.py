"""A Run under audit: its text, its canaries, and what attacks on it have in common."""

from __future__ import annotations

import datetime
import math
import platform
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from tacit.attacks.exposure import MechanismTarget, measure_exposures
from tacit.audit.attempts import Attempt, judged_together, with_adjusted
from tacit.audit.canary_findings import ExposureFinding
from tacit.audit.claimed import gaussian_dp_of
from tacit.audit.membership_findings import MembershipFinding
from tacit.audit.membership_sets import NamedSet, lines_with_secrets
from tacit.audit.plans import AuditPlan
from tacit.audit.record import AuditRecord, ClaimRecord
from tacit.audit.trained_canaries import as_trained
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
                "authors": f"{self.plan.authors}, of each {self.plan.author_texts} texts",
                "label": self.plan.label,
                "groups": f"{self.plan.groups.groups} of {self.plan.groups.size}",
                "preset": self.plan.preset,
                "against": None if self.plan.against is None else self.plan.against.folder.absolute().name,
                "spans": self.plan.spans,
                "donors": None if self.plan.donors is None else Path(self.plan.donors).name,
                "real": f"{self.plan.real}, {self.plan.real_users} users",
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
            "public_model": public_name(manifest.public_model),
            "family": manifest.public_model.family,
            "weights_fingerprint": manifest.weights_fingerprint,
            "seeded": manifest.seeded,
            "gaussian_dp": gaussian_dp_of(self.run),
        }

    def exposure(
        self, target: TrainedModel | MechanismTarget, control: TrainedModel | None = None
    ) -> ExposureFinding | None:
        kind = None if self.manifest is None else self.manifest.plan.secret
        if self.plan.words is not None and kind != "words":
            self.notes.append("The list of words (--words) was not used: no canary's secret is of words.")
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

    def lines(self, *, scored: bool = True) -> NamedSet | None:
        """Lines with gold spans, picked before anything long begins: what was named and is not there is told.

        ``scored`` says whether this audit attacks lines at all.
        """
        plan = self.plan
        if plan.donors is not None and not Path(plan.donors).exists():
            raise InputError(f"There is no file {plan.donors}; name documents with gold spans (--donors).")
        found = None
        if scored:
            before = len(self.notes)
            found = lines_with_secrets(recipe_of(self.run), self.texts, plan, self.notes)
            if found is not None or len(self.notes) > before:
                return found
        if plan.donors is not None or plan.spans is not None:
            self.notes.append(
                "Lines with gold spans were not attacked, and spans and donors not used: "
                + (
                    "behind a mechanism that takes --preset crt."
                    if not scored
                    else "none were asked for (--lines 0)."
                    if not plan.lines
                    else "the corpus has no column 'spans' (--spans names another)."
                )
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
            sections=with_adjusted(sections, attempts, 1 - self.plan.confidence),
            not_covered=NOT_COVERED,
            notes=tuple(self.notes),
            provenance=self.provenance(),
        )


def public_name(model: PublicModelRecord) -> str:
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
        return as_trained(run, manifest, texts, [])


def require_control(run: Run, other: Run) -> None:
    """Before anything long begins: the other Run has the same text on both sides, and no protection."""
    require_unprotected(other)
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


def require_unprotected(other: Run) -> None:
    """A Run of one model that may show what attacks find where nothing protects."""
    if other.manifest.weights == "members":
        raise InputError(f"{other.folder} holds an ensemble; give a Run of one model without protection.")
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
    return as_trained(run, manifest, texts, notes)
