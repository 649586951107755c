"""Tiny public models that the tests build and fit in seconds: a transformer and an LSTM, and their text."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from gguf import GGUFWriter, TokenType
from tokenizers import ByteLevelBPETokenizer
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from tacit.models.lstm import LSTMConfig, LSTMForCausalLM

START = "<|endoftext|>"
VOCABULARY_SIZE = 512
_PEOPLE = ("the baker", "a sailor", "our teacher", "the old farmer", "my neighbour", "a young doctor")
_ACTIONS = ("carries", "paints", "repairs", "borrows", "sells", "finds")
_THINGS = ("a red boat", "the wooden door", "three lamps", "an empty basket", "a small clock", "the letters")
_PLACES = ("by the river", "in the market", "near the station", "at home", "behind the mill", "on the hill")
_TIMES = ("in the morning", "every Sunday", "before lunch", "at night", "once a year", "after the rain")


def public_sentences(n: int, seed: int = 0) -> list[str]:
    """``n`` simple sentences from one template, the same ones for the same seed."""
    draw = random.Random(seed)
    kinds = (_PEOPLE, _ACTIONS, _THINGS, _PLACES, _TIMES)
    sentences = (" ".join(draw.choice(kind) for kind in kinds) for _ in range(n))
    return [sentence[0].upper() + sentence[1:] + "." for sentence in sentences]


def byte_level_tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer: every text has an encoding, and decoding gives it back."""
    trained = ByteLevelBPETokenizer()
    trained.train_from_iterator(
        public_sentences(400), vocab_size=VOCABULARY_SIZE, special_tokens=[START], show_progress=False
    )
    return PreTrainedTokenizerFast(tokenizer_object=trained._tokenizer, bos_token=START, eos_token=START)


def build_transformer(folder: Path) -> None:
    """GPT-2 shape: 4 layers of width 64."""
    tokenizer = byte_level_tokenizer()
    torch.manual_seed(1)
    config = GPT2Config(
        vocab_size=len(tokenizer),
        n_positions=128,
        n_embd=64,
        n_layer=4,
        n_head=4,
        bos_token_id=0,
        eos_token_id=0,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
    )
    _fit_and_save(GPT2LMHeadModel(config), tokenizer, folder, steps=80, learning_rate=3e-3)


def build_lstm(folder: Path) -> None:
    """Two LSTM layers of width 64, tied."""
    tokenizer = byte_level_tokenizer()
    torch.manual_seed(2)
    config = LSTMConfig(
        vocab_size=len(tokenizer),
        embedding_size=64,
        hidden_size=64,
        num_hidden_layers=2,
        max_position_embeddings=128,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=0,
    )
    _fit_and_save(LSTMForCausalLM(config), tokenizer, folder, steps=200, learning_rate=2e-2)


def build_llama(folder: Path) -> None:
    """Llama shape with grouped-query attention, untrained."""
    tokenizer = byte_level_tokenizer()
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        bos_token_id=0,
        eos_token_id=0,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


BUILDERS: dict[str, Callable[[Path], None]] = {
    "transformer": build_transformer,
    "lstm": build_lstm,
    "llama": build_llama,
}


def write_llama_gguf(model_folder: Path, path: Path) -> None:
    """The tiny Llama as a GGUF file, laid out as llama.cpp lays it out."""
    model = LlamaForCausalLM.from_pretrained(model_folder)
    config = model.config
    tokenizer = json.loads((model_folder / "tokenizer.json").read_text(encoding="utf-8"))
    tokens = sorted(tokenizer["model"]["vocab"], key=tokenizer["model"]["vocab"].get)
    writer = GGUFWriter(path, "llama")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([TokenType.CONTROL if token == START else TokenType.NORMAL for token in tokens])
    writer.add_token_merges([" ".join(merge) for merge in tokenizer["model"]["merges"]])
    writer.add_bos_token_id(config.bos_token_id)
    writer.add_eos_token_id(config.eos_token_id)
    writer.add_unk_token_id(config.bos_token_id)
    writer.add_pad_token_id(config.eos_token_id)
    for name, weight in model.state_dict().items():
        heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
        kind = name.split(".")[-2]
        array = weight.numpy()
        if kind in heads:
            # GGUF interleaves the two halves that rotary positions turn against each other.
            array = array.reshape(heads[kind], 2, -1, array.shape[1]).swapaxes(1, 2).reshape(array.shape)
        writer.add_tensor(_gguf_name(name), np.ascontiguousarray(array))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _gguf_name(name: str) -> str:
    for ours, theirs in _GGUF_NAMES.items():
        name = name.replace(ours, theirs)
    return name


_GGUF_NAMES = {
    "model.layers.": "blk.",
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "self_attn.o_proj": "attn_output",
    "self_attn.": "attn_",
    "mlp.": "ffn_",
    "_proj": "",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


def _fit_and_save(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    folder: Path,
    *,
    steps: int,
    learning_rate: float,
) -> None:
    texts = tokenizer([START + text for text in public_sentences(2000, seed=4)], add_special_tokens=False)
    stream = torch.tensor([token for ids in texts["input_ids"] for token in ids])
    optimizer = torch.optim.Adam(model.parameters(), lr=learning_rate)
    draw = torch.Generator().manual_seed(5)
    length, rows = 32, 16
    model.train()
    for _ in range(steps):
        starts = torch.randint(len(stream) - length, (rows, 1), generator=draw)
        batch = stream[starts + torch.arange(length)]
        optimizer.zero_grad()
        model(input_ids=batch, labels=batch).loss.backward()
        optimizer.step()
    model.eval().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
