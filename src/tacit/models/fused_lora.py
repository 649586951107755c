"""PEFT's low-rank layers with the additions folded into the matrix products.

PEFT computes ``base(x) + lora_B(lora_A(x)) * scaling``: three passes over the output that do nothing but
scale and add, and as many again in the backward pass. Here the products accumulate in place. The modules,
their weights and what is saved stay PEFT's own; only how a plain layer is computed changes.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D


def fuse_lora(model: nn.Module) -> int:
    """Give every plain LoRA layer the fused computation; returns how many there are.

    Left as they are: layers with dropout, bias, several adapters, a variant such as DoRA, or mixed dtypes.
    """
    layers = [module for module in model.modules() if is_plain_lora(module)]
    for layer in layers:
        # On the instance: PEFT's class, which other models in the process use, is not touched.
        object.__setattr__(layer, "forward", partial(_forward, layer))
    return len(layers)


def is_plain_lora(module: Any) -> bool:
    """Whether this is a LoRA layer of the kind that can be fused."""
    if not hasattr(module, "lora_A") or len(getattr(module, "active_adapters", ())) != 1:
        return False
    (adapter,) = module.active_adapters
    base = module.base_layer
    return (
        adapter in module.lora_A
        and isinstance(base, nn.Linear | Conv1D)
        and isinstance(module.lora_dropout[adapter], nn.Identity)
        and adapter not in module.lora_variant
        and not module.lora_bias[adapter]
        and not (module.merged or module.disable_adapters)
        and base.weight.dtype == module.lora_A[adapter].weight.dtype == module.lora_B[adapter].weight.dtype
        and not base.weight.requires_grad
    )


def _forward(layer: Any, x: Tensor) -> Tensor:
    (adapter,) = layer.active_adapters
    base = layer.base_layer
    weight = base.weight.T if isinstance(base, Conv1D) else base.weight
    out: Tensor = _LowRankLinear.apply(  # type: ignore[no-untyped-call]
        x,
        weight,
        base.bias,
        layer.lora_A[adapter].weight,
        layer.lora_B[adapter].weight,
        layer.scaling[adapter],
    )
    return out


class _LowRankLinear(torch.autograd.Function):
    """y = x W' + bias + scaling * (x A') B', with gradients for x, A and B."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight_OI: Tensor,
        bias: Tensor | None,
        a_RI: Tensor,
        b_OR: Tensor,
        scaling: float,
    ) -> Tensor:
        """Two products into one output."""
        x_NI = x.reshape(-1, x.shape[-1])
        low_NR = x_NI @ a_RI.T
        out_NO = x_NI @ weight_OI.T if bias is None else torch.addmm(bias, x_NI, weight_OI.T)
        out_NO.addmm_(low_NR, b_OR.T, alpha=scaling)
        ctx.save_for_backward(x_NI, weight_OI, a_RI, b_OR, low_NR)
        ctx.scaling = scaling
        return out_NO.view(*x.shape[:-1], -1)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        """The chain rule through both products."""
        x_NI, weight_OI, a_RI, b_OR, low_NR = ctx.saved_tensors
        grad_NO = upstream[0].reshape(-1, upstream[0].shape[-1])
        grad_low_NR = (grad_NO @ b_OR).mul_(ctx.scaling)
        grad_x = None
        if ctx.needs_input_grad[0]:
            grad_x = (grad_NO @ weight_OI).addmm_(grad_low_NR, a_RI).view(*upstream[0].shape[:-1], -1)
        grad_b = (grad_NO.T @ low_NR).mul_(ctx.scaling)
        return grad_x, None, None, grad_low_NR.T @ x_NI, grad_b, None
