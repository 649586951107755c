"""Ensembles of low-rank adapters: one batch, one read of every frozen weight.

Layers below the lowest adapter are the same in all models; they are the trunk and run once per text.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from tacit.models.ensemble_attention import GroupedPass, Pass, ReadingPass, SlotPass, WholeTextPass
from tacit.models.ensemble_files import load_adapters
from tacit.models.ensemble_model import EnsembleModel, private_copy
from tacit.models.kv_slots import KVSlots, StateSlots
from tacit.models.loading import PublicModel
from tacit.models.lstm import LayerState, LSTMState
from tacit.models.stacked_lora import AdapterStack, layer_number


class BatchedEngine:
    """The public model (row 0) and all members as groups of rows of one model."""

    def __init__(
        self,
        public: PublicModel,
        members: Sequence[Path | None],
        slots: int,
        context: int,
        dtype: torch.dtype,
        *,
        pack: bool | None = None,
    ) -> None:
        model = private_copy(public.model, dtype)
        self.stack: AdapterStack = load_adapters(model, members, public_groups=1, dtype=dtype)
        self.models = 1 + len(members)
        self.trunk_layers = min(layer_number(model, path) for path in self.stack.layers)
        self.ensemble = EnsembleModel(model, self.trunk_layers, pack=pack)
        self.ensemble.check_against(public, self.models)
        self.vocabulary_size, self.device = self.ensemble.vocabulary_size, self.ensemble.device
        copies = [1 if layer < self.trunk_layers else self.models for layer in range(public.n_layers)]
        self.memory = slot_memory(self.ensemble, copies, slots, context)

    def begin(self, slot: int) -> None:
        """Forget what a slot held; keys and values need nothing, they are read only once written."""
        if isinstance(self.memory, StateSlots):
            self.memory.clear(slot)

    def copy(self, source: int, targets: Sequence[int], length: int) -> None:
        """Let slots remember what another does."""
        self.memory.copy(source, targets, length)

    def advance(self, slots: Sequence[int], starts: Sequence[int], tokens: Tensor) -> Tensor:
        """Read [texts, time] tokens into slots; logits after the last one, [models, texts, vocabulary]."""
        return self.advance_some(slots, starts, tokens, None).view(self.models, len(slots), -1)

    def advance_some(
        self, slots: Sequence[int], starts: Sequence[int], tokens: Tensor, rows: Tensor | None
    ) -> Tensor:
        """The same with logits for some rows only, model-major; None is all. [rows, 1, vocabulary]."""
        current: GroupedPass = (
            SlotPass(self.models, self.memory, slots, starts, rows)
            if isinstance(self.memory, KVSlots)
            else GroupedPass(self.models, rows)
        )
        return read_into_slots(self.ensemble, self.memory, current, slots, starts, tokens)

    def read(self, slots: Sequence[int], starts: Sequence[int], tokens: Tensor) -> None:
        """Read [texts, time] tokens into slots, without logits."""
        if not isinstance(self.memory, KVSlots):
            self.advance(slots, starts, tokens)  # states come out of the whole pass only
            return
        current = ReadingPass(self.models, self.memory, slots, starts)
        positions = self.ensemble.positions(list(starts), tokens.shape[1])
        self.ensemble(current, tokens, position_ids=positions, use_cache=False)

    def score(self, tokens: Tensor, block: int) -> Iterator[Tensor]:
        """Logits of whole texts, a block of positions at a time."""
        hidden = self.ensemble.final_hidden(WholeTextPass(self.models), tokens)
        for start in range(0, tokens.shape[1], block):
            logits = self.ensemble.predict(hidden[:, start : start + block])
            yield logits.view(self.models, len(tokens), *logits.shape[1:])


def slot_memory(
    ensemble: EnsembleModel, copies: Sequence[int], slots: int, context: int
) -> KVSlots | StateSlots:
    """What the model's family remembers of a text."""
    if ensemble.recurrent:
        weight = ensemble.model.get_input_embeddings().weight
        return StateSlots(copies, slots, ensemble.model.config.hidden_size, weight)
    return KVSlots(copies, slots, context)


def read_into_slots(
    ensemble: EnsembleModel,
    memory: KVSlots | StateSlots,
    current: Pass,
    slots: Sequence[int],
    starts: Sequence[int],
    tokens: Tensor,
    *,
    upper_only: bool = False,
) -> Tensor:
    """Advance texts by [texts, time] tokens; the logits of the rows that ``current`` selects."""
    if isinstance(memory, KVSlots):
        positions = ensemble.positions(list(starts), tokens.shape[1])
        output = ensemble(current, tokens, upper_only=upper_only, position_ids=positions, use_cache=False)
    else:
        before = LSTMState(tuple(LayerState(hidden, cell) for hidden, cell in memory.read(slots)))
        output = ensemble(current, tokens, upper_only=upper_only, past_key_values=before, use_cache=True)
        memory.write(slots, [(state.hidden, state.cell) for state in output.past_key_values.layers])
    logits: Tensor = output.logits
    return logits
