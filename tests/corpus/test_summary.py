"""The figures of a corpus are what one would count by hand."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tacit.corpus import UserCorpus, summarise

PAIRS = [("ann", "a b c"), ("bob", "é"), ("ann", "a b c"), ("cat", "a b c"), ("bob", "d e")]


def count_words(texts: Sequence[str]) -> list[int]:
    return [len(text.split()) for text in texts]


def test_counts_by_hand() -> None:
    summary = summarise(UserCorpus.from_pairs(PAIRS), count_words)
    assert (summary.users, summary.documents, summary.tokens) == (3, 5, 12)
    assert (summary.characters, summary.bytes) == (19, 20)
    assert summary.largest_user_share == pytest.approx(6 / 12)
    assert summary.measured_in == "tokens"
    assert summary.duplicate_documents == 2
    assert summary.skipped == {}


def test_without_a_counter_the_share_is_of_bytes() -> None:
    summary = summarise(UserCorpus.from_pairs(PAIRS))
    assert summary.tokens is None
    assert summary.largest_user_share == pytest.approx(10 / 20)
    assert summary.measured_in == "bytes"


def test_batches_add_up() -> None:
    batches: list[int] = []

    def counting(texts: Sequence[str]) -> list[int]:
        batches.append(len(texts))
        return [2] * len(texts)

    summary = summarise(
        UserCorpus.from_pairs([(f"user{n % 10}", f"text {n % 300}") for n in range(1000)]), counting
    )
    assert (summary.tokens, summary.duplicate_documents) == (2000, 700)
    assert summary.largest_user_share == pytest.approx(0.1)
    assert sum(batches) == 1000
    assert len(batches) > 1


def test_counter_that_loses_a_document_is_caught() -> None:
    with pytest.raises(ValueError, match="shorter"):
        summarise(UserCorpus.from_pairs(PAIRS), lambda texts: [1] * (len(texts) - 1))


def test_empty_view_has_an_empty_summary() -> None:
    summary = summarise(UserCorpus.from_pairs(PAIRS).of_users([]), count_words)
    assert (summary.users, summary.documents, summary.tokens, summary.duplicate_documents) == (0, 0, 0, 0)
    assert summary.largest_user_share == 0
