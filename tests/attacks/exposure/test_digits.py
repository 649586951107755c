"""Digit candidates from the variants of their pieces: the same trie as from a million encodings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from tokenizers import AddedToken, Regex, Tokenizer, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from tacit.attacks.exposure.candidates import candidate_trie, digit_continuations
from tacit.attacks.exposure.digits import digit_groups, digit_trie
from tacit.errors import ModelError
from tacit.models.tokenizer import PublicTokenizer
from tests.attacks.exposure.test_token_tree import many_digits, single_digits
from tests.attacks.number_models import number_texts
from tests.tiny import START

PREFIX = "My number is:"


def with_pieces(*pieces: pre_tokenizers.PreTokenizer, added: str | None = None) -> PublicTokenizer:
    """Byte-level BPE trained on numbers, behind pre-tokenizers of one's own."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [*pieces, pre_tokenizers.ByteLevel(False, use_regex=False)]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=700,
        special_tokens=[START],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator([*number_texts(4000, seed=8), PREFIX], trainer)
    if added is not None:
        backend.add_tokens([AddedToken(added)])
    wrapped = PreTrainedTokenizerFast(tokenizer_object=backend, bos_token=START, eos_token=START)
    return PublicTokenizer.wrap(wrapped, start_token=0, vocabulary="public")


def threes() -> PublicTokenizer:
    """Groups of up to three digits from the left, as in Llama 3."""
    split = pre_tokenizers.Split(Regex(r"\p{N}{1,3}| ?[^\s\p{N}]+|\s+"), "isolated")
    return with_pieces(split)


def threes_from_the_right() -> PublicTokenizer:
    """Groups that depend on how many digits follow: 1,234."""
    split = pre_tokenizers.Split(
        Regex(r"\p{N}{1,3}(?=(?:\p{N}{3})*(?:\P{N}|$))| ?[^\s\p{N}]+|\s+"), "isolated"
    )
    return with_pieces(split)


def one_by_one(added: str | None = None) -> PublicTokenizer:
    split = pre_tokenizers.Split(Regex(r" ?[^\s\p{N}]+|\s+|\p{N}+"), "isolated")
    return with_pieces(split, pre_tokenizers.Digits(individual_digits=True), added=added)


def with_a_lucky_number() -> PublicTokenizer:
    """An added token that only some candidates hold."""
    return one_by_one("77")


def with_a_special_digit() -> PublicTokenizer:
    split = pre_tokenizers.Split(Regex(r"7| ?[^\s\p{N}]+|\s+|[0-68-9]+"), "isolated")
    return with_pieces(split)


@pytest.mark.parametrize("digits", [2, 4])
@pytest.mark.parametrize(
    ("make", "groups"),
    [
        (single_digits, [1, 1, 1, 1]),
        (one_by_one, [1, 1, 1, 1]),
        (threes, [3, 1]),
        (threes_from_the_right, [1, 3]),
        (many_digits, [4]),
        (with_a_lucky_number, None),
        (with_a_special_digit, None),
    ],
)
def test_equals_encoding_every_text(
    make: Callable[[], PublicTokenizer], groups: list[int] | None, digits: int
) -> None:
    tokenizer = make()
    assert digit_groups(tokenizer, PREFIX + " ", 4) == groups
    known = [f" {7:0{digits}d}", f" {10**digits - 3}"]
    plain = candidate_trie(tokenizer, PREFIX, digit_continuations(digits, " "), known=known)
    quick = digit_trie(tokenizer, PREFIX, digits, separator=" ", known=known)
    assert quick.prefix == plain.prefix
    assert quick.known == plain.known
    np.testing.assert_array_equal(quick.tree.order, plain.tree.order)
    np.testing.assert_array_equal(quick.tree.token, plain.tree.token)
    np.testing.assert_array_equal(quick.tree.first_child, plain.tree.first_child)
    np.testing.assert_array_equal(quick.tree.sorted_rows.tokens, plain.tree.sorted_rows.tokens)


def test_an_unstable_prefix_is_still_refused() -> None:
    with pytest.raises(ModelError, match="move the space"):
        digit_trie(many_digits(), "My number is: ", 4, separator="")


def test_a_million_candidates_are_not_encoded_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    encoded = 0
    encode = PublicTokenizer.encode

    def counted(self: PublicTokenizer, texts: Sequence[str], **options: Any) -> list[list[int]]:
        nonlocal encoded
        encoded += len(texts)
        return encode(self, texts, **options)

    monkeypatch.setattr(PublicTokenizer, "encode", counted)
    trie = digit_trie(one_by_one(), "My ID is:", 6, separator=" ", known=[" 123456"])
    assert trie.candidates == 10**6
    assert trie.internal == 111_112  # the space is a token of its own
    assert 60 <= encoded < 1000, "the variants of every digit, and a sample to check them by"
