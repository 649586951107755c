"""Private and public steps on one model: sampler, engine, noise and account are coupled here, once."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from torch import nn

from tacit.errors import InputError, ModelError, TrainingDiverged
from tacit.training.encoding import Batch, IntArray
from tacit.training.private_steps.choice import Choice, StepPerformance, Workshop, choose
from tacit.training.private_steps.clipping import GradientSum
from tacit.training.private_steps.engine import Engine, StepTally
from tacit.training.private_steps.examples import Examples
from tacit.training.private_steps.noise import CipherNoise, Noisy
from tacit.training.private_steps.objective import Objective, labels_per_row
from tacit.training.private_steps.reach import Reach, held_by, modules_of, refuse_unusable
from tacit.training.private_steps.sampling import PoissonSampler
from tacit.training.private_steps.settings import PrivateAccount, StepPrivacy


class PrivateTrainer:
    """Takes DP-SGD steps, and ordinary ones on public text, with one model.

    Formal guarantee: what the private steps release is what `StepPrivacy` says, and ``account`` holds how
    many were taken. Public steps are outside of it: only text that needs no protection may enter them. A
    step is refused while anything else that model, objective or optimisers hold could learn from a private
    loss (`reach`); gradients of parameters that none of them holds are the caller's to drop.

    Args:
        model: what is trained; parameters with ``requires_grad`` change, and no others may get it later.
        objective: the loss.
        optimiser: of private steps, any of torch's that takes dense gradients and needs no closure.
        examples: the private records.
        privacy: the mechanism.
        performance: how it is computed.
        public_optimiser: of public steps; by default the same one, whose state then mixes both kinds of
            gradient. That costs no privacy, but noise in an optimiser's second moments lasts.
        seed: for experiments and tests: sampling and noise become functions of it, and protect nothing.
    """

    def __init__(
        self,
        model: nn.Module,
        objective: Objective,
        optimiser: torch.optim.Optimizer,
        examples: Examples,
        privacy: StepPrivacy,
        performance: StepPerformance | None = None,
        *,
        public_optimiser: torch.optim.Optimizer | None = None,
        seed: int | None = None,
    ) -> None:
        if privacy.population != len(examples):
            raise InputError(
                f"Expected population={privacy.population} to be the number of examples, which is "
                f"{len(examples)}."
            )
        _refuse_batch_statistics(model)
        for one in (optimiser, public_optimiser or optimiser):
            refuse_unusable(one)
        self._model = model
        self._parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        if not self._parameters:
            raise ModelError("The model has no parameter to train; set requires_grad on some.")
        self._objective = objective
        self._optimiser = optimiser
        self._public_optimiser = public_optimiser or optimiser
        read = list(dict.fromkeys([*modules_of(objective), model]))
        self._reach = Reach(self._parameters, read, optimiser, self._public_optimiser)
        self._reach.refuse_others()
        self._examples = examples
        self._privacy = privacy
        self._performance = performance or StepPerformance()
        self._sampler = PoissonSampler(privacy, seed)
        self._noise = Noisy(CipherNoise(seed))
        self._total = GradientSum(self._parameters)
        width = self._performance.width
        self._workshop = Workshop(model, objective, privacy, measures=seed is None, width=width)
        self._use(choose(self._workshop, self._performance))
        self._steps = 0
        self._in_public = False

    @property
    def engine(self) -> str:
        """Which engine computes examples of one row."""
        return self._choice.engine

    @property
    def choice(self) -> Choice:
        """The engine that computes examples of one row, and how many it takes at once."""
        return self._choice

    @property
    def account(self) -> PrivateAccount:
        """Private steps taken so far."""
        return PrivateAccount(self._steps, self._privacy.sampling_rate, self._privacy.noise_multiplier)

    def step(self) -> StepTally:
        """One private step on a Poisson sample of the examples."""
        return self.step_on(self._sampler.draw(self._steps))

    def step_on(self, chosen: IntArray) -> StepTally:
        """One private step on given examples; the account holds only if they are a Poisson sample."""
        if self._in_public:
            raise InputError("A private step cannot be taken inside public(); leave the block first.")
        self._reach.refuse_others()
        total = self._total
        total.clear()
        tally = StepTally()
        if self._privacy.slots:
            self._add_groups(chosen, total, tally)
        else:
            self._add_examples(chosen, total, tally)
        self._release(total)
        return tally

    @contextlib.contextmanager
    def public(self) -> Iterator[PublicSteps]:
        """Ordinary training at its ordinary speed while the block runs; no private step meanwhile."""
        if self._in_public:
            raise InputError("public() is open already; take the steps of the block that you are in.")
        self._in_public = True
        steps = PublicSteps(self._parameters, self._objective, self._public_optimiser)
        try:
            yield steps
        finally:
            self._in_public = False
            _forget_gradients(steps.parameters)

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs beside weights and optimiser: the account. Noise is never saved."""
        return {"account": self.account.to_json(), "engine": asdict(self._choice)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved account, which must be of the same mechanism."""
        saved = PrivateAccount.from_json(state.get("account", {}))
        if (saved.sampling_rate, saved.noise_multiplier) != (
            self._privacy.sampling_rate,
            self._privacy.noise_multiplier,
        ):
            raise InputError(
                f"The saved account is of sampling_rate={saved.sampling_rate} and noise_multiplier="
                f"{saved.noise_multiplier}; a run goes on only with the settings it began with."
            )
        self._steps = saved.steps
        if self._performance.engine == "auto" and "engine" in state:
            self._use(_saved_choice(state))  # measured anew it might be another, with other rounding

    def _use(self, choice: Choice) -> None:
        self._choice = choice
        make_batch = self._examples.make_batch
        self._loop = self._workshop.loop(make_batch, choice.microbatch)
        self._engine: Engine = self._loop
        if choice.engine == "book-keeping":
            self._engine = self._workshop.book_keeping(make_batch)

    def _add_examples(self, chosen: IntArray, total: GradientSum, tally: StepTally) -> None:
        rows = [self._examples.rows[example] for example in chosen]
        single = np.array([own[0] for own in rows if len(own) == 1], dtype=np.int64)
        # Like lengths together: less padding. The order of a sum changes nothing but its rounding.
        single = single[np.argsort(self._examples.lengths[single], kind="stable")]
        for begin in range(0, len(single), self._choice.microbatch):
            self._engine.add_rows(single[begin : begin + self._choice.microbatch], total, tally)
        for own in rows:
            if len(own) > 1:
                self._loop.add_whole(own, np.zeros(len(own), np.int64), total, tally)

    def _add_groups(self, chosen: IntArray, total: GradientSum, tally: StepTally) -> None:
        slots = self._sampler.slots(self._steps, len(chosen))
        for slot in np.unique(slots):
            rows = [self._examples.rows[example] for example in chosen[slots == slot]]
            owners = np.repeat(np.arange(len(rows)), [len(own) for own in rows])
            if len(owners):
                self._loop.add_whole(np.concatenate(rows), owners, total, tally)

    def _release(self, total: GradientSum) -> None:
        """Noise, once for the whole step and for every parameter, whoever was sampled; then the optimiser."""
        try:
            self._reach.refuse_others()  # again: computing the loss may have changed what is trained
        except ModelError:
            self._reach.forget_others()
            raise
        self._noise.begin_step(self._steps)
        for parameter, own in total.totals():
            if not self._noise.release(own, self._privacy.noise_deviation, self._privacy.divisor):
                raise TrainingDiverged("A noisy gradient is not finite; nothing was released of this step.")
            parameter.grad = own.to(parameter.dtype)
        # Counted before the weights change: a crash in between may over-count, never under-count.
        self._steps += 1
        self._optimiser.step()
        _forget_gradients(self._parameters)


class PublicSteps:
    """Ordinary steps on public text, of the trainer's parameters and of all that their optimiser holds."""

    def __init__(
        self, parameters: Sequence[nn.Parameter], objective: Objective, optimiser: torch.optim.Optimizer
    ) -> None:
        self._own = parameters
        self._objective = objective
        self._optimiser = optimiser

    @property
    def parameters(self) -> list[nn.Parameter]:
        """What a step may change, each once."""
        return list(dict.fromkeys([*self._own, *held_by(self._optimiser)]))

    def step(self, batches: Sequence[Batch], *, clip: float | None = None) -> float:
        """One step on the mean loss per label over all batches; returns that loss."""
        parameters = self.parameters
        _forget_gradients(parameters)  # also those of a loss that is none of these steps'
        labels = sum(int(labels_per_row(batch).sum()) for batch in batches)
        total = 0.0
        for batch in batches:
            weights = torch.full((len(batch.labels),), 1 / max(1, labels), device=batch.labels.device)
            loss = self._objective.weighted(batch, weights)
            loss.backward()  # type: ignore[no-untyped-call]
            total += float(loss.detach())
        norm = nn.utils.clip_grad_norm_(parameters, clip if clip is not None else float("inf"))
        if not torch.isfinite(norm):
            raise TrainingDiverged("The gradient of a public step is not finite; lower the learning rate.")
        self._optimiser.step()
        return total


def _saved_choice(state: dict[str, Any]) -> Choice:
    try:
        return Choice(**state["engine"])
    except TypeError:
        raise InputError("The saved engine of the private steps is damaged; begin again.") from None


def _forget_gradients(parameters: Sequence[nn.Parameter]) -> None:
    for parameter in parameters:
        parameter.grad = None


def _refuse_batch_statistics(model: nn.Module) -> None:
    for name, module in model.named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            raise ModelError(
                f"{name} normalises over the batch, so that one example changes another's gradient; private "
                "steps need a model without batch statistics."
            )
