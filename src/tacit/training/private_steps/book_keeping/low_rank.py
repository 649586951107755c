"""PEFT's plain low-rank layers, fused as in `models.fused_lora`, that keep books of both factors."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tacit.training.private_steps.book_keeping.books import Books


class RecordedLowRank(torch.autograd.Function):
    """``y = x W' + bias + scaling * (x A') B'`` with W and bias frozen."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight_OI: Tensor,
        bias: Tensor | None,
        a_RI: nn.Parameter,
        b_OR: nn.Parameter,
        scaling: float,
        books: Books,
    ) -> Tensor:
        """Two products into one output, in the precision that autocast asks for."""
        device = x.device.type
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype
        with torch.autocast(device, enabled=False):  # what is added up in place has one precision
            x_NI = x.reshape(-1, x.shape[-1]).to(dtype)
            map_IO, a_IR, b_RO = weight_OI.T.to(dtype), a_RI.T.to(dtype), b_OR.T.to(dtype)
            low_NR = x_NI @ a_IR
            out_NO = x_NI @ map_IO if bias is None else torch.addmm(bias.to(dtype), x_NI, map_IO)
            out_NO.addmm_(low_NR, b_RO, alpha=scaling)
        ctx.save_for_backward(x, weight_OI, low_NR)
        ctx.layer = (a_RI, b_OR, scaling, books)
        return out_NO.view(*x.shape[:-1], -1)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        """The input's gradient; both factors' go into the books."""
        x, weight_OI, low_NR = ctx.saved_tensors
        a_RI, b_OR, scaling, books = ctx.layer
        gradient = upstream[0]
        grad_NO = gradient.reshape(-1, gradient.shape[-1])
        grad_low_NR = (grad_NO @ b_OR.to(gradient.dtype)).mul_(scaling)
        if b_OR.requires_grad:
            books.outer(b_OR, gradient, (low_NR * scaling).view(*x.shape[:-1], -1))
        if a_RI.requires_grad:
            books.outer(a_RI, grad_low_NR.view(*x.shape[:-1], -1), x)
        grad_x = None
        if ctx.needs_input_grad[0]:
            grad_NI = grad_NO @ weight_OI.to(gradient.dtype)
            grad_x = grad_NI.addmm_(grad_low_NR, a_RI.to(gradient.dtype)).view(x.shape).to(x.dtype)
        return grad_x, None, None, None, None, None, None
