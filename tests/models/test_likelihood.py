"""The chunked loss against the obvious one, in float64 where it can be."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from tacit.models import likelihood
from tacit.models.likelihood import (
    NO_LABEL,
    Head,
    NextTokenLoss,
    Scratch,
    TokenLaws,
    summed_loss,
    token_losses,
)
from tacit.models.loading import load_public_model


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several chunks even for tiny inputs."""
    monkeypatch.setattr(likelihood, "LOGITS_HELD", 40)
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


def naive_laws(logits: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Float64 over the whole softmax: loss, mean and variance of log-probabilities, and whether it wins."""
    log_p = logits.double().log_softmax(-1)
    p = log_p.exp()
    mean = (p * log_p).nan_to_num(0).sum(-1)
    variance = (p * (log_p - mean[..., None]).square()).nan_to_num(0).sum(-1)
    own = log_p.gather(-1, labels[..., None]).squeeze(-1)
    return -own, mean, variance, own >= log_p.amax(-1)


def assert_laws(found: TokenLaws, logits: torch.Tensor, labels: torch.Tensor, tolerance: float) -> None:
    here = labels != NO_LABEL
    expected = naive_laws(logits[here], labels[here])
    for name, oracle in zip(("losses", "means", "variances"), expected, strict=False):
        values = getattr(found, name)
        assert values.dtype == torch.float64
        torch.testing.assert_close(values[here], oracle, rtol=tolerance, atol=tolerance)
        assert bool((values[~here] == 0).all())
    assert torch.equal(found.likeliest[here], expected[3])
    assert not bool(found.likeliest[~here].any())


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    scale=st.floats(1e-3, 30),
    shift=st.floats(-50, 50),
    seed=st.integers(0, 2**31),
    block=st.integers(1, 40),
    rows=st.integers(1, 5),
)
def test_laws_equal_the_whole_softmax(scale: float, shift: float, seed: int, block: int, rows: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(7, 33, generator=generator) + shift
    labels = torch.randint(0, 33, (7,), generator=generator)
    labels[3] = NO_LABEL
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(likelihood, "_BLOCK", block)
        patch.setattr(likelihood, "_LAW_ROWS", rows)
        assert_laws(OwnLogits().laws(lambda: logits[None], labels[None]), logits[None], labels[None], 1e-4)


class OwnLogits(NextTokenLoss):
    """The path of models whose own logits are taken, without a model."""

    def __init__(self) -> None:
        self._plain_head = False


def test_impossible_tokens_and_a_certain_one_have_finite_laws() -> None:
    logits = torch.full((2, 12), -torch.inf)
    logits[0, 9], logits[1, 0], logits[1, 11] = 3.0, 2.0, 2.0  # whole blocks of four are impossible
    found = OwnLogits().laws(lambda: logits[None], torch.tensor([[9, 11]]))
    log2 = torch.tensor(2.0, dtype=torch.float64).log()
    torch.testing.assert_close(found.losses[0], torch.stack([0 * log2, log2]))
    torch.testing.assert_close(found.means[0], torch.stack([0 * log2, -log2]))
    assert found.variances.abs().max() < 1e-12
    assert bool(found.likeliest.all())


def test_a_narrow_law_far_from_zero_keeps_its_variance() -> None:
    # Sum of p l^2 minus mu^2 in fp32 would be off by 1e-5 and more; the variance here is 1e-6.
    logits = 1e-3 * torch.randn(1, 5000, generator=torch.Generator().manual_seed(3)) + 900
    found = OwnLogits().laws(lambda: logits[None], torch.tensor([[17]]))
    oracle = naive_laws(logits, torch.tensor([17]))[2]
    torch.testing.assert_close(found.variances[0], oracle, rtol=1e-3, atol=0)
    assert oracle.item() == pytest.approx(1e-6, rel=0.1)


def test_laws_and_logits_of_models_equal_their_own(tiny_model: Path) -> None:
    model = load_public_model(str(tiny_model)).model
    ids = torch.randint(1, 300, (3, 12), generator=torch.Generator().manual_seed(4))
    labels = ids.roll(-1, 1)
    labels[:, -1] = NO_LABEL
    whole = model(input_ids=ids).logits
    loss = NextTokenLoss(model)
    assert_laws(loss.laws(lambda: model(input_ids=ids).logits, labels), whole, labels, 1e-4)
    seen = torch.zeros(labels.numel(), dtype=torch.bool)
    for rows, logits in loss.labelled_logits(lambda: model(input_ids=ids).logits, labels):
        assert logits.numel() <= max(likelihood.LOGITS_HELD, logits.shape[1])
        torch.testing.assert_close(logits, whole.flatten(0, 1)[rows], rtol=1e-4, atol=1e-4)
        seen[rows] = True
    assert torch.equal(seen, labels.flatten() != NO_LABEL)
    assert model(input_ids=ids).logits.shape[-1] == model.config.vocab_size  # the head is back
