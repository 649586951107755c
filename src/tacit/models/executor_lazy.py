"""Certified mixing needs, for each token, only the public model and one part that was drawn in secret.

Work per token is the same whichever part was drawn: the number, order and shapes of all operations are a
function of the texts' lengths alone; which part's matrices and keys are read is not. (Processor caches may
still be warmer for one part than for another.) There are three ways, and whoever builds an executor may
choose by ``lag``:

- All parts read every token, each one position; only the head, the largest matrix by far, is lazy. The way
  for texts longer than there are parts, and the only one for LSTMs: a recurrent state cannot be read again.
- A lag as long as the context: parts have no memory, and the drawn one reads the whole text from the trunk's
  end. Less work while texts are shorter than there are parts.
- A lag in between: every part is at most ``lag`` positions behind, a rotation that everybody may know brings
  some up to date with every token, and the drawn part reads the last ``lag`` positions again. A part must
  read every position once in any case, so that this is never fewer rows than the first way; it reads fewer
  parts' matrices per token.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from tacit.errors import ModelError
from tacit.models.ensemble_files import load_adapters
from tacit.models.ensemble_lazy import PublicPass, RoutedLinear, TrunkStates, Window, WindowPass
from tacit.models.ensemble_model import EnsembleModel, private_copy
from tacit.models.executor_batched import BatchedEngine
from tacit.models.executor_texts import OpenTexts
from tacit.models.kv_slots import KVSlots
from tacit.models.loading import PublicModel
from tacit.models.stacked_lora import layer_number

_PARTS_AT_ONCE: Final = 16  # parts that read a prompt in one call: bounds memory, changes no result


class LazyExecutor(OpenTexts):
    """The public model and one part per text and token, chosen by the caller; LoRA parts only."""

    def __init__(
        self,
        public: PublicModel,
        parts: Sequence[Path | None],
        *,
        slots: int,
        context: int,
        lag: int | None = None,
        dtype: torch.dtype = torch.float32,
        chunk: int = 64,
        pack: bool | None = None,
    ) -> None:
        """``lag`` None: the whole context where that is no longer than there are parts; else all advance."""
        super().__init__(public, slots, context)
        if not parts:
            raise ModelError("An ensemble has at least one part; give the folders of its adapters.")
        if chunk < 1 or (lag is not None and lag < 1):
            raise ModelError(f"Expected chunk >= 1 and lag >= 1, not {chunk} and {lag}.")
        self.parts = len(parts)
        if lag is None and context <= self.parts:
            lag = context
        self._engine: _AdvancingParts | _RereadingParts = (
            _AdvancingParts(public, parts, slots, context, dtype, chunk, pack=pack)
            if lag is None or public.family == "lstm"
            else _RereadingParts(public, parts, slots, context, min(lag, context), dtype, chunk, pack=pack)
        )

    def read(self, slot: int, tokens: Sequence[int]) -> None:
        """Read tokens into a slot; a prompt's last token goes to `step`, which draws on a part."""
        if not tokens:
            return
        (start,) = self._table.starts([slot], len(tokens))
        self._engine.read(slot, start, self._ids([list(tokens)]))
        self._table.advance([slot], len(tokens))

    def step(self, slots: Sequence[int], tokens: Sequence[int], parts: Sequence[int]) -> Tensor:
        """One more token for each slot; logits of the next by the public model and by the slot's part.

        Returns [2, slots given, vocabulary]. What it does, but for which matrices it reads, does not depend
        on ``parts``.
        """
        if not slots or not len(slots) == len(tokens) == len(parts):
            raise ModelError(
                f"A step takes one token and one part for each slot, not {len(tokens)} and {len(parts)} for "
                f"{len(slots)}; give as many."
            )
        if not all(0 <= part < self.parts for part in parts):
            # The number stays out of the message: it is secret.
            raise ModelError(f"A part that was given is outside 0 to {self.parts - 1}; draw one of those.")
        starts = self._table.starts(slots, 1)
        logits = self._engine.step(slots, starts, self._ids([[token] for token in tokens]), parts)
        self._table.advance(slots, 1)
        return logits.view(2, len(slots), -1)


class _RereadingParts:
    """Transformer parts: trunk states are kept, parts read windows of them."""

    def __init__(
        self,
        public: PublicModel,
        parts: Sequence[Path | None],
        slots: int,
        context: int,
        lag: int,
        dtype: torch.dtype,
        chunk: int,
        *,
        pack: bool | None,
    ) -> None:
        model = private_copy(public.model, dtype)
        stack = load_adapters(model, parts, dtype=dtype)
        trunk_layers = min(layer_number(model, path) for path in stack.layers)
        for path, layer in stack.layers.items():
            model.set_submodule(path, RoutedLinear(layer))
        self._ensemble = EnsembleModel(model, trunk_layers, pack=pack)
        self._ensemble.check_against(public, 1)
        self.vocabulary_size, self.device = self._ensemble.vocabulary_size, self._ensemble.device
        self._lag, self._chunk, self._count = lag, chunk, len(parts)
        self._public = KVSlots([1] * public.n_layers, slots, context)
        self._states = TrunkStates(
            slots, context, model.config.hidden_size, model.get_input_embeddings().weight
        )
        self._stored = KVSlots([len(parts)] * public.n_layers, slots, context) if lag < context else None
        self._per_round = -(-len(parts) // lag)

    def begin(self, slot: int) -> None:
        """Nothing to forget: a text reads only the positions that it has written."""

    def read(self, slot: int, start: int, ids: Tensor) -> None:
        """The public model and, where parts have memory, all parts read [1, time] tokens."""
        end = start + ids.shape[1]
        for begin in range(start, end, self._chunk):
            piece = ids[:, begin - start : begin - start + self._chunk]
            current = PublicPass(self._public, self._states, [slot], [begin])
            positions = self._ensemble.positions([begin], piece.shape[1])
            self._ensemble(current, piece, position_ids=positions, use_cache=False)
        if self._stored is None:
            return
        # Some parts are up to lag behind; all start from where the last of them may be.
        for begin in range(max(0, start - self._lag), end, self._chunk):
            time = min(self._chunk, end - begin)
            for first in range(0, self._count, _PARTS_AT_ONCE):
                count = min(_PARTS_AT_ONCE, self._count - first)
                self._run(
                    [],
                    [],
                    ids[:, :1],
                    [Window(slot, begin, time, first, count, remembered=True)],
                    upper_only=True,
                )

    def step(self, slots: Sequence[int], starts: Sequence[int], ids: Tensor, parts: Sequence[int]) -> Tensor:
        """The newest tokens: public model, drawn parts, and the parts whose turn it is."""
        drawn, turn = [], []
        for slot, start, part in zip(slots, starts, parts, strict=True):
            begin = max(0, start + 1 - self._lag)
            # Not remembered: what is stored must not tell, even in its rounding, what was drawn before.
            drawn.append(Window(slot, begin, start + 1 - begin, part, 1, remembered=False))
            first = ((start + 1) % self._lag) * self._per_round
            count = min(self._per_round, self._count - first)
            if self._stored is not None and count > 0:
                turn.append(Window(slot, begin, start + 1 - begin, first, count, remembered=True))
        logits: Tensor = self._run(slots, starts, ids, [*drawn, *turn]).logits
        return logits

    def _run(
        self,
        slots: Sequence[int],
        starts: Sequence[int],
        ids: Tensor,
        windows: Sequence[Window],
        *,
        upper_only: bool = False,
    ) -> Any:
        current = WindowPass(self._public, self._stored, self._states, slots, starts, windows)
        positions = self._ensemble.positions(list(starts) or [0], 1)
        return self._ensemble(current, ids, upper_only=upper_only, position_ids=positions, use_cache=False)


class _AdvancingParts:
    """All parts read every token; the head sees the public rows and the drawn ones."""

    def __init__(
        self,
        public: PublicModel,
        parts: Sequence[Path | None],
        slots: int,
        context: int,
        dtype: torch.dtype,
        chunk: int,
        *,
        pack: bool | None,
    ) -> None:
        self._engine = BatchedEngine(public, parts, slots, context, dtype, pack=pack)
        self._chunk = chunk
        self.vocabulary_size, self.device = self._engine.vocabulary_size, self._engine.device

    def begin(self, slot: int) -> None:
        """A new text starts from nothing."""
        self._engine.begin(slot)

    def read(self, slot: int, start: int, ids: Tensor) -> None:
        """All models read [1, time] tokens."""
        for begin in range(0, ids.shape[1], self._chunk):
            self._engine.read([slot], [start + begin], ids[:, begin : begin + self._chunk])

    def step(self, slots: Sequence[int], starts: Sequence[int], ids: Tensor, parts: Sequence[int]) -> Tensor:
        """All models read the newest tokens; two rows per text go on to the head."""
        drawn = torch.tensor(parts, device=self.device)
        own = torch.arange(len(slots), device=self.device)
        # Rows are model-major, the public model's first.
        rows = torch.cat([own, (1 + drawn) * len(slots) + own])
        return self._engine.advance_some(slots, starts, ids, rows)
