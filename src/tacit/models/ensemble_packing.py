"""Frozen layers as the processor runs them fastest; the values are the same up to rounding.

A decode step multiplies a few dozen rows with each weight. The usual kernels rearrange the weight on every
call, which at that size costs as much as the product; oneDNN can be handed the weight rearranged once. The
price is a second copy of the weights in memory. GPT-2's activation, eight operations as it is written, has a
kernel of its own.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers.activations import NewGELUActivation
from transformers.pytorch_utils import Conv1D

from tacit.models.lstm import LSTMLayer


def can_pack(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether this processor and this torch multiply with packed weights of the dtype."""
    known = hasattr(torch.ops.mkldnn, "_linear_pointwise") and torch._C._has_mkldnn
    if not known or device.type != "cpu":
        return False
    native_bf16 = dtype == torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return dtype == torch.float32 or bool(native_bf16)


class PackedLinear(nn.Module):
    """A frozen linear layer for inference; equal to the layer it was made from, up to rounding."""

    def __init__(self, layer: nn.Linear | Conv1D) -> None:
        super().__init__()
        weight: Tensor = layer.weight.detach()
        self.weight = weight.T if isinstance(layer, Conv1D) else weight  # [outputs, inputs]
        self.bias = None if layer.bias is None else layer.bias.detach()
        self._packed = torch.ops.mkldnn._reorder_linear_weight(self.weight.contiguous(), None)

    def forward(self, x: Tensor) -> Tensor:
        """The layer's output for any leading shape."""
        packed: Any = torch.ops.mkldnn._linear_pointwise(x, self._packed, self.bias, "none", [], "")
        out: Tensor = packed
        return out


def pack_layers(model: nn.Module) -> None:
    """Replace plain linear layers and slow activations, in place.

    The weights themselves are not touched: another model that shares them is not affected.
    """
    found = [
        (owner, name, child)
        for owner in model.modules()
        if not isinstance(owner, LSTMLayer)  # its fused kernel takes the weights themselves
        for name, child in owner.named_children()
    ]
    for owner, name, child in found:
        if isinstance(child, nn.Linear | Conv1D):
            setattr(owner, name, PackedLinear(child))
        elif isinstance(child, NewGELUActivation):
            setattr(owner, name, nn.GELU(approximate="tanh"))
