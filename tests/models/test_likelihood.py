"""The chunked loss against the obvious one, in float64 where it can be."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from tacit.models import likelihood
from tacit.models.likelihood import NO_LABEL, Head, NextTokenLoss, Scratch, summed_loss, token_losses
from tacit.models.loading import load_public_model


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several chunks even for tiny inputs."""
    monkeypatch.setattr(likelihood, "_LOGITS_HELD", 40)
    monkeypatch.setattr(likelihood, "_BLOCK", 4)


def example(*, bias: bool) -> tuple[torch.Tensor, Head, torch.Tensor]:
    torch.manual_seed(0)
    hidden = torch.randn(2, 7, 5, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(11, 5, dtype=torch.float64, requires_grad=True)
    shift = torch.randn(11, dtype=torch.float64, requires_grad=True) if bias else None
    labels = torch.randint(0, 11, (2, 7))
    labels[0, 2] = labels[1, 6] = NO_LABEL
    return hidden, Head(weight, shift), labels


@pytest.mark.parametrize("bias", [True, False])
def test_loss_and_gradients_equal_plain_cross_entropy(bias: bool) -> None:
    hidden, head, labels = example(bias=bias)
    inputs = [hidden, head.weight, *([head.bias] if head.bias is not None else [])]
    logits = nn.functional.linear(hidden, head.weight, head.bias)
    plain = nn.functional.cross_entropy(
        logits.flatten(0, 1), labels.flatten(), ignore_index=NO_LABEL, reduction="sum"
    )
    expected = torch.autograd.grad(plain, inputs)
    ours = summed_loss(hidden, head, labels, Scratch())
    found = torch.autograd.grad(3 * ours, inputs)
    assert ours.item() == pytest.approx(plain.item(), rel=1e-6)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, 3 * other, rtol=1e-5, atol=1e-6)


def test_per_token_losses_are_zero_only_where_there_is_no_label() -> None:
    hidden, head, labels = example(bias=True)
    logits = nn.functional.linear(hidden, head.weight, head.bias)
    expected = nn.functional.cross_entropy(
        logits.flatten(0, 1), labels.flatten(), ignore_index=NO_LABEL, reduction="none"
    ).view(labels.shape)
    found = token_losses(hidden, head, labels)
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)
    assert bool(((found == 0) == (labels == NO_LABEL)).all())


def test_no_label_at_all_costs_nothing() -> None:
    hidden, head, labels = example(bias=False)
    loss = summed_loss(hidden, head, torch.full_like(labels, NO_LABEL), Scratch())
    loss.backward()  # type: ignore[no-untyped-call]
    assert loss.item() == 0
    assert hidden.grad is not None
    assert hidden.grad.abs().max() == 0


def test_extreme_logits_stay_finite() -> None:
    hidden = torch.tensor([[[1e4, -1e4]]], requires_grad=True)
    loss = summed_loss(hidden, Head(torch.eye(2), None), torch.tensor([[1]]), Scratch())
    loss.backward()  # type: ignore[no-untyped-call]
    assert loss.item() == pytest.approx(2e4)
    assert hidden.grad is not None
    assert torch.isfinite(hidden.grad).all()


def test_a_models_own_loss_is_reproduced(tiny_model: Path) -> None:
    model = load_public_model(str(tiny_model)).model
    ids = torch.randint(1, 300, (2, 20), generator=torch.Generator().manual_seed(1))
    labels = torch.full_like(ids, NO_LABEL)
    labels[:, :-1] = ids[:, 1:]
    loss = NextTokenLoss(model)
    ours = loss.summed(lambda: model(input_ids=ids).logits, labels) / 38
    assert ours.item() == pytest.approx(model(input_ids=ids, labels=ids).loss.item(), rel=1e-5)
    assert model(input_ids=ids).logits.shape[-1] == model.config.vocab_size  # the head is back


def test_a_model_that_bends_its_logits_is_noticed(
    tiny_transformer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load_public_model(str(tiny_transformer)).model
    ids = torch.randint(1, 300, (1, 9), generator=torch.Generator().manual_seed(2))
    original = type(model).forward

    def capped(self: nn.Module, *args: object, **kwargs: object) -> object:
        output = original(self, *args, **kwargs)
        output.logits = 3 * torch.tanh(output.logits / 3)
        return output

    monkeypatch.setattr(type(model), "forward", capped)
    labels = ids.roll(-1, 1)
    found = NextTokenLoss(model).per_token(lambda: model(input_ids=ids).logits, labels)
    expected = nn.functional.cross_entropy(model(input_ids=ids).logits[0], labels[0], reduction="none")
    torch.testing.assert_close(found[0], expected)
    plain = token_losses(model.transformer(input_ids=ids).last_hidden_state, Head.of(model.lm_head), labels)
    assert not torch.allclose(plain[0], expected, atol=0.1)


def test_scratch_memory_is_reused_without_a_trace() -> None:
    hidden, head, labels = example(bias=True)
    scratch = Scratch()
    first = summed_loss(hidden, head, labels, scratch).item()
    summed_loss(hidden[:1] * 50, head, labels[:1], scratch)
    assert summed_loss(hidden, head, labels, scratch).item() == first
