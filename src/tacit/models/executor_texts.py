"""What executors have in common: open texts in slots, and tokens that the public model knows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from tacit.errors import ModelError
from tacit.models.ensemble_model import refuse_unknown_tokens
from tacit.models.kv_slots import SlotTable
from tacit.models.loading import PublicModel


class TextMemory(Protocol):
    """What an executor's engine remembers of the texts in its slots."""

    vocabulary_size: int
    device: torch.device

    def begin(self, slot: int) -> None:
        """Forget what a slot held."""


class OpenTexts:
    """The slots of an executor, whose constructor sets the engine."""

    _engine: TextMemory

    def __init__(self, public: PublicModel, slots: int, context: int) -> None:
        if context > public.context_length:
            raise ModelError(
                f"Expected context={context} <= {public.context_length}, the longest text that "
                f"{public.name} takes; choose a shorter context."
            )
        self._table = SlotTable(slots, context)

    @property
    def slots(self) -> int:
        """How many texts can be open at once."""
        return self._table.slots

    @property
    def context(self) -> int:
        """Longest text that a slot holds, start token included."""
        return self._table.context

    def open(self) -> int:
        """Take a free slot for a new text."""
        slot = self._table.open()
        self._engine.begin(slot)
        return slot

    def close(self, slot: int) -> None:
        """Give a slot back."""
        self._table.close(slot)

    def length(self, slot: int) -> int:
        """Tokens that a slot holds."""
        return self._table.length(slot)

    def _ids(self, tokens: Sequence[Sequence[int]]) -> Tensor:
        ids = torch.tensor(tokens, device=self._engine.device)
        refuse_unknown_tokens(ids, self._engine.vocabulary_size)
        return ids
