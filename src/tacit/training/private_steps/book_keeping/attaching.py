"""Which layers keep books, and switching them on and off.

A trained leaf that is not known here is refused by name: a parameter whose gradient nobody clips would break
the guarantee, and one that nobody trains would break the model in silence.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from tacit.errors import ModelError
from tacit.models.fused_lora import is_plain_lora
from tacit.models.lstm import LSTMLayer
from tacit.training.private_steps.book_keeping.books import Books
from tacit.training.private_steps.book_keeping.ghost import Grams
from tacit.training.private_steps.book_keeping.layers import (
    RecordedEmbedding,
    RecordedLayerNorm,
    RecordedLinear,
    RecordedRMSNorm,
)
from tacit.training.private_steps.book_keeping.low_rank import RecordedLowRank
from tacit.training.private_steps.book_keeping.recurrent import recorded_lstm

Forward = Callable[..., Any]
Rule = Callable[[Any, Books], Forward]


class BookKeeper:
    """A model's trained layers and their books.

    Args:
        model: the model; which parameters are trained must not change afterwards.
        head: the output layer, where the objective runs it outside of the model and keeps its books itself.
        how: how norms are found.

    Raises:
        ModelError: a trained parameter belongs to a layer without a rule.
    """

    def __init__(self, model: nn.Module, head: nn.Module | None = None, how: Grams | None = None) -> None:
        names = {parameter: name for name, parameter in model.named_parameters() if parameter.requires_grad}
        users: dict[nn.Parameter, int] = dict.fromkeys(names, 0)
        self._layers: list[tuple[nn.Module, Rule]] = []
        covered: set[nn.Module] = set()
        for module in model.modules():
            if module in covered:
                continue
            own = {parameter for parameter in _owned(module) if parameter.requires_grad}
            rule = None if module is head else _rule_for(module)
            if rule is not None and own:
                self._layers.append((module, rule))
                covered.update(module.modules())
            elif module is not head and (direct := _direct(module)):
                raise ModelError(
                    f"{names[direct[0]]} belongs to a {type(module).__name__}, which has no rule for "
                    "book-keeping; choose the loop engine or freeze it."
                )
            else:
                own = set(_direct(module))
            for parameter in own:
                users[parameter] += 1
        self.books = Books(names, {parameter for parameter, count in users.items() if count > 1}, how)

    @contextlib.contextmanager
    def attached(self) -> Iterator[Books]:
        """Let the layers keep books while the block runs; afterwards the model is as before."""
        before: list[tuple[nn.Module, Any]] = []
        try:
            for module, rule in self._layers:
                before.append((module, module.__dict__.get("forward")))
                # On the instance: other models of the same class in the process are not touched.
                object.__setattr__(module, "forward", rule(module, self.books))
            yield self.books
        finally:
            for module, forward in before:
                if forward is None:
                    object.__delattr__(module, "forward")
                else:
                    object.__setattr__(module, "forward", forward)


def _direct(module: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in module.parameters(recurse=False) if parameter.requires_grad]


def _owned(module: nn.Module) -> Iterator[nn.Parameter]:
    """Parameters that a layer's rule takes care of: a low-rank or recurrent layer's with those inside."""
    return module.parameters(recurse=isinstance(module, LSTMLayer) or hasattr(module, "lora_A"))


def _rule_for(module: nn.Module) -> Rule | None:
    if isinstance(module, LSTMLayer):
        return _lstm
    if is_plain_lora(module):
        return _low_rank
    if "forward" in module.__dict__:
        return None  # somebody else has changed what it computes
    rules: list[tuple[type[nn.Module], Rule]] = [
        (nn.Linear, _linear),
        (Conv1D, _conv1d),
        (nn.Embedding, _embedding),
        (nn.LayerNorm, _layer_norm),
    ]
    for kind, rule in rules:
        # A subclass may compute something else with the same weights.
        if isinstance(module, kind) and type(module).forward is kind.forward:
            return rule if rule is not _embedding or _is_plain_embedding(module) else None
    offset = _rms_offset(module)
    return None if offset is None else partial(_rms_norm, offset)


def _linear(layer: Any, books: Books) -> Forward:
    return lambda x: RecordedLinear.apply(x, layer.weight, layer.bias, books, False)  # type: ignore[no-untyped-call]


def _conv1d(layer: Any, books: Books) -> Forward:
    return lambda x: RecordedLinear.apply(x, layer.weight, layer.bias, books, True)  # type: ignore[no-untyped-call]


def _embedding(layer: Any, books: Books) -> Forward:
    def forward(ids: Tensor) -> Tensor:
        if ids.shape[0] == 1 and books.examples > 1:
            # Positions given once for all examples: each needs a gradient of its own.
            ids = ids.expand(books.examples, *ids.shape[1:])
        out: Tensor = RecordedEmbedding.apply(layer.weight, ids, layer.padding_idx, books)  # type: ignore[no-untyped-call]
        return out

    return forward


def _is_plain_embedding(layer: Any) -> bool:
    return layer.max_norm is None and not layer.scale_grad_by_freq and not layer.sparse


def _layer_norm(layer: Any, books: Books) -> Forward:
    return lambda x: RecordedLayerNorm.apply(x, layer.weight, layer.bias, layer.eps, books)  # type: ignore[no-untyped-call]


def _rms_norm(offset: float, layer: Any, books: Books) -> Forward:
    eps = _eps_of(layer)
    return lambda x: RecordedRMSNorm.apply(x, layer.weight, offset, eps, books)  # type: ignore[no-untyped-call]


def _eps_of(layer: Any) -> float | None:
    for name in ("variance_epsilon", "eps"):
        if isinstance(value := getattr(layer, name, None), float):
            return value
    return None


@torch.no_grad()
def _rms_offset(module: Any) -> float | None:
    """0 or 1 if the module is x / rms(x) times (offset + weight); every model has its own class of it."""
    weight = getattr(module, "weight", None)
    eps = _eps_of(module)
    named = dict(module.named_parameters())
    if list(named) != ["weight"] or weight is None or weight.dim() != 1 or eps is None:
        return None
    probe = torch.linspace(-2, 3, 2 * len(weight), device=weight.device).view(1, 2, -1).to(weight.dtype)
    try:
        given = module(probe)
    except (TypeError, RuntimeError, ValueError, IndexError):
        return None
    normal = probe.float() * torch.rsqrt(probe.float().square().mean(dim=-1, keepdim=True) + eps)
    for offset in (0.0, 1.0):
        if isinstance(given, Tensor) and torch.allclose(
            given.float(), normal * (weight.float() + offset), rtol=1e-2, atol=1e-3
        ):
            return offset
    return None


def _low_rank(layer: Any, books: Books) -> Forward:
    def forward(x: Tensor) -> Tensor:
        (adapter,) = layer.active_adapters
        base = layer.base_layer
        weight = base.weight.T if isinstance(base, Conv1D) else base.weight
        factors = layer.lora_A[adapter].weight, layer.lora_B[adapter].weight
        out: Tensor = RecordedLowRank.apply(  # type: ignore[no-untyped-call]
            x, weight, base.bias, *factors, layer.scaling[adapter], books
        )
        return out

    return forward


def _lstm(layer: Any, books: Books) -> Forward:
    return partial(recorded_lstm, layer, books)
