"""Tab attack: given the first token of a text, does greedy completion write the rest (Mireshghallah et al.)?

No generation is needed. Greedy decoding reproduces a text if and only if every token after the first is the
likeliest one given the true tokens before it: if one is not, decoding leaves the text there; if all are, it
never can. So one teacher-forced pass answers for all texts. (A tie at the top counts as reproduced.)

Two texts with the same first token have one completion between them. So accuracy 1 can be out of reach, and
``attainable`` says what is in reach: for every first token the most texts that one completion can hold.

Canaries of one user are not independent, so that intervals count users. "Real canaries" are each user's
training text with the highest perplexity. Which model judges that matters: the paper's choice, the model
without mitigation, picks texts by one of the models that are then compared, in its disfavour; by default an
independent (public) model picks them, and a result says which it was.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

import numpy as np

from tacit.attacks.token_statistics import (
    DEFAULT_POSITIONS,
    BoolArray,
    LanguageModel,
    encode_texts,
    public_of,
    token_statistics,
)
from tacit.corpus import CanaryManifest, UserCorpus
from tacit.errors import InputError
from tacit.models.loading import PublicModel
from tacit.models.tokenizer import MASK_TEXT
from tacit.progress import Progress
from tacit.statistics import Estimate, bounded_mean, clopper_pearson

CanarySource = Literal[
    "synthetic", "real, picked by an independent model", "real, picked by the paper's rule"
]
_TEXTS_AT_ONCE: Final = 512


@dataclass(frozen=True)
class TabCanary:
    """A text to reproduce, and whose it is."""

    id: str
    user: str = field(repr=False)
    text: str = field(repr=False)
    repetitions: int = 1


@dataclass(frozen=True)
class TabCanaries:
    """Texts to reproduce, and where they come from."""

    canaries: tuple[TabCanary, ...] = field(repr=False)
    source: CanarySource

    def __len__(self) -> int:
        """Number of canaries."""
        return len(self.canaries)


@dataclass(frozen=True)
class TabResult:
    """Which canaries greedy completion reproduces.

    attainable  the most of them that any model could reproduce
    """

    canaries: TabCanaries
    reproduced: BoolArray = field(repr=False)
    attainable: int

    @property
    def hits(self) -> int:
        """How many are reproduced."""
        return int(self.reproduced.sum())

    def accuracy(self, *, confidence: float = 0.95) -> Estimate:
        """Share of canaries that are reproduced; exact where each user has one, else over users."""
        users: dict[str, list[bool]] = {}
        for canary, hit in zip(self.canaries.canaries, self.reproduced, strict=True):
            users.setdefault(canary.user, []).append(bool(hit))
        if len(users) == len(self.canaries):
            return clopper_pearson(self.hits, len(self.canaries), confidence=confidence)
        return bounded_mean(
            [sum(hits) / len(hits) for hits in users.values()],
            weights=[len(hits) for hits in users.values()],
            least=0.0,
            most=1.0,
            of="users",
            confidence=confidence,
        )

    @property
    def largest_accuracy(self) -> float:
        """The accuracy that no model can exceed on these canaries."""
        return self.attainable / len(self.canaries)


def synthetic_canaries(manifest: CanaryManifest, *, inserted: bool = True) -> TabCanaries:
    """The manifest's inserted canaries; with ``inserted=False`` the others, which show what chance gives."""
    chosen = [canary for canary in manifest.canaries if canary.inserted == inserted]
    if not chosen:
        raise InputError(f"The manifest has no canary with inserted={inserted}; plant more of them.")
    return TabCanaries(
        tuple(TabCanary(canary.id, canary.user, canary.text, canary.repetitions) for canary in chosen),
        "synthetic",
    )


def real_canaries(
    corpus: UserCorpus, judge: LanguageModel, *, paper: bool = False, progress: Progress | None = None
) -> TabCanaries:
    """Each user's text with the highest perplexity under ``judge``, among those that fit its context.

    Texts of fewer than two tokens leave nothing to complete, and are passed over.

    Args:
        corpus: training text.
        judge: an independent model that never saw the corpus.
        paper: let the model without mitigation judge, as the paper does; the result is labelled.
        progress: told of every text.
    """
    if not paper and not (isinstance(judge, PublicModel) and not judge.holds_private_text):
        raise InputError(
            "Real canaries are picked by a model that never saw the text; give a public model, or paper=True "
            "for the paper's choice, which is biased against the model that picks."
        )
    best: dict[str, tuple[float, TabCanary]] = {}
    for some in _chunks(corpus, public_of(judge)):
        encoded = encode_texts(
            [canary.text for canary in some],
            public_of(judge).tokenizer,
            public_of(judge).context_length,
            control_tokens=corpus.has_control_tokens,
        )
        losses = token_statistics(encoded, judge, progress=progress).mean_losses
        for canary, loss in zip(some, losses, strict=True):
            if canary.user not in best or loss > best[canary.user][0]:
                best[canary.user] = (float(loss), canary)
    if not best:
        raise InputError(
            "No text has at least two tokens and fits the model's context; nothing can be completed."
        )
    return TabCanaries(
        tuple(canary for _, canary in best.values()),
        "real, picked by the paper's rule" if paper else "real, picked by an independent model",
    )


def _chunks(corpus: UserCorpus, public: PublicModel) -> Iterable[list[TabCanary]]:
    some: list[TabCanary] = []
    for document in corpus.documents():
        if not (corpus.has_masks and MASK_TEXT in document.text):  # what was masked cannot be completed
            some.append(TabCanary(f"document {document.index}", document.user, document.text))
        if len(some) == _TEXTS_AT_ONCE or document.index == len(corpus) - 1:
            encoded = public.tokenizer.encode(
                [canary.text for canary in some], control_tokens=corpus.has_control_tokens
            )
            fitting = [
                canary
                for canary, ids in zip(some, encoded, strict=True)
                if 2 <= len(ids) <= public.context_length
            ]
            if fitting:
                yield fitting
            some = []


def tab_attack(
    canaries: TabCanaries,
    model: LanguageModel,
    *,
    control_tokens: bool = False,
    positions: int = DEFAULT_POSITIONS,
    progress: Progress | None = None,
) -> TabResult:
    """One teacher-forced pass over all canaries."""
    public = public_of(model)
    texts = [canary.text for canary in canaries.canaries]
    encoded = encode_texts(texts, public.tokenizer, public.context_length, control_tokens=control_tokens)
    lengths = np.diff(encoded.token_starts)
    if (lengths < 2).any() or len(encoded.pieces) > len(texts):
        raise InputError(
            f"Expected canaries of 2 to {public.context_length} tokens: shorter ones leave nothing to "
            "complete, and longer ones do not fit the model; leave the others out."
        )
    found = token_statistics(encoded, model, positions=positions, progress=progress)
    reproduced = np.array([found.likeliest[found.of(text)][1:].all() for text in range(len(texts))])
    return TabResult(canaries, reproduced, attainable(encoded.pieces))


def attainable(texts: Sequence[Sequence[int]]) -> int:
    """The most token sequences that one completion of each first token can reproduce.

    A completion holds every text that is its beginning. So for each first token it is the longest chain of
    texts of which each is a beginning of the next (equal ones included): all that begin the chain's last.
    """
    by_first: dict[int, list[tuple[int, ...]]] = defaultdict(list)
    for text in texts:
        by_first[text[0]].append(tuple(text))
    return sum(
        max(sum(last[: len(text)] == text for text in group) for last in group) for group in by_first.values()
    )
