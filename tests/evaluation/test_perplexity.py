"""Perplexity against a slow oracle, one block at a time in float64."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from tacit.corpus import UserCorpus
from tacit.evaluation import measure_losses, perplexity_difference
from tacit.models.loading import PublicModel, load_public_model
from tests.tiny import public_sentences


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
    assert losses.bits_per_byte().value == pytest.approx(bits, rel=1e-4)
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
