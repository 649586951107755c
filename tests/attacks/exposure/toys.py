"""Toy models over a dozen tokens, toy sets of candidates, and slow oracles that score each text by itself."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from tacit.attacks.exposure.candidates import CandidateTrie
from tacit.attacks.exposure.ranking import Rank, Rule
from tacit.attacks.exposure.token_tree import FloatArray, TokenRows
from tacit.models.lstm import LSTMConfig, LSTMForCausalLM

VOCABULARY = 12
PREFIX = (0, 3, 7)
Sequences = Sequence[tuple[int, ...]]


@cache
def toy_model(family: str, seed: int, dtype: torch.dtype = torch.float64) -> Any:
    """A random model with strong opinions, in double precision unless told otherwise."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if family == "gpt2":
            config = GPT2Config(
                vocab_size=VOCABULARY,
                n_positions=24,
                n_embd=16,
                n_layer=2,
                n_head=2,
                initializer_range=0.6,
                bos_token_id=0,
                eos_token_id=0,
            )
            model: Any = GPT2LMHeadModel(config)
        elif family == "llama":
            model = LlamaForCausalLM(
                LlamaConfig(
                    vocab_size=VOCABULARY,
                    hidden_size=16,
                    intermediate_size=32,
                    num_hidden_layers=2,
                    num_attention_heads=4,
                    num_key_value_heads=2,
                    max_position_embeddings=24,
                    initializer_range=0.6,
                )
            )
        else:
            model = LSTMForCausalLM(
                LSTMConfig(
                    vocab_size=VOCABULARY,
                    embedding_size=16,
                    hidden_size=16,
                    num_hidden_layers=2,
                    max_position_embeddings=24,
                )
            )
            for parameter in model.parameters():
                torch.nn.init.normal_(parameter, std=0.8)
    return model.to(dtype).eval().requires_grad_(False)


FAMILIES = ("gpt2", "llama", "lstm")


@st.composite
def candidate_sets(draw: st.DrawFn, most: int = 60) -> tuple[Sequences, list[int]]:
    """Sequences of one to four tokens of which none begins another, and some of them as targets."""
    drawn = draw(
        st.lists(
            st.lists(st.integers(1, 6), min_size=1, max_size=4).map(tuple),
            min_size=2,
            max_size=most,
            unique=True,
        )
    )
    sequences: Sequences = [one for one in drawn if not any(begins(other, one) for other in drawn)]
    if len(sequences) < 2:
        sequences = [(1, 2), (2,), (3, 3, 3)]
    targets = draw(
        st.lists(st.integers(0, len(sequences) - 1), min_size=1, max_size=min(5, len(sequences)), unique=True)
    )
    return sequences, targets


def begins(other: tuple[int, ...], one: tuple[int, ...]) -> bool:
    """Whether ``other`` is a proper beginning of ``one``."""
    return other != one and one[: len(other)] == other


def trie_of(sequences: Sequences, targets: list[int]) -> CandidateTrie:
    """The candidates as a trie, with the targets as the known ones."""
    return CandidateTrie(PREFIX, TokenRows.of(sequences), [sequences[target] for target in targets])


@torch.no_grad()
def text_log_probability(model: Any, tokens: tuple[int, ...], begin: int) -> float:
    """Sum of the log-probabilities of tokens[begin:], from one plain forward pass over the text alone."""
    log_probs = torch.log_softmax(model(input_ids=torch.tensor([tokens])).logits[0].double(), dim=-1)
    return float(sum(log_probs[place - 1, tokens[place]] for place in range(begin, len(tokens))))


def naive_values(model: Any, sequences: Sequences, kind: str) -> FloatArray:
    """The value of every candidate by the definition."""
    values = []
    for sequence in sequences:
        text = (*PREFIX, *sequence)
        if kind == "logprob":
            values.append(text_log_probability(model, text, len(PREFIX)))
        else:
            values.append(text_log_probability(model, text, 1) / (len(text) - 1))
    return np.array(values)


def naive_rank(values: FloatArray, target: int, inserted: set[int], band: float) -> Rank:
    """The rank by counting; ``inserted`` are the places of inserted candidates."""
    others = [place for place in range(len(values)) if place != target]
    alone = [place for place in others if place not in inserted]
    return Rank(
        low=1 + sum(values[place] > values[target] + band for place in others),
        high=1 + sum(values[place] >= values[target] - band for place in others),
        alone_low=1 + sum(values[place] > values[target] + band for place in alone),
        alone_high=1 + sum(values[place] >= values[target] - band for place in alone),
        candidates=len(values),
        alone_candidates=len(alone) + 1,
    )


def rule_for(model: Any, kind: Any) -> Rule:
    """The rule behind the toy prefix, by the oracle."""
    return Rule(kind, text_log_probability(model, PREFIX, 1), len(PREFIX) - 1)
