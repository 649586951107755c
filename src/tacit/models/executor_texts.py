"""What executors have in common: open texts in slots, and tokens that the public model knows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from tacit.errors import ModelError
from tacit.models.ensemble_model import refuse_unknown_tokens
from tacit.models.kv_slots import SlotTable
from tacit.models.loading import PublicModel


@dataclass(frozen=True)
class LogitsAmong:
    """What comes next in some texts, where members are heard only on the tokens the public model ranks first.

    public   [texts, vocabulary]
    tokens   [texts, n] the n tokens with the largest public logits
    members  [members asked, texts, n] their logits of those tokens
    """

    public: Tensor
    tokens: Tensor
    members: Tensor


def among(logits: Tensor, support: int) -> LogitsAmong:
    """From logits [models, texts, vocabulary] of all tokens, the public model's in row 0."""
    tokens = logits[0].topk(support).indices
    return LogitsAmong(logits[0], tokens, logits[1:].gather(-1, tokens.expand(len(logits) - 1, -1, -1)))


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

    def _within_vocabulary(self, support: int) -> int:
        if support < 1:
            raise ModelError(f"support={support}: members must be heard on one token or more.")
        return min(support, self._engine.vocabulary_size)

    def _ids(self, tokens: Sequence[Sequence[int]]) -> Tensor:
        ids = torch.tensor(tokens, device=self._engine.device)
        refuse_unknown_tokens(ids, self._engine.vocabulary_size)
        return ids
