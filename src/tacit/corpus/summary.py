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
    tokens_known = corpus.unit == "block" or count_tokens is not None
    for batch in _batches(corpus.documents()):
        for document in batch:
            encoded = document.text.encode()
            characters += len(document.text)
            bytes_of[document.user] += len(encoded)
            hashes.append(int.from_bytes(hashlib.blake2b(encoded, digest_size=8).digest()))
        for document, tokens in zip(batch, _token_counts(batch, count_tokens), strict=True):
            tokens_of[document.user] += tokens
    size_of = tokens_of if tokens_known else bytes_of
    return CorpusSummary(
        users=len(corpus.users),
        documents=len(corpus),
        tokens=tokens_of.total() if tokens_known else None,
        characters=characters,
        bytes=bytes_of.total(),
        largest_user_share=max(size_of.values(), default=0) / max(size_of.total(), 1),
        measured_in="tokens" if tokens_known else "bytes",
        duplicate_documents=len(hashes) - len(np.unique(np.frombuffer(hashes, np.uint64))) if hashes else 0,
        skipped=dict(corpus.skipped),
    )


def _batches(documents: Iterator[Document]) -> Iterator[list[Document]]:
    while batch := list(islice(documents, _DOCUMENTS_PER_BATCH)):
        yield batch


def _token_counts(batch: Sequence[Document], count_tokens: CountTokens | None) -> Sequence[int]:
    if batch[0].tokens is not None:
        return [len(document.tokens or ()) for document in batch]
    return count_tokens([document.text for document in batch]) if count_tokens else [0] * len(batch)
