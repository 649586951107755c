"""All models of an ensemble and the public model in one forward pass, for many texts at once.

What holds: row 0 of every result is the public model's, row m + 1 member m's; each equals the plain PEFT
model's logits up to rounding; and, shapes being equal, a model's logits are a function of its own weights,
the public weights and the text, to the last bit, so that nobody's row depends on another member's data.
A text's logits do not depend on what its slot held before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import torch
from torch import Tensor

from tacit.errors import ModelError
from tacit.models.ensemble_files import CONFIG_FILE
from tacit.models.ensemble_model import refuse_unknown_tokens
from tacit.models.executor_batched import BatchedEngine
from tacit.models.executor_texts import OpenTexts, TextMemory
from tacit.models.executor_whole import WholeModelsEngine
from tacit.models.loading import PublicModel

DEFAULT_CHUNK: Final = 64  # positions of a prompt that are read at once
DEFAULT_BLOCK: Final = 32  # positions whose logits `score` holds at once


class Engine(TextMemory, Protocol):
    """How the models of an ensemble are run; slots and lengths are the executor's business."""

    models: int
    trunk_layers: int

    def advance(self, slots: Sequence[int], starts: Sequence[int], tokens: Tensor) -> Tensor:
        """Read [texts, time] tokens into slots; logits after the last one, [models, texts, vocabulary]."""

    def read(self, slots: Sequence[int], starts: Sequence[int], tokens: Tensor) -> None:
        """The same without logits."""

    def copy(self, source: int, targets: Sequence[int], length: int) -> None:
        """Let slots remember the first ``length`` tokens of another."""

    def score(self, tokens: Tensor, block: int) -> Iterator[Tensor]:
        """Logits of whole texts, [models, texts, up to block positions, vocabulary] at a time."""


@dataclass(frozen=True)
class ScoredBlock:
    """Logits for some successive positions of whole texts."""

    start: int
    logits: Tensor  # [models, texts, positions, vocabulary]


class EnsembleExecutor(OpenTexts):
    """The public model and the members of an ensemble behind one set of slots.

    ``members`` are folders: PEFT adapters, which run batched, or whole models (`top`, `full`), which run one
    after the other. None is a member that holds nobody: it answers as the public model, with the same work.
    """

    def __init__(
        self,
        public: PublicModel,
        members: Sequence[Path | None],
        *,
        slots: int,
        context: int,
        dtype: torch.dtype = torch.float32,
        chunk: int = DEFAULT_CHUNK,
        pack: bool | None = None,
    ) -> None:
        """Set the models up; ``pack`` says whether frozen weights are rearranged (None: where it helps)."""
        super().__init__(public, slots, context)
        if chunk < 1:
            raise ModelError(f"Expected chunk={chunk} >= 1; choose for instance {DEFAULT_CHUNK}.")
        self._chunk = chunk
        self._engine: Engine = _engine(public, members, slots, context, dtype, pack=pack)
        self.models = self._engine.models
        self.trunk_layers = self._engine.trunk_layers

    def read(self, slot: int, tokens: Sequence[int]) -> None:
        """Read tokens into a slot, chunk by chunk."""
        if not tokens:
            return
        self._table.starts([slot], len(tokens))
        ids = self._ids([list(tokens)])
        for begin in range(0, len(tokens), self._chunk):
            piece = ids[:, begin : begin + self._chunk]
            self._engine.read([slot], self._table.starts([slot], piece.shape[1]), piece)
            self._table.advance([slot], piece.shape[1])

    def prefill(self, slot: int, tokens: Sequence[int]) -> Tensor:
        """Read tokens into a slot; logits after the last one, [models, vocabulary]."""
        if not tokens:
            raise ModelError("A text starts with at least its start token; give one token or more.")
        self._table.starts([slot], len(tokens))
        last = (len(tokens) - 1) // self._chunk * self._chunk
        self.read(slot, tokens[:last])
        return self._advance([slot], self._ids([list(tokens[last:])]))[:, 0]

    def step(self, slots: Sequence[int], tokens: Sequence[int]) -> Tensor:
        """One more token for each of some slots; logits of the next, [models, slots given, vocabulary]."""
        if not slots or len(slots) != len(tokens):
            raise ModelError(
                f"A step takes one token for each slot, not {len(tokens)} for {len(slots)}; give as many."
            )
        return self._advance(slots, self._ids([[token] for token in tokens]))

    def extend(self, source: int, slots: Sequence[int], tokens: Sequence[Sequence[int]]) -> Tensor:
        """Let slots hold the text of ``source`` and as many tokens more each: one beginning, many branches.

        Whatever the slots held is forgotten. Logits after the last token, [models, slots given, vocabulary].
        """
        if not slots or len(slots) != len(tokens) or source in slots or not tokens[0]:
            raise ModelError("An extension takes tokens for each slot, and none for the slot it starts from.")
        self._engine.copy(source, slots, self._table.copy(source, slots))
        return self._advance(slots, self._ids([list(row) for row in tokens]))

    def score(self, tokens: Tensor, *, block: int = DEFAULT_BLOCK) -> Iterator[ScoredBlock]:
        """Logits at every position of [texts, time] token ids, teacher-forced, ``block`` positions at a time.

        Uses no slots. Texts of unequal length are padded on the right with any token.
        """
        if tokens.dim() != 2 or tokens.shape[1] > self.context or not tokens.numel():
            raise ModelError(
                f"Expected texts as [rows, 1 to {self.context} tokens], not {tuple(tokens.shape)}; cut them."
            )
        refuse_unknown_tokens(tokens, self._engine.vocabulary_size)
        start = 0
        for logits in self._engine.score(tokens.to(self._engine.device), block):
            yield ScoredBlock(start, logits)
            start += logits.shape[2]

    def _advance(self, slots: Sequence[int], ids: Tensor) -> Tensor:
        starts = self._table.starts(slots, ids.shape[1])
        logits = self._engine.advance(slots, starts, ids)
        # Only now: after a failure the text is as long as it was, and the positions are written again.
        self._table.advance(slots, ids.shape[1])
        return logits


def _engine(
    public: PublicModel,
    members: Sequence[Path | None],
    slots: int,
    context: int,
    dtype: torch.dtype,
    *,
    pack: bool | None,
) -> Engine:
    if not members:
        raise ModelError("An ensemble has at least one member; give the folders of its adapters.")
    present = [folder for folder in members if folder is not None]
    adapters = [folder for folder in present if (folder / CONFIG_FILE).is_file()]
    if present and not adapters:
        return WholeModelsEngine(public, members, slots, context, dtype, pack=pack)
    if len(adapters) < len(present):
        odd = next(folder for folder in present if folder not in adapters)
        raise ModelError(
            f"{odd} has no {CONFIG_FILE} but other members have; an ensemble is all adapters or all models."
        )
    return BatchedEngine(public, members, slots, context, dtype, pack=pack)
