"""The passes of the lazy executor: rows of different models, chosen per text, in one forward call.

Above the trunk a call holds single positions as rows: first the public model's newest position of every
text, then windows of equal length, each a stretch of one text read by one part. Which part reads a window
is data, never a shape.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tacit.models.ensemble_attention import BeforeHead, SlotPass, attend_causally, current_pass
from tacit.models.kv_slots import KVSlots
from tacit.models.stacked_lora import StackedLinear


@dataclass(frozen=True)
class Window:
    """A stretch of one text, read by successive parts from ``first_part`` on."""

    slot: int
    start: int
    real: int  # positions that exist; the window is padded to the length of the call's longest
    first_part: int
    parts: int
    remembered: bool  # whether the parts' keys and values are stored


class TrunkStates:
    """What the trunk gave for every position of every slot, and what belongs to a position as such."""

    def __init__(self, slots: int, context: int, size: int, like: Tensor) -> None:
        self._context = context
        # Zeros, because padding reads positions that nobody has written.
        self._hidden = like.new_zeros(slots, context, size)
        self._positions: dict[str, Tensor] = {}

    @property
    def device(self) -> torch.device:
        """Where the states are kept."""
        return self._hidden.device

    def record(self, slots: Sequence[int], starts: Sequence[int], hidden: Tensor) -> None:
        """Keep [texts, time, size] from each text's start on."""
        for text, (slot, start) in enumerate(zip(slots, starts, strict=True)):
            self._hidden[slot, start : start + hidden.shape[1]] = hidden[text]

    def record_positions(self, name: str, starts: Sequence[int], values: Tensor) -> None:
        """Keep what the model computes of positions, [texts, time, ...]: it is the same for all texts."""
        if name not in self._positions:
            self._positions[name] = values.new_zeros(self._context, *values.shape[2:])
        for text, start in enumerate(starts):
            self._positions[name][start : start + values.shape[1]] = values[min(text, len(values) - 1)]

    def windows(self, windows: Sequence[Window], time: int) -> Tensor:
        """Rows of all windows: [windows times parts times time, 1, size]."""
        found = [
            self._stretch(self._hidden[window.slot], window, time).repeat(window.parts, 1)
            for window in windows
        ]
        return torch.cat(found).unsqueeze(1)

    def window_positions(self, name: str, windows: Sequence[Window], time: int) -> Tensor:
        """The same for what belongs to positions."""
        table = self._positions[name]
        found = [
            self._stretch(table, window, time).repeat(window.parts, *[1] * (table.dim() - 1))
            for window in windows
        ]
        return torch.cat(found).unsqueeze(1)

    def _stretch(self, table: Tensor, window: Window, time: int) -> Tensor:
        # Padding takes some other positions of the table: what stands in those rows is used nowhere.
        begin = min(window.start, self._context - time)
        shift = window.start - begin
        return table[begin : begin + time].roll(-shift, 0) if shift else table[begin : begin + time]


class PublicPass(SlotPass):
    """The public model alone reads a text; the trunk's output is kept, logits are not computed."""

    def __init__(
        self, memory: KVSlots, states: TrunkStates, slots: Sequence[int], starts: Sequence[int]
    ) -> None:
        super().__init__(1, memory, slots, starts)
        self._states = states
        self.windows: list[Window] = []

    def fork(self, hidden: Tensor) -> Tensor:
        """Record, and go on."""
        self._states.record(self._slots, self._starts, hidden)
        return hidden

    def fork_positions(self, name: str, per_row: Tensor) -> Tensor:
        """Record, and go on."""
        self._states.record_positions(name, self._starts, per_row)
        return per_row

    def select(self, hidden: Tensor) -> Tensor:
        """Nobody asks for the next token."""
        raise BeforeHead


class WindowPass(SlotPass):
    """Windows read by parts, beside the public model's newest position of each text (or of none)."""

    def __init__(
        self,
        public_memory: KVSlots,
        part_memory: KVSlots | None,
        states: TrunkStates,
        slots: Sequence[int],
        starts: Sequence[int],
        windows: Sequence[Window],
    ) -> None:
        super().__init__(1, public_memory, slots, starts)
        self._parts, self._states, self.windows = part_memory, states, windows
        self.time = max(window.real for window in windows)
        self.public_rows = len(slots)
        self._rows_of_positions: dict[str, Tensor] = {}
        parts = [window.first_part + number for window in windows for number in range(window.parts)]
        self.route = torch.tensor(parts, device=states.device)

    def fork(self, hidden: Tensor) -> Tensor:
        """Rows of the public model, then the windows' rows from what the trunk gave now and before."""
        if self.public_rows:
            self._states.record(self._slots, self._starts, hidden)
        rows = self._states.windows(self.windows, self.time)
        return torch.cat([hidden, rows]) if self.public_rows else rows

    def fork_positions(self, name: str, per_row: Tensor) -> Tensor:
        """The same for what belongs to positions; once per call, not once per layer."""
        if name not in self._rows_of_positions:
            if self.public_rows:
                self._states.record_positions(name, self._starts, per_row)
            rows = self._states.window_positions(name, self.windows, self.time)
            own = per_row.expand(self.public_rows, *per_row.shape[1:]) if self.public_rows else rows[:0]
            self._rows_of_positions[name] = torch.cat([own, rows])
        return self._rows_of_positions[name]

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float | None) -> Tensor:
        """Below the trunk's end and for public rows as in any slot; a window against its part's past."""
        if len(query) == self.public_rows:
            return super().attend(layer, query, key, value, scaling)
        out = torch.zeros_like(query, memory_format=torch.contiguous_format)
        own = self.public_rows
        if own:
            out[:own] = super().attend(layer, query[:own], key[:own], value[:own], scaling)
        for window in self.windows:
            rows = slice(own, own + window.parts * self.time)
            own = rows.stop
            # [parts, time, heads, size] to [parts, heads, time, size], without the padding
            q, k, v = (
                x[rows]
                .view(window.parts, self.time, *x.shape[1:2], x.shape[3])
                .transpose(1, 2)[:, :, : window.real]
                for x in (query, key, value)
            )
            if self._parts is not None:
                copies = slice(window.first_part, window.first_part + window.parts)
                if window.remembered:
                    k, v = self._parts.write(layer, window.slot, window.start, k, v, copies)
                else:
                    past = self._parts.read(layer, window.slot, window.start, k, copies)
                    k, v = (torch.cat(pair, dim=2) for pair in zip(past, (k, v), strict=True))
            found = out[rows].view(window.parts, self.time, *query.shape[1:2], query.shape[3])
            found[:, : window.real] = attend_causally(q, k, v, scaling).transpose(1, 2)
        return out

    def select(self, hidden: Tensor) -> Tensor:
        """Each text's public row, then the last real row of its first window: [2 times texts, 1, size]."""
        if not self.public_rows:
            raise BeforeHead
        last: dict[int, int] = {}
        row = self.public_rows
        for window in self.windows:
            last.setdefault(window.slot, row + window.real - 1)
            row += window.parts * self.time
        chosen = [last[slot] for slot in self._slots]
        return torch.cat([hidden[: self.public_rows], hidden[chosen]])


class RoutedLinear(nn.Module):
    """A stacked layer that gives each window the matrices of the part that the current pass names."""

    def __init__(self, stacked: StackedLinear) -> None:
        super().__init__()
        self.base: Any = stacked.base
        self.a_MIR, self.b_MRO, self._scaling = stacked.a_MIR, stacked.b_MRO, stacked.scaling

    def forward(self, x: Tensor) -> Tensor:
        """All rows through the frozen layer at once, the windows' rows through their parts' matrices."""
        out: Tensor = self.base(x)
        current = current_pass()
        if isinstance(current, WindowPass):
            a_WIR, b_WRO = (matrix.index_select(0, current.route) for matrix in (self.a_MIR, self.b_MRO))
            x_WTI = x[current.public_rows :].view(len(a_WIR), current.time, -1)
            out_WTO = out[current.public_rows :].view(len(a_WIR), current.time, -1)
            out_WTO.baddbmm_(torch.bmm(x_WTI, a_WIR), b_WRO, alpha=self._scaling)
        return out
