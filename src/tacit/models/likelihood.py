"""Negative log-likelihood of tokens without ever holding logits for a whole batch.

A vocabulary of 50,000 makes logits the largest thing in a training step by far. The head runs here in
chunks of rows that fit in cache: logits, log-sum-exp and the gradient of the logits live only as long as
their chunk. Positions without a label are dropped before the head runs, so padding costs nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from tacit.errors import ModelError

NO_LABEL = -100
_CHUNK_LOGITS = 4 << 20  # logits in one chunk; 16 MB in fp32 stays in a desktop's last-level cache
_FEWEST_ROWS = 64  # below this the matrix product stops being efficient


@dataclass(frozen=True)
class Head:
    """The output layer: logits are ``hidden @ weight.T + bias``."""

    weight: Tensor
    bias: Tensor | None

    @classmethod
    def of(cls, module: nn.Module) -> Head:
        """The head of an output-embedding module."""
        return cls(module.weight, getattr(module, "bias", None))  # type: ignore[arg-type]

    @property
    def rows(self) -> int:
        """Rows of hidden states that one chunk holds."""
        return max(_FEWEST_ROWS, _CHUNK_LOGITS // len(self.weight))

    def logits(self, hidden_ND: Tensor) -> Tensor:
        """Logits in the dtype of the weight."""
        return nn.functional.linear(hidden_ND.to(self.weight.dtype), self.weight, self.bias)


class NextTokenLoss:
    """Losses of a model's next-token predictions.

    Some models bend their logits after the head (a soft cap, a scale). For those the model's own logits
    are used, at their cost in memory; which is the case is found out once by comparing the two.
    """

    def __init__(self, model: nn.Module) -> None:
        # PEFT wraps a model without taking its head away: the head to run in chunks is the inner one's.
        wrapped: Any = model
        self._model: PreTrainedModel = wrapped.get_base_model() if hasattr(model, "peft_config") else model
        self._plain_head = _head_is_plain(self._model)

    def summed(self, logits: Callable[[], Tensor], labels: Tensor) -> Tensor:
        """Differentiable sum of the losses of all labels; ``logits`` runs the model."""
        if not self._plain_head:
            return nn.functional.cross_entropy(
                logits().flatten(0, -2).float(), labels.flatten(), ignore_index=NO_LABEL, reduction="sum"
            )
        with _headless(self._model) as head:
            return summed_loss(logits(), head, labels)

    @torch.no_grad()
    def per_token(self, logits: Callable[[], Tensor], labels: Tensor) -> Tensor:
        """Loss of every label in fp32, in the shape of ``labels``; 0 where there is no label."""
        if not self._plain_head:
            flat = nn.functional.cross_entropy(
                logits().flatten(0, -2).float(), labels.flatten(), ignore_index=NO_LABEL, reduction="none"
            )
            return flat.view(labels.shape)
        with _headless(self._model) as head:
            return token_losses(logits(), head, labels)


@contextlib.contextmanager
def _headless(model: PreTrainedModel) -> Iterator[Head]:
    """Let the model return its final hidden states as its "logits" while the block runs."""
    module = model.get_output_embeddings()
    model.set_output_embeddings(nn.Identity())
    try:
        yield Head.of(module)
    finally:
        model.set_output_embeddings(module)


@torch.no_grad()
def _head_is_plain(model: PreTrainedModel) -> bool:
    if not isinstance(model.get_output_embeddings(), nn.Linear):
        raise ModelError(f"{type(model).__name__} has no linear output layer; give a causal language model.")
    was_training = model.training
    model.eval()
    probe = torch.arange(min(8, model.config.vocab_size), device=model.device)[None]
    logits = model(input_ids=probe, use_cache=False).logits
    with _headless(model) as head:
        hidden = model(input_ids=probe, use_cache=False).logits
    model.train(was_training)
    return hidden.shape[-1] == head.weight.shape[-1] and torch.allclose(head.logits(hidden), logits)


def summed_loss(hidden: Tensor, head: Head, labels: Tensor) -> Tensor:
    """Sum of the negative log-likelihoods of all labels; differentiable in hidden, weight and bias."""
    chosen = labels.reshape(-1) != NO_LABEL
    hidden_ND = hidden.reshape(-1, hidden.shape[-1])
    if not bool(chosen.all()):
        hidden_ND = hidden_ND[chosen]
    total: Tensor = _SummedLoss.apply(  # type: ignore[no-untyped-call]
        hidden_ND, head.weight, head.bias, labels.reshape(-1)[chosen]
    )
    return total


@torch.no_grad()
def token_losses(hidden: Tensor, head: Head, labels: Tensor) -> Tensor:
    """Loss of every label, in fp32 and in the shape of ``labels``; 0 where there is no label."""
    losses = torch.zeros(labels.numel(), dtype=torch.float32, device=hidden.device)
    index = (labels.reshape(-1) != NO_LABEL).nonzero().squeeze(1)
    hidden_ND = hidden.reshape(-1, hidden.shape[-1])
    for rows in torch.split(index, head.rows):
        logits = head.logits(hidden_ND[rows]).float()
        wanted = labels.reshape(-1)[rows]
        losses[rows] = logits.logsumexp(dim=-1) - logits.gather(1, wanted[:, None]).squeeze(1)
    return losses.view(labels.shape)


class _SummedLoss(torch.autograd.Function):
    """Loss and gradients in one sweep: the chunk's logits become its gradient in place."""

    @staticmethod
    def forward(ctx: Any, hidden_ND: Tensor, weight: Tensor, bias: Tensor | None, labels_N: Tensor) -> Tensor:
        """Compute the loss, and with it every gradient that backward will hand out."""
        head = Head(weight, bias)
        wants_hidden, wants_weight, wants_bias = ctx.needs_input_grad[:3]
        grad_hidden = torch.empty_like(hidden_ND) if wants_hidden else None
        grad_weight = torch.zeros_like(weight) if wants_weight else None
        grad_bias = torch.zeros_like(bias) if bias is not None and wants_bias else None
        total = torch.zeros((), dtype=torch.float64, device=hidden_ND.device)
        for start in range(0, len(labels_N), head.rows):
            rows = slice(start, start + head.rows)
            wanted = labels_N[rows, None]
            logits = head.logits(hidden_ND[rows]).float()
            log_normaliser = logits.logsumexp(dim=-1, keepdim=True)
            total += (log_normaliser - logits.gather(1, wanted)).sum(dtype=torch.float64)
            grad = logits.sub_(log_normaliser).exp_()
            grad.scatter_add_(1, wanted, grad.new_full(wanted.shape, -1.0))
            grad = grad.to(weight.dtype)
            if grad_hidden is not None:
                grad_hidden[rows] = (grad @ weight).to(hidden_ND.dtype)
            if grad_weight is not None:
                grad_weight.addmm_(grad.T, hidden_ND[rows].to(weight.dtype))
            if grad_bias is not None:
                grad_bias += grad.sum(dim=0)
        ctx.gradients = (grad_hidden, grad_weight, grad_bias)
        return total.float()

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        """Scale what forward prepared."""
        scaled = [None if gradient is None else gradient * upstream[0] for gradient in ctx.gradients]
        del ctx.gradients  # as large as the batch; a second backward through this node is not supported
        return (*scaled, None)
