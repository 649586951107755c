"""The optimisation loop: one schedule, clipping, checkpoints, early stop on public text only."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from tacit.errors import TrainingDiverged
from tacit.progress import Progress
from tacit.recipes import EarlyStopSection
from tacit.training.checkpoint import Standing, load_checkpoint, save_checkpoint, trainable
from tacit.training.encoding import Batch, IntArray
from tacit.training.optimisers import optimiser_for
from tacit.training.schedule import Steps

Objective = Callable[[Batch], Tensor]
"""Sum of the losses of a batch's labels, differentiable in what is trained."""


class PublicCheck(Protocol):
    """Early stopping: the loss on public text, and when to give up."""

    @property
    def settings(self) -> EarlyStopSection:
        """How often to look, and how often in vain."""
        ...

    def loss(self) -> float:
        """The loss on public text of the model as it is now."""
        ...


class Companion(Protocol):
    """What learns beside the model, with weights and an optimiser of its own, and shapes the objective."""

    @property
    def module(self) -> nn.Module:
        """Its weights; they are in checkpoints and in no Run."""
        ...

    @property
    def optimisers(self) -> list[torch.optim.Optimizer]:
        """Its own, none where it learns nothing."""
        ...

    def begin(self, step: int) -> None:
        """A 0-based step of the model is about to be taken."""
        ...

    def finish(self) -> None:
        """The model has taken its step; now it may take its own."""
        ...

    @property
    def seen(self) -> Mapping[str, Any]:
        """What its steps saw, for the operator alone; checkpoints hold it."""
        ...

    def go_on_from(self, seen: Mapping[str, Any]) -> None:
        """A killed run resumes behind the steps that saw this."""
        ...


@dataclass(frozen=True)
class Outcome:
    """What happened in a training run."""

    steps: int
    final_loss: float
    tokens_per_second: float
    stopped_early: bool


def optimise(
    model: nn.Module,
    objective: Objective,
    make_batch: Callable[[IntArray], Batch],
    schedule: Steps,
    *,
    checkpoint_folder: Path,
    checkpoint_every: int,
    progress: Progress,
    public_check: PublicCheck | None = None,
    companion: Companion | None = None,
) -> Outcome:
    """Train to the end of the schedule, from the newest checkpoint where there is one.

    The gradient of a step is that of the mean loss per predicted token over the whole step, whatever
    the accumulation: a token weighs the same in a short batch and in a long one.
    """
    parameters = trainable(model)
    settings = schedule.training
    optimiser = optimiser_for(list(parameters.values()), settings)
    # What a checkpoint holds: the model, and what learns beside it.
    learnt, optimisers = model, [optimiser]
    if companion is not None:
        learnt = nn.ModuleDict({"model": model, "companion": companion.module})
        optimisers += companion.optimisers
    torch.manual_seed(schedule.seed)
    checkpoint_folder.mkdir(parents=True, exist_ok=True)
    standing, best = load_checkpoint(checkpoint_folder, learnt, optimisers)
    if companion is not None:
        companion.go_on_from(standing.seen or {})
    if standing.step:
        progress.remark(f"resumed at step {standing.step} of {schedule.steps}")
    progress.phase("training", schedule.steps)
    progress.advance(standing.step)
    learnt.train()
    began, seen, loss, stopped = time.perf_counter(), 0, float("nan"), _gave_up(standing, public_check)
    # No checkpoint on an interrupt: it may come in the middle of a step, and half of one would be saved.
    while standing.step < schedule.steps and not stopped:
        # Made one at a time: the masks of all accumulated batches together can be larger than the model.
        batches = map(make_batch, schedule.batches_of(standing.step))
        tokens = schedule.tokens_of(standing.step)
        for group in optimiser.param_groups:
            group["lr"] = schedule.learning_rate(standing.step)
        if companion is not None:
            companion.begin(standing.step)
        loss = _step(batches, tokens, objective, optimiser, list(parameters.values()), settings.clip)
        if companion is not None:
            companion.finish()
        standing = Standing(standing.step + 1, standing.best_loss, standing.checks_without_gain)
        seen += tokens
        if public_check is not None and standing.step % public_check.settings.every == 0:
            standing, best = _check(standing, best, learnt, public_check)
            stopped = _gave_up(standing, public_check)
        progress.advance(1, f"loss {loss:.3f}, {seen / (time.perf_counter() - began):.0f} tokens/s")
        if standing.step % checkpoint_every == 0:
            reached = standing if companion is None else replace(standing, seen=companion.seen)
            save_checkpoint(checkpoint_folder, reached, learnt, optimisers, best)
    if best is not None:
        with torch.no_grad():
            for name, parameter in trainable(learnt).items():
                parameter.copy_(best[name])
    learnt.eval()
    return Outcome(standing.step, loss, seen / (time.perf_counter() - began), stopped)


def _step(
    batches: Iterable[Batch],
    tokens: int,
    objective: Objective,
    optimiser: torch.optim.Optimizer,
    parameters: list[nn.Parameter],
    clip: float,
) -> float:
    optimiser.zero_grad(set_to_none=True)
    total = 0.0
    for batch in batches:
        loss = objective(batch) / tokens
        loss.backward()  # type: ignore[no-untyped-call]
        total += float(loss.detach())
    norm = nn.utils.clip_grad_norm_(parameters, clip)
    if not torch.isfinite(norm):
        raise TrainingDiverged(
            "The gradient is not finite; lower training.learning_rate or use model.dtype=fp32."
        )
    optimiser.step()
    return total


def _check(
    standing: Standing, best: dict[str, Tensor] | None, model: nn.Module, check: PublicCheck
) -> tuple[Standing, dict[str, Tensor] | None]:
    model.eval()
    loss = check.loss()
    model.train()
    if standing.best_loss is None or loss < standing.best_loss:
        kept = {name: parameter.detach().clone() for name, parameter in trainable(model).items()}
        return Standing(standing.step, loss, 0), kept
    return Standing(standing.step, standing.best_loss, standing.checks_without_gain + 1), best


def _gave_up(standing: Standing, check: PublicCheck | None) -> bool:
    return check is not None and standing.checks_without_gain >= check.settings.patience
