"""The loop against AdamW written out by hand, so that no setting of a recipe can be forgotten unnoticed."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tacit.progress import Silent
from tacit.recipes import EarlyStopSection, TrainingSection
from tacit.training.checkpoint import load_checkpoint
from tacit.training.encoding import Batch, IntArray, lay_out
from tacit.training.loop import Outcome, optimise
from tacit.training.schedule import Schedule
from tests.training.test_encoding import pieces_of

TARGETS = torch.linspace(-3, 5, 60)


class Slope(nn.Module):
    """Two numbers that are trained, and one that is not."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.tensor([2.0, -1.0]))
        self.frozen = nn.Parameter(torch.tensor(1.0), requires_grad=False)


def summed_loss(model: Slope, labels: Tensor) -> Tensor:
    real = labels[labels > 0]
    x = TARGETS[real % len(TARGETS)]
    return ((model.a[0] * x + model.a[1] - x.sin()) ** 2).sum()


def settings(**changes: Any) -> TrainingSection:
    base: dict[str, Any] = {"epochs": 3, "batch_size": 2, "accumulate": 2, "learning_rate": 0.1}
    return TrainingSection(**base | {"warmup": 0.0, "clip": 1e9} | changes)


class Task:
    """A model, its rows and its schedule."""

    def __init__(self, training: TrainingSection) -> None:
        self.model = Slope()
        rows = lay_out(pieces_of([3, 7, 2, 5, 8, 1, 4, 6, 2, 5]), block_size=8, packing=False)
        self.schedule = Schedule(rows, training, seed=4)

    def make_batch(self, rows: IntArray) -> Batch:
        return self.schedule.rows.batch(rows, attention=None, pad_token=0)

    def train(self, folder: Path, **changes: Any) -> Outcome:
        others: dict[str, Any] = {"checkpoint_every": 1000, "progress": Silent()} | changes
        return optimise(
            self.model,
            lambda batch: summed_loss(self.model, batch.labels),
            self.make_batch,
            self.schedule,
            checkpoint_folder=folder,
            **others,
        )


def by_hand(training: TrainingSection) -> Tensor:
    """AdamW as Loshchilov and Hutter (2019) write it, with the defaults of torch."""
    task = Task(training)
    a, schedule = task.model.a, task.schedule
    first = second = torch.zeros(2)
    warmup = round(training.warmup * schedule.steps)
    for step in range(schedule.steps):
        batches = [task.make_batch(rows) for rows in schedule.batches_of(step)]
        tokens = sum(int((batch.labels > 0).sum()) for batch in batches)
        (gradient,) = torch.autograd.grad(
            torch.stack([summed_loss(task.model, batch.labels) for batch in batches]).sum() / tokens, a
        )
        gradient = gradient * min(1.0, training.clip / float(gradient.norm()))
        decay = (schedule.steps - step) / max(1, schedule.steps - warmup)
        rate = training.learning_rate * ((step + 1) / warmup if step < warmup else decay)
        first = 0.9 * first + 0.1 * gradient
        second = 0.999 * second + 0.001 * gradient**2
        unbiased = first / (1 - 0.9 ** (step + 1)), second / (1 - 0.999 ** (step + 1))
        with torch.no_grad():
            a.mul_(1 - rate * training.weight_decay)
            a.sub_(rate * unbiased[0] / (unbiased[1].sqrt() + 1e-8))
    return a.detach()


VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "clipped": {"clip": 3.0},
    "decayed": {"weight_decay": 0.5},
    "warmed-up": {"warmup": 0.5},
    "all": {"clip": 3.0, "weight_decay": 0.5, "warmup": 0.5, "accumulate": 3},
}


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_steps_are_those_of_adamw_by_hand(tmp_path: Path, changes: dict[str, Any]) -> None:
    task = Task(settings(**changes))
    outcome = task.train(tmp_path)
    torch.testing.assert_close(task.model.a.detach(), by_hand(settings(**changes)), rtol=1e-4, atol=1e-5)
    assert outcome.steps == task.schedule.steps
    assert task.model.frozen == 1
    # Each setting moves the result by far more than the tolerance: left out, it would be noticed.
    if changes:
        plain = by_hand(settings(accumulate=changes.get("accumulate", 2)))
        assert (task.model.a.detach() - plain).abs().max() > 1e-2


class FallingThenRising:
    """A loss on public text with its best in the middle; what it was asked for is what a kill leaves."""

    settings = EarlyStopSection(public_text="p", patience=2, every=2)

    def __init__(self, model: Slope) -> None:
        self._model = model
        self.seen: list[float] = []

    def loss(self) -> float:
        self.seen.append(abs(float(self._model.a.detach()[0]) - 1.0))
        return self.seen[-1]


class Killed(BaseException):
    """Nothing may catch it."""


class KillAfter(Silent):
    def __init__(self, steps: int) -> None:
        self._left = steps

    def advance(self, units: int, note: str = "") -> None:
        self._left -= units
        if self._left < 0:
            raise Killed


@pytest.mark.parametrize("steps", range(1, 8))
def test_accumulation_and_early_stopping_survive_a_kill(tmp_path: Path, steps: int) -> None:
    training = settings(epochs=20, accumulate=3, learning_rate=0.25)
    whole = Task(training)
    check = FallingThenRising(whole.model)
    outcome = whole.train(tmp_path / "whole", public_check=check)
    assert check.seen[-1] > min(check.seen) == FallingThenRising(whole.model).loss()  # the best is kept
    assert outcome.stopped_early
    assert 7 < outcome.steps < whole.schedule.steps
    killed, resumed = Task(training), Task(training)
    others = {"checkpoint_every": 1}
    with pytest.raises(Killed):
        killed.train(
            tmp_path / "killed",
            progress=KillAfter(steps),
            public_check=FallingThenRising(killed.model),
            **others,
        )
    again = resumed.train(tmp_path / "killed", public_check=FallingThenRising(resumed.model), **others)
    assert (again.steps, again.stopped_early) == (outcome.steps, True)
    assert torch.equal(resumed.model.a, whole.model.a)


def test_accumulated_batches_are_made_one_at_a_time(tmp_path: Path) -> None:
    task = Task(settings(epochs=1, accumulate=5))
    events: list[str] = []

    def make_batch(rows: IntArray) -> Batch:
        events.append("made")
        return task.make_batch(rows)

    def objective(batch: Batch) -> Tensor:
        events.append("used")
        return summed_loss(task.model, batch.labels)

    optimise(
        task.model,
        objective,
        make_batch,
        task.schedule,
        checkpoint_folder=tmp_path,
        checkpoint_every=9,
        progress=Silent(),
    )
    assert events == ["made", "used"] * 5


@pytest.fixture
def with_checkpoints(tmp_path: Path) -> tuple[Task, Path]:
    task = Task(settings())
    with pytest.raises(Killed):
        task.train(tmp_path, progress=KillAfter(4), checkpoint_every=2)
    return Task(settings()), tmp_path


@pytest.mark.parametrize("damage", ["half-deleted", "cut short", "not JSON", "other keys"])
def test_a_damaged_checkpoint_is_passed_over(with_checkpoints: tuple[Task, Path], damage: str) -> None:
    task, folder = with_checkpoints
    whole = Task(settings())
    whole.train(folder / "elsewhere")
    (newest,) = folder.glob("step-*")
    if damage == "half-deleted":
        (newest / "standing.json").unlink()
    elif damage == "cut short":
        content = (newest / "state.safetensors").read_bytes()
        (newest / "state.safetensors").write_bytes(content[: len(content) // 2])
    else:
        (newest / "standing.json").write_text("{" if damage == "not JSON" else '{"steps": 1}')
    standing, best = load_checkpoint(folder, task.model, [torch.optim.AdamW(task.model.parameters())])
    assert (standing.step, best) == (0, None)
    task.train(folder, checkpoint_every=1)
    assert torch.equal(task.model.a, whole.model.a)


def test_the_newest_checkpoint_is_the_only_one(with_checkpoints: tuple[Task, Path]) -> None:
    task, folder = with_checkpoints
    assert [path.name for path in folder.iterdir()] == ["step-00000004"]
    outcome = task.train(folder)
    assert outcome.steps == task.schedule.steps
    assert math.isfinite(outcome.final_loss)
