"""No text ever becomes a control token, and a tokenizer is known by its fingerprint."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, pre_tokenizers
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

from tacit.errors import ModelError, UnsafeFile
from tacit.models.tokenizer import PublicTokenizer, load_tokenizer
from tests.tiny import START, byte_level_tokenizer

TINY = PublicTokenizer.wrap(byte_level_tokenizer(), start_token=0, vocabulary="public")


@given(st.lists(st.one_of(st.text(max_size=8), st.just(START)), max_size=6).map("".join))
def test_any_text_comes_back_without_control_tokens(text: str) -> None:
    [ids] = TINY.encode([text])
    assert 0 not in ids
    assert TINY.decode(ids) == text


def test_transformers_itself_would_have_made_a_control_token() -> None:
    assert 0 in TINY.tokenizer(f"a {START} b", add_special_tokens=False)["input_ids"]
    [ids] = TINY.encode([f"a {START} b"])
    assert 0 not in ids
    assert 0 in TINY.tokenizer(f"a {START} b", add_special_tokens=False)["input_ids"]


def test_texts_are_encoded_one_by_one_and_none_is_padded() -> None:
    texts = ["The baker", "", "a"]
    assert TINY.encode(texts) == [TINY.encode([text])[0] for text in texts]
    assert TINY.encode(texts)[1] == []
    assert TINY.encode([]) == []


def test_control_tokens_vanish_when_decoded() -> None:
    [ids] = TINY.encode(["The baker"])
    assert TINY.decode([0, *ids, 0]) == "The baker"


def test_a_text_ends_at_the_end_token_or_at_the_start_of_another() -> None:
    assert TINY.stop_tokens == {0}
    other = PublicTokenizer.wrap(byte_level_tokenizer(), start_token=5, vocabulary="public")
    assert other.stop_tokens == {0, 5}


def test_a_tokenizer_that_reads_control_tokens_in_text_is_refused() -> None:
    words = Tokenizer(WordLevel({"<unk>": 0, "<end>": 1, "a": 2, "b": 3}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    careless = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>", eos_token="<end>")
    with pytest.raises(ModelError, match="plain text into the control token 1"):
        PublicTokenizer.wrap(careless, start_token=1, vocabulary="public")
    words.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    careful = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>", eos_token="<end>")
    assert PublicTokenizer.wrap(careful, start_token=1, vocabulary="public").encode(["a <end>"]) == [
        [2, 0, 0, 0]
    ]


def test_the_fingerprint_ignores_what_the_last_caller_asked_for() -> None:
    tokenizer = byte_level_tokenizer()
    tokenizer.pad_token = START
    before = PublicTokenizer.wrap(tokenizer, start_token=0, vocabulary="public").fingerprint
    tokenizer(["a", "b c"], padding=True, truncation=True, max_length=2)
    assert PublicTokenizer.wrap(tokenizer, start_token=0, vocabulary="public").fingerprint == before
    tokenizer.add_tokens(["unheard"])
    assert PublicTokenizer.wrap(tokenizer, start_token=0, vocabulary="public").fingerprint != before


def test_loading_needs_no_weights(tiny_model: Path, tmp_path: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tiny_model / name, tmp_path / name)
    loaded = load_tokenizer(str(tmp_path))
    assert (loaded.start_token, loaded.vocabulary) == (0, "public")
    assert loaded.fingerprint == load_tokenizer(str(tiny_model)).fingerprint
    assert loaded.encode(["The baker"]) == TINY.encode(["The baker"])


def test_an_argument_overrides_the_start_token(tiny_model: Path) -> None:
    assert load_tokenizer(str(tiny_model), start_token=3).start_token == 3
    size = len(TINY)
    assert load_tokenizer(str(tiny_model), start_token=size - 1).start_token == size - 1
    for outside in (-1, size):
        with pytest.raises(ModelError, match=f"start token {outside} is not one of the tokenizer's {size}"):
            load_tokenizer(str(tiny_model), start_token=outside)


def test_the_end_token_starts_texts_where_there_is_no_bos(tmp_path: Path) -> None:
    tokenizer = byte_level_tokenizer()
    tokenizer.bos_token = None
    tokenizer.save_pretrained(tmp_path)
    assert load_tokenizer(str(tmp_path)).start_token == 0
    tokenizer.eos_token = None
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=r"set model\.start_token"):
        load_tokenizer(str(tmp_path))
    assert load_tokenizer(str(tmp_path), start_token=0).start_token == 0


def test_broken_and_missing_tokenizers_are_refused(tiny_model: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="has no tokenizer"):
        load_tokenizer(str(tmp_path))
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(ModelError, match=r"tokenizer\.json is not valid JSON"):
        load_tokenizer(str(tmp_path))
    shutil.copy(tiny_model / "tokenizer.json", tmp_path / "tokenizer.json")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"auto_map": {"AutoTokenizer": "evil.Tok"}}))
    with pytest.raises(UnsafeFile, match="trust_remote_code"):
        load_tokenizer(str(tmp_path))
