"""`method: selective`: selective DP-SGD (Shi et al. 2021), the baseline that trusts its policy.

Noise and clipping touch only what is computed from tokens that the policy calls sensitive: their gradients,
and the state that leaves a sensitive stretch. All other gradients are ordinary ones.

Formal guarantee: with a policy that misses nothing, (epsilon, delta) for one sensitive stretch replaced by
another of the same length. Such a stretch moves one clipped gradient and one clipped state in every pass
over its document. Both are noised by sqrt(2) sigma, which together is one Gaussian mechanism with
multiplier sigma; there is one pass per epoch. **Nothing is gained by sampling**: a document's other
gradients are released without noise, so that everybody can see whether it was in a batch. The authors
account Poisson sampling all the same; their figure is labelled ``paper``. With a policy that may miss
something there is no finite epsilon, and the Run says so.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tacit.errors import InputError, RecipeError, TrainingDiverged
from tacit.files import write_json
from tacit.models.lstm import LSTMForCausalLM
from tacit.privacy import DpSgdProcess, Guarantee, PrivacyCurve, calibrate_noise, dpsgd_curve
from tacit.progress import Progress, Silent
from tacit.recipes import PrivacySection, Recipe, SelectiveSection
from tacit.runs import Run, RunBuilder
from tacit.training.building import build_run, record_of, seed_of
from tacit.training.checkpoint import Standing, load_checkpoint, save_checkpoint, trainable
from tacit.training.dpsgd import outside_of, pin, prepare_unpacked, privacy_of
from tacit.training.finetune import save_trained, task_for
from tacit.training.optimisers import optimiser_for, set_rate
from tacit.training.preparation import Prepared
from tacit.training.private_steps.clipping import norm_of
from tacit.training.private_steps.noise import CipherNoise, NoiseSource, Noisy
from tacit.training.schedule import learning_rate
from tacit.training.selective_lstm import MarkedRows, StateNoise, one_layer, position_losses
from tacit.training.sensitive_tokens import MarkedDocuments, mark, sensitive_spans

PAPER = "paper: as if sampling amplified, which unnoised gradients of the same documents undo"


@dataclass(frozen=True)
class SelectiveAccount:
    """What the passes cost if the policy misses nothing; ``paper`` is the authors' account of them."""

    process: DpSgdProcess
    section: PrivacySection
    paper: DpSgdProcess

    @classmethod
    def of(cls, recipe: Recipe, documents: int) -> SelectiveAccount:
        """Calibrated where the recipe names an epsilon."""
        section, training = privacy_of(recipe), recipe.training
        noise = section.noise_multiplier
        if noise is None:
            assert section.epsilon is not None  # noqa: S101 - a section has one of the two
            try:
                noise = calibrate_noise(
                    section.epsilon,
                    section.delta,
                    sampling_rate=1.0,
                    steps=training.epochs,
                    adjacency="replace-one",
                )
            except InputError as problem:
                raise RecipeError(f"privacy.{problem}") from None
        rate = min(1.0, training.batch_size * training.accumulate / documents)
        steps = training.epochs * math.ceil(1 / rate)
        return cls(DpSgdProcess(1.0, noise, training.epochs), section, DpSgdProcess(rate, noise, steps))

    @property
    def curve(self) -> PrivacyCurve:
        """For one stretch replaced."""
        return dpsgd_curve(self.process, "replace-one")

    @property
    def part_multiplier(self) -> float:
        """The noise of either part: gradient and state together are one mechanism of ``noise_multiplier``."""
        return math.sqrt(2) * self.process.noise_multiplier

    def guarantee(self, prepared: Prepared) -> Guarantee:
        """Infinite, unless the recipe vouches for the policy."""
        return Guarantee.selective(
            epsilon=self.curve.epsilon_at(self.section.delta),
            delta=self.section.delta,
            perfect_policy=selective_of(prepared.recipe).perfect,
            outside=outside_of(prepared),
        )

    def to_json(self) -> dict[str, Any]:
        """As saved in a Run."""
        curve = self.curve
        paper = dpsgd_curve(self.paper, "add-remove").epsilon_at(self.section.delta)
        return {
            "process": self.process.to_json(),
            "if_the_policy_misses_nothing": _number(curve.epsilon_at(self.section.delta)),
            "delta": self.section.delta,
            "curves": [curve.to_json()],
            "paper": {"process": self.paper.to_json(), "epsilon": _number(paper), "label": PAPER},
        }


def _number(epsilon: float) -> float | str:
    return str(epsilon) if math.isinf(epsilon) else epsilon


def selective_of(recipe: Recipe) -> SelectiveSection:
    """The section that this method has."""
    if recipe.selective is None:
        raise RecipeError("method 'selective' needs a section 'selective'; add it.")
    return recipe.selective


def train_selectively(recipe: Recipe, *, resume: bool = False, progress: Progress | None = None) -> Run:
    """Train a Run by selective DP-SGD; with ``resume``, go on where a killed run stopped."""
    return build_run(recipe, _train, resume=resume, progress=progress or Silent())


def marked_documents(prepared: Prepared) -> MarkedDocuments:
    """The training side's documents with their sensitive tokens."""
    recipe, corpus = prepared.recipe, prepared.corpus
    if corpus.whole.has_masks:
        raise RecipeError(
            "method 'selective' learns from the raw text; selective.screened says what is sensitive in it; "
            "set corpus.path to the raw corpus."
        )
    tokenizer, section = prepared.public.tokenizer, selective_of(recipe)
    return mark(
        corpus.train,
        sensitive_spans(Path(section.screened), corpus.whole, promised=section.perfect),
        tokenizer,
        block_size=recipe.training.block_size,
        end_token=tokenizer.tokenizer.eos_token_id,
    )


def _train(recipe: Recipe, builder: RunBuilder, progress: Progress) -> Run:
    work = builder.new_work()
    prepared = prepare_unpacked(recipe, work, progress)
    documents = marked_documents(prepared)
    pin(builder, prepared, sensitive_tokens=documents.fingerprint)
    account = SelectiveAccount.of(recipe, len(documents))
    seed = seed_of(recipe, builder)
    torch.manual_seed(seed)
    task = task_for(prepared)
    steps = _Steps(one_layer(task.model), documents, account, prepared, seed)
    loss = steps.take(builder.checkpoint, progress)
    layout = save_trained(task, prepared, builder, holds_private_text=True)
    content = {
        "users": len(prepared.corpus.train.users),
        "documents": len(documents),
        "tokens": documents.tokens,
        "sensitive_tokens": documents.sensitive_tokens,
        "steps": steps.steps,
        "final_loss": loss,
    }
    write_json(builder.private / "training.json", content, private=True, overwrite=True)
    prepared.corpus.whole.close()
    return builder.finish(
        method=recipe.method,
        recipe=recipe.to_json(),
        public_model=record_of(prepared.public),
        weights=layout,
        guarantee=account.guarantee(prepared).to_json(),
        privacy={"selective": account.to_json()},
        corpus_fingerprint=prepared.corpus.whole.fingerprint,
        seeded=recipe.training.seed is not None,
    )


class _Steps:
    """The whole training: every document once in every epoch, in an order that the seed decides."""

    def __init__(
        self,
        model: LSTMForCausalLM,
        documents: MarkedDocuments,
        account: SelectiveAccount,
        prepared: Prepared,
        seed: int,
    ) -> None:
        self._model = model
        self._documents = documents
        self._account = account
        self._recipe = prepared.recipe
        self._start_token = prepared.public.start_token
        self._seed = seed
        self._parameters = list(trainable(model).values())
        self._optimiser = optimiser_for(self._parameters, self._recipe.training)
        self._noise: NoiseSource = CipherNoise(self._recipe.training.seed)

    @property
    def _batch(self) -> int:
        return self._recipe.training.batch_size * self._recipe.training.accumulate

    @property
    def _per_epoch(self) -> int:
        return math.ceil(len(self._documents) / self._batch)

    @property
    def steps(self) -> int:
        """In all."""
        return self._recipe.training.epochs * self._per_epoch

    def take(self, checkpoints: Path, progress: Progress) -> float | None:
        """All steps, from the newest checkpoint where there is one; returns the last loss."""
        training = self._recipe.training
        torch.manual_seed(self._seed)
        checkpoints.mkdir(parents=True, exist_ok=True)
        standing, _ = load_checkpoint(checkpoints, self._model, [self._optimiser])
        if standing.step:
            progress.remark(f"resumed at step {standing.step} of {self.steps}")
        progress.phase("training", self.steps)
        progress.advance(standing.step)
        self._model.train()
        loss: float | None = None
        for step in range(standing.step, self.steps):
            set_rate(self._optimiser, learning_rate(training, self.steps, step))
            self._noise.begin_step(step)
            loss = self._step(self._documents_of(step))
            progress.advance(1, f"loss {loss:.3f}")
            if (step + 1) % self._recipe.performance.checkpoint_every == 0:
                save_checkpoint(checkpoints, Standing(step + 1), self._model, [self._optimiser])
        self._model.eval()
        return loss

    def _documents_of(self, step: int) -> list[int]:
        epoch, place = divmod(step, self._per_epoch)
        order = np.random.default_rng([self._seed, epoch]).permutation(len(self._documents))
        chosen: list[int] = order[place * self._batch : (place + 1) * self._batch].tolist()
        return chosen

    def _step(self, chosen: list[int]) -> float:
        plain = [torch.zeros_like(parameter) for parameter in self._parameters]
        sensitive = [torch.zeros_like(parameter) for parameter in self._parameters]
        loss = 0.0
        # A document's gradient goes back through all that was computed beside it: the fewer, the faster.
        at_once = self._recipe.performance.microbatch or len(chosen)
        for begin in range(0, len(chosen), at_once):
            loss += self._add(chosen[begin : begin + at_once], plain, sensitive)
        noisy = Noisy(self._noise)
        for tensor in sensitive:
            noisy.release(tensor, self._account.part_multiplier * self._account.section.clip, len(chosen))
        for parameter, one, other in zip(
            self._parameters, self._clipped(plain, len(chosen)), sensitive, strict=True
        ):
            parameter.grad = one + other
            if not bool(torch.isfinite(parameter.grad).all()):
                raise TrainingDiverged("A gradient is not finite; lower training.learning_rate.")
        self._optimiser.step()
        self._optimiser.zero_grad(set_to_none=True)
        return loss / len(chosen)

    def _add(self, chosen: list[int], plain: list[Tensor], sensitive: list[Tensor]) -> float:
        """Add the gradients of some of a batch's documents to both parts; returns their losses' sum."""
        own = [self._documents.pieces[number] for number in chosen]
        owners = torch.tensor([place for place, pieces in enumerate(own) for _ in pieces])
        rows = MarkedRows.of([piece for pieces in own for piece in pieces], self._start_token)
        noise = StateNoise(selective_of(self._recipe).state_clip, self._account.part_multiplier, self._noise)
        losses = position_losses(self._model, rows, noise)
        labels = (rows.labels >= 0).sum(dim=1)
        of_document = torch.zeros(len(own), dtype=torch.long).index_add_(0, owners, labels)
        shares = losses / of_document[owners].clamp(min=1)[:, None]
        torch._foreach_add_(plain, self._gradients(shares.masked_fill(rows.sensitive, 0.0).sum()))
        by_row = shares.masked_fill(~rows.sensitive, 0.0).sum(dim=1)
        self._add_sensitive(by_row, owners, rows, sensitive)
        return float(shares.detach().sum())

    def _add_sensitive(self, by_row: Tensor, owners: Tensor, rows: MarkedRows, total: list[Tensor]) -> None:
        """Add each document's clipped gradient of what is sensitive in it; the noise comes once, on top."""
        clip = self._account.section.clip
        for document in sorted(set(owners[rows.sensitive.any(dim=1)].tolist())):
            gradients = self._gradients(by_row[owners == document].sum())
            norm = norm_of(gradients)
            if bool(torch.isfinite(norm)):
                factor = (clip / norm.clamp(min=1e-30)).clamp(max=1.0)
                torch._foreach_add_(total, [gradient * factor for gradient in gradients])

    def _clipped(self, total: list[Tensor], documents: int) -> list[Tensor]:
        """The mean gradient of what is not sensitive, as plain training has it."""
        gradients = [gradient / documents for gradient in total]
        norm = norm_of(gradients)
        factor = (self._recipe.training.clip / norm.clamp(min=1e-30)).clamp(max=1.0)
        return [gradient * factor for gradient in gradients]

    def _gradients(self, loss: Tensor) -> list[Tensor]:
        return list(
            torch.autograd.grad(
                loss, self._parameters, retain_graph=True, allow_unused=True, materialize_grads=True
            )
        )
