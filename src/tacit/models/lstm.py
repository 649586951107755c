"""LSTM language models that transformers, PEFT and safetensors treat like any other causal LM.

What holds: the outputs equal ``torch.nn.LSTM`` with the same weights, decoding step by step with a state
equals one pass over the whole text, and a LoRA adapter on ``input_gates`` or ``recurrent_gates`` acts as
the same low-rank change of the weight that merging it would make. Texts are padded on the right: the
state of padding never reaches a real token, and the state that is handed back is the one after each row's
last real token.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    GenerationMixin,
    PretrainedConfig,
    PreTrainedModel,
)
from transformers import initialization as init
from transformers.modeling_outputs import CausalLMOutputWithPast

from tacit.errors import ModelError
from tacit.models.likelihood import NO_LABEL

MODEL_TYPE = "tacit_lstm"


@dataclass(frozen=True)
class LayerState:
    """Hidden and cell state of one layer, each of shape [rows, hidden size]."""

    hidden: Tensor
    cell: Tensor


@dataclass(frozen=True)
class LSTMState:
    """What an LSTM remembers of the text so far: the counterpart of a transformer's key-value cache."""

    layers: tuple[LayerState, ...]

    def __len__(self) -> int:
        """Number of texts in the batch."""
        return len(self.layers[0].hidden)

    def select(self, rows: Tensor) -> LSTMState:
        """The state of some texts only, in the order given; a row may be taken several times."""
        return LSTMState(tuple(LayerState(layer.hidden[rows], layer.cell[rows]) for layer in self.layers))


class LSTMConfig(PretrainedConfig):  # type: ignore[misc]
    """Sizes of an LSTM language model; ``max_position_embeddings`` is a nominal context length."""

    model_type = MODEL_TYPE
    keys_to_ignore_at_inference: ClassVar[list[str]] = ["past_key_values"]

    def __init__(
        self,
        vocab_size: int = 40_000,
        embedding_size: int = 200,
        hidden_size: int = 200,
        num_hidden_layers: int = 1,
        dropout: float = 0.0,
        max_position_embeddings: int = 1024,
        tie_word_embeddings: bool = False,
        bos_token_id: int | None = None,
        eos_token_id: int | None = None,
        pad_token_id: int | None = None,
        **kwargs: Any,
    ) -> None:
        if tie_word_embeddings and embedding_size != hidden_size:
            raise ModelError(
                f"Tied word embeddings need embedding_size == hidden_size, not {embedding_size} and "
                f"{hidden_size}; make them equal or set tie_word_embeddings to false."
            )
        if min(vocab_size, embedding_size, hidden_size, num_hidden_layers) < 1:
            raise ModelError(
                "Expected vocab_size, embedding_size, hidden_size and num_hidden_layers >= 1, not "
                f"{vocab_size}, {embedding_size}, {hidden_size} and {num_hidden_layers}."
            )
        self.vocab_size = vocab_size
        self.embedding_size = embedding_size
        self.hidden_size = hidden_size
        self.num_hidden_layers = num_hidden_layers
        self.dropout = dropout
        self.max_position_embeddings = max_position_embeddings
        self.use_cache = True
        super().__init__(
            tie_word_embeddings=tie_word_embeddings,
            bos_token_id=bos_token_id,
            eos_token_id=eos_token_id,
            pad_token_id=pad_token_id,
            **kwargs,
        )


def effective_weight(gates: nn.Module) -> Tensor:
    """The weight that ``gates`` applies: its own, or its own plus what active LoRA adapters add.

    The fused kernel takes weights, not modules, so that an adapter's forward pass is never called; the
    low-rank product enters the weight instead, and gradients reach the adapter through it.
    """
    if isinstance(gates, nn.Linear):
        return gates.weight
    lora: Any = gates
    weight: Tensor = lora.get_base_layer().weight
    if lora.disable_adapters or lora.merged:
        return weight
    for adapter in lora.active_adapters:
        if adapter in lora.lora_A:
            _refuse_what_is_not_a_weight(lora, adapter)
            weight = weight + lora.get_delta_weight(adapter).to(weight.dtype)
    return weight


def _refuse_what_is_not_a_weight(lora: Any, adapter: str) -> None:
    dropout = lora.lora_dropout[adapter]
    if isinstance(dropout, nn.Dropout) and dropout.training and dropout.p > 0:
        raise ModelError(
            f"Dropout {dropout.p} of a LoRA adapter cannot act on LSTM gates, where adapters change the "
            "weight itself; set adapter.dropout to 0."
        )
    if adapter in lora.lora_variant or lora.lora_bias.get(adapter):
        raise ModelError("LSTM gates take plain LoRA only: no DoRA or other variant, and no LoRA bias.")


def effective_bias(gates: nn.Module) -> Tensor:
    """The bias that ``gates`` adds, whether or not adapters wrap it."""
    base: Any = gates if isinstance(gates, nn.Linear) else gates.get_base_layer()  # type: ignore[operator]
    bias: Tensor = base.bias
    return bias


class LSTMLayer(nn.Module):
    """One LSTM layer whose gates are two linear maps, so that adapters can name them."""

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__()
        self.hidden_size = hidden_size
        # Row blocks in torch's order: input, forget, cell, output.
        self.input_gates = nn.Linear(input_size, 4 * hidden_size)
        self.recurrent_gates = nn.Linear(hidden_size, 4 * hidden_size)

    def forward(
        self, hidden_states: Tensor, state: LayerState | None = None, lengths: Tensor | None = None
    ) -> tuple[Tensor, LayerState]:
        """Run over [rows, time, input size]; ``lengths`` makes the new state that of each row's real end."""
        weights = [
            effective_weight(self.input_gates),
            effective_weight(self.recurrent_gates),
            effective_bias(self.input_gates),
            effective_bias(self.recurrent_gates),
        ]
        if state is None:
            zeros = hidden_states.new_zeros(len(hidden_states), self.hidden_size)
            state = LayerState(zeros, zeros)
        if lengths is None:
            start = [state.hidden.unsqueeze(0), state.cell.unsqueeze(0)]
            outputs, hidden, cell = torch.lstm(
                hidden_states, start, weights, True, 1, 0.0, self.training, False, True
            )
            return outputs, LayerState(hidden.squeeze(0), cell.squeeze(0))
        return self._forward_ragged(hidden_states, state, weights, lengths)

    def _forward_ragged(
        self, hidden_states: Tensor, state: LayerState, weights: list[Tensor], lengths: Tensor
    ) -> tuple[Tensor, LayerState]:
        packed = pack_padded_sequence(hidden_states, lengths.cpu(), batch_first=True, enforce_sorted=False)
        order, back = packed.sorted_indices, packed.unsorted_indices
        start = [state.hidden[order].unsqueeze(0), state.cell[order].unsqueeze(0)]
        outputs, hidden, cell = torch.lstm(
            packed.data, packed.batch_sizes, start, weights, True, 1, 0.0, self.training, False
        )
        padded, _ = pad_packed_sequence(
            PackedSequence(outputs, packed.batch_sizes, order, back),
            batch_first=True,
            total_length=hidden_states.shape[1],
        )
        return padded, LayerState(hidden.squeeze(0)[back], cell.squeeze(0)[back])


def _real_lengths(attention_mask: Tensor, time: int) -> Tensor:
    """Real tokens per row among the last ``time`` columns (a mask may cover the cached past as well)."""
    mask = attention_mask[:, -time:].to(torch.long)
    lengths = mask.sum(dim=1)
    ends_where_it_should = torch.arange(time, device=mask.device) < lengths.unsqueeze(1)
    if not torch.equal(ends_where_it_should, mask.bool()):
        raise ModelError("An LSTM takes texts padded on the right; set padding_side to 'right'.")
    return lengths


class LSTMForCausalLM(PreTrainedModel, GenerationMixin):  # type: ignore[misc]
    """Embedding, a stack of LSTM layers, and a linear head over the vocabulary."""

    config_class = LSTMConfig
    main_input_name = "input_ids"
    _no_split_modules: ClassVar[list[str]] = ["LSTMLayer"]
    _tied_weights_keys: ClassVar[dict[str, str]] = {"lm_head.weight": "embed_tokens.weight"}

    def __init__(self, config: LSTMConfig) -> None:
        super().__init__(config)
        sizes = [config.embedding_size] + [config.hidden_size] * config.num_hidden_layers
        self.embed_tokens = nn.Embedding(config.vocab_size, config.embedding_size)
        self.layers = nn.ModuleList(LSTMLayer(size, config.hidden_size) for size in sizes[:-1])
        self.dropout = nn.Dropout(config.dropout)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size)
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        # transformers' own init functions leave alone what has just been read from a file.
        if module is self.embed_tokens or module is self.lm_head:
            init.uniform_(module.weight, -0.1, 0.1)
        if module is self.lm_head:
            init.zeros_(module.bias)
        elif isinstance(module, nn.Linear):
            hidden_size = self.config.hidden_size
            reach = 1 / math.sqrt(hidden_size)
            init.uniform_(module.weight, -reach, reach)
            # A forget gate that starts open lets gradients reach back beyond a few words; each of a
            # layer's two maps brings half of its bias of 1.
            bias = torch.zeros_like(module.bias)
            bias[hidden_size : 2 * hidden_size] = 0.5
            init.copy_(module.bias, bias)

    def get_input_embeddings(self) -> nn.Embedding:
        """The table of word vectors."""
        return self.embed_tokens

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        """Replace the table of word vectors."""
        self.embed_tokens = value

    def get_output_embeddings(self) -> nn.Linear:
        """The head over the vocabulary."""
        return self.lm_head

    def set_output_embeddings(self, new_embeddings: nn.Linear) -> None:
        """Replace the head."""
        self.lm_head = new_embeddings

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        # transformers' generate() would otherwise hand in an empty key-value cache.
        return False

    def prepare_inputs_for_generation(
        self, input_ids: Tensor, past_key_values: LSTMState | None = None, **kwargs: Any
    ) -> dict[str, Any]:
        """The next forward call's arguments: after the first, only the newest token is read."""
        new = input_ids if past_key_values is None else input_ids[:, -1:]
        return {"input_ids": new, "past_key_values": past_key_values} | kwargs

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        past_key_values: LSTMState | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        **_: Any,
    ) -> CausalLMOutputWithPast | tuple[Any, ...]:
        """Logits for the next token at every position, as any transformers causal LM gives them."""
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("Give either input_ids or inputs_embeds.")
        hidden = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        lengths = self._lengths(attention_mask, hidden.shape[1], use_cache=bool(use_cache))
        past: Sequence[LayerState | None] = (
            [None] * len(self.layers) if past_key_values is None else past_key_values.layers
        )
        hidden = self.dropout(hidden)
        every_hidden = [hidden]
        states: list[LayerState] = []
        for layer, layer_past in zip(self.layers, past, strict=True):
            hidden, state = layer(hidden, layer_past, lengths)
            hidden = self.dropout(hidden)
            every_hidden.append(hidden)
            states.append(state)
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = self.lm_head(hidden[:, kept])
        output = CausalLMOutputWithPast(
            loss=None if labels is None else _shifted_loss(logits, labels),
            logits=logits,
            past_key_values=LSTMState(tuple(states)) if use_cache else None,
            hidden_states=tuple(every_hidden) if output_hidden_states else None,
        )
        wants_dict = return_dict is None or return_dict
        return output if wants_dict else output.to_tuple()

    def _lengths(self, attention_mask: Tensor | None, time: int, *, use_cache: bool) -> Tensor | None:
        if attention_mask is None:
            return None
        lengths = _real_lengths(attention_mask, time)
        # Padding on the right changes no output before it, only the state after it.
        return lengths if use_cache and bool((lengths < time).any()) else None


def _shifted_loss(logits: Tensor, labels: Tensor) -> Tensor:
    return nn.functional.cross_entropy(
        logits[:, :-1].flatten(0, 1).float(), labels[:, 1:].flatten(), ignore_index=NO_LABEL
    )


AutoConfig.register(MODEL_TYPE, LSTMConfig, exist_ok=True)
AutoModelForCausalLM.register(LSTMConfig, LSTMForCausalLM, exist_ok=True)
