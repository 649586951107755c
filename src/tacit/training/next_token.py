"""The next-token objective: a batch in, the sum of its losses out, through a trunk where there is one."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tacit.models.adapters import attach
from tacit.models.fused_lora import fuse_lora
from tacit.models.likelihood import LossAndStates, NextTokenLoss
from tacit.models.loading import PublicModel
from tacit.models.trunk import refuse_uneven_cut, trunk_states, without_trunk
from tacit.progress import Progress
from tacit.recipes import AdapterSection, PerformanceSection
from tacit.training.encoding import Batch, EncodedCorpus, IntArray, Rows, lay_out
from tacit.training.trunk_cache import TrunkCache


class NextTokenTask:
    """A public model with its adapter, and the rows it learns from."""

    def __init__(
        self,
        public: PublicModel,
        adapter: AdapterSection,
        rows: Rows,
        *,
        autocast: bool,
        base_dropout: bool = True,
        fused: bool = True,
    ) -> None:
        self._base = public.model
        self._base_dropout = base_dropout
        self._loss = NextTokenLoss(public.model)
        if adapter.trunk_layers:
            refuse_uneven_cut(public.model, adapter.trunk_layers)
        self._rows = rows
        self._trunk_layers = adapter.trunk_layers
        self._trunk: TrunkCache | None = None
        self.autocast = autocast
        self._batch_arguments = batch_arguments(public)
        self.model: nn.Module = attach(public.model, adapter)
        # Who wants each example's gradient has to see adapters as layers of their own.
        if fused and public.family == "transformer":
            fuse_lora(self.model)

    def cache_trunk(self, performance: PerformanceSection, folder: Path, progress: Progress) -> None:
        """Run the frozen trunk over all rows once, if there is one and the recipe wants it kept."""
        if self._trunk_layers and performance.trunk_cache != "off":
            self._trunk = TrunkCache.compute(
                self._trunk_states,
                self._rows,
                self.make_batch,
                where=performance.trunk_cache,
                folder=folder,
                progress=progress,
            )

    @property
    def inputs_suffice(self) -> bool:
        """Whether `logits` takes any rows: with a cached trunk it takes only those that were cached."""
        return self._trunk is None

    def make_batch(self, rows: IntArray) -> Batch:
        """Some of the rows it learns from, as the model takes them."""
        return self.batch_of(self._rows, rows)

    def batch_of(self, layout: Rows, rows: IntArray) -> Batch:
        """Some rows of any text, as the model takes them."""
        return layout.batch(rows, **self._batch_arguments)

    def summed_loss(self, batch: Batch) -> Tensor:
        """Sum of the losses of the batch's labels."""
        if not self._base_dropout:
            self._set_mode()
        with torch.autocast(self._base.device.type, torch.bfloat16, enabled=self.autocast):
            return self._loss.summed(partial(self.logits, batch), batch.labels)

    def loss_and_states(self, batch: Batch) -> LossAndStates:
        """The same sum, and the hidden states that entered the head."""
        if not self._base_dropout:
            self._set_mode()
        with torch.autocast(self._base.device.type, torch.bfloat16, enabled=self.autocast):
            return self._loss.summed_with_states(partial(self.logits, batch), batch.labels)

    def states_of(self, batch: Batch) -> Tensor:
        """The hidden states that enter the head, without running it; differentiable."""
        with torch.autocast(self._base.device.type, torch.bfloat16, enabled=self.autocast):
            return self._loss.states(partial(self.logits, batch))

    def mean_loss_of(self, batches: Iterable[Batch]) -> float:
        """Mean loss per label over some batches, without gradients."""
        total, labels = 0.0, 0
        for batch in batches:
            losses = self._loss.per_token(partial(logits_of, self.model, batch), batch.labels)
            total += float(losses.double().sum())
            labels += batch.label_count
        return total / labels

    def _set_mode(self) -> None:
        self._base.train(self._base_dropout)
        if not self._base_dropout:
            for module in self._base.modules():
                if isinstance(own := getattr(module, "lora_dropout", None), nn.Module):
                    own.train()

    def _trunk_states(self, batch: Batch) -> Tensor:
        with torch.autocast(self._base.device.type, torch.bfloat16, enabled=self.autocast):
            return trunk_states(self._base, self._trunk_layers, batch.inputs)

    def logits(self, batch: Batch) -> Tensor:
        """The logits of a batch, through the trunk where there is one."""
        if not self._trunk_layers:
            return logits_of(self.model, batch)
        if self._trunk is not None:
            states = self._trunk.states_for(batch)
        else:
            # Always without dropout, as for the cache: caching must not change what is learnt.
            self._base.eval()
            states = self._trunk_states(batch)
            self._set_mode()
        with without_trunk(self._base, self._trunk_layers) as upper:
            upper_logits: Tensor = upper(states, batch.inputs).logits
            return upper_logits


def logits_of(model: nn.Module, batch: Batch) -> Tensor:
    """The whole model's logits for a batch."""
    logits: Tensor = model(**batch.inputs).logits
    return logits


@torch.no_grad()
def can_pack(public: PublicModel) -> bool:
    """Whether a mask keeps packed pieces apart in this model: found out, not assumed.

    A recurrent model carries its state from one piece into the next whatever the mask says, and some
    transformers take no mask of this form.
    """
    attention = getattr(public.model.config, "_attn_implementation", None)
    if public.family == "lstm" or attention not in ("sdpa", "eager"):
        return False
    size = 4
    tokens = np.arange(1, 2 * size + 1, dtype=np.int32) % len(public.tokenizer)
    starts = np.array([0, size, 2 * size])
    one_user = np.zeros(2, np.int64)
    pieces = EncodedCorpus(
        tokens, starts, one_user, [""], np.zeros(1, np.int64), public.start_token, np.arange(2), 2
    )
    arguments = {"attention": attention, "pad_token": public.start_token, "device": public.model.device}
    together = lay_out(pieces, block_size=2 * size, packing=True).batch(np.array([0]), **arguments)
    apart = lay_out(pieces, block_size=size, packing=False).batch(np.arange(2), **arguments)
    try:
        packed = logits_of(public.model, together).float().view(2, size, -1)
        single = logits_of(public.model, apart).float()
    except (TypeError, ValueError, RuntimeError, IndexError):
        return False
    tolerance = 1e-3 if public.model.dtype == torch.float32 else 5e-2
    return bool((packed - single).abs().max() <= tolerance * single.abs().max().clamp(min=1))


def batch_arguments(public: PublicModel) -> dict[str, Any]:
    """How rows become batches for this model."""
    attention = public.model.config._attn_implementation if can_pack(public) else None
    return {"attention": attention, "pad_token": public.start_token, "device": public.model.device}
