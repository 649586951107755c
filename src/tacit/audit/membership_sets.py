"""Who is a member: the sets of texts that a Run's corpus allows, each with what it is in a sentence.

Canaries by their coins, one document of each user, and lines with gold spans beside look-alikes: with secrets
of the two sides of the split, or with those of documents that the caller names, which describes and tests
nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from tacit.attacks.look_alikes import MembershipSet, canary_set
from tacit.attacks.secret_lines import donor_set, span_set
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
    recipe: Recipe, texts: SplitCorpus, manifest: CanaryManifest | None, plan: AuditPlan, notes: list[str]
) -> NamedSet | None:
    """Training documents against held-out ones."""
    if recipe.held_out is None or texts.held_out is None or not plan.documents:
        notes.append("Nothing was held out, or no documents were asked for: they were not scored.")
        return None
    train = texts.train
    if (among := recipe.held_out.among) is not None:  # behind them nothing could have been held out
        train = train.select(train.row_numbers() < among)
    drawn = draw_documents(train, texts.held_out, manifest, most=plan.documents, seed=plan.seed)
    members = int(drawn.is_member.sum())
    if not 2 <= members <= len(drawn) - 2:
        notes.append("Too few users to compare training documents with held-out ones.")
        return None
    what = "One training document of each user, against one held-out document of others."
    return NamedSet("documents", what, drawn, texts.train.has_control_tokens)


def lines_with_secrets(
    recipe: Recipe, texts: SplitCorpus, plan: AuditPlan, notes: list[str]
) -> NamedSet | None:
    """Lines that hold gold spans, against look-alikes."""
    section = recipe.corpus
    if not plan.lines or (plan.spans is None and not may_have_spans(section)):
        return None
    column = plan.spans or DEFAULT_COLUMN
    documents = _sides(recipe, texts, column)
    if not any(trained and document.spans for document, trained in documents):
        if plan.spans is not None:
            raise InputError(
                f"{section.path}: no training document has spans in column '{column}'; name the column that "
                "holds them (--spans)."
            )
        return None
    if recipe.held_out is None and plan.donors is None:
        notes.append(
            "Lines with gold spans were not attacked: nothing was held out whose secrets could stand in for "
            "theirs. Hold text out, or give documents of the same kind that were not trained on (--donors), "
            "which describes and tests nothing."
        )
        return None
    try:
        chosen = _lines(recipe, documents, plan, column)
    except InputError as problem:
        notes.append(f"Lines with gold spans were not attacked. {problem}")
        return None
    if (members := len(chosen.found) // 2) < 2:
        notes.append("Lines with gold spans were not attacked: only one has a look-alike.")
        return None
    if members < plan.lines:
        notes.append(
            f"{members:,} lines with gold spans have a look-alike, not {plan.lines:,}: there are no more "
            f"whose secrets are in one {_owner(recipe)} alone and have a counterpart of the same format."
        )
    return chosen


def _owner(recipe: Recipe) -> str:
    """Whose secrets the split keeps apart."""
    return "document" if recipe.held_out is not None and recipe.held_out.by == "within" else "user's text"


DEFAULT_COLUMN = "spans"


def _sides(recipe: Recipe, texts: SplitCorpus, column: str) -> list[tuple[Dialogue, bool]]:
    """Every document with its spans, and whether it was trained on."""
    split = recipe.held_out
    documents = read_gold_spans(recipe.corpus, column)
    if split is None:
        return [(document, True) for document in documents]
    is_held_out = held_out_documents(texts.whole, split.share, split.by, seed=split.seed, among=split.among)
    return [(document, not is_held_out[number]) for number, document in enumerate(documents)]


def _lines(recipe: Recipe, documents: list[tuple[Dialogue, bool]], plan: AuditPlan, column: str) -> NamedSet:
    if plan.donors is not None:
        trained = [document for document, is_trained in documents if is_trained]
        donors = _read_donors(recipe.corpus, plan.donors, column)
        return NamedSet(
            "lines",
            "Training lines that hold secrets, against the same lines with those of a donor; donors are no "
            "coin's choice, so that this describes and tests nothing.",
            donor_set(trained, donors, members=plan.lines, seed=plan.seed),
        )
    split = recipe.held_out
    assert split is not None  # noqa: S101 - the caller looked
    return NamedSet(
        "lines",
        "Lines with secrets that were trained on, against the same lines with held-out secrets of the same "
        f"format; lines of either side, and secrets that are in one {_owner(recipe)} alone.",
        span_set(documents, by=split.by, among=split.among, members=plan.lines, seed=plan.seed),
    )


def _read_donors(section: CorpusSection, path: str, column: str) -> Iterator[Dialogue]:
    return read_gold_spans(section.model_copy(update={"path": path, "format": "auto"}), column)
