"""Word-level vocabularies decode to what was encoded, and a private one is never taken for public."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tacit.errors import ModelError, OutputExists
from tacit.models.loading import load_public_model
from tacit.models.tokenizer import PublicTokenizer, load_tokenizer
from tacit.models.vocabulary import PRESETS, LSTMShape, build_word_tokenizer, create_lstm
from tacit.models.words import whole_words
from tests.tiny import public_sentences

SMALL = LSTMShape(layers=2, hidden_size=8, embedding_size=8)
KNOWN = [" it", "It", " isn't", " twenty-one", ",", ".", "\n", " ", "\t", "(", " 4", "7", "é", " Zürich"]


def wrapped(texts: list[str], size: int = 100) -> PublicTokenizer:
    built = build_word_tokenizer(texts, size)
    return PublicTokenizer.wrap(built, start_token=built.eos_token_id, vocabulary="public")


def test_tokens_are_words_digits_marks_and_newlines() -> None:
    tokenizer = build_word_tokenizer(["It isn't 47 euros,\nor twenty-one  (7)."])
    [pieces] = [tokenizer.tokenize("It isn't 47 euros,\nor twenty-one  (7).")]
    expected = ["It", " isn't", " 4", "7", " euros", ",", "\n", "or", " twenty-one", " ", " (", "7", ")", "."]
    assert pieces == expected


def test_a_word_that_is_unknown_behind_a_space_is_no_whole_word() -> None:
    """In "'tis" it is known; behind a space it would have the unknown token, as any other such word."""
    assert whole_words(wrapped(["now 'tis said that 'twas said before"])) == ["before", "said", "that"]


@given(st.lists(st.sampled_from(KNOWN)).map("".join))
def test_known_text_comes_back_exactly(text: str) -> None:
    # Every piece, with and without a space before it, so that any joint is known.
    corpus = [piece for known in KNOWN for piece in (known, " " + known.strip(" "), known.strip(" "))]
    tokenizer = wrapped(["\n".join(corpus), text], size=500)
    [ids] = tokenizer.encode([text])
    assert tokenizer.decode(ids) == text


def test_the_most_frequent_words_are_kept_and_others_are_unknown() -> None:
    tokenizer = build_word_tokenizer([" b b b c c a"], size=3 + 2)
    assert set(tokenizer.get_vocab()) == {"<unk>", "<pad>", "<eos>", " b", " c"}
    assert tokenizer(" a b", add_special_tokens=False)["input_ids"][0] == tokenizer.unk_token_id


def test_the_same_text_gives_the_same_vocabulary() -> None:
    texts = public_sentences(50)
    assert wrapped(texts).fingerprint == wrapped(texts).fingerprint
    assert wrapped(texts).fingerprint != wrapped(texts[:5]).fingerprint


def test_lowercase_folds_case() -> None:
    tokenizer = build_word_tokenizer(["The the"], lowercase=True)
    assert "The" not in tokenizer.get_vocab()
    assert tokenizer.tokenize("THE") == ["the"]


def test_special_tokens_spelled_out_stay_text() -> None:
    tokenizer = wrapped(["a < eos > pad b"])
    control = {tokenizer.tokenizer.eos_token_id, tokenizer.tokenizer.pad_token_id}
    [ids] = tokenizer.encode(["a <eos> <pad><eos> b"])
    assert not control.intersection(ids)


def test_the_smallest_vocabulary_is_one_word() -> None:
    assert len(build_word_tokenizer(["a"], size=4)) == 4


def test_the_papers_shapes_are_presets() -> None:
    shapes = {name: (s.layers, s.hidden_size, s.embedding_size) for name, s in PRESETS.items()}
    assert shapes == {"lstm-1x200": (1, 200, 200), "lstm-2x550": (2, 550, 550)}


def test_a_created_model_loads_with_its_tokenizer(tmp_path: Path) -> None:
    tokenizer = build_word_tokenizer(public_sentences(50))
    folder = create_lstm(tmp_path / "m", shape=SMALL, tokenizer=tokenizer, vocabulary="public", seed=1)
    public = load_public_model(str(folder))
    assert (public.family, public.n_layers, public.vocabulary) == ("lstm", 2, "public")
    assert public.start_token == tokenizer.eos_token_id
    assert public.model.config.vocab_size == len(tokenizer)
    description = json.loads((folder / "tacit_model.json").read_text())
    assert "note" not in description
    assert description["parameters"] == sum(value.numel() for value in public.model.parameters())


def test_presets_have_their_sizes(tmp_path: Path) -> None:
    tokenizer = build_word_tokenizer(["one two"])
    folder = create_lstm(tmp_path / "m", shape="lstm-1x200", tokenizer=tokenizer, vocabulary="public", seed=1)
    assert load_public_model(str(folder)).model.config.hidden_size == 200
    with pytest.raises(ModelError, match="lstm-1x200, lstm-2x550"):
        create_lstm(tmp_path / "n", shape="lstm-9", tokenizer=tokenizer, vocabulary="public", seed=1)
    assert not (tmp_path / "n").exists()


def test_the_seed_decides_the_weights_and_leaves_torchs_own_alone(tmp_path: Path) -> None:
    tokenizer = build_word_tokenizer(["one two"])
    torch.manual_seed(9)
    expected = torch.rand(1)
    torch.manual_seed(9)
    fingerprints = [
        load_public_model(
            str(
                create_lstm(tmp_path / name, shape=SMALL, tokenizer=tokenizer, vocabulary="public", seed=seed)
            )
        ).fingerprint
        for name, seed in (("a", 1), ("b", 1), ("c", 2))
    ]
    assert torch.equal(torch.rand(1), expected)
    assert fingerprints[0] == fingerprints[1] != fingerprints[2]


def test_a_private_vocabulary_is_recorded_and_cannot_be_laundered(tmp_path: Path) -> None:
    built = build_word_tokenizer(["words of real people"])
    folder = create_lstm(tmp_path / "m", shape=SMALL, tokenizer=built, vocabulary="private", seed=1)
    assert "outside every guarantee" in json.loads((folder / "tacit_model.json").read_text())["note"]
    assert load_public_model(str(folder)).vocabulary == "private"
    tokenizer = load_tokenizer(str(folder))
    assert tokenizer.vocabulary == "private"
    with pytest.raises(ModelError, match="vocabulary='private'"):
        create_lstm(tmp_path / "n", shape=SMALL, tokenizer=tokenizer, vocabulary="public", seed=1)
    again = create_lstm(tmp_path / "o", shape=SMALL, tokenizer=tokenizer, vocabulary="private", seed=1)
    assert load_tokenizer(str(again)).fingerprint == tokenizer.fingerprint


def test_an_existing_folder_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    tokenizer = build_word_tokenizer(["one"])
    with pytest.raises(OutputExists):
        create_lstm(tmp_path / "m", shape=SMALL, tokenizer=tokenizer, vocabulary="public", seed=1)
    assert list((tmp_path / "m").iterdir()) == []


def test_a_tokenizer_that_cannot_start_a_text_is_refused(tmp_path: Path) -> None:
    tokenizer = build_word_tokenizer(["one"])
    tokenizer.eos_token = None
    with pytest.raises(ModelError, match="neither a bos nor an eos"):
        create_lstm(tmp_path / "m", shape=SMALL, tokenizer=tokenizer, vocabulary="public", seed=1)


@pytest.mark.parametrize("texts", [[], [""], ["\n\n \n"], [" \t", "\u3000\n"]])
def test_a_vocabulary_of_blanks_alone_is_refused(texts: list[str]) -> None:
    with pytest.raises(ModelError, match="without a word"):
        build_word_tokenizer(texts)


@pytest.mark.parametrize("size", [-1, 3, 10_000_001, 10**30])
def test_a_vocabulary_size_out_of_bounds_is_refused(size: int) -> None:
    with pytest.raises(ModelError, match=f"between 4 and 10,000,000, not {size:,}"):
        build_word_tokenizer(["a"], size=size)


@pytest.mark.parametrize(
    ("shape", "sentence"),
    [
        (LSTMShape(layers=1, hidden_size=10**9, embedding_size=8), "1,000,000,000 parameters"),
        (LSTMShape(layers=1, hidden_size=8, embedding_size=10**9), "1,000,000,000 parameters"),
        (LSTMShape(layers=10**9, hidden_size=1, embedding_size=1), "between 1 and 64 layers"),
        (LSTMShape(layers=0, hidden_size=1, embedding_size=1), "between 1 and 64 layers"),
        (LSTMShape(layers=1, hidden_size=0, embedding_size=1), "hidden_size"),
        (LSTMShape(layers=1, hidden_size=1, embedding_size=-5), "embedding_size"),
    ],
)
def test_sizes_out_of_bounds_are_refused_before_memory_is_taken(
    tmp_path: Path, shape: LSTMShape, sentence: str
) -> None:
    tokenizer = build_word_tokenizer(["one two"])
    with pytest.raises(ModelError, match=sentence):
        create_lstm(tmp_path / "m", shape=shape, tokenizer=tokenizer, vocabulary="public", seed=1)
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize("seed", [-1, 2**63, 10**30])
def test_a_seed_out_of_bounds_is_refused(tmp_path: Path, seed: int) -> None:
    tokenizer = build_word_tokenizer(["one two"])
    with pytest.raises(ModelError, match="seed"):
        create_lstm(tmp_path / "m", shape=SMALL, tokenizer=tokenizer, vocabulary="public", seed=seed)
    largest = create_lstm(
        tmp_path / "n", shape=SMALL, tokenizer=tokenizer, vocabulary="public", seed=2**63 - 1
    )
    assert load_public_model(str(largest)).family == "lstm"


@pytest.mark.parametrize("tied", [True, False])
def test_the_parameters_are_counted_before_they_are_made(tmp_path: Path, tied: bool) -> None:
    tokenizer = build_word_tokenizer(public_sentences(5))
    shape = LSTMShape(layers=3, hidden_size=5, embedding_size=5 if tied else 7, tied=tied)
    folder = create_lstm(tmp_path / "m", shape=shape, tokenizer=tokenizer, vocabulary="public", seed=1)
    parameters = load_public_model(str(folder)).model.parameters()
    assert shape.parameters(len(tokenizer)) == sum(parameter.numel() for parameter in parameters)
