"""Who is a member: the sets of texts that a Run's corpus allows, each with what it is in a sentence.

Canaries by their coins, one document of each user, and lines with gold spans beside look-alikes whose secrets
come from donors: the held-out side of the same corpus, or documents that the caller names.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from tacit.attacks.look_alikes import MembershipSet, canary_set, span_set
from tacit.audit.documents import draw_documents
from tacit.audit.plans import AuditPlan
from tacit.corpus.canaries import CanaryManifest
from tacit.corpus.customersim import Dialogue
from tacit.corpus.gold_spans import may_have_spans, read_gold_spans
from tacit.corpus.splitting import held_out_documents
from tacit.errors import InputError
from tacit.recipes import CorpusSection, Recipe
from tacit.training.preparation import SplitCorpus


@dataclass(frozen=True)
class NamedSet:
    """Texts to score, and what to call them."""

    name: str
    what: str
    found: MembershipSet = field(repr=False)
    control_tokens: bool = False


def canaries_by_coin(manifest: CanaryManifest) -> NamedSet | None:
    """All canaries, if at least two were inserted and two not."""
    inserted = sum(one.inserted for one in manifest.canaries)
    if not 2 <= inserted <= len(manifest.canaries) - 2:
        return None
    return NamedSet(
        "canaries",
        "Canaries that a coin put into the training text, against canaries that it left out.",
        canary_set(manifest),
    )


def documents_of(
    texts: SplitCorpus, manifest: CanaryManifest | None, plan: AuditPlan, notes: list[str]
) -> NamedSet | None:
    """Training documents against held-out ones."""
    if texts.held_out is None or not plan.documents:
        notes.append("Nothing was held out, or no documents were asked for: they were not scored.")
        return None
    drawn = draw_documents(texts.train, texts.held_out, manifest, most=plan.documents, seed=plan.seed)
    members = int(drawn.is_member.sum())
    if not 2 <= members <= len(drawn) - 2:
        notes.append("Too few users to compare training documents with held-out ones.")
        return None
    what = "One training document of each user, against one held-out document of others."
    return NamedSet("documents", what, drawn, texts.train.has_control_tokens)


def lines_with_secrets(
    recipe: Recipe, texts: SplitCorpus, plan: AuditPlan, notes: list[str]
) -> NamedSet | None:
    """Lines of training documents that hold gold spans, against look-alikes."""
    section = recipe.corpus
    if not plan.lines or (plan.spans is None and not may_have_spans(section)):
        return None
    column = plan.spans or DEFAULT_COLUMN
    held_out = recipe.held_out
    is_held_out = (
        None
        if held_out is None
        else held_out_documents(texts.whole, held_out.share, held_out.by, seed=held_out.seed)
    )
    trained: list[Dialogue] = []
    donors: list[Dialogue] = []
    for number, document in enumerate(read_gold_spans(section, column)):
        if document.spans:
            (donors if is_held_out is not None and is_held_out[number] else trained).append(document)
    if not trained:
        if plan.spans is not None:
            raise InputError(
                f"{section.path}: no training document has spans in column '{column}'; name the column that "
                "holds them (--spans)."
            )
        return None
    if plan.donors is not None:
        donors = [one for one in _read_donors(section, plan.donors, column) if one.spans]
    if not donors:
        notes.append(
            "Lines with gold spans were not attacked: nothing was held out whose secrets could stand in for "
            "theirs. Give documents of the same kind that were not trained on (--donors)."
        )
        return None
    try:
        found = span_set(trained, donors, members=plan.lines, seed=plan.seed)
    except InputError as problem:
        notes.append(f"Lines with gold spans were not attacked. {problem}")
        return None
    members = len(found) // 2
    if members < 2:
        notes.append(
            "Lines with gold spans were not attacked: donors have secrets for one line only (--donors)."
        )
        return None
    if members < plan.lines:
        notes.append(
            f"{members:,} lines with gold spans have a look-alike, not {plan.lines:,}: there are no more "
            "lines, or donors have no more secrets (--donors)."
        )
    what = (
        "Training lines that hold a secret, against the same lines with somebody's secret of the same format "
        "that was not trained on."
    )
    return NamedSet("lines", what, found)


DEFAULT_COLUMN = "spans"


def _read_donors(section: CorpusSection, path: str, column: str) -> Iterator[Dialogue]:
    return read_gold_spans(section.model_copy(update={"path": path, "format": "auto"}), column)
