"""Negative log-likelihood of tokens without ever holding logits for a whole batch.

A vocabulary of 50,000 makes logits the largest thing in a training step by far. The head runs here on a
bounded number of rows at a time and block by block over the vocabulary, so that what one operation writes
is still in cache for the next; the logits become their own gradient in place. Positions without a label
are dropped before the head runs, so padding costs nothing. `NextTokenLoss.laws` asks for more than the loss
in the same sweep: the mean and the variance of the log-probability under the model's own prediction.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from tacit.errors import ModelError

NO_LABEL = -100
LOGITS_HELD = 64 << 20  # at most this many at a time: 256 MB in fp32
_BLOCK = 2048  # tokens of the vocabulary at a time: block and weights stay in cache between operations
_LAW_ROWS = 512  # rows whose laws are computed at a time: two blocks of them are held
_NO_WEIGHT = -200.0  # exp of it is 0 in fp32; 0 times minus infinity would be no number


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
        """Rows of hidden states whose logits may be held at a time."""
        return max(1, LOGITS_HELD // len(self.weight))

    @property
    def blocks(self) -> list[slice]:
        """The vocabulary in blocks."""
        size = len(self.weight)
        return [slice(low, min(low + _BLOCK, size)) for low in range(0, size, _BLOCK)]

    def logits(self, hidden_ND: Tensor, block: slice, out: Tensor) -> Tensor:
        """Logits of one block of the vocabulary, written to ``out`` in fp32."""
        weight, bias = self.weight[block], None if self.bias is None else self.bias[block]
        if weight.dtype != out.dtype or torch.is_autocast_enabled(out.device.type):
            return out.copy_(nn.functional.linear(hidden_ND.to(weight.dtype), weight, bias))
        if bias is None:
            return torch.mm(hidden_ND, weight.T, out=out)
        return torch.addmm(bias, hidden_ND, weight.T, out=out)


class Scratch:
    """Room for logits, kept from step to step: fresh pages each time cost more than using them."""

    def __init__(self) -> None:
        self._room = torch.empty(0)

    def blocks(self, head: Head, rows: int) -> list[Tensor]:
        """A matrix [rows, tokens] for each block of the vocabulary; what they held before is lost."""
        needed = rows * len(head.weight)
        if len(self._room) < needed or self._room.device != head.weight.device:
            self._room = torch.empty(needed, dtype=torch.float32, device=head.weight.device)
        return [
            self._room[rows * block.start : rows * block.stop].view(rows, block.stop - block.start)
            for block in head.blocks
        ]


@dataclass(frozen=True)
class TokenLaws:
    """What a model predicts at each label, in float64 and in the shape of the labels; 0 where there is none.

    losses     negative log-probability of the label
    means      mean log-probability of a token drawn from the model's own prediction: minus its entropy
    variances  its variance
    likeliest  whether no token is likelier than the label
    """

    losses: Tensor
    means: Tensor
    variances: Tensor
    likeliest: Tensor


@dataclass(frozen=True)
class LossAndStates:
    """The summed loss of a batch and what entered the head, [rows, time, width]; both differentiable."""

    loss: Tensor
    states: Tensor


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
        self._scratch = Scratch()

    @property
    def head(self) -> nn.Linear | None:
        """The output layer, where losses can be computed from hidden states; None where it cannot."""
        head: nn.Linear = self._model.get_output_embeddings()
        return head if self._plain_head else None

    def summed(self, logits: Callable[[], Tensor], labels: Tensor, weights: Tensor | None = None) -> Tensor:
        """Differentiable sum of the losses of all labels; ``logits`` runs the model.

        With ``weights``, in the shape of ``labels``, every loss counts that much.
        """
        if not self._plain_head:
            losses = nn.functional.cross_entropy(
                logits().flatten(0, -2).float(), labels.flatten(), ignore_index=NO_LABEL, reduction="none"
            )
            return losses.sum() if weights is None else (losses * weights.flatten()).sum()
        with _headless(self._model) as head:
            return summed_loss(logits(), head, labels, self._scratch, weights)

    def summed_with_states(self, logits: Callable[[], Tensor], labels: Tensor) -> LossAndStates:
        """The same sum, and the hidden states that it came from, of one forward pass."""
        if self._plain_head:
            with _headless(self._model) as head:
                states = logits()
                return LossAndStates(summed_loss(states, head, labels, self._scratch), states)
        with self._entering_head() as seen:
            loss = self.summed(logits, labels)
        return LossAndStates(loss, seen[-1])

    def states(self, logits: Callable[[], Tensor]) -> Tensor:
        """What enters the head, plain or not; ``logits`` runs the model."""
        if self._plain_head:
            return self.hidden_states(logits)
        with self._entering_head() as seen:
            logits()
        return seen[-1]

    @contextlib.contextmanager
    def _entering_head(self) -> Iterator[list[Tensor]]:
        """What enters the head while the block runs, for models that bend what leaves it."""
        seen: list[Tensor] = []

        def note(_: nn.Module, args: tuple[Any, ...]) -> None:
            seen.append(args[0])

        hook = self._model.get_output_embeddings().register_forward_pre_hook(note)
        try:
            yield seen
        finally:
            hook.remove()

    def hidden_states(self, logits: Callable[[], Tensor]) -> Tensor:
        """What enters the head, which must be a plain one; ``logits`` runs the model."""
        with _headless(self._model):
            return logits()

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

    @torch.no_grad()
    def laws(self, logits: Callable[[], Tensor], labels: Tensor) -> TokenLaws:
        """Loss of every label and the moments of the prediction it came from, in one sweep."""
        predictions = self._predictions(logits)
        index = (labels.reshape(-1) != NO_LABEL).nonzero().squeeze(1)
        laws = torch.zeros(3, labels.numel(), dtype=torch.float64, device=labels.device)
        likeliest = torch.zeros(labels.numel(), dtype=torch.bool, device=labels.device)
        rooms = torch.empty(2, min(_LAW_ROWS, len(index)), _BLOCK, device=labels.device)
        for rows in torch.split(index, _LAW_ROWS):
            normaliser = _LawNormaliser(labels.reshape(-1)[rows])
            chosen = predictions.rows(rows)
            for block in predictions.blocks:
                room, spare = rooms[:, : len(rows), : block.stop - block.start]
                normaliser.take(predictions.logits(chosen, block, room), block, spare)
            laws[:, rows] = normaliser.laws()
            likeliest[rows] = normaliser.likeliest
        losses, means, variances = laws.view(3, *labels.shape)
        return TokenLaws(losses, means, variances, likeliest.view(labels.shape))

    @torch.no_grad()
    def labelled_logits(
        self, logits: Callable[[], Tensor], labels: Tensor
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Whole rows of logits where there are labels: flat positions [N] and logits [N, V], some at a time.

        For what needs the whole prediction, such as its top k; a bounded number of rows is held.
        """
        predictions = self._predictions(logits)
        index = (labels.reshape(-1) != NO_LABEL).nonzero().squeeze(1)
        size = predictions.blocks[-1].stop
        for rows in torch.split(index, max(1, LOGITS_HELD // size)):
            chosen = predictions.rows(rows)
            whole = torch.empty(len(rows), size, dtype=torch.float32, device=labels.device)
            for block in predictions.blocks:
                predictions.logits(chosen, block, whole[:, block])
            yield rows, whole

    def _predictions(self, logits: Callable[[], Tensor]) -> _Predictions:
        if not self._plain_head:
            return _Predictions(logits().flatten(0, -2), None)
        with _headless(self._model) as head:
            return _Predictions(logits().flatten(0, -2), head)


@dataclass(frozen=True)
class _Predictions:
    """Hidden states and the head that makes logits of them, or (without a head) the model's own logits."""

    states: Tensor
    head: Head | None

    @property
    def blocks(self) -> list[slice]:
        if self.head is not None:
            return self.head.blocks
        size = self.states.shape[-1]
        return [slice(low, min(low + _BLOCK, size)) for low in range(0, size, _BLOCK)]

    def rows(self, rows: Tensor) -> Tensor:
        return self.states[rows]

    def logits(self, states: Tensor, block: slice, out: Tensor) -> Tensor:
        """Logits of one block of the vocabulary for some rows of states, written to ``out`` in fp32."""
        return out.copy_(states[:, block]) if self.head is None else self.head.logits(states, block, out)


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
    plain = (
        nn.functional.linear(hidden, head.weight, head.bias)
        if hidden.shape[-1] == head.weight.shape[-1]
        else None
    )
    return plain is not None and torch.allclose(plain, logits, rtol=1e-3, atol=1e-3)


def summed_loss(
    hidden: Tensor, head: Head, labels: Tensor, scratch: Scratch, weights: Tensor | None = None
) -> Tensor:
    """Sum of the negative log-likelihoods of all labels; differentiable in hidden, weight and bias.

    With ``weights``, in the shape of ``labels``, every label's loss counts that much.
    """
    chosen = labels.reshape(-1) != NO_LABEL
    hidden_ND = hidden.reshape(-1, hidden.shape[-1])
    if not bool(chosen.all()):
        hidden_ND = hidden_ND[chosen]
    weights_N = None if weights is None else weights.reshape(-1)[chosen]
    total: Tensor = _SummedLoss.apply(  # type: ignore[no-untyped-call]
        hidden_ND, head.weight, head.bias, labels.reshape(-1)[chosen], scratch, weights_N
    )
    return total


@torch.no_grad()
def token_losses(hidden: Tensor, head: Head, labels: Tensor) -> Tensor:
    """Loss of every label, in fp32 and in the shape of ``labels``; 0 where there is no label."""
    losses = torch.zeros(labels.numel(), dtype=torch.float32, device=hidden.device)
    index = (labels.reshape(-1) != NO_LABEL).nonzero().squeeze(1)
    hidden_ND = hidden.reshape(-1, hidden.shape[-1])
    for rows in torch.split(index, head.rows):
        normaliser = Normaliser(labels.reshape(-1)[rows])
        room = torch.empty(len(rows), _BLOCK, dtype=torch.float32, device=hidden.device)
        for block in head.blocks:
            normaliser.take(head.logits(hidden_ND[rows], block, room[:, : block.stop - block.start]), block)
        losses[rows] = normaliser.losses()
    return losses.view(labels.shape)


class Normaliser:
    """log-sum-exp over a vocabulary that arrives in blocks, and the logits of the labels.

    A block's logits are replaced by exp(logit - largest of the block), which is all that the gradient
    needs later: one exponential per logit, not two.
    """

    def __init__(self, labels_N: Tensor) -> None:
        self._labels = labels_N
        self._label_logits = torch.zeros(len(labels_N), dtype=torch.float32, device=labels_N.device)
        self._largest: list[Tensor] = []  # per block, [N]
        self._log_sums: list[Tensor] = []

    def _labels_in(self, block: slice) -> tuple[Tensor, Tensor]:
        """Rows whose label lies in the block, and its column there."""
        rows = ((self._labels >= block.start) & (self._labels < block.stop)).nonzero().squeeze(1)
        return rows, self._labels[rows] - block.start

    def take(self, logits: Tensor, block: slice) -> None:
        """Take in a block's logits and overwrite them."""
        rows, columns = self._labels_in(block)
        self._label_logits[rows] = logits[rows, columns]
        largest = logits.amax(dim=1, keepdim=True)
        weights = logits.sub_(largest).exp_()
        self._largest.append(largest)
        self._log_sums.append(weights.sum(dim=1, keepdim=True).log_() + largest)

    @cached_property
    def log_normaliser(self) -> Tensor:
        """log-sum-exp over all blocks, [N, 1]; to be asked for when the last block has been taken in."""
        return torch.cat(self._log_sums, dim=1).logsumexp(dim=1, keepdim=True)

    def losses(self) -> Tensor:
        """Negative log-likelihood of each label."""
        return self.log_normaliser.squeeze(1) - self._label_logits

    def gradient(
        self, weights: Tensor, number: int, block: slice, loss_weights: Tensor | None = None
    ) -> Tensor:
        """Turn what ``take`` left of a block into the gradient of its logits, in place.

        With ``loss_weights`` [N], of the losses times these.
        """
        scale = (self._largest[number] - self.log_normaliser).exp_()
        grad = weights.mul_(scale if loss_weights is None else scale.mul_(loss_weights[:, None]))
        rows, columns = self._labels_in(block)
        grad[rows, columns] -= 1 if loss_weights is None else loss_weights[rows]
        return grad


class _LawNormaliser:
    """Loss, mean and variance of log-probabilities over a vocabulary that arrives in blocks.

    Within a block, sums are over the distances d = logit - largest of the block, weighted by exp(d): most
    weight is where d is small, so that fp32 sums keep their digits. Blocks are merged in float64 as
    Var = sum of share * (variance of the block + (mean of the block - mean)^2), where nothing large cancels.
    """

    def __init__(self, labels_N: Tensor) -> None:
        self._labels = labels_N
        self._label_logits = torch.zeros(len(labels_N), dtype=torch.float32, device=labels_N.device)
        self._sums: list[Tensor] = []  # per block, [4, N]: largest logit, sums of weights * (1, d, d^2)

    def take(self, logits: Tensor, block: slice, spare: Tensor) -> None:
        """Take in a block's logits; they and ``spare``, which is as large, are overwritten."""
        inside = ((self._labels >= block.start) & (self._labels < block.stop)).nonzero().squeeze(1)
        self._label_logits[inside] = logits[inside, self._labels[inside] - block.start]
        # A block of impossible tokens only (minus infinity) must not make distances that are no numbers.
        largest = logits.amax(dim=1).clamp_(min=torch.finfo(torch.float32).min)
        distances = logits.sub_(largest[:, None]).clamp_(min=_NO_WEIGHT)
        weights = torch.exp(distances, out=spare)
        mass = weights.sum(dim=1)
        first = weights.mul_(distances).sum(dim=1)
        self._sums.append(torch.stack([largest, mass, first, weights.mul_(distances).sum(dim=1)]))

    @cached_property
    def _merged(self) -> Tensor:
        return torch.stack(self._sums, dim=1).double()  # [4, blocks, N]

    def laws(self) -> Tensor:
        """[3, N]: losses, means, variances."""
        largest, mass, first, second = self._merged
        log_sums = mass.log() + largest
        log_normaliser = log_sums.logsumexp(dim=0)
        share = (log_sums - log_normaliser).exp()
        own = first / mass.clamp(min=1e-300)  # mean distance in the block
        means = own + largest - log_normaliser
        mean = (share * means).sum(dim=0)
        variances = (second / mass.clamp(min=1e-300) - own.square()).clamp(min=0)
        variance = (share * (variances + (means - mean).square())).sum(dim=0)
        return torch.stack([log_normaliser - self._label_logits.double(), mean, variance])

    @property
    def likeliest(self) -> Tensor:
        """Whether no token's logit is above the label's; [N]."""
        return self._label_logits >= self._merged[0].amax(dim=0)


class _SummedLoss(torch.autograd.Function):
    """Loss and gradients in one sweep: a block's logits become its gradient in place."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden_ND: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        labels_N: Tensor,
        scratch: Scratch,
        weights_N: Tensor | None,
    ) -> Tensor:
        """Compute the loss, and with it every gradient that backward will hand out."""
        head = Head(weight, bias)
        wants_hidden, wants_weight, wants_bias = ctx.needs_input_grad[:3]
        grad_hidden = torch.zeros_like(hidden_ND, dtype=torch.float32) if wants_hidden else None
        grad_weight = torch.zeros_like(weight) if wants_weight else None
        grad_bias = torch.zeros_like(bias) if bias is not None and wants_bias else None
        total = torch.zeros((), dtype=torch.float64, device=hidden_ND.device)
        for start in range(0, len(labels_N), head.rows):
            rows = slice(start, start + head.rows)
            hidden_RD = hidden_ND[rows].to(weight.dtype)
            normaliser = Normaliser(labels_N[rows])
            blocks = scratch.blocks(head, len(hidden_RD))
            for room, block in zip(blocks, head.blocks, strict=True):
                normaliser.take(head.logits(hidden_RD, block, room), block)
            own_R = None if weights_N is None else weights_N[rows]
            losses_R = normaliser.losses() if own_R is None else normaliser.losses() * own_R
            total += losses_R.sum(dtype=torch.float64)
            for number, block in enumerate(head.blocks):
                grad = normaliser.gradient(blocks[number], number, block, own_R).to(weight.dtype)
                if grad_hidden is not None and weight.dtype == torch.float32:
                    grad_hidden[rows].addmm_(grad, weight[block])
                elif grad_hidden is not None:
                    grad_hidden[rows] += grad @ weight[block]  # summed in fp32: bf16 sums lose digits
                if grad_weight is not None:
                    grad_weight[block].addmm_(grad.T, hidden_RD)
                if grad_bias is not None:
                    grad_bias[block] += grad.sum(dim=0)
        ctx.gradients = (
            None if grad_hidden is None else grad_hidden.to(hidden_ND.dtype),
            grad_weight,
            grad_bias,
        )
        return total.float()

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        """Scale what forward prepared."""
        # Nearly always 1: the loss is what is differentiated. The gradients can be as large as the model.
        factor = None if float(upstream[0]) == 1.0 else upstream[0]
        scaled = [
            gradient if gradient is None or factor is None else gradient * factor
            for gradient in ctx.gradients
        ]
        del ctx.gradients  # as large as the batch; a second backward through this node is not supported
        return (*scaled, None, None, None)
