"""All digit strings of a length as tokens, without encoding each of a million texts.

A tokenizer whose rules cannot tell one digit from another cuts all candidates into the same pre-tokens, and
a pre-token's tokens are a function of its own text. So the tokens of a candidate are those of its pre-tokens
in a row, and each pre-token's variants (ten, or a thousand for three digits) are all that has to be encoded
and checked behind the prefix: what holds for them holds for every candidate. Where no token holds a digit
together with anything else, no merge crosses a digit, and every digit stands for itself in the same way.

That the rules cannot tell digits apart is read off the tokenizer's own description (normaliser,
pre-tokenizer, added tokens); what is not known to be so is encoded text by text. A random sample is encoded
in any case.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from tacit.attacks.exposure.candidates import (
    CandidateTrie,
    candidate_trie,
    digit_continuations,
    encoded_behind,
)
from tacit.attacks.exposure.token_tree import NO_TOKEN, TokenRows
from tacit.models.tokenizer import PublicTokenizer
from tacit.progress import Progress

_DIGITS: Final = frozenset("0123456789")
_CHECKED_AT_RANDOM: Final = 500
_MODELS: Final = frozenset({"BPE", "WordLevel", "WordPiece", "Unigram"})
_PRE_TOKENIZERS: Final = frozenset(
    {
        "BertPreTokenizer",
        "ByteLevel",
        "CharDelimiterSplit",
        "Digits",
        "Metaspace",
        "Punctuation",
        "Split",
        "Whitespace",
        "WhitespaceSplit",
    }
)
_NORMALIZERS: Final = frozenset(
    {
        "BertNormalizer",
        "Lowercase",
        "NFC",
        "NFD",
        "NFKC",
        "NFKD",
        "Prepend",
        "Replace",
        "Strip",
        "StripAccents",
    }
)
_BYTE: Final = re.compile(r"<0x[0-9A-F]{2}>")  # stands for a byte that has no token, never for a digit
# What may hold digits in a pattern without meaning one: how often, which property, all ten of them.
_HARMLESS: Final = re.compile(r"\{\d+(,\d*)?\}|\\p\{[A-Za-z_]+\}|0-9")


def digit_trie(
    tokenizer: PublicTokenizer,
    prefix: str,
    digits: int,
    *,
    separator: str,
    known: Sequence[str] = (),
    progress: Progress | None = None,
) -> CandidateTrie:
    """The trie of all digit strings behind a prefix; ``known`` are continuations, separator included."""
    beginning = tokenizer.encode([prefix])[0]
    rows = _from_variants(tokenizer, prefix, beginning, digits, separator)
    if rows is None:
        continuations = digit_continuations(digits, separator)
        return candidate_trie(tokenizer, prefix, continuations, known=known, progress=progress)
    secrets = encoded_behind(tokenizer, prefix, beginning, known) if known else None
    sequences = [] if secrets is None else [secrets.sequence(row) for row in range(len(secrets))]
    return CandidateTrie((tokenizer.start_token, *beginning), rows, sequences)


def _from_variants(
    tokenizer: PublicTokenizer, prefix: str, beginning: Sequence[int], digits: int, separator: str
) -> TokenRows | None:
    """The rows of all candidates in order; None where they have to be encoded one by one."""
    groups = digit_groups(tokenizer, prefix + separator, digits)
    if groups is None or sum(10**size for size in groups) >= 10**digits // 2:
        return None
    zeros = encoded_behind(tokenizer, prefix, beginning, [separator + "0" * digits]).sequence(0)
    text = prefix + separator + "0" * digits
    starts = _token_starts(tokenizer, text)
    rows: TokenRows | None = None
    done = before = 0
    for size in groups:
        texts = [
            f"{separator}{'0' * done}{number:0{size}d}{'0' * (digits - done - size)}"
            for number in range(10**size)
        ]
        behind = sum(start >= len(text) - (digits - done - size) for start in starts)
        variants = encoded_behind(tokenizer, prefix, beginning, texts)
        middle = _between(variants, zeros, before, behind)
        if middle is None:
            return None
        rows = middle if rows is None else _product(rows, middle)
        before, done = len(zeros) - behind, done + size
    if rows is None or not _holds_at_random(tokenizer, prefix, beginning, digits, separator, rows):
        return None
    return rows


def digit_groups(tokenizer: PublicTokenizer, before: str, digits: int) -> list[int] | None:
    """How digits behind a text are cut into pieces with tokens of their own; None where nobody knows."""
    backend = getattr(tokenizer.tokenizer, "backend_tokenizer", None)
    if backend is None:
        return None
    rules: dict[str, Any] = json.loads(backend.to_str())
    if not _alike(rules):
        return None
    vocabulary = rules["model"].get("vocab") or {}
    tokens = [entry[0] for entry in vocabulary] if isinstance(vocabulary, list) else list(vocabulary)
    alone = all(
        len(token) == 1 or not _DIGITS.intersection(token) or _BYTE.fullmatch(token) for token in tokens
    )
    if rules["model"]["type"] == "BPE" and alone and _DIGITS.issubset(tokens):
        return [1] * digits
    if rules["pre_tokenizer"] is None:
        return None
    words = _words_of(backend, before + "0" * digits)[-digits:]
    # A piece that reaches back before the digits is one group with its digits; its text is the same for all.
    sizes: list[int] = []
    for place, word in enumerate(words):
        if word is None:
            return None
        if place and word == words[place - 1]:
            sizes[-1] += 1
        else:
            sizes.append(1)
    return sizes


def _words_of(backend: Any, text: str) -> list[int | None]:
    """The pre-token that each character is in."""
    encoding = backend.encode(text, add_special_tokens=False)
    words: list[int | None] = [None] * len(text)
    for (first, last), word in zip(encoding.offsets, encoding.word_ids, strict=True):
        words[first:last] = [word] * (last - first)
    return words


def _alike(rules: Mapping[str, Any]) -> bool:
    """Whether nothing in a tokenizer's rules before its model tells one digit from another."""
    model = rules["model"]
    if model.get("type") not in _MODELS or model.get("dropout"):
        return False
    if any(_DIGITS.intersection(token["content"]) for token in rules["added_tokens"]):
        return False
    return _known_rules(rules["normalizer"], _NORMALIZERS, "normalizers") and _known_rules(
        rules["pre_tokenizer"], _PRE_TOKENIZERS, "pretokenizers"
    )


def _known_rules(rule: Mapping[str, Any] | None, known: frozenset[str], inner: str) -> bool:
    if rule is None:
        return True
    if rule["type"] == "Sequence":
        return all(_known_rules(one, known, inner) for one in rule[inner])
    if rule["type"] not in known:
        return False
    spelled = [rule.get(name) for name in ("delimiter", "content", "prepend", "replacement", "str_rep")]
    pattern = rule.get("pattern") or {}
    spelled += [pattern.get("String"), _HARMLESS.sub("", pattern.get("Regex") or "")]
    return not any(_DIGITS.intersection(text) for text in spelled if text)


def _token_starts(tokenizer: PublicTokenizer, text: str) -> list[int]:
    """The first character of each token."""
    encoding = tokenizer.tokenizer.backend_tokenizer.encode(text, add_special_tokens=False)
    return [first for first, _ in encoding.offsets]


def _between(variants: TokenRows, zeros: tuple[int, ...], before: int, behind: int) -> TokenRows | None:
    """What differs: the tokens between those of the groups before and behind, which all variants share."""
    ends = len(zeros) - behind
    sequences = [variants.sequence(row) for row in range(len(variants))]
    rest = zeros[ends:]
    if any(one[:before] != zeros[:before] or one[len(one) - behind :] != rest for one in sequences):
        return None
    return TokenRows.of([one[before : len(one) - behind] for one in sequences])


def _product(first: TokenRows, second: TokenRows) -> TokenRows:
    """Every first sequence followed by every second."""
    left = first.at(np.repeat(np.arange(len(first)), len(second)))
    right = second.at(np.tile(np.arange(len(second)), len(first)))
    widths = left.tokens.shape[1], right.tokens.shape[1]
    tokens = np.full((len(left), sum(widths)), NO_TOKEN, dtype=np.int32)
    tokens[:, : widths[0]] = left.tokens
    places = left.lengths[:, None] + np.arange(widths[1])
    np.put_along_axis(tokens, places, right.tokens, axis=1)
    lengths = left.lengths + right.lengths
    return TokenRows(tokens[:, : int(lengths.max())], lengths)


def _holds_at_random(
    tokenizer: PublicTokenizer,
    prefix: str,
    beginning: Sequence[int],
    digits: int,
    separator: str,
    rows: TokenRows,
) -> bool:
    numbers = np.random.default_rng(0).integers(10**digits, size=_CHECKED_AT_RANDOM).tolist()
    texts = [f"{separator}{number:0{digits}d}" for number in numbers]
    encoded = encoded_behind(tokenizer, prefix, beginning, texts)
    return all(encoded.sequence(place) == rows.sequence(number) for place, number in enumerate(numbers))
