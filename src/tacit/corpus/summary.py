"""What a corpus is made of, counted in one pass."""

from __future__ import annotations

import hashlib
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Literal

import numpy as np

from tacit.corpus.user_corpus import Document, UserCorpus

CountTokens = Callable[[Sequence[str]], Sequence[int]]

_DOCUMENTS_PER_BATCH = 256


@dataclass(frozen=True)
class CorpusSummary:
    """The figures of ``tacit corpus stats``.

    ``largest_user_share`` is the share of the corpus that its largest user wrote, measured in tokens where
    they are known and in bytes otherwise. ``duplicate_documents`` counts the documents whose text occurred
    before, whoever wrote it.
    """

    users: int
    documents: int
    tokens: int | None
    characters: int
    bytes: int
    largest_user_share: float
    measured_in: Literal["tokens", "bytes"]
    duplicate_documents: int
    skipped: Mapping[str, int]


def summarise(corpus: UserCorpus, count_tokens: CountTokens | None = None) -> CorpusSummary:
    """Count users, documents, tokens and duplicates; the text is streamed, 8 bytes a document are held.

    The tokens of blocks are known and need no ``count_tokens``.
    """
    tokens_of: Counter[str] = Counter()
    bytes_of: Counter[str] = Counter()
    characters = 0
    hashes = array("Q")
    for document, tokens in counted_documents(corpus, count_tokens):
        encoded = document.text.encode()
        characters += len(document.text)
        bytes_of[document.user] += len(encoded)
        tokens_of[document.user] += tokens or 0
        hashes.append(int.from_bytes(hashlib.blake2b(encoded, digest_size=8).digest()))
    known = tokens_are_known(corpus, count_tokens)
    size_of = tokens_of if known else bytes_of
    return CorpusSummary(
        users=len(corpus.users),
        documents=len(corpus),
        tokens=tokens_of.total() if known else None,
        characters=characters,
        bytes=bytes_of.total(),
        largest_user_share=max(size_of.values(), default=0) / max(size_of.total(), 1),
        measured_in="tokens" if known else "bytes",
        duplicate_documents=len(hashes) - len(np.unique(np.asarray(hashes))),
        skipped=dict(corpus.skipped),
    )


def tokens_are_known(corpus: UserCorpus, count_tokens: CountTokens | None) -> bool:
    """Whether every document's tokens can be counted."""
    return corpus.unit == "block" or count_tokens is not None


def counted_documents(
    corpus: UserCorpus, count_tokens: CountTokens | None
) -> Iterator[tuple[Document, int | None]]:
    """Every document with its number of tokens, None where nobody counts; counted a batch at a time."""
    documents = corpus.documents()
    while batch := list(islice(documents, _DOCUMENTS_PER_BATCH)):
        counts: Sequence[int | None] = [None if d.tokens is None else len(d.tokens) for d in batch]
        if corpus.unit != "block" and count_tokens is not None:
            counts = count_tokens([document.text for document in batch])
        yield from zip(batch, counts, strict=True)
