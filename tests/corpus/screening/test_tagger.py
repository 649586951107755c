"""The embedded tagger: what it finds, and that a score depends on the text alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.corpus.screening import MASK, ScoredToken, Scorer
from tacit.corpus.screening.tagger import CONSERVATIVE, LABELS, REDACT, EmbeddedTagger
from tacit.corpus.screening.tagger import network as network_module
from tacit.corpus.screening.tagger.embedded import LOWEST, close_holes
from tacit.corpus.screening.tagger.features import WordLists, word_rows
from tacit.corpus.screening.tagger.network import DILATIONS, REACH, TOP, Layer, Network
from tacit.corpus.screening.tagger.tokens import split_tokens
from tacit.corpus.screening.tagger.weights import SHIPPED, load_weights
from tacit.errors import Tampered

SENTENCES = (
    "My name is Oluwaseun Adeyemi and I live in Rotterdam.",
    "please send it to 47 Harcourt Terrace, Dublin 2",
    "The meeting is on Friday at 14:30.",
    "Dr. Kowalczyk works for Brightwater Logistics GmbH.",
    "",
    "   \n\t ",
    "she is 47 and was born on 3 March 1978",
)


@pytest.fixture(scope="module")
def tagger() -> EmbeddedTagger:
    return EmbeddedTagger()


def found(tagger: EmbeddedTagger, text: str, threshold: float = REDACT) -> set[tuple[str, str]]:
    """What reaches the threshold, as text and label."""
    return {(text[t.start : t.end], t.label) for t in tagger.score([text])[0] if t.score >= threshold}


def masked(tagger: EmbeddedTagger, text: str, threshold: float = REDACT) -> str:
    """The text with a dot for every character that reaches the threshold."""
    marks = list(text)
    for token in tagger.score([text])[0]:
        if token.score >= threshold:
            marks[token.start : token.end] = "." * (token.end - token.start)
    return "".join(marks)


def test_it_is_a_scorer(tagger: EmbeddedTagger) -> None:
    assert isinstance(tagger, Scorer)
    assert tagger.contextual
    assert tagger.fingerprint == EmbeddedTagger().fingerprint


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("My name is Oluwaseun Adeyemi.", {("Oluwaseun", "PERSON"), ("Adeyemi", "PERSON")}),
        ("my name is oluwaseun adeyemi", {("oluwaseun", "PERSON"), ("adeyemi", "PERSON")}),
        ("We moved from Rotterdam to Lisbon.", {("Rotterdam", "LOCATION"), ("Lisbon", "LOCATION")}),
        ("I work at Redwater Bank.", {("Redwater", "ORGANISATION"), ("Bank", "ORGANISATION")}),
        ("She is 47 years old.", {("47", "AGE")}),
        ("My neighbour is Norwegian.", {("Norwegian", "GROUP")}),
        ("I would like a table for four at noon.", set()),
        ("Is there anything else that I can help you with?", set()),
        ("The train leaves at 14:30 and costs 12 pounds.", set()),
    ],
)  # fmt: skip
def test_what_it_finds(tagger: EmbeddedTagger, text: str, expected: set[tuple[str, str]]) -> None:
    assert found(tagger, text) == expected


@pytest.mark.parametrize(
    "address",
    [
        "47 Harcourt Terrace, Dublin",
        "Lindenstraße 14\n50674 Köln",
        "1402 Maple Avenue Apt. 6, Denver, CO 80203",
    ],
)
def test_no_letter_or_digit_of_an_address_is_left(tagger: EmbeddedTagger, address: str) -> None:
    text = masked(tagger, f"Please send it to {address}, thank you.")
    assert not any(mark.isalnum() for mark in text[len("Please send it to ") : -len(", thank you.")])
    assert text.startswith("Please send it to ")
    assert text.endswith("thank you.")


def test_thresholds_are_in_order() -> None:
    assert LOWEST < CONSERVATIVE < REDACT < 1


def test_scores_are_the_same_bits_alone_in_any_batch_and_in_any_order(tagger: EmbeddedTagger) -> None:
    alone = [EmbeddedTagger().score([text])[0] for text in SENTENCES]
    assert tagger.score(SENTENCES) == alone
    assert tagger.score(SENTENCES[::-1]) == alone[::-1]
    assert tagger.score(SENTENCES * 40) == alone * 40
    assert sum(map(len, alone)) > 20


def test_scores_do_not_depend_on_where_a_long_text_is_cut(
    tagger: EmbeddedTagger, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = " ".join(SENTENCES) * 20
    whole = tagger.score([text])[0]
    for size in (3, REACH, 64, 1000):
        monkeypatch.setattr(network_module, "_BLOCK", size)
        assert tagger.score([text])[0] == whole


def test_a_token_sees_its_reach_and_no_further(tagger: EmbeddedTagger) -> None:
    # One token more at each end, because holes are closed after the network has looked.
    middle = "word " * (REACH + 1)
    text = f"{middle}Anna {middle}"
    scores = {t.start: t for t in tagger.score([text])[0]}.get(len(middle))
    for outside in ("Mr. Smith lives at ", "1234567 ", "in Berlin, "):
        longer = f"{outside}{text}{outside}"
        again = {t.start - len(outside): t for t in tagger.score([longer])[0]}.get(len(middle))
        assert again is not None
        assert scores is not None
        assert again.score == scores.score


def test_the_network_is_exact_in_single_precision(tagger: EmbeddedTagger) -> None:
    """The slow oracle: the same network in 64-bit whole numbers, token by token."""
    network = load_weights().network
    rng = np.random.default_rng(4)
    width = network.convolutions[0].weight.shape[0] // 3
    rows = rng.integers(-TOP, TOP + 1, (50, width))
    inside = np.ones(50, bool)
    inside[20:30] = False
    rows[~inside] = 0
    hidden, seen = rows.astype(np.int64), []
    for depth, (layer, dilation) in enumerate(zip(network.convolutions, DILATIONS, strict=True)):
        weight, outputs = layer.weight.astype(np.int64), []
        for i in range(50):
            zero = np.zeros(hidden.shape[1], np.int64)
            left = hidden[i - dilation] if i >= dilation else zero
            right = hidden[i + dilation] if i + dilation < 50 else zero
            total = np.concatenate((left, hidden[i], right)) @ weight + layer.bias.astype(np.int64)
            quotient = np.array([round(int(value) / 2**layer.shift) for value in total])  # ties to even
            value = np.clip(quotient + (hidden[i] if depth else 0), 0, TOP)
            outputs.append(value * int(inside[i]))
        hidden = np.array(outputs)
        seen.append(hidden)
    expected = np.concatenate(seen, axis=1) @ network.head.weight.astype(np.int64) + network.head.bias.astype(
        np.int64
    )
    assert np.array_equal(network.logits(rows.astype(np.float32), inside), expected)


def test_weights_that_could_be_inexact_are_refused() -> None:
    largest = (2**24 - 1) // (TOP * TOP)
    kernel = np.full((3 * 344, 8), TOP, np.float32)
    assert len(kernel) <= largest
    Network((), Layer(kernel, np.zeros(8, np.float32), 7))
    with pytest.raises(ValueError, match="exact"):
        Network((), Layer(np.full((largest + 1, 8), TOP, np.float32), np.zeros(8, np.float32), 7))
    with pytest.raises(ValueError, match="exact"):
        Network((), Layer(kernel + np.float32(0.5), np.zeros(8, np.float32), 7))


def test_holes_within_one_address_are_closed_and_nothing_falls() -> None:
    scores = np.array([0, 0.9, 0.1, 0.8, 0, 0, 0.7, 0.0])
    address, person = LABELS.index("ADDRESS"), LABELS.index("PERSON")
    assert close_holes(scores, np.full(8, address)).tolist() == [0, 0.9, 0.8, 0.8, 0, 0, 0.7, 0]
    assert close_holes(scores, np.full(8, person)).tolist() == scores.tolist()
    assert close_holes(scores, np.array([address, address, address, person] * 2)).tolist() == scores.tolist()


@given(st.lists(st.text(max_size=60), max_size=4))
@settings(max_examples=60, deadline=None)
def test_any_text_is_scored_and_tokens_lie_in_it(texts: list[str]) -> None:
    shared = _SHARED
    scored = shared.score(texts)
    assert len(scored) == len(texts)
    for text, tokens in zip(texts, scored, strict=True):
        end = 0
        for token in tokens:
            assert isinstance(token, ScoredToken)
            assert end <= token.start < token.end <= len(text)
            assert LOWEST <= token.score <= 1
            assert token.label in LABELS
            assert not text[token.start : token.end].isspace()
            end = token.end
    assert [shared.score([text])[0] for text in texts] == scored


_SHARED = EmbeddedTagger()


@given(st.text(alphabet=st.characters(), max_size=80))
@settings(max_examples=100, deadline=None)
def test_every_letter_and_digit_is_in_exactly_one_token(text: str) -> None:
    tokens = split_tokens(text)
    covered = [0] * len(text)
    for word, start, end in zip(tokens.words, tokens.starts, tokens.ends, strict=True):
        assert text[start:end] == word
        for i in range(start, end):
            covered[i] += 1
    assert all(covered[i] == 1 for i in range(len(text)) if text[i].isalnum())
    assert max(covered, default=0) <= 1
    assert len(tokens.glued()) == len(tokens.words)


def test_huge_and_odd_texts(tagger: EmbeddedTagger) -> None:
    one_word = "a" * 300_000
    assert len(tagger.score([one_word, "\x00\x1b[0m\ufffe", "\ud800 Anna", "9" * 5000])) == 4
    many = "I met Anna Schmidt in Oslo. " * 4000
    assert len(tagger.score([many])[0]) >= 3 * 4000


def test_words_are_remembered_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tacit.corpus.screening.tagger.embedded._KEPT_WORDS", 50)
    small = EmbeddedTagger()
    texts = [f"Anna{number} met Bert{number} in Oslo" for number in range(200)]
    assert [small.score([text])[0] for text in texts] == _SHARED.score(texts)
    assert len(small._numbers) < 60


def test_masks_and_line_breaks_are_never_sensitive(tagger: EmbeddedTagger) -> None:
    text = f"My name is {MASK} Schmidt\n{MASK}, Berlin\nGermany"
    for token in tagger.score([text])[0]:
        assert text[token.start : token.end] not in (MASK, "\n")
    assert split_tokens(f"a{MASK}b").words == ["a", MASK, "b"]


@pytest.mark.parametrize(
    "text",
    [
        "My name is Anna Lopez, I live in Oslo.",
        "Dr. Kowalczyk and Mrs. Brown met in Dublin on 3 March 1978.",
    ],
)
def test_masking_one_name_leaves_the_others_found(tagger: EmbeddedTagger, text: str) -> None:
    tokens = [t for t in tagger.score([text])[0] if t.score >= REDACT]
    assert len(tokens) >= 3
    for token in tokens:
        neighbour = text[: token.start] + MASK + text[token.end :]
        again = {neighbour[t.start : t.end] for t in tagger.score([neighbour])[0] if t.score >= REDACT}
        assert {text[t.start : t.end] for t in tokens if t != token} <= again


def test_accents_case_and_numbers_in_a_words_rows() -> None:
    lists = WordLists.of({"first": ["jose"], "last": ["brown"]})
    assert word_rows("José", lists).pieces == word_rows("jose", lists).pieces
    assert word_rows("José", lists).word == word_rows("JOSE", lists).word
    assert word_rows("José", lists).shape != word_rows("jose", lists).shape
    assert word_rows("4711", lists).word == word_rows("4812", lists).word != word_rows("481", lists).word
    assert len(word_rows("x" * 10_000, lists).pieces) < 100


def test_lists_hold_their_words_and_few_others() -> None:
    names = [f"name{number}" for number in range(2000)]
    lists = WordLists.of({"first": names, "last": []})
    assert all("first" in lists.on(name) for name in names)
    assert sum("first" in lists.on(f"other{number}") for number in range(2000)) < 120
    assert not any("last" in lists.on(name) for name in names)


def test_the_shipped_file_is_small_and_a_changed_one_is_refused(tmp_path: Path) -> None:
    assert SHIPPED.stat().st_size < 2_000_000
    content = bytearray(SHIPPED.read_bytes())
    content[len(content) // 2] ^= 0xFF
    broken = tmp_path / "weights.npz"
    broken.write_bytes(content)
    with pytest.raises(Tampered, match="install"):
        load_weights(broken)
    broken.write_bytes(b"no archive")
    with pytest.raises(Tampered, match="install"):
        load_weights(broken)


def test_torch_is_not_imported() -> None:
    code = (
        "import sys; from tacit.corpus.screening.tagger import EmbeddedTagger; "
        "EmbeddedTagger().score(['I am Anna']); assert 'torch' not in sys.modules"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
