"""Members that train together: one pass over the frozen model for all, and nothing trained is shared.

Rows of all members lie side by side in one batch, member by member. Every frozen weight is read once for
all of them; low-rank matrices, losses, clipping, optimiser state and random numbers are each member's own.

Formal guarantee: after any number of steps, member m's matrices are a function of m's own text, of the
public model, of public settings and of m's own random stream, *to the last bit* for the same machine and
number of threads. Shapes and kernels are fixed by public settings (rows of ``block_size`` positions,
``batch_size`` rows, always under a mask), because the rounding of a product depends on its shape; the head,
which skips padding, runs member by member.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from tacit.errors import TrainingDiverged
from tacit.models.likelihood import NextTokenLoss
from tacit.models.loading import PublicModel
from tacit.models.stacked_lora import stack_into
from tacit.models.trunk import refuse_uneven_cut, trunk_states, without_trunk
from tacit.progress import Progress, Silent
from tacit.recipes import PerformanceSection, Recipe
from tacit.training.checkpoint import Standing, load_checkpoint, save_checkpoint
from tacit.training.encoding import NO_ROW, Batch, IntArray, side_by_side
from tacit.training.ensemble_schedule import Member, MemberSchedule
from tacit.training.next_token import batch_arguments
from tacit.training.trunk_cache import TrunkCache

_TINY = 1e-6  # as in torch's own clipping


class JointTask:
    """A frozen public model with the stacked adapters of some members, and the rows that they learn from."""

    def __init__(self, public: PublicModel, recipe: Recipe, members: Sequence[Member]) -> None:
        adapter = recipe.adapter
        # These look at the plain model; a stacked one takes only rows for all members.
        self._loss = NextTokenLoss(public.model)
        self._own_shape = batch_arguments(public)
        if adapter.trunk_layers:
            refuse_uneven_cut(public.model, adapter.trunk_layers)
        self.members = list(members)
        self.model: nn.Module = public.model
        self._batch_size = recipe.training.batch_size
        self._fixed_shape = self._own_shape | {"width": recipe.training.block_size}
        self._trunk_layers = adapter.trunk_layers
        self._trunks: list[TrunkCache | None] = []
        self._padding_states = torch.empty(0)
        self.stack = stack_into(
            public.model,
            len(members),
            rank=adapter.rank,
            alpha=adapter.alpha,
            targets=adapter.targets,
            trunk_layers=adapter.trunk_layers,
            dtype=torch.float32,
        )
        self.model.eval()  # dropout of the frozen model would be one stream for all members

    def initialise(self, streams: Sequence[int]) -> None:
        """Every member's start from its own stream; a member without text is and stays the public model."""
        for place, (member, stream) in enumerate(zip(self.members, streams, strict=True)):
            if len(member.rows):
                self.stack.initialise_member(place, torch.Generator().manual_seed(stream))
            else:
                self.stack.clear_member(place)

    def cache_trunk(self, performance: PerformanceSection, folder: Path, progress: Progress) -> None:
        """Run the frozen trunk over all rows once, member by member, where the recipe wants it kept."""
        if not self._trunk_layers or performance.trunk_cache == "off":
            return
        progress.phase("running the frozen trunk once", sum(len(member.rows) for member in self.members))
        told = _Units(progress)
        for member in self.members:
            place = folder / f"trunk-{member.name}"
            if not len(member.rows):
                self._trunks.append(None)
                continue
            place.mkdir(mode=0o700)
            states = TrunkCache.compute(
                self._trunk_states,
                member.rows,
                partial(member.rows.batch, **self._own_shape),
                where=performance.trunk_cache,
                folder=place,
                progress=told,
            )
            self._trunks.append(states)
        padding = self.members[0].rows.batch(np.full(self._batch_size, NO_ROW), **self._fixed_shape)
        self._padding_states = self._trunk_states(padding)

    def summed_losses(self, chosen: Sequence[IntArray]) -> Tensor:
        """The sum of each member's own losses on its own ``chosen`` rows; one forward pass."""
        batches = [
            member.rows.batch(rows, **self._fixed_shape)
            for member, rows in zip(self.members, chosen, strict=True)
        ]
        groups: list[Tensor] = []

        def of_member(place: int) -> Tensor:
            if not groups:
                # split, not slices: its gradient is put together once, not once per member.
                groups.extend(torch.split(self._logits(batches), self._batch_size))
            return groups[place]

        losses = [
            self._loss.summed(partial(of_member, place), batch.labels) for place, batch in enumerate(batches)
        ]
        return torch.stack(losses)

    def _logits(self, batches: Sequence[Batch]) -> Tensor:
        joined = side_by_side(batches)
        if not self._trunk_layers:
            logits: Tensor = self.model(**joined.inputs).logits
            return logits
        if self._trunks:
            caches = zip(self._trunks, batches, strict=True)
            states = torch.cat(
                [self._padding_states if trunk is None else trunk.states_for(b) for trunk, b in caches]
            )
        else:
            states = self._trunk_states(joined)
        with without_trunk(self.model, self._trunk_layers) as upper:
            upper_logits: Tensor = upper(states, joined.inputs).logits
            return upper_logits

    def _trunk_states(self, batch: Batch) -> Tensor:
        return trunk_states(self.model, self._trunk_layers, batch.inputs)


class _Units(Silent):
    """Passes on how much is done of a phase that another has announced, and the first remark."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._remarked = False

    def advance(self, units: int, note: str = "") -> None:
        self._progress.advance(units, note)

    def remark(self, message: str) -> None:
        if not self._remarked:
            self._remarked = True
            self._progress.remark(message)


def train_jointly(
    task: JointTask,
    schedules: Sequence[MemberSchedule],
    *,
    checkpoint_folder: Path,
    checkpoint_every: int,
    progress: Progress,
) -> list[float]:
    """Train all members of a task to the end, from the newest checkpoint where there is one.

    Returns each member's loss per token in its last step, NaN for one without text.
    """
    parameters = list(task.stack.parameters())
    settings, steps = schedules[0].training, schedules[0].steps
    # AdamW works element by element: the moments of a member's slice are that member's alone.
    optimiser = torch.optim.AdamW(
        parameters, lr=settings.learning_rate, weight_decay=settings.weight_decay, fused=True
    )
    checkpoint_folder.mkdir(parents=True, exist_ok=True)
    standing, _ = load_checkpoint(checkpoint_folder, task.model, [optimiser])
    if standing.step:
        progress.remark(f"resumed at step {standing.step} of {steps}")
    progress.phase("training", steps)
    progress.advance(standing.step)
    began, seen, losses = time.perf_counter(), 0, torch.full((len(schedules),), float("nan"))
    for step in range(standing.step, steps):
        for group in optimiser.param_groups:
            group["lr"] = schedules[0].learning_rate(step)
        tokens = torch.tensor([schedule.tokens_of(step) for schedule in schedules])
        losses = _gradients(task, [schedule.batches_of(step) for schedule in schedules], tokens, parameters)
        if not bool(torch.isfinite(clip_each_member(parameters, settings.clip)).all()):
            raise TrainingDiverged(
                "The gradient of a member is not finite; lower training.learning_rate or use "
                "model.dtype=fp32."
            )
        optimiser.step()
        seen += int(tokens.sum())
        mean = float(losses.nanmean())
        progress.advance(1, f"mean loss {mean:.3f}, {seen / (time.perf_counter() - began):.0f} tokens/s")
        if (step + 1) % checkpoint_every == 0:
            save_checkpoint(checkpoint_folder, Standing(step + 1), task.model, [optimiser])
    if not all(bool(torch.isfinite(parameter).all()) for parameter in parameters):
        raise TrainingDiverged("The trained weights are not finite; lower training.learning_rate.")
    return [float(loss) for loss in losses]


def _gradients(
    task: JointTask, batches: Sequence[list[IntArray]], tokens: Tensor, parameters: Sequence[nn.Parameter]
) -> Tensor:
    """Put into every member's slices the gradient of the mean loss over that member's own tokens."""
    for parameter in parameters:
        parameter.grad = None
    total = torch.zeros(len(tokens))
    for chosen in zip(*batches, strict=True):
        losses = task.summed_losses(chosen)
        # Each loss reaches its own member's matrices only, so that their sum has each member's gradient.
        (losses / tokens.clamp(min=1).to(losses.device)).sum().backward()  # type: ignore[no-untyped-call]
        total += losses.detach().cpu()
    return total / tokens  # 0 / 0 is NaN: a member without text has no loss


@torch.no_grad()
def clip_each_member(parameters: Sequence[nn.Parameter], clip: float) -> Tensor:
    """Scale each member's gradient down to a norm of ``clip``, by its own norm alone; returns the norms."""
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    norms_PM = torch.stack([torch.linalg.vector_norm(grad.flatten(1), dim=1) for grad in gradients])
    norms_M: Tensor = torch.linalg.vector_norm(norms_PM, dim=0)
    scale_M = (clip / (norms_M + _TINY)).clamp(max=1.0)
    for grad in gradients:
        grad.mul_(scale_M.view(-1, *[1] * (grad.dim() - 1)))
    return norms_M
