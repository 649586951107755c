"""Texts of known authors in two sets that share no text: a probe learns on one and is scored on the other.

Where text was held out within users, the probe learns on training text and is scored on held-out text of the
same authors, which the model never saw. Otherwise training text is split within authors, and the section says
that the model saw all of it.

A text counts once, wherever it stands and whoever wrote it; held-out text that training saw as well is left
out. Planted canaries are left out, too: their repetitions would name their author without any style. Authors
are drawn at random where there are more than asked for, and so are the texts of each, so that authors have
about as many each and chance is close to one in M. Where a label is named that has few values, more texts of
each are drawn, as many in all as of authors.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from tacit.attacks.author_probe import LEAST_TEXTS
from tacit.audit.plans import AuditPlan
from tacit.corpus import UserCorpus
from tacit.corpus.canaries import CanaryManifest
from tacit.corpus.corpus_folder import passing_storage
from tacit.corpus.screening import MASK
from tacit.models.loading import PublicModel
from tacit.recipes import Recipe
from tacit.training.authors import read_labels
from tacit.training.encoding import IntArray, encode
from tacit.training.preparation import SplitCorpus

_SCORED: Final = 3  # of training text alone, every so manieth text of an author is scored
_BY_AUTHOR = dict[str, list[int]]


@dataclass(frozen=True, repr=False)
class AuthoredTexts:
    """Token ids that a model reads of each text, start token included, and whose the text is.

    authors  what the probe names, numbered from 0: users, or the values of a label
    users    who wrote each, whatever is named: texts of one user are alike
    """

    sequences: Sequence[Sequence[int]]
    authors: IntArray
    users: IntArray

    def __len__(self) -> int:
        """Number of texts."""
        return len(self.authors)


@dataclass(frozen=True)
class LinkabilitySet:
    """What a probe learns on and is scored on.

    label   the column that says whose a text is; None: the user
    unseen  whether the model never saw the scored texts
    """

    learnt: AuthoredTexts = field(repr=False)
    scored: AuthoredTexts = field(repr=False)
    authors: int
    label: str | None
    unseen: bool

    @property
    def what(self) -> str:
        """The set in a sentence."""
        if self.unseen:
            return "The probe learns on training text and is scored on held-out text of the same authors."
        return (
            "The probe learns on one part of the training text and is scored on another, of the same "
            "authors; the model saw both (held_out.by=within keeps text of each author from it)."
        )


@dataclass(frozen=True)
class Labels:
    """Whose each text is: of the training text, and of held-out text of the same authors, if there is any."""

    column: str | None
    train: Sequence[str] = field(repr=False)
    held_out: Sequence[str] | None = field(repr=False)


def whose_texts(
    recipe: Recipe, texts: SplitCorpus, manifest: CanaryManifest | None, plan: AuditPlan, notes: list[str]
) -> Labels | None:
    """Read before anything long begins; None where no author is asked for, or none is there (with a note)."""
    if not plan.authors:
        return None
    if texts.whole.unit == "block":
        notes.append("Linkability was not measured: users are blocks of text, which have no author.")
        return None
    label, named = plan.label, f"--label {plan.label}"
    if label is None and recipe.regularisation is not None:
        label = recipe.regularisation.label
        named = f"regularisation.label='{label}'"
    canaries = frozenset(() if manifest is None else (one.text.strip() for one in manifest.canaries))

    def labels(corpus: UserCorpus) -> Sequence[str]:
        if label is None:
            return [corpus.users[code] for code in corpus.user_codes()]
        return read_labels(recipe.corpus, label, corpus, named=named, unlabelled=canaries)

    within = recipe.held_out is not None and recipe.held_out.by == "within"
    held_out = texts.held_out if within else None
    return Labels(label, labels(texts.train), None if held_out is None else labels(held_out))


def texts_of_authors(
    recipe: Recipe,
    texts: SplitCorpus,
    labels: Labels,
    public: PublicModel,
    manifest: CanaryManifest | None,
    plan: AuditPlan,
    notes: list[str],
    *,
    context: int,
) -> LinkabilitySet | None:
    """The two sets that a Run's corpus allows; None, with a note, where it allows none."""
    held_out = None if labels.held_out is None else texts.held_out
    # Texts are compared without spaces around them: a screening takes those of canaries away.
    seen = set() if manifest is None else {_digest(canary.text) for canary in manifest.canaries}
    rng = np.random.default_rng(plan.seed)
    learnt = _by_author(texts.train, labels.train, seen)
    if held_out is not None and labels.held_out is not None:
        scored = _by_author(held_out, labels.held_out, seen)
    else:
        learnt, scored = _split(learnt, rng)
    able = [
        author
        for author, own in learnt.items()
        if len(own) >= LEAST_TEXTS and len(scored.get(author, ())) > 0
    ]
    if len(able) < 2:
        notes.append(_why_not(learnt))
        return None
    places = np.sort(rng.permutation(len(able))[: plan.authors])
    chosen = [able[place] for place in places]
    block_size = min(recipe.training.block_size, context)
    # A label may have two values, and a probe that learns from forty texts tells little: as many in all.
    each = plan.author_texts
    if labels.column is not None:
        each = max(each, plan.authors * each // len(chosen))

    def drawn(corpus: UserCorpus, by_author: _BY_AUTHOR) -> AuthoredTexts:
        numbers = {
            int(document): number
            for number, author in enumerate(chosen)
            for document in rng.permutation(by_author[author])[:each]
        }
        return _read(corpus, numbers, public, block_size)

    first = drawn(texts.train, learnt)
    second = drawn(texts.train if held_out is None else held_out, scored)
    if np.bincount(first.authors, minlength=len(chosen)).min() < LEAST_TEXTS or not len(second):
        notes.append("Linkability was not measured: texts of some authors have no token to read.")
        return None
    return LinkabilitySet(first, second, len(chosen), labels.column, unseen=held_out is not None)


def _why_not(learnt: _BY_AUTHOR) -> str:
    if len(learnt) < 2:
        return "Linkability was not measured: the text has one author, and there is nobody to be taken for."
    return (
        f"Linkability was not measured: fewer than two authors have {LEAST_TEXTS} different texts to learn "
        "from and one to be scored on."
    )


def _by_author(corpus: UserCorpus, labels: Sequence[str], seen: set[bytes]) -> _BY_AUTHOR:
    """The documents of each author, none of whose text was seen before; ``seen`` grows by them."""
    found: _BY_AUTHOR = {}
    for document in corpus.documents():
        own = found.setdefault(labels[document.index], [])
        text = document.text
        digest = _digest(text)
        empty = not (text.replace(MASK, "") if corpus.has_masks else text).strip()
        if not empty and digest not in seen:
            seen.add(digest)
            own.append(document.index)
    return found


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.strip().encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _split(by_author: _BY_AUTHOR, rng: np.random.Generator) -> tuple[_BY_AUTHOR, _BY_AUTHOR]:
    learnt: _BY_AUTHOR = {}
    scored: _BY_AUTHOR = {}
    for author, own in by_author.items():
        mixed = rng.permutation(np.array(own, dtype=np.int64)).tolist()
        cut = max(1, len(mixed) // _SCORED)
        scored[author], learnt[author] = mixed[:cut], mixed[cut:]
    return learnt, scored


def _read(corpus: UserCorpus, numbers: dict[int, int], public: PublicModel, block_size: int) -> AuthoredTexts:
    """Texts as training reads them, each by its last piece: its last state is the h_x of training."""
    documents = np.array(sorted(numbers), dtype=np.int64)
    keep = np.zeros(len(corpus), dtype=np.bool_)
    keep[documents] = True
    with passing_storage() as folder:
        encoded = encode(
            corpus.select(keep),
            public.tokenizer,
            block_size=block_size,
            storage=folder / "tokens.int32",
            end_token=public.tokenizer.tokenizer.eos_token_id,
        )
        last = {
            int(encoded.piece_document[piece]): piece for piece in np.flatnonzero(encoded.labels > 0).tolist()
        }
        sequences = [[encoded.start_token, *encoded.piece(piece)[:-1].tolist()] for piece in last.values()]
    found = documents[list(last)]
    authors = np.array([numbers[int(document)] for document in found], dtype=np.int64)
    return AuthoredTexts(sequences, authors, corpus.user_codes()[found].astype(np.int64))
