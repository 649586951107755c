"""Which engine runs: measured on made-up rows, never on private ones, and never where a run is seeded."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tacit.errors import InputError
from tacit.training.encoding import Batch, IntArray
from tacit.training.private_steps import (
    Choice,
    Examples,
    NextTokenObjective,
    PrivateTrainer,
    StepPerformance,
    choice,
)
from tacit.training.private_steps.book_keeping import fastest, products
from tacit.training.private_steps.book_keeping.ghost import Gram, Grams, outer_bound
from tacit.training.private_steps.choice import Workshop, choose
from tests.training.private_steps.small import Capture, Text, assert_close, gpt2, llama, lstm, privacy


def _no_row(_: IntArray) -> NoReturn:
    raise AssertionError("a private row was looked at")


def trainer_for(model: nn.Module, engine: str = "auto", *, seed: int | None = None) -> PrivateTrainer:
    examples = Examples([np.array([0])], np.array([5]), _no_row)
    return PrivateTrainer(
        model,
        NextTokenObjective(model),
        Capture(model),
        examples,
        privacy(1),
        StepPerformance(engine, 4, 8),  # type: ignore[arg-type]
        seed=seed,
    )


@pytest.mark.parametrize("faster", ["loop", "book-keeping"])
def test_the_faster_engine_is_chosen_without_a_look_at_the_examples(
    faster: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def seconds(engine: object, rows: int, total: object) -> float:
        return 1.0 / rows if type(engine).__name__.lower().startswith(faster[:4]) else 2.0

    monkeypatch.setattr(choice, "_seconds_per_row", seconds)
    trainer = trainer_for(gpt2())
    assert trainer.choice == Choice(faster, 4)  # type: ignore[arg-type]


@pytest.mark.parametrize(("halved", "rows"), [(0.97, 4), (0.9, 2)])
def test_fewer_rows_at_once_are_chosen_only_where_they_are_clearly_faster(
    halved: float, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were chosen by noise of a percent, and a step of two of them took longer."""

    def seconds(engine: object, rows: int, total: object) -> float:
        return 2.0 if type(engine).__name__ == "LoopEngine" else {4: 1.0, 2: halved, 1: 0.96}[rows]

    monkeypatch.setattr(choice, "_seconds_per_row", seconds)
    assert trainer_for(gpt2()).choice == Choice("book-keeping", rows)


@pytest.mark.parametrize("model", [gpt2, llama, lstm])
def test_measuring_leaves_the_model_and_its_randomness_as_they_were(model: type) -> None:
    built = model()
    before = {name: value.clone() for name, value in built.state_dict().items()}
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    trainer = trainer_for(built)
    assert trainer.choice.microbatch in (4, 2, 1)
    assert torch.rand(1) == expected
    assert all(parameter.grad is None for parameter in built.parameters())
    assert all(torch.equal(value, before[name]) for name, value in built.state_dict().items())


def test_a_seeded_run_is_not_chosen_by_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    def clock(*_: object) -> NoReturn:
        raise AssertionError("measured")

    monkeypatch.setattr(choice, "_seconds_per_row", clock)
    monkeypatch.setattr(choice, "fastest_grams", clock)
    assert trainer_for(gpt2(), seed=1).choice == Choice("book-keeping", 4)


class Odd(nn.Linear):
    """A layer that computes something else."""

    def forward(self, input: Tensor) -> Tensor:
        return 2 * super().forward(input)


def test_other_work_on_the_machine_does_not_choose(monkeypatch: pytest.MonkeyPatch) -> None:
    """On one thread, what others take of the processor had chosen an engine of twice the time."""
    from tacit.training.private_steps.book_keeping.engine import BookKeepingEngine
    from tacit.training.private_steps.loop_engine import LoopEngine

    clocks = {"computing": 0.0, "on the wall": 0.0}

    def taking(computing: float, waiting: float) -> Callable[..., None]:
        def add_rows(self: object, rows: IntArray, *_: object) -> None:
            clocks["computing"] += computing * len(rows)
            clocks["on the wall"] += (computing + waiting) * len(rows)

        return add_rows

    monkeypatch.setattr(BookKeepingEngine, "add_rows", taking(1.0, 9.0))
    monkeypatch.setattr(LoopEngine, "add_rows", taking(2.0, 0.0))
    monkeypatch.setattr("time.process_time", lambda: clocks["computing"])
    monkeypatch.setattr("time.perf_counter", lambda: clocks["on the wall"])
    for threads, engine in ((1, "book-keeping"), (2, "loop")):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        assert trainer_for(gpt2()).choice.engine == engine


def test_a_layer_without_a_rule_leaves_the_loop() -> None:
    model = llama()
    model.model.layers[0].mlp.up_proj = Odd(16, 24, bias=False)
    assert trainer_for(model).choice == Choice("loop", 4)


def test_rows_of_a_cached_trunk_are_not_made_up() -> None:
    model = gpt2()

    def forward(batch: Batch) -> NoReturn:
        raise AssertionError("measured")

    workshop = Workshop(model, NextTokenObjective(model, forward), privacy(1))
    assert choose(workshop, StepPerformance(microbatch=4)) == Choice("book-keeping", 4)


def test_a_resumed_run_goes_on_with_its_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "_seconds_per_row", lambda engine, rows, total: float(rows))
    first = trainer_for(gpt2())
    monkeypatch.setattr(choice, "_seconds_per_row", lambda engine, rows, total: -float(rows))
    second = trainer_for(gpt2())
    assert second.choice != first.choice
    second.load_state_dict(first.state_dict())
    assert second.choice == first.choice
    with pytest.raises(InputError, match="saved engine"):
        second.load_state_dict(first.state_dict() | {"engine": {"what": 1}})


@pytest.mark.parametrize("time", [1, 31, 32, 64, 129, 300])
@pytest.mark.parametrize(
    "how",
    [Grams(None), Grams(None, most_stairs=2), Grams(None, most_stairs=1), Grams(products.onednn_inner)],
    ids=["four stairs", "two", "whole", "onednn"],
)
def test_norms_come_of_every_way_to_compute_them(time: int, how: Grams) -> None:
    torch.manual_seed(0)
    rows, columns = torch.randn(3, time, 20), torch.randn(time, 3, 30).transpose(0, 1)
    bound = outer_bound(Gram(rows, how), Gram(columns, how))
    exact = torch.bmm(rows.double().transpose(1, 2), columns.double()).square().sum(dim=(1, 2))
    torch.testing.assert_close(bound.squares, exact, rtol=2e-6, atol=0)
    assert bool(((bound.squares - exact).abs() <= bound.margins).all())


@pytest.mark.parametrize(("fast", "stairs"), [(1, 1), (2, 2), (4, 4)])
def test_the_fastest_stairs_are_taken(monkeypatch: pytest.MonkeyPatch, fast: int, stairs: int) -> None:
    monkeypatch.setattr(fastest, "_seconds", lambda grams, _: 0.5 if grams._most_stairs == fast else 1.0)
    fastest._fastest.cache_clear()
    found = fastest.fastest_grams(128)
    fastest._fastest.cache_clear()
    assert (found._most_stairs, found._inner, found.width) == (stairs, None, 128)


def test_the_other_library_is_taken_where_it_is_clearly_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    for seconds, inner in ((0.95, None), (0.8, products.onednn_inner)):
        monkeypatch.setattr(
            fastest, "_seconds", lambda grams, _, found=seconds: 1.0 if grams._inner is None else found
        )
        fastest._fastest.cache_clear()
        assert fastest.fastest_grams(64)._inner is inner
    fastest._fastest.cache_clear()


def test_a_library_that_is_wrong_or_missing_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(a: Tensor, b: Tensor) -> Tensor:
        raise RuntimeError

    for bad in (lambda a, b: a @ b.T + 1, broken):
        fastest._fastest.cache_clear()
        monkeypatch.setattr(fastest, "onednn_inner", bad)
        assert fastest.fastest_grams(128)._inner is None
    fastest._fastest.cache_clear()


def test_logits_beyond_what_may_be_held_are_split(monkeypatch: pytest.MonkeyPatch) -> None:
    from tacit.training.private_steps.book_keeping import head

    text = Text([5, 9, 3, 12])
    results = []
    for held in (1 << 20, 9 * 40):
        monkeypatch.setattr(head, "LOGITS_HELD", held)
        capture = Capture(model := gpt2())
        PrivateTrainer(
            model,
            NextTokenObjective(model),
            capture,
            text.examples(),
            privacy(4),
            StepPerformance("book-keeping"),
            seed=0,
        ).step()
        results.append(capture.gradients)
    assert_close(results[1], results[0])
