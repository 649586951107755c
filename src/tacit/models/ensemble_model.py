"""A public model made ready to run a whole ensemble, by the model's own code.

The copy shares the public model's weights and leaves the original as it was. Its forward pass reads each
text once through the trunk; at the trunk's end a hook lets the current `Pass` turn the rows of the texts
into the rows of all models, and before the head another picks what is to be predicted. Masks and caches of
transformers are not used.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor, nn

from tacit.errors import ModelError
from tacit.models.ensemble_attention import (
    ATTENTION_NAME,
    BeforeHead,
    Pass,
    WholeTextPass,
    current_pass,
    running,
)
from tacit.models.ensemble_packing import can_pack, pack_layers
from tacit.models.loading import PublicModel
from tacit.models.lstm import MODEL_TYPE as LSTM_MODEL_TYPE
from tacit.models.quiet import quiet
from tacit.models.trunk import layer_list, refuse_uneven_cut, without_trunk

_PROBE: Final = 4  # tokens of the text on which a prepared model is compared with the original
_PER_ROW: Final = ("position_embeddings", "position_ids")


def private_copy(model: nn.Module, dtype: torch.dtype) -> Any:
    """A second model on the same weights (converted where the dtype differs), free to be taken apart."""
    # Parameters of its own around the same memory; buffers, such as rotary frequencies, keep their dtype.
    parameters = {
        id(parameter): nn.Parameter(parameter.detach().to(dtype), requires_grad=False)
        for parameter in model.parameters()
    }
    return copy.deepcopy(
        model, memo={**parameters, **{id(buffer): buffer for buffer in model.buffers()}}
    ).eval()


class EnsembleModel:
    """A model whose layers from ``trunk_layers`` up run rows that the current pass forked."""

    def __init__(self, model: Any, trunk_layers: int, *, pack: bool | None = None) -> None:
        self.model = model
        self.trunk_layers = trunk_layers
        self.recurrent = model.config.model_type == LSTM_MODEL_TYPE
        if trunk_layers:
            refuse_uneven_cut(model, trunk_layers)
        weight = model.get_input_embeddings().weight
        self.device = weight.device
        self.vocabulary_size = len(model.get_output_embeddings().weight)
        if pack if pack is not None else can_pack(weight.dtype, weight.device):
            pack_layers(model)
        self.head: nn.Module = model.get_output_embeddings()
        if not self.recurrent:
            _replace_attention(model)
        self._install_hooks()

    def _install_hooks(self) -> None:
        _, _, layers = layer_list(self.model)
        layers[self.trunk_layers].register_forward_pre_hook(_fork, with_kwargs=True)
        if not self.recurrent:
            for layer in layers[self.trunk_layers :]:
                layer.register_forward_pre_hook(_fork_positions, with_kwargs=True)
        self.head.register_forward_pre_hook(lambda _, args: (current_pass().select(args[0]),))

    def __call__(self, current: Pass, tokens: Tensor, *, upper_only: bool = False, **inputs: Any) -> Any:
        """The model's output for [texts, time] token ids; None where the pass ends before the head.

        With ``upper_only`` the trunk does not run: the pass brings its output from elsewhere, and the
        tokens only carry the shape.
        """
        with torch.no_grad(), running(current):
            try:
                if not upper_only:
                    return self.model(input_ids=tokens, **inputs)
                table = self.model.get_input_embeddings().weight
                placeholder = table.new_zeros(()).expand(*tokens.shape, table.shape[1])
                with without_trunk(self.model, self.trunk_layers):
                    return self.model(inputs_embeds=placeholder, **inputs)
            except BeforeHead:
                return None

    def positions(self, starts: list[int], time: int) -> Tensor:
        """Position ids of ``time`` new tokens for texts that begin at ``starts``."""
        return torch.tensor(starts, device=self.device).unsqueeze(1) + torch.arange(time, device=self.device)

    def final_hidden(self, current: WholeTextPass, tokens: Tensor, *, upper_only: bool = False) -> Tensor:
        """What the head is given for whole texts: [models times texts, time, size]."""
        self(current, tokens, upper_only=upper_only, use_cache=False)
        return current.hidden

    def predict(self, hidden: Tensor) -> Tensor:
        """The head alone."""
        with torch.no_grad():
            out: Tensor = self.head.forward(hidden)
            return out

    def check_against(self, public: PublicModel, models: int) -> None:
        """Refuse a model that does not compute the public model's logits when prepared this way.

        Architectures differ; one that keeps something else between layers, or bends its logits after the
        head, shows here and not in wrong answers.
        """
        tokens = torch.arange(_PROBE, device=self.device).unsqueeze(0) % self.vocabulary_size
        with torch.no_grad():
            expected = public.model(input_ids=tokens).logits[0].float()
        found = self.predict(self.final_hidden(WholeTextPass(models), tokens))[0].float()
        exact = found.dtype == public.model.dtype == self.model.dtype == torch.float32
        close = 1e-3 if exact else 0.1
        if not torch.allclose(found, expected, rtol=close, atol=close * float(expected.abs().max())):
            raise ModelError(
                f"{type(self.model).__name__} computes other logits when it runs as an ensemble, so it is "
                "not supported; choose a public model of plain decoder layers, such as a Llama or a GPT-2."
            )


def _replace_attention(model: Any) -> None:
    with quiet():
        if hasattr(model.config, "num_attention_heads"):
            model.set_attn_implementation(ATTENTION_NAME)
    # Models that compute attention in code of their own keep what they have.
    if model.config._attn_implementation != ATTENTION_NAME:
        raise ModelError(
            f"{type(model).__name__} does not let its attention be replaced, which ensembles need; choose a "
            "public model such as a Llama, a Qwen or a GPT-2."
        )


def refuse_unknown_tokens(ids: Tensor, vocabulary_size: int) -> None:
    """Refuse token ids that the model has no embedding for."""
    low, high = (int(bound) for bound in torch.aminmax(ids))
    if low < 0 or high >= vocabulary_size:
        raise ModelError(
            f"Token {low if low < 0 else high} is outside the vocabulary of {vocabulary_size}; encode with "
            "the public model's tokenizer."
        )


def _fork(
    _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    fork: Callable[[Tensor], Tensor] = current_pass().fork
    if args:
        return (fork(args[0]), *args[1:]), kwargs
    return args, kwargs | {"hidden_states": fork(kwargs["hidden_states"])}


def _fork_positions(
    _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    fork = current_pass().fork_positions
    changed = dict(kwargs)
    for name in _PER_ROW:
        value = kwargs.get(name)
        if isinstance(value, Tensor):
            changed[name] = fork(name, value)
        elif isinstance(value, tuple):
            changed[name] = tuple(fork(f"{name}.{number}", part) for number, part in enumerate(value))
    return args, changed
