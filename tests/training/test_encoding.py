"""Rows: every token once, and no piece ever sees another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.corpus import UserCorpus
from tacit.errors import CorpusError
from tacit.models.likelihood import NO_LABEL
from tacit.models.loading import load_public_model
from tacit.models.tokenizer import load_tokenizer
from tacit.recipes import TrainingSection
from tacit.training.encoding import EncodedCorpus, encode, lay_out, piece_sizes
from tacit.training.next_token import batch_arguments, can_pack
from tacit.training.schedule import Schedule
from tests.tiny import public_sentences


def pieces_of(lengths: list[int]) -> EncodedCorpus:
    starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return EncodedCorpus(
        tokens=np.arange(1, starts[-1] + 1, dtype=np.int32),
        starts=starts,
        piece_user=np.zeros(len(lengths), dtype=np.int64),
        users=["u"],
        user_bytes=np.zeros(1, dtype=np.int64),
        start_token=0,
        piece_document=np.arange(len(lengths)),
        documents=len(lengths),
    )


@settings(deadline=None)
@given(st.lists(st.integers(1, 16), min_size=1, max_size=60), st.booleans())
def test_every_token_is_predicted_exactly_once_from_its_own_piece(lengths: list[int], packing: bool) -> None:
    corpus = pieces_of(lengths)
    rows = lay_out(corpus, block_size=16, packing=packing)
    assert sorted(piece for row in rows.pieces for piece in row) == list(range(len(lengths)))
    assert rows.lengths.max() <= 16
    batch = rows.batch(np.arange(len(rows)), attention="sdpa", pad_token=0)
    labels = batch.labels[batch.labels != NO_LABEL]
    assert sorted(labels.tolist()) == list(range(1, sum(lengths) + 1))
    ids, positions = batch.inputs["input_ids"], batch.inputs["position_ids"]
    for line in range(len(rows)):
        for at in range(batch.labels.shape[1]):
            if batch.labels[line, at] == NO_LABEL:
                continue
            # The input before a label is the token before it in the same piece, or the start token.
            first = positions[line, at] == 0
            assert ids[line, at] == (0 if first else batch.labels[line, at] - 1)
            assert first == (batch.labels[line, at] - 1 in corpus.starts[:-1])


def test_packing_wastes_little() -> None:
    lengths = np.random.default_rng(0).integers(1, 33, 500).tolist()
    rows = lay_out(pieces_of(lengths), block_size=64, packing=True)
    assert rows.lengths.sum() / (64 * len(rows)) > 0.97
    assert len(lay_out(pieces_of(lengths), block_size=64, packing=False)) == 500


@pytest.fixture
def encoded(tiny_transformer: Path, tmp_path: Path) -> EncodedCorpus:
    corpus = UserCorpus.from_pairs((f"u{i % 7}", text) for i, text in enumerate(public_sentences(40, seed=9)))
    return encode(corpus, load_tokenizer(str(tiny_transformer)), block_size=32, storage=tmp_path / "t")


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_documents_in_one_row_never_attend_to_one_another(
    tiny_transformer: Path, encoded: EncodedCorpus, attention: str
) -> None:
    public = load_public_model(str(tiny_transformer))
    public.model.set_attn_implementation(attention)
    rows = lay_out(encoded, block_size=32, packing=True)
    row = next(number for number, held in enumerate(rows.pieces) if len(held) >= 2)
    batch = rows.batch(np.array([row]), **batch_arguments(public))
    before = public.model(**batch.inputs).logits[0]
    first = int(encoded.lengths[rows.pieces[row][0]])
    changed = batch.inputs | {"input_ids": batch.inputs["input_ids"].clone()}
    changed["input_ids"][0, 1:first] = 77
    after = public.model(**changed).logits[0]
    assert not torch.allclose(before[1:first], after[1:first])  # the change is seen where it was made
    torch.testing.assert_close(before[first:], after[first:], rtol=0, atol=0)
    without_mask = {key: value for key, value in changed.items() if key != "attention_mask"}
    leaky = {key: value for key, value in batch.inputs.items() if key in ("input_ids", "use_cache")}
    leaked = (
        public.model(**leaky).logits[0][first:]
        - public.model(input_ids=without_mask["input_ids"], use_cache=False).logits[0][first:]
    )
    assert leaked.abs().max() > 1e-4  # plain causal attention would have leaked


def test_packed_rows_give_the_losses_of_single_documents(tiny_model: Path, tmp_path: Path) -> None:
    public = load_public_model(str(tiny_model))
    corpus = UserCorpus.from_pairs((f"u{i}", text) for i, text in enumerate(public_sentences(12, seed=3)))
    encoded = encode(corpus, public.tokenizer, block_size=64, storage=tmp_path / "t")
    rows = lay_out(encoded, block_size=64, packing=public.family == "transformer")
    batch = rows.batch(np.arange(len(rows)), **batch_arguments(public))
    logits = public.model(**batch.inputs).logits.log_softmax(-1)
    for piece in range(len(encoded)):
        tokens = torch.from_numpy(encoded.piece(piece).astype(np.int64))
        alone = torch.cat([torch.tensor([public.start_token]), tokens[:-1]])[None]
        expected = public.model(input_ids=alone).logits.log_softmax(-1)[0]
        torch.testing.assert_close(logits[batch.pieces == piece], expected, rtol=1e-4, atol=1e-4)


def test_long_documents_are_cut_and_documents_end(tiny_transformer: Path, tmp_path: Path) -> None:
    tokenizer = load_tokenizer(str(tiny_transformer))
    text = " ".join(public_sentences(10))
    ids = tokenizer.encode([text])[0]
    corpus = UserCorpus.from_pairs([("a", text), ("b", "x")])
    encoded = encode(corpus, tokenizer, block_size=20, storage=tmp_path / "t", end_token=0)
    assert encoded.tokens[: len(ids) + 1].tolist() == [*ids, 0]
    assert encoded.lengths.max() <= 20
    assert encoded.lengths[:-1].max() - encoded.lengths[:-1].min() <= 1
    assert encoded.piece_user.tolist() == [0] * (len(encoded) - 1) + [1]
    assert encoded.user_bytes.tolist() == [len(text.encode()), 1]
    assert (tmp_path / "t").stat().st_mode & 0o077 == 0


def test_blocks_bring_their_own_tokens_and_their_own_tokenizer(
    tiny_transformer: Path, tmp_path: Path
) -> None:
    tokenizer = load_tokenizer(str(tiny_transformer))
    corpus = UserCorpus.from_pairs([("a", " ".join(public_sentences(20)))])
    blocks = corpus.in_blocks(tokenizer, 16)
    encoded = encode(blocks, tokenizer, block_size=16, storage=tmp_path / "t", end_token=0)
    assert encoded.tokens.tolist() == tokenizer.encode([" ".join(public_sentences(20))])[0]
    assert 0 not in encoded.tokens  # a block is cut out of running text: it gets no end token
    other = type(tokenizer)(tokenizer.tokenizer, 0, "public", "another")
    with pytest.raises(CorpusError, match="another tokenizer"):
        encode(blocks, other, block_size=16, storage=tmp_path / "t")


@given(st.integers(1, 500), st.integers(2, 64))
def test_pieces_are_few_and_equal(tokens: int, block: int) -> None:
    sizes = piece_sizes(tokens, block)
    assert sum(sizes) == tokens
    assert max(sizes) <= block
    assert max(sizes) - min(sizes) <= 1
    assert len(sizes) == -(-tokens // block)


def test_packing_is_found_out_and_not_assumed(
    tiny_transformer: Path, tiny_llama: Path, tiny_lstm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert can_pack(load_public_model(str(tiny_transformer)))
    assert can_pack(load_public_model(str(tiny_llama)))
    assert not can_pack(load_public_model(str(tiny_lstm)))
    leaky = load_public_model(str(tiny_llama))
    original = type(leaky.model).forward

    def deaf(self: Any, attention_mask: Any = None, **others: Any) -> Any:
        return original(self, **others | {"position_ids": None})

    monkeypatch.setattr(type(leaky.model), "forward", deaf)
    assert not can_pack(leaky)
    assert batch_arguments(leaky)["attention"] is None


def test_masks_are_context_unless_they_are_to_be_learnt(tiny_transformer: Path, tmp_path: Path) -> None:
    tokenizer = load_public_model(str(tiny_transformer)).tokenizer.with_mask()
    mask = tokenizer.mask_token
    corpus = UserCorpus.from_pairs([("a", "the baker <MASK> at home"), ("b", "<MASK>")], screened=True)

    def encoded(*, learn_masks: bool) -> EncodedCorpus:
        storage = tmp_path / str(learn_masks)
        return encode(corpus, tokenizer, block_size=32, storage=storage, end_token=0, learn_masks=learn_masks)

    context, learnt = encoded(learn_masks=False), encoded(learn_masks=True)
    # A mask alone teaches nothing, not even where texts end.
    assert context.piece(1).tolist() == [mask]
    assert learnt.piece(1).tolist() == [mask, 0]
    assert context.labels.tolist() == [context.lengths[0] - 1, 0]
    assert learnt.labels.tolist() == learnt.lengths.tolist()
    rows = lay_out(context, block_size=32, packing=False)
    batch = rows.batch(np.arange(2), attention="sdpa", pad_token=0)
    assert mask in batch.inputs["input_ids"]
    assert mask not in batch.labels
    assert batch.label_count == int((batch.labels != NO_LABEL).sum()) == rows.labels.sum()
    schedule = Schedule(rows, TrainingSection(batch_size=1), seed=0)
    # The divisor of a step is what it predicts; a step of masks alone divides by one.
    assert sorted(schedule.tokens_of(step) for step in range(2)) == [1, rows.labels[0]]
    everything = Schedule(
        lay_out(learnt, block_size=32, packing=False), TrainingSection(batch_size=2), seed=0
    )
    assert everything.tokens_of(0) == learnt.lengths.sum()
