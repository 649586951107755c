"""The low-rank adapters of many members on one frozen model: the member axis is a batch axis.

A batch holds one group of rows per member, one group after the other ("member-major"), and before them
``public_groups`` groups that no adapter touches. Every frozen weight is read once for all rows; what a
member changes is added by batched products over its own group. PEFT's files go in and come out.

What holds: with equal shapes, a group's output is a function of its own rows, of the public weights and of
its own member's matrices. No other member's weights, rows or gradients reach it, to the last bit.

Shape legend: M members, G groups (the public ones and M), N rows times positions of one group, I inputs,
R rank, O outputs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from tacit.errors import ModelError
from tacit.models.ensemble_lstm import StackedLSTMLayer
from tacit.models.lstm import LSTMLayer
from tacit.models.trunk import layer_list

PEFT_PREFIX = "base_model.model."


class StackedLinear(nn.Module):
    """A frozen linear map with one low-rank change per member: x W + b + scaling * (x A_m) B_m.

    ``a_MIR`` and ``b_MRO`` start at zero, so that every member starts as the public model; they are
    parameters, trained by autograd where ``trainable``.
    """

    def __init__(
        self,
        base: nn.Linear | Conv1D,
        members: int,
        rank: int,
        *,
        scaling: float = 1.0,
        public_groups: int = 0,
        dtype: torch.dtype | None = None,
        trainable: bool = True,
    ) -> None:
        super().__init__()
        self.base: Any = base.requires_grad_(False)
        self.members, self.rank, self.scaling, self.public_groups = members, rank, scaling, public_groups
        inputs, outputs = (int(size) for size in _weight_IO(base).shape)
        options: dict[str, Any] = {"dtype": dtype or base.weight.dtype, "device": base.weight.device}
        self.a_MIR = nn.Parameter(torch.zeros(members, inputs, rank, **options), requires_grad=trainable)
        self.b_MRO = nn.Parameter(torch.zeros(members, rank, outputs, **options), requires_grad=trainable)

    @property
    def groups(self) -> int:
        """Into how many groups the rows of an input fall."""
        return self.public_groups + self.members

    def forward(self, x: Tensor) -> Tensor:
        """Map [rows, ..., inputs] to [rows, ..., outputs]; rows are equal shares of ``groups``."""
        if len(x) % self.groups:
            raise ValueError(f"Expected a multiple of {self.groups} rows, one share per group, not {len(x)}.")
        plain = x.dtype == self.base.weight.dtype == self.a_MIR.dtype
        if not plain or torch.is_autocast_enabled(x.device.type):
            return self._forward_mixed(x)
        if torch.is_grad_enabled():
            out: Tensor = _StackedProduct.apply(  # type: ignore[no-untyped-call]
                x,
                _weight_IO(self.base),
                self.base.bias,
                self.a_MIR,
                self.b_MRO,
                self.scaling,
                self.public_groups,
            )
            return out
        out = self.base(x)
        x_MNI = x.reshape(self.groups, -1, x.shape[-1])[self.public_groups :]
        out_MNO = out.view(self.groups, x_MNI.shape[1], -1)[self.public_groups :]
        out_MNO.baddbmm_(torch.bmm(x_MNI, self.a_MIR), self.b_MRO, alpha=self.scaling)
        return out

    def _forward_mixed(self, x: Tensor) -> Tensor:
        """The same in elementary steps, where autocast or trained weights of another dtype convert."""
        out: Tensor = self.base(x)
        x_MNI = x.reshape(self.groups, -1, x.shape[-1])[self.public_groups :]
        delta_MNO = torch.bmm(torch.bmm(x_MNI.to(self.a_MIR.dtype), self.a_MIR), self.b_MRO) * self.scaling
        delta = delta_MNO.to(out.dtype).view(-1, *out.shape[1:])
        return torch.cat([out[: len(out) - len(delta)], out[len(out) - len(delta) :] + delta])


def _weight_IO(base: Any) -> Tensor:  # noqa: N802
    """The frozen weight with its inputs first, as Conv1D keeps it and nn.Linear does not."""
    weight: Tensor = base.weight
    return weight if isinstance(base, Conv1D) else weight.T


class _StackedProduct(torch.autograd.Function):
    """The base product with every member's delta accumulated in place; gradients for x, A and B."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight_IO: Tensor,
        bias: Tensor | None,
        a_MIR: Tensor,
        b_MRO: Tensor,
        scaling: float,
        public_groups: int,
    ) -> Tensor:
        """One product for all rows, two batched ones for the members' rows."""
        groups = public_groups + len(a_MIR)
        x_GNI = x.reshape(groups, -1, x.shape[-1])
        flat = x_GNI.view(-1, x.shape[-1])
        out = flat @ weight_IO if bias is None else torch.addmm(bias, flat, weight_IO)
        low_MNR = torch.bmm(x_GNI[public_groups:], a_MIR)
        out.view(groups, x_GNI.shape[1], -1)[public_groups:].baddbmm_(low_MNR, b_MRO, alpha=scaling)
        ctx.save_for_backward(x_GNI, weight_IO, a_MIR, b_MRO, low_MNR)
        ctx.scaling, ctx.public_groups = scaling, public_groups
        return out.view(*x.shape[:-1], -1)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        """The chain rule through the shared and the batched products."""
        x_GNI, weight_IO, a_MIR, b_MRO, low_MNR = ctx.saved_tensors
        grad = upstream[0].reshape(-1, upstream[0].shape[-1])
        grad_MNO = grad.view(len(x_GNI), x_GNI.shape[1], -1)[ctx.public_groups :]
        grad_low_MNR = torch.bmm(grad_MNO, b_MRO.mT).mul_(ctx.scaling)
        grad_x = None
        if ctx.needs_input_grad[0]:
            grad_x = grad @ weight_IO.T
            grad_x.view(x_GNI.shape)[ctx.public_groups :].baddbmm_(grad_low_MNR, a_MIR.mT)
            grad_x = grad_x.view(*upstream[0].shape[:-1], -1)
        grad_a = torch.bmm(x_GNI[ctx.public_groups :].mT, grad_low_MNR)
        grad_b = torch.bmm(low_MNR.mT, grad_MNO).mul_(ctx.scaling)
        return grad_x, None, None, grad_a, grad_b, None, None


class AdapterStack:
    """The stacked layers of one model by their path in it, and each member's share of them."""

    def __init__(self, layers: Mapping[str, StackedLinear], *, rank: int, alpha: float) -> None:
        self.layers = dict(layers)
        self.rank = rank
        self.alpha = alpha
        first = next(iter(self.layers.values()))
        self.members, self.public_groups, self.scaling = first.members, first.public_groups, first.scaling

    def parameters(self) -> Iterator[nn.Parameter]:
        """A and B of every stacked layer; entry m of a parameter's first axis is member m's alone."""
        for layer in self.layers.values():
            yield layer.a_MIR
            yield layer.b_MRO

    @torch.no_grad()
    def initialise_member(self, member: int, generator: torch.Generator) -> None:
        """Start a member as LoRA does: A uniform within 1/sqrt(inputs), B zero, from its own generator."""
        for _, layer in sorted(self.layers.items()):
            reach = 1 / math.sqrt(layer.a_MIR.shape[1])
            layer.a_MIR[member].uniform_(-reach, reach, generator=generator)
            layer.b_MRO[member].zero_()

    @torch.no_grad()
    def clear_member(self, member: int) -> None:
        """Make a member the public model again; it takes part in the work as before."""
        for layer in self.layers.values():
            layer.a_MIR[member].zero_()
            layer.b_MRO[member].zero_()

    def member_state(self, member: int) -> dict[str, Tensor]:
        """A member's matrices under PEFT's names, as ``adapter_model.safetensors`` holds them."""
        state: dict[str, Tensor] = {}
        for path, layer in self.layers.items():
            state[f"{PEFT_PREFIX}{path}.lora_A.weight"] = layer.a_MIR[member].detach().T.contiguous().clone()
            state[f"{PEFT_PREFIX}{path}.lora_B.weight"] = layer.b_MRO[member].detach().T.contiguous().clone()
        return state

    @torch.no_grad()
    def load_member(self, member: int, state: Mapping[str, Tensor]) -> None:
        """Take a member's matrices from a PEFT state dict, which must name exactly the stacked layers."""
        expected = set(self.member_names())
        if odd := sorted(expected.symmetric_difference(state)):
            verb = "lacks" if odd[0] in expected else "has"
            raise ModelError(
                f"Member {member}: the adapter {verb} {odd[0]}, unlike the others; the members of an "
                "ensemble must adapt the same layers of the same model."
            )
        for path, layer in self.layers.items():
            for name, target in (("lora_A", layer.a_MIR), ("lora_B", layer.b_MRO)):
                source = state[f"{PEFT_PREFIX}{path}.{name}.weight"].T
                if source.shape != target[member].shape:
                    raise ModelError(
                        f"Member {member}: {path}.{name} has shape {tuple(source.T.shape)}, expected "
                        f"{tuple(target[member].T.shape)}; the adapter is of another rank or model."
                    )
                target[member].copy_(source)

    def member_names(self) -> list[str]:
        """The names that a member's state dict has."""
        return [f"{PEFT_PREFIX}{path}.{name}.weight" for path in self.layers for name in ("lora_A", "lora_B")]


def stack_into(
    model: nn.Module,
    members_count: int,
    *,
    rank: int,
    alpha: float,
    targets: Sequence[str] | None = None,
    trunk_layers: int = 0,
    public_groups: int = 0,
    dtype: torch.dtype | None = None,
    trainable: bool = True,
) -> AdapterStack:
    """Replace the linear layers that adapters change by stacked ones, in place, and freeze all else.

    ``targets`` are the last parts of layer names (None: every linear layer of a decoder block), and layers
    below ``trunk_layers`` stay as they are. Afterwards the model takes batches of ``public_groups +
    members_count`` equal groups of rows.
    """
    linear = _linear_layers(model, trunk_layers)
    known = sorted({path.rpartition(".")[2] for path in linear})
    for target in targets or ():
        if target not in known:
            raise ModelError(f"'{target}' is no linear layer of the model; it has {', '.join(known)}.")
    paths = [path for path in linear if targets is None or path.rpartition(".")[2] in targets]
    return stack_paths(
        model,
        members_count,
        paths,
        rank=rank,
        alpha=alpha,
        public_groups=public_groups,
        dtype=dtype,
        trainable=trainable,
    )


def stack_paths(
    model: nn.Module,
    members_count: int,
    paths: Sequence[str],
    *,
    rank: int,
    alpha: float,
    scaling: float | None = None,
    public_groups: int = 0,
    dtype: torch.dtype | None = None,
    trainable: bool = True,
) -> AdapterStack:
    """Like `stack_into`, with the layers given by their full paths and the scaling, if not alpha/rank."""
    if members_count < 1 or rank < 1 or not paths:
        raise ModelError(
            f"Expected at least one member, rank and layer to adapt, not {members_count}, {rank} and "
            f"{len(paths)}."
        )
    linear = _linear_layers(model, 0)
    model.requires_grad_(False)
    stacked: dict[str, StackedLinear] = {}
    for path in paths:
        if path not in linear:
            raise ModelError(
                f"The adapter changes {path}, which is no linear layer of {type(model).__name__}'s blocks; "
                "it belongs to another model."
            )
        owner_path, _, name = path.rpartition(".")
        stacked[path] = StackedLinear(
            linear[path],
            members_count,
            rank,
            scaling=alpha / rank if scaling is None else scaling,
            public_groups=public_groups,
            dtype=dtype,
            trainable=trainable,
        )
        _replace(model, owner_path, name, stacked[path])
    return AdapterStack(stacked, rank=rank, alpha=alpha)


def _replace(model: nn.Module, owner_path: str, name: str, layer: StackedLinear) -> None:
    owner = model.get_submodule(owner_path)
    if isinstance(owner, LSTMLayer):
        # Its fused kernel takes one weight for all rows.
        owner = StackedLSTMLayer(owner)
        model.set_submodule(owner_path, owner)
    setattr(owner, name, layer)


def layer_number(model: nn.Module, path: str) -> int:
    """To which decoder block, from the bottom, a module path inside the model belongs."""
    rest = path.removeprefix(_list_path(model) + ".")
    return int(rest.partition(".")[0])


def _list_path(model: nn.Module) -> str:
    _, _, layers = layer_list(model)
    return next(str(path) for path, module in model.named_modules() if module is layers)


def _linear_layers(model: nn.Module, trunk_layers: int) -> dict[str, Any]:
    """The plain linear layers of the blocks from ``trunk_layers`` up, by path."""
    _, _, blocks = layer_list(model)
    if trunk_layers >= len(blocks):
        raise ModelError(
            f"trunk_layers={trunk_layers} leaves nothing to adapt: the model has {len(blocks)} layers; "
            f"choose at most {len(blocks) - 1}."
        )
    prefix = _list_path(model)
    return {
        f"{prefix}.{number}.{name}": module
        for number in range(trunk_layers, len(blocks))
        for name, module in blocks[number].named_modules()
        if isinstance(module, nn.Linear | Conv1D)
    }
