"""Every example's gradient and norm, layer by layer, against one plain backward pass for each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn

from tacit.errors import ModelError
from tacit.models.fused_lora import fuse_lora
from tacit.training.encoding import Batch
from tacit.training.private_steps import NextTokenObjective, PrivateTrainer, StepPerformance
from tacit.training.private_steps.book_keeping import ghost
from tacit.training.private_steps.book_keeping.attaching import BookKeeper
from tacit.training.private_steps.book_keeping.engine import BookKeepingEngine
from tacit.training.private_steps.book_keeping.ghost import Grams
from tacit.training.private_steps.book_keeping.head import BookedHeadLoss
from tacit.training.private_steps.book_keeping.products import Inner, onednn_inner
from tacit.training.private_steps.clipping import GradientSum
from tacit.training.private_steps.engine import StepTally
from tacit.training.private_steps.loop_engine import LoopEngine
from tacit.training.private_steps.objective import labels_per_row
from tests.training.private_steps.small import (
    VOCABULARY,
    Capture,
    Text,
    assert_close,
    clipped_sum,
    gpt2,
    llama,
    lstm,
    norm,
    oracle_gradients,
    privacy,
    trained,
)


def with_lora(model: nn.Module, targets: list[str], *, fused: bool, dropout: float = 0.0) -> nn.Module:
    model.requires_grad_(False)
    torch.manual_seed(3)
    config = LoraConfig(
        task_type="CAUSAL_LM",
        r=2,
        lora_alpha=6,
        lora_dropout=dropout,
        target_modules=targets,
        fan_in_fan_out="c_attn" in targets,
    )
    wrapped: nn.Module = get_peft_model(model, config)
    for name, parameter in wrapped.named_parameters():
        if "lora_B" in name:  # zero at first, where the other factor would have no gradient
            nn.init.normal_(parameter, std=0.1)
    if fused:
        assert fuse_lora(wrapped) > 0
    return wrapped.train()


def checkpointed(model: Any, *, reentrant: bool) -> nn.Module:
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    if reentrant:  # without a gradient at its door, a reentrant block has none inside
        model.enable_input_require_grads()
    checked: nn.Module = model
    return checked


def biases_only(model: nn.Module) -> nn.Module:
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name.endswith("bias"))
    return model


def upper_only(model: nn.Module) -> nn.Module:
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("h.1." in name or "ln_f" in name)
    return model


def with_dead_padding(model: Any) -> nn.Module:
    model.model.embed_tokens.padding_idx = 5
    dead: nn.Module = model
    return dead


MODELS: dict[str, Callable[[], nn.Module]] = {
    "gpt2 tied": lambda: gpt2(tied=True),
    "gpt2 untied": lambda: gpt2(tied=False),
    "gpt2 biases": lambda: biases_only(gpt2()),
    "gpt2 top": lambda: upper_only(gpt2()),
    "gpt2 checkpointed": lambda: checkpointed(gpt2(), reentrant=False),
    "gpt2 lora fused": lambda: with_lora(gpt2(), ["c_attn", "c_fc", "c_proj"], fused=True),
    "gpt2 lora": lambda: with_lora(gpt2(), ["c_attn", "c_fc", "c_proj"], fused=False),
    "gpt2 lora checkpointed": lambda: checkpointed(with_lora(gpt2(), ["c_attn"], fused=True), reentrant=True),
    "llama": lambda: llama(),
    "llama tied": lambda: llama(tied=True),
    "llama padding": lambda: with_dead_padding(llama()),
    "llama lora": lambda: with_lora(llama(), ["q_proj", "v_proj", "down_proj"], fused=True),
    "lstm": lambda: lstm(),
    "lstm tied": lambda: lstm(tied=True),
    "lstm two layers": lambda: lstm(layers=2),
    "lstm lora": lambda: with_lora(lstm(layers=2), ["input_gates", "recurrent_gates"], fused=False),
}


class Booked:
    """Every example's norm and gradient, out of the books of one batch."""

    def __init__(self, model: nn.Module, batch: Batch, row_weights: Tensor, how: Grams | None = None) -> None:
        objective = NextTokenObjective(model)
        head = objective.head
        trained_head = head is not None and any(own.requires_grad for own in head.parameters())
        keeper = BookKeeper(model, head if trained_head else None, how)
        with keeper.attached() as books:
            books.open(len(batch.labels))
            objective.head_loss = BookedHeadLoss(books, VOCABULARY) if trained_head else None
            objective.weighted(batch, row_weights).backward()  # type: ignore[no-untyped-call]
        self.norms = books.norms()
        self._books, self._model = books, model

    def gradients(self, example: int) -> dict[str, Tensor]:
        own = trained(self._model)
        total = GradientSum(list(own.values()))
        self._books.add_to(total, torch.eye(len(self.norms))[example])
        return {name: total[parameter].total() for name, parameter in own.items()}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("lengths", [[8, 8, 8], [5, 12, 1, 9]], ids=["even", "ragged"])
def test_books_hold_every_examples_gradient_and_norm(name: str, lengths: list[int]) -> None:
    model, text = MODELS[name](), Text(lengths)
    batch = text.make_batch(np.arange(len(text)))
    booked = Booked(model, batch, 1 / labels_per_row(batch).float())
    assert all(parameter.grad is None for parameter in model.parameters())
    for row in range(len(text)):
        oracle = oracle_gradients(model, text, [row])
        assert_close(booked.gradients(row), oracle)
        # Never below, and above by a margin for rounding.
        assert (1 - 1e-5) * norm(oracle) <= float(booked.norms[row]) <= (1 + 1e-3) * norm(oracle)


@pytest.mark.parametrize("name", MODELS)
def test_the_loop_gives_every_examples_gradient(name: str) -> None:
    model, text = MODELS[name](), Text([5, 12, 1, 9])
    parameters = trained(model)
    loop = LoopEngine(list(parameters.values()), NextTokenObjective(model), text.make_batch, privacy(4))
    for row in range(len(text)):
        gradients, _ = loop.gradients(np.array([row]), np.zeros(1, np.int64))
        assert_close(dict(zip(parameters, gradients, strict=True)), oracle_gradients(model, text, [row]))


@pytest.mark.parametrize("inner", [None, onednn_inner], ids=["torch", "onednn"])
@pytest.mark.parametrize("width", [1, 128], ids=["grams", "whole"])
@pytest.mark.parametrize("lengths", [[70, 70], [130, 64]], ids=["even", "ragged"])
def test_long_rows_take_the_other_ways_to_a_norm(lengths: list[int], width: int, inner: Inner | None) -> None:
    """Over 64 positions Gram matrices are cut in two; small matrices are kept whole."""
    model = lstm(layers=2)
    text = Text(lengths, positions=False)
    batch = text.make_batch(np.arange(2))
    booked = Booked(model, batch, torch.full((2,), 0.01), Grams(inner, width))
    for row in range(2):
        oracle = oracle_gradients(model, text, [row], "sum")
        assert float(booked.norms[row]) == pytest.approx(0.01 * norm(oracle), rel=1e-3)
        assert_close(booked.gradients(row), {key: 0.01 * value for key, value in oracle.items()})


def test_whole_gradients_lie_in_several_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    model, text = gpt2(), Text([6, 9, 4, 2, 7])
    model.transformer.h[1].mlp = model.transformer.h[0].mlp  # used twice: pieces are added up
    batch, found = text.make_batch(np.arange(5)), []
    for values in (1 << 20, 2000, 1):
        monkeypatch.setattr(ghost, "_GRADIENTS", values)
        found.append(Booked(model, batch, torch.ones(5)))
    for booked in found[1:]:
        torch.testing.assert_close(booked.norms, found[0].norms, rtol=1e-6, atol=0)
        for row in range(5):
            assert_close(booked.gradients(row), oracle_gradients(model, text, [row], "sum"))


def test_positions_given_once_for_all_count_for_each() -> None:
    model, text = gpt2(), Text([6, 6, 4], positions=False)
    batch = text.make_batch(np.arange(3))
    booked = Booked(model, batch, torch.ones(3))
    for row in range(3):
        assert_close(booked.gradients(row), oracle_gradients(model, text, [row], "sum"))


def test_a_layer_that_is_used_twice_adds_up() -> None:
    model, text = gpt2(tied=False), Text([6, 9])
    model.transformer.h[1].mlp = model.transformer.h[0].mlp
    model.transformer.h[1].ln_2 = model.transformer.h[0].ln_2
    batch = text.make_batch(np.arange(2))
    booked = Booked(model, batch, torch.ones(2))
    for row in range(2):
        oracle = oracle_gradients(model, text, [row], "sum")
        assert_close(booked.gradients(row), oracle)
        assert float(booked.norms[row]) == pytest.approx(norm(oracle), rel=1e-4)


def test_two_layers_with_one_weight_add_up() -> None:
    model, text = llama(), Text([6, 9])
    for layer in model.model.layers:
        layer.self_attn.v_proj.weight = layer.self_attn.k_proj.weight
    batch = text.make_batch(np.arange(2))
    booked = Booked(model, batch, torch.ones(2))
    for row in range(2):
        oracle = oracle_gradients(model, text, [row], "sum")
        assert_close(booked.gradients(row), oracle)
        assert float(booked.norms[row]) == pytest.approx(norm(oracle), rel=1e-4)


def test_a_head_that_is_bent_afterwards_keeps_books_as_any_layer() -> None:
    model, text = gpt2(), Text([6, 9])
    model.lm_head.register_forward_hook(lambda _, __, logits: 3 * torch.tanh(logits / 3))
    assert NextTokenObjective(model).head is None
    batch = text.make_batch(np.arange(2))
    booked = Booked(model, batch, torch.ones(2))
    for row in range(2):
        oracle = oracle_gradients(model, text, [row], "sum")
        assert_close(booked.gradients(row), oracle)
        assert float(booked.norms[row]) == pytest.approx(norm(oracle), rel=1e-4)


@pytest.mark.parametrize("engine", ["loop", "book-keeping"])
def test_dropout_is_drawn_for_each_example_and_training_goes_on(engine: str) -> None:
    model, text = with_lora(gpt2(), ["c_attn"], fused=False, dropout=0.5), Text([6, 6])
    text.ids[1] = text.ids[0]
    torch.manual_seed(5)
    capture = Capture(model)
    trainer = PrivateTrainer(
        model,
        NextTokenObjective(model),
        capture,
        text.examples(),
        privacy(2, clip=100.0),
        StepPerformance(engine),  # type: ignore[arg-type]
    )
    trainer.step()
    both = capture.gradients
    once = clipped_sum([oracle_gradients(model.eval(), text, [0])], 100.0)
    assert norm({key: both[key] - once[key] for key in once}) > 1e-3 * norm(once)


def test_the_model_is_itself_again_after_a_private_step() -> None:
    model, text = with_lora(gpt2(), ["c_attn"], fused=True), Text([6, 6])
    before = {module: module.__dict__.get("forward") for module in model.modules()}
    trainer = PrivateTrainer(
        model,
        NextTokenObjective(model),
        Capture(model),
        text.examples(),
        privacy(2),
        StepPerformance("book-keeping"),
    )
    trainer.step()
    assert {module: module.__dict__.get("forward") for module in model.modules()} == before


class Scaled(nn.Embedding):
    """An embedding that computes something else."""

    def forward(self, input: Tensor) -> Tensor:
        return 2 * super().forward(input)


def test_layers_without_a_rule_are_refused_by_name() -> None:
    model = llama()
    model.model.embed_tokens = Scaled(40, 16)
    with pytest.raises(ModelError, match=r"model\.embed_tokens\.weight belongs to a Scaled"):
        BookKeeper(model)
    model.model.embed_tokens.requires_grad_(False)
    BookKeeper(model)  # frozen, it needs none


def test_a_weight_used_outside_of_its_layer_is_refused() -> None:
    model, text = gpt2(tied=False), Text([6])
    model.transformer.ln_f.register_forward_hook(
        lambda _, __, output: output + model.transformer.h[0].attn.c_attn.bias[:16]
    )
    trainer = PrivateTrainer(
        model,
        NextTokenObjective(model),
        Capture(model),
        text.examples(),
        privacy(1),
        StepPerformance("book-keeping"),
    )
    with pytest.raises(ModelError, match="outside of its layer"):
        trainer.step()


@pytest.mark.parametrize("name", ["lstm", "lstm tied", "lstm two layers", "gpt2 lora fused", "llama lora"])
def test_layers_keep_books_where_autocast_computes_in_bf16(name: str) -> None:
    """What `model.dtype: auto` means on processors that compute in bf16, which rounds to three digits."""
    model, text = MODELS[name](), Text([5, 12, 1, 9])
    objective = NextTokenObjective(model, autocast=True)
    engine = BookKeepingEngine(model, objective, text.make_batch, privacy(4, clip=1e6))
    total = GradientSum(list(trained(model).values()))
    engine.add_rows(np.arange(4), total, StepTally())
    wanted = clipped_sum([oracle_gradients(model, text, [row]) for row in range(4)], 1e6)
    for (_, found), exact in zip(total.totals(), wanted.values(), strict=True):
        assert float((found - exact).norm()) <= 0.05 * float(exact.norm())
