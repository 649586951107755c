"""Ensembles of whole models (`top`, `full`): one after the other behind the same interface.

Every member's weights have to be read for every token, so that nothing is gained by a batch. Lower layers
that all members have in common with the public model run once, by the public model.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tacit.errors import ModelError
from tacit.models.ensemble_attention import GroupedPass, Pass, SlotPass, WholeTextPass
from tacit.models.ensemble_model import EnsembleModel, private_copy
from tacit.models.executor_batched import read_into_slots, slot_memory
from tacit.models.kv_slots import KVSlots, StateSlots
from tacit.models.loading import PublicModel, load_public_model
from tacit.models.trunk import layer_list


class WholeModelsEngine:
    """The public model (row 0) and members that are models of their own."""

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
        self.models = 1 + len(members)
        loaded = [public.model if folder is None else _load_member(public, folder) for folder in members]
        self.trunk_layers = min(_common_layers(public.model, member) for member in loaded)
        # A member that is None runs the public model once more: it does the work of any other.
        self._ensembles = [
            EnsembleModel(private_copy(model, dtype), self.trunk_layers, pack=pack)
            for model in (public.model, *loaded)
        ]
        self._ensembles[0].check_against(public, 1)
        self.vocabulary_size, self.device = self._ensembles[0].vocabulary_size, self._ensembles[0].device
        self._memories: list[KVSlots | StateSlots] = []
        for number, ensemble in enumerate(self._ensembles):
            # Recurrent states are listed for the layers that run; keys and values by the layer's number.
            absent = self.trunk_layers if number and ensemble.recurrent else 0
            self._memories.append(slot_memory(ensemble, [1] * (public.n_layers - absent), slots, context))

    def begin(self, slot: int) -> None:
        """Forget what a slot held."""
        for memory in self._memories:
            if isinstance(memory, StateSlots):
                memory.clear(slot)

    def copy(self, source: int, targets: Sequence[int], length: int) -> None:
        """Let slots remember what another does."""
        for memory in self._memories:
            memory.copy(source, targets, length)

    def advance(self, slots: Sequence[int], starts: Sequence[int], tokens: Tensor) -> Tensor:
        """Read [texts, time] tokens into slots; logits after the last one, [models, texts, vocabulary]."""
        relay = _TrunkRelay(open=self.trunk_layers > 0)
        rows = []
        for number, (ensemble, memory) in enumerate(zip(self._ensembles, self._memories, strict=True)):
            current: Pass = (
                _RelayedSlots(relay, memory, slots, starts)
                if isinstance(memory, KVSlots)
                else _RelayedStates(relay)
            )
            upper_only = number > 0 and self.trunk_layers > 0
            logits = read_into_slots(ensemble, memory, current, slots, starts, tokens, upper_only=upper_only)
            rows.append(logits[:, 0])
        return torch.stack(rows)

    def read(self, slots: Sequence[int], starts: Sequence[int], tokens: Tensor) -> None:
        """Read [texts, time] tokens into slots."""
        self.advance(slots, starts, tokens)

    def score(self, tokens: Tensor, block: int) -> Iterator[Tensor]:
        """Logits of whole texts, a block of positions at a time."""
        relay = _TrunkRelay(open=self.trunk_layers > 0)
        hidden = [
            ensemble.final_hidden(
                _RelayedText(relay), tokens, upper_only=number > 0 and self.trunk_layers > 0
            )
            for number, ensemble in enumerate(self._ensembles)
        ]
        for start in range(0, tokens.shape[1], block):
            yield torch.stack(
                [
                    ensemble.predict(states[:, start : start + block])
                    for ensemble, states in zip(self._ensembles, hidden, strict=True)
                ]
            )


class _TrunkRelay:
    """Hands the trunk's output, which the first model computes, to all that follow.

    Without a trunk it stays closed: below layer 0 there are only embeddings, and those are each model's own.
    """

    def __init__(self, *, open: bool) -> None:
        self._open = open
        self._states: Tensor | None = None

    def pass_on(self, hidden: Tensor) -> Tensor:
        if self._states is None or not self._open:
            self._states = hidden
        return self._states


class _RelayedStates(GroupedPass):
    def __init__(self, relay: _TrunkRelay) -> None:
        super().__init__(1)
        self._relay = relay

    def fork(self, hidden: Tensor) -> Tensor:
        return self._relay.pass_on(hidden)


class _RelayedSlots(SlotPass):
    def __init__(
        self, relay: _TrunkRelay, memory: KVSlots, slots: Sequence[int], starts: Sequence[int]
    ) -> None:
        super().__init__(1, memory, slots, starts)
        self._relay = relay

    def fork(self, hidden: Tensor) -> Tensor:
        return self._relay.pass_on(hidden)


class _RelayedText(WholeTextPass):
    def __init__(self, relay: _TrunkRelay) -> None:
        super().__init__(1)
        self._relay = relay

    def fork(self, hidden: Tensor) -> Tensor:
        return self._relay.pass_on(hidden)


def _load_member(public: PublicModel, folder: Path) -> Any:
    member = load_public_model(str(folder), dtype=public.model.dtype, start_token=public.start_token).model
    sizes = [
        (type(model).__name__, len(layer_list(model)[2]), tuple(model.get_input_embeddings().weight.shape))
        for model in (public.model, member)
    ]
    if sizes[0] != sizes[1]:
        raise ModelError(
            f"{folder} is not a fine-tuned {public.name} (class, layers or vocabulary differ); the members "
            "of an ensemble start from one public model."
        )
    return member.to(public.model.device)


def _common_layers(public: Any, member: Any) -> int:
    """How many lower layers a member shares with the public model; none where an embedding changed."""
    embeddings = [
        [module for module in model.modules() if isinstance(module, nn.Embedding)]
        for model in (public, member)
    ]
    if not all(_equal(first, second) for first, second in zip(*embeddings, strict=True)):
        return 0
    pairs = list(zip(layer_list(public)[2], layer_list(member)[2], strict=True))
    # The last layer is never shared, so that a trunk always ends before some layer.
    for number, (first, second) in enumerate(pairs[:-1]):
        if not _equal(first, second):
            return number
    return len(pairs) - 1


def _equal(first: nn.Module, second: nn.Module) -> bool:
    return all(
        torch.equal(mine, theirs)
        for mine, theirs in zip(first.parameters(), second.parameters(), strict=True)
    )
