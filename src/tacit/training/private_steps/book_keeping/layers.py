"""Layers that keep books: the same outputs and input gradients, and no weight gradients.

Each is an autograd function whose backward pass returns the input's gradient alone and writes down what the
weight's gradient would be made of. Nothing is recorded in the forward pass, so that gradient checkpointing,
which runs it twice, is exact as well.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from tacit.training.private_steps.book_keeping.books import Books

Grads = tuple[Tensor | None, ...]


class RecordedLinear(torch.autograd.Function):
    """``x W' + bias``; with ``transposed`` the weight is stored as transformers' Conv1D stores it."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: nn.Parameter,
        bias: nn.Parameter | None,
        books: Books,
        transposed: bool,
    ) -> Tensor:
        """As the layer itself."""
        ctx.save_for_backward(x)
        ctx.layer = (weight, bias, books, transposed)
        return functional.linear(x, weight.T if transposed else weight, bias)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> Grads:
        """The input's gradient; the rest goes into the books."""
        (x,) = ctx.saved_tensors
        weight, bias, books, transposed = ctx.layer
        gradient = upstream[0]
        if weight.requires_grad:
            books.outer(weight, *((x, gradient) if transposed else (gradient, x)))
        if bias is not None and bias.requires_grad:
            books.summed(bias, gradient)
        grad_x = None
        if ctx.needs_input_grad[0]:
            map_OI = (weight.T if transposed else weight).to(gradient.dtype)
            grad_x = (gradient @ map_OI).to(x.dtype)
        return grad_x, None, None, None, None


class RecordedEmbedding(torch.autograd.Function):
    """Rows of a table."""

    @staticmethod
    def forward(ctx: Any, weight: nn.Parameter, ids: Tensor, padding: int | None, books: Books) -> Tensor:
        """As the layer itself, for ids of all examples."""
        ctx.save_for_backward(ids)
        ctx.layer = (weight, padding, books)
        return functional.embedding(ids, weight)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> Grads:
        """Nothing flows on."""
        (ids,) = ctx.saved_tensors
        weight, padding, books = ctx.layer
        gradient = upstream[0]
        if padding is not None:  # torch trains no row of padding
            gradient = gradient.masked_fill((ids == padding)[..., None], 0.0)
        books.lookup(weight, ids, gradient)
        return None, None, None, None


class RecordedLayerNorm(torch.autograd.Function):
    """Layer normalisation with a weight and maybe a bias."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: nn.Parameter | None, bias: nn.Parameter | None, eps: float, books: Books
    ) -> Tensor:
        """As the layer itself."""
        shape = [x.shape[-1]]
        out, mean, deviation = torch.native_layer_norm(x, shape, weight, bias, eps)
        ctx.save_for_backward(x, mean, deviation)
        ctx.layer = (weight, bias, books)
        return out

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> Grads:
        """One fused pass for each example gives all three gradients while its rows are in cache."""
        x, mean, deviation = ctx.saved_tensors
        weight, bias, books = ctx.layer
        gradient = upstream[0].contiguous()
        grad_x = torch.empty_like(x)
        examples, size = len(x), x.shape[-1]
        grad_weights = x.new_empty(examples, size)
        grad_biases = x.new_empty(examples, size)
        for example in range(examples):
            parts = torch.ops.aten.native_layer_norm_backward(
                gradient[example],
                x[example],
                [size],
                mean[example],
                deviation[example],
                weight,
                bias,
                [True, True, True],
            )
            grad_x[example], grad_weights[example], grad_biases[example] = parts
        if weight is not None and weight.requires_grad:
            books.whole(weight, grad_weights)
        if bias is not None and bias.requires_grad:
            books.whole(bias, grad_biases)
        return grad_x if ctx.needs_input_grad[0] else None, None, None, None, None


class RecordedRMSNorm(torch.autograd.Function):
    """``x / rms(x)`` times the weight, or times one plus the weight."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: nn.Parameter, offset: float, eps: float, books: Books) -> Tensor:
        """As the layer itself, in fp32 inside."""
        wide = x.float()
        scale = torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + eps)
        ctx.save_for_backward(x, scale)
        ctx.layer = (weight, offset, books)
        factor = weight if offset == 0 else weight + offset
        return factor * (wide * scale).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> Grads:
        """The chain rule through the norm, and the weight's part per example."""
        x, scale = ctx.saved_tensors
        weight, offset, books = ctx.layer
        gradient = upstream[0].float()
        normal = x.float() * scale
        product = gradient * normal
        books.summed(weight, product)
        factor = (weight if offset == 0 else weight + offset).float()
        grad_x = None
        if ctx.needs_input_grad[0]:
            along = (product @ factor)[..., None] / x.shape[-1]
            grad_x = (gradient * factor).sub_(normal.mul_(along)).mul_(scale).to(x.dtype)
        return grad_x, None, None, None, None
