"""The loop of private training: public and private steps in their order, checkpoints, and the account.

What holds on a resume. Checkpoints keep the weights, the optimisers' state and the account of private steps
in one piece, and never the state of the noise. Steps after the last checkpoint are lost with the process:
their weights were neither kept nor released, so that they cost nothing, and they are taken again with *new*
samples and *new* noise. With a seed (experiments only) sample and noise are functions of the seed and the
step, so that they come back together: the same noise never covers another batch.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tacit.progress import Progress
from tacit.recipes import TrainingSection
from tacit.training.checkpoint import Standing, load_checkpoint, save_checkpoint, trainable
from tacit.training.encoding import Batch
from tacit.training.optimisers import set_rate
from tacit.training.phases import Phases, Place
from tacit.training.private_steps import Objective, PrivateTrainer, PublicSteps
from tacit.training.schedule import learning_rate


@dataclass
class PrivateOutcome:
    """What the steps that led to the weights saw, for the operator alone: of the whole run."""

    private_steps: int = 0
    public_steps: int = 0
    sampled: int = 0  # examples, over all private steps
    clipped: int = 0
    alarms: int = 0
    losses: dict[str, float] = field(default_factory=dict)  # the last of either kind

    def to_json(self) -> dict[str, Any]:
        """JSON form."""
        return asdict(self)


@dataclass(frozen=True)
class PublicPhase:
    """The steps on public text: their rates, clipping and batches."""

    training: TrainingSection
    optimiser: torch.optim.Optimizer
    objective: Objective
    batches_of: Callable[[int], Sequence[Batch]]


@dataclass(frozen=True)
class PrivatePhase:
    """The private steps: their rates, and sampler, engine, noise and account in one."""

    training: TrainingSection
    optimiser: torch.optim.Optimizer
    trainer: PrivateTrainer


def take_steps(
    model: nn.Module,
    phases: Phases,
    *,
    private: PrivatePhase | None,
    public: PublicPhase | None,
    seed: int,
    checkpoint_folder: Path,
    checkpoint_every: int,
    progress: Progress,
) -> PrivateOutcome:
    """Take all steps, from the newest checkpoint where there is one; either kind may be missing."""
    loop = _Loop(model, phases, private, public)
    torch.manual_seed(seed)
    checkpoint_folder.mkdir(parents=True, exist_ok=True)
    standing, _ = load_checkpoint(checkpoint_folder, model, loop.optimisers)
    if standing.step:
        progress.remark(f"resumed at step {standing.step} of {phases.steps}")
        if private is not None:
            private.trainer.load_state_dict(dict(standing.private or {}))
        loop.go_on_from(standing.seen or {})
    progress.phase("training", phases.steps)
    progress.advance(standing.step)
    model.train()
    with loop:
        for step in range(standing.step, phases.steps):
            progress.advance(1, loop.take(phases.at(step)))
            if (step + 1) % checkpoint_every == 0:
                # The account with the weights that it is for: never one without the other.
                reached = Standing(step + 1, private=loop.private, seen=loop.outcome.to_json())
                save_checkpoint(checkpoint_folder, reached, model, loop.optimisers)
    model.eval()
    return loop.outcome


class _Loop(contextlib.ExitStack):
    """Takes steps of either kind; consecutive public ones share one stretch at ordinary speed."""

    def __init__(
        self, model: nn.Module, phases: Phases, private: PrivatePhase | None, public: PublicPhase | None
    ) -> None:
        super().__init__()
        self._parameters = list(trainable(model).values())
        self._phases = phases
        self._private = private
        self._public = public
        self._stretch: PublicSteps | None = None
        self._outcome = PrivateOutcome()

    @property
    def optimisers(self) -> list[torch.optim.Optimizer]:
        """Those of both kinds of step, each once."""
        both = [phase.optimiser for phase in (self._private, self._public) if phase is not None]
        return list({id(optimiser): optimiser for optimiser in both}.values())

    @property
    def private(self) -> dict[str, Any] | None:
        """The account of the private steps so far, and the engine that takes them."""
        return None if self._private is None else self._private.trainer.state_dict()

    @property
    def outcome(self) -> PrivateOutcome:
        """What happened, with the private steps of the whole run."""
        steps = 0 if self._private is None else self._private.trainer.account.steps
        return replace(self._outcome, private_steps=steps)

    def go_on_from(self, seen: Mapping[str, Any]) -> None:
        """Take up what the steps before a checkpoint saw."""
        self._outcome = PrivateOutcome(**seen)

    def take(self, place: Place) -> str:
        """One step; returns what to tell the operator of it."""
        return self._public_step(place) if place.kind == "public" else self._private_step(place)

    def _public_step(self, place: Place) -> str:
        phase = self._public
        assert phase is not None  # noqa: S101 - there are public steps only where there is public text
        if self._stretch is None:
            self._stretch = (
                PublicSteps(self._parameters, phase.objective, phase.optimiser)
                if self._private is None
                else self.enter_context(self._private.trainer.public())
            )
        self._set_rate(phase, place)
        loss = self._stretch.step(phase.batches_of(place.number), clip=phase.training.clip)
        self._outcome.public_steps += 1
        self._outcome.losses["public"] = loss
        return f"public, loss {loss:.3f}"

    def _private_step(self, place: Place) -> str:
        phase = self._private
        assert phase is not None  # noqa: S101 - there are private steps only where there is private text
        self.close()
        self._stretch = None
        self._set_rate(phase, place)
        tally = phase.trainer.step()
        self._outcome.sampled += tally.examples
        self._outcome.clipped += tally.clipped
        self._outcome.alarms += tally.alarms
        loss = tally.loss / max(1, tally.examples)
        self._outcome.losses["private"] = loss
        return f"private, {tally.examples} examples, loss {loss:.3f}"

    def _set_rate(self, phase: PublicPhase | PrivatePhase, place: Place) -> None:
        steps = self._phases.total(place.kind)
        set_rate(phase.optimiser, learning_rate(phase.training, steps, place.number))
