"""A causal language model cut in two: a frozen trunk below, what is trained above.

When only upper layers change, the trunk's output for a text never changes: it can be computed once and
kept, instead of once per epoch. For models whose layers are of one kind (others are refused) the cut needs
no knowledge of the architecture beyond the list of its layers: the model's own code runs, with the lower
layers taken out of the list and the first remaining layer's input replaced by the stored hidden states.
Masks, rotary positions and the final norm are therefore the model's own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from tacit.errors import ModelError


def layer_list(model: nn.Module) -> tuple[nn.Module, str, nn.ModuleList]:
    """The module that owns the decoder layers, the attribute's name, and the list itself."""
    wanted = model.config.num_hidden_layers  # type: ignore[union-attr]
    for owner in model.modules():
        for name, child in owner.named_children():
            if isinstance(child, nn.ModuleList) and len(child) == wanted:
                return owner, name, child
    raise ModelError(
        f"{type(model).__name__} has no list of {wanted} layers; tacit supports models of stacked layers."
    )


class _Reached(Exception):
    """Carries the hidden states out of a forward pass that has gone far enough."""

    def __init__(self, hidden: Tensor) -> None:
        self.hidden = hidden


def _hidden_argument(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Tensor:
    hidden: Tensor = args[0] if args else kwargs["hidden_states"]
    return hidden


@torch.no_grad()
def trunk_states(model: nn.Module, trunk_layers: int, inputs: Mapping[str, Any]) -> Tensor:
    """Hidden states that enter layer ``trunk_layers`` (0-based), computed by the model's own code."""

    def stop(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        raise _Reached(_hidden_argument(args, kwargs))

    _, _, layers = layer_list(model)
    hook = layers[trunk_layers].register_forward_pre_hook(stop, with_kwargs=True)
    try:
        model(**inputs)
    except _Reached as reached:
        return reached.hidden
    finally:
        hook.remove()
    raise AssertionError("the forward pass never reached the layer after the trunk")


@contextlib.contextmanager
def without_trunk(model: nn.Module, trunk_layers: int) -> Iterator[TrunklessModel]:
    """Take the lowest layers out of the model while the block runs."""
    owner, name, layers = layer_list(model)
    setattr(owner, name, layers[trunk_layers:])
    try:
        yield TrunklessModel(model, getattr(owner, name)[0])
    finally:
        setattr(owner, name, layers)


def refuse_uneven_cut(model: Any, trunk_layers: int) -> None:
    """Refuse a model that treats its layers by their number: its upper part alone would be another model.

    Models that mix kinds of attention choose each layer's mask and positions by its place in the list.
    """
    kinds = getattr(model.config, "layer_types", None)
    if kinds is not None and len(set(kinds)) > 1:
        raise ModelError(
            f"{type(model).__name__} mixes kinds of layers, so a trunk of {trunk_layers} cannot be cut off; "
            "set adapter.trunk_layers to 0."
        )


class TrunklessModel:
    """The upper part of a model, called with stored hidden states instead of token ids."""

    def __init__(self, model: nn.Module, first_layer: nn.Module) -> None:
        self._model = model
        self._first_layer = first_layer

    def __call__(self, hidden: Tensor, inputs: Mapping[str, Any]) -> Any:
        """The model's output for texts whose trunk states are ``hidden``."""

        def replace(
            _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
        ) -> tuple[tuple[Any, ...], dict[str, Any]]:
            if args:
                return (hidden, *args[1:]), kwargs
            return args, kwargs | {"hidden_states": hidden}

        hook = self._first_layer.register_forward_pre_hook(replace, with_kwargs=True)
        try:
            # The embeddings only carry the shape; the hook puts the stored states in their place.
            others = {key: value for key, value in inputs.items() if key != "input_ids"}
            return self._model(inputs_embeds=self._placeholder(hidden), **others)
        finally:
            hook.remove()

    def _placeholder(self, hidden: Tensor) -> Tensor:
        width = self._model.get_input_embeddings().weight.shape[1]  # type: ignore[operator]
        return hidden.new_zeros(()).expand(*hidden.shape[:2], width)
