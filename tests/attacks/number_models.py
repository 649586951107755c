"""Tiny public models that know numbers, as a real one does, and so have only the codes left to memorise."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Literal

import torch
from tokenizers import ByteLevelBPETokenizer
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedModel, PreTrainedTokenizerFast

from tacit.models.lstm import LSTMConfig, LSTMForCausalLM
from tests.tiny import START, public_sentences

_OPENINGS = ("My number is:", "The number is:", "My phone is:", "Our house has:")


def number_texts(n: int, seed: int) -> list[str]:
    """Short texts with uniform numbers of two to five digits."""
    draw = random.Random(seed)
    return [
        f"{draw.choice(_OPENINGS)} {''.join(draw.choices('0123456789', k=draw.randint(2, 5)))}"
        for _ in range(n)
    ]


def number_tokenizer(digits: Literal["single", "multi"]) -> PreTrainedTokenizerFast:
    """Byte-level BPE in which numbers are single digits, or also pairs and more with and without a space."""
    texts = public_sentences(200) if digits == "single" else number_texts(4000, seed=8)
    trained = ByteLevelBPETokenizer()
    trained.train_from_iterator(texts, vocab_size=380, special_tokens=[START], show_progress=False)
    return PreTrainedTokenizerFast(tokenizer_object=trained._tokenizer, bos_token=START, eos_token=START)


def build_number_model(folder: Path, family: str, digits: Literal["single", "multi"]) -> None:
    """Fit a model on texts with numbers until digits follow the prompt nearly uniformly."""
    tokenizer = number_tokenizer(digits)
    torch.manual_seed(11)
    model: PreTrainedModel
    if family == "transformer":
        config = GPT2Config(
            vocab_size=len(tokenizer),
            n_positions=48,
            n_embd=64,
            n_layer=3,
            n_head=4,
            bos_token_id=0,
            eos_token_id=0,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
        )
        model = GPT2LMHeadModel(config)
    else:
        model = LSTMForCausalLM(
            LSTMConfig(
                vocab_size=len(tokenizer),
                embedding_size=64,
                hidden_size=64,
                num_hidden_layers=2,
                max_position_embeddings=48,
                tie_word_embeddings=True,
                bos_token_id=0,
                eos_token_id=0,
            )
        )
    texts = tokenizer([START + text for text in number_texts(1500, seed=9)], add_special_tokens=False)
    stream = torch.tensor([token for ids in texts["input_ids"] for token in ids])
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2 if family == "transformer" else 2e-2)
    draw = torch.Generator().manual_seed(5)
    model.train()
    for _ in range(150):
        starts = torch.randint(len(stream) - 24, (16, 1), generator=draw)
        batch = stream[starts + torch.arange(24)]
        optimizer.zero_grad()
        model(input_ids=batch, labels=batch).loss.backward()
        optimizer.step()
    model.eval().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
