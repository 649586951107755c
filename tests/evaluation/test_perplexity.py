"""Perplexity against a slow oracle, one block at a time in float64."""

from __future__ import annotations

import fcntl
import math
import os
import signal
import stat
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import normalizers

from tacit.corpus import UserCorpus
from tacit.corpus.corpus_folder import passing_storage
from tacit.errors import InputError
from tacit.evaluation import EvaluationReport, measure_losses, perplexity_difference
from tacit.evaluation.report import MeasuredText
from tacit.models.loading import PublicModel, load_public_model
from tacit.models.masks import with_mask
from tacit.models.vocabulary import LSTMShape, build_word_tokenizer, create_lstm
from tacit.progress import Silent
from tests.tiny import public_sentences

TEXT = MeasuredText("corpus.jsonl", held_out=True, private=True)


def oracle(public: PublicModel, corpus: UserCorpus, block: int) -> dict[str, list[tuple[float, int]]]:
    """For each user the (total loss, tokens) of every block, by one forward pass per block."""
    found: dict[str, list[tuple[float, int]]] = {}
    model = public.model.double()
    for document in corpus.documents():
        ids = public.tokenizer.encode([document.text])[0]
        count = math.ceil(len(ids) / block)
        for part in (chunk.tolist() for chunk in np.array_split(np.array(ids), count)):
            inputs = torch.tensor([[public.start_token, *part[:-1]]])
            logits = model(input_ids=inputs).logits.log_softmax(-1)[0]
            loss = -float(logits[range(len(part)), part].sum())
            found.setdefault(document.user, []).append((loss, len(part)))
    model.float()
    return found


@pytest.fixture
def corpus() -> UserCorpus:
    texts = public_sentences(30, seed=5)
    return UserCorpus.from_pairs(
        (f"u{i % 6}", " ".join(texts[i : i + 1 + i % 4]) + (" é✓" if i % 5 == 0 else "")) for i in range(30)
    )


def test_masks_are_read_and_not_counted(tiny_model: Path) -> None:
    public = with_mask(load_public_model(str(tiny_model)))
    mask = public.tokenizer.mask_token
    said, there = "the baker finds", " at home."
    pairs = [("a", f"{said} <MASK>{there}"), ("a", "<MASK>"), ("b", "<MASK>"), ("c", said)]
    losses = measure_losses(public, UserCorpus.from_pairs(pairs, screened=True))
    before, after = public.tokenizer.encode([said + " ", there])
    ids = [*before, mask, *after]
    with torch.no_grad():
        logits = public.model.double()(input_ids=torch.tensor([[0, *ids[:-1]]])).logits.log_softmax(-1)[0]
    told = [-float(logits[at, token]) for at, token in enumerate(ids) if token != mask]
    assert losses.users == ("a", "c")  # of b there is nothing but a mask
    assert losses.tokens[0] == len(told) == len(ids) - 1
    assert losses.blocks.tolist() == [1, 1]
    assert losses.nats[0] == pytest.approx(sum(told), rel=1e-5)
    assert losses.block_perplexity_sums[0] == pytest.approx(math.exp(sum(told) / len(told)), rel=1e-5)
    assert losses.text_bytes[0] == len(f"{said} {there}")
    assert losses.masks == losses.to_json()["masks_not_counted"] == 3
    assert (
        "3 masks of screened text were read and not counted."
        in EvaluationReport({"m": losses}, None, TEXT).caveats
    )
    unscreened = measure_losses(public, UserCorpus.from_pairs(pairs))
    assert (unscreened.masks, len(unscreened.users)) == (0, 3)
    with pytest.raises(InputError, match="nothing but masks to measure on"):
        measure_losses(public, UserCorpus.from_pairs(pairs[1:3], screened=True))


def test_every_measure_equals_the_oracle(tiny_model: Path, corpus: UserCorpus) -> None:
    public = load_public_model(str(tiny_model))
    losses = measure_losses(public, corpus, block_size=24)
    blocks = oracle(public, corpus, 24)
    every = [block for user in corpus.users for block in blocks[user]]
    by_block = [math.exp(loss / tokens) for loss, tokens in every]
    assert losses.perplexity().value == pytest.approx(np.mean(by_block), rel=1e-4)
    by_user = [
        math.exp(sum(loss for loss, _ in blocks[user]) / sum(tokens for _, tokens in blocks[user]))
        for user in corpus.users
    ]
    assert losses.user_perplexity().value == pytest.approx(np.mean(by_user), rel=1e-4)
    np.testing.assert_allclose(losses.perplexity_by_user(), by_user, rtol=1e-4)
    size = sum(len(document.text.encode()) for document in corpus.documents())
    bits = sum(loss for loss, _ in every) / math.log(2) / size
    told = losses.bits_per_byte()
    assert told is not None
    assert told.value == pytest.approx(bits, rel=1e-4)
    assert losses.blocks.sum() == len(every)
    # The mean of block perplexities is not the exponential of the mean loss: the two must not be mixed up.
    pooled = math.exp(sum(loss for loss, _ in every) / sum(tokens for _, tokens in every))
    assert losses.perplexity().value != pytest.approx(pooled, rel=1e-3)


def test_a_uniform_model_has_the_perplexity_of_its_vocabulary(
    tiny_transformer: Path, corpus: UserCorpus
) -> None:
    public = load_public_model(str(tiny_transformer))
    with torch.no_grad():
        public.model.transformer.ln_f.weight.zero_()
        public.model.transformer.ln_f.bias.zero_()
    assert measure_losses(public, corpus).perplexity().value == pytest.approx(
        public.model.config.vocab_size, rel=1e-4
    )


def test_blocks_are_no_longer_than_the_context(tiny_transformer: Path) -> None:
    public = load_public_model(str(tiny_transformer))
    text = " ".join(public_sentences(60))
    losses = measure_losses(public, UserCorpus.from_pairs([("a", text)]), block_size=4096)
    assert losses.block_size == 128
    assert losses.blocks.sum() == math.ceil(len(public.tokenizer.encode([text])[0]) / 128)


def test_models_are_compared_on_the_same_blocks_only(tiny_transformer: Path, corpus: UserCorpus) -> None:
    public = load_public_model(str(tiny_transformer))
    one, other = measure_losses(public, corpus, block_size=24), measure_losses(public, corpus, block_size=32)
    assert perplexity_difference(one, one).value == 0
    with pytest.raises(ValueError, match="same blocks"):
        perplexity_difference(one, other)


@pytest.fixture
def word_model(tmp_path: Path) -> PublicModel:
    """A model that knows a few words and takes every other for the same unknown one."""
    folder = create_lstm(
        tmp_path / "words",
        shape=LSTMShape(layers=1, hidden_size=8, embedding_size=8),
        tokenizer=build_word_tokenizer(["the baker paints a boat"] * 3, 20),
        vocabulary="public",
        seed=0,
    )
    return load_public_model(str(folder))


def test_unknown_words_are_counted_and_said(word_model: PublicModel, tiny_transformer: Path) -> None:
    texts = UserCorpus.from_pairs([("a", "the baker sings"), ("b", "the boat sinks slowly")])
    lossy = measure_losses(word_model, texts)
    assert lossy.unknown_share == pytest.approx(3 / lossy.tokens.sum())
    (caveat,) = (text for text in EvaluationReport({"m": lossy}, None, TEXT).caveats if "unknown" in text)
    assert "bits per byte are too low" in caveat
    assert lossy.to_json()["unknown_share"] == lossy.unknown_share
    lossless = measure_losses(load_public_model(str(tiny_transformer)), texts)
    assert lossless.unknown_share == 0
    assert not any("unknown" in text for text in EvaluationReport({"m": lossless}, None, TEXT).caveats)


def test_a_user_without_a_token_is_left_out(word_model: PublicModel) -> None:
    nothing = "\u200b"  # a space of no width, which many tokenizers drop
    word_model.tokenizer.tokenizer.backend_tokenizer.normalizer = normalizers.Replace(nothing, "")
    assert word_model.tokenizer.encode([nothing]) == [[]]
    texts = [("a", "the baker"), ("b", nothing), ("c", "the boat")]
    with_empty = measure_losses(word_model, UserCorpus.from_pairs(texts))
    without = measure_losses(word_model, UserCorpus.from_pairs([texts[0], texts[2]]))
    assert with_empty.users == ("a", "c")
    assert with_empty.to_json() == without.to_json()


def test_tokens_without_a_byte_of_text_have_no_bits_per_byte(corpus: UserCorpus, tiny_lstm: Path) -> None:
    losses = measure_losses(load_public_model(str(tiny_lstm)), corpus)
    silent = replace(losses, text_bytes=np.zeros(len(losses.users)))
    assert silent.bits_per_byte() is None
    assert silent.to_json()["bits_per_byte"] is None


def test_a_block_size_beyond_the_context_is_said(tiny_transformer: Path, corpus: UserCorpus) -> None:
    class Listener(Silent):
        def __init__(self) -> None:
            self.remarks: list[str] = []

        def remark(self, message: str) -> None:
            self.remarks.append(message)

    listener = Listener()
    public = load_public_model(str(tiny_transformer))
    measure_losses(public, corpus, block_size=128, progress=listener)
    assert not listener.remarks
    measure_losses(public, corpus, block_size=129, progress=listener)
    assert listener.remarks == ["blocks of 128 tokens: the model's context takes no more"]


@pytest.mark.parametrize("where", ["evaluation.perplexity", "training.preparation"])
def test_a_killed_measurement_leaves_nothing_for_long(
    tmp_path: Path, tiny_transformer: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """A process that dies with the tokens on disk: the next one to read a corpus removes them."""
    (tmp_path / "corpus.jsonl").write_text('{"user": "a", "text": "one two"}\n')
    call = {
        "evaluation.perplexity": "measure_losses(load_public_model(name), UserCorpus.from_pairs(pairs))",
        "training.preparation": "plan_training(Recipe.model_validate(recipe))",
    }[where]
    recipe = {
        "output": str(tmp_path / "run"),
        "model": {"name": str(tiny_transformer)},
        "corpus": {"path": str(tmp_path / "corpus.jsonl"), "user": "user", "text": "text"},
        "held_out": None,
        "training": {"block_size": 32},
    }
    program = f"""
import os, signal, tacit.{where} as module
from tacit.corpus import UserCorpus
from tacit.evaluation import measure_losses
from tacit.errors import InputError
from tacit.models.masks import with_mask
from tacit.models.loading import load_public_model
from tacit.recipes import Recipe
from tacit.training import plan_training
def die(*_, storage, **__):
    storage.write_text("secret")
    print(storage, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
module.encode = die
name, pairs, recipe = {str(tiny_transformer)!r}, [("a", "one two")], {recipe!r}
{call}
"""
    place = tmp_path / "temporary"
    place.mkdir()
    environment = os.environ | {"TMPDIR": str(place)}
    killed = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    tokens = Path(killed.stdout.strip())
    assert tokens.read_text() == "secret"
    assert stat.S_IMODE(tokens.parent.stat().st_mode) == 0o700
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    UserCorpus.from_pairs([("a", "one")]).close()
    assert list(place.iterdir()) == []


def test_storage_in_use_is_locked_and_goes_with_its_user() -> None:
    with passing_storage() as folder, (folder / "lock").open() as other, pytest.raises(BlockingIOError):
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert not folder.exists()


def test_numbers_are_the_operators_where_text_or_model_is_private() -> None:
    def told(private: bool, private_model: bool) -> tuple[str, ...]:
        return MeasuredText("text", False, private, private_model).caveats(users=30)

    assert told(False, False) == ()
    assert "Measured on private text" in told(True, False)[0]
    assert "weights that read private text" in told(False, True)[0]
    assert len(told(True, True)) == 1
