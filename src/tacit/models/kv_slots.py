"""Places for the texts that are being decoded, and the keys and values of each.

A slot holds one text. Its memory is set aside once and used again by later texts; what an earlier text left
there is never read, because a text reads only the positions that it has written itself. Layers below the
trunk's end keep one copy of keys and values, layers above one copy per model.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from tacit.errors import ModelError

_ALL = slice(None)


class SlotTable:
    """Which slots are open and how many tokens each holds."""

    def __init__(self, slots: int, context: int) -> None:
        if slots < 1 or context < 1:
            raise ModelError(f"Expected slots >= 1 and context >= 1, not {slots} and {context}.")
        self.slots = slots
        self.context = context
        self._length: dict[int, int] = {}

    def open(self) -> int:
        """Take the lowest free slot for a new text."""
        for slot in range(self.slots):
            if slot not in self._length:
                self._length[slot] = 0
                return slot
        raise ModelError(
            f"All {self.slots} slots are taken; close one, or open the executor with more slots."
        )

    def close(self, slot: int) -> None:
        """Give a slot back; its text is forgotten."""
        self.length(slot)
        del self._length[slot]

    def length(self, slot: int) -> int:
        """Tokens that an open slot holds."""
        if slot not in self._length:
            raise ModelError(f"Slot {slot} is not open; take one with open().")
        return self._length[slot]

    def starts(self, slots: Sequence[int], new_tokens: int) -> list[int]:
        """Where each slot's new tokens begin; refuses what does not fit into the context."""
        if any(first == second for first, second in pairwise(sorted(slots))):
            raise ModelError("A slot can take part only once in a step; give each slot at most one time.")
        starts = [self.length(slot) for slot in slots]
        for slot, start in zip(slots, starts, strict=True):
            if start + new_tokens > self.context:
                raise ModelError(
                    f"Slot {slot} would hold {start + new_tokens} tokens but the context is {self.context}; "
                    "shorten the text or open the executor with a longer context."
                )
        return starts

    def copy(self, source: int, targets: Sequence[int]) -> int:
        """Let open slots hold as much as ``source`` does; how many tokens that is."""
        length = self.length(source)
        for slot in targets:
            self.length(slot)
        for slot in targets:
            self._length[slot] = length
        return length

    def advance(self, slots: Sequence[int], new_tokens: int) -> None:
        """Count tokens whose keys and values, or states, have been written."""
        for slot in slots:
            self._length[slot] += new_tokens


class KVSlots:
    """Keys and values of every layer: [copies of the layer, slots, heads, context, head size]."""

    def __init__(self, copies: Sequence[int], slots: int, context: int) -> None:
        self._copies = list(copies)
        self._slots, self._context = slots, context
        self._layers: dict[int, tuple[Tensor, Tensor]] = {}

    @property
    def last_layer(self) -> int:
        """The layer whose keys and values come last."""
        return len(self._copies) - 1

    def copies(self, layer: int) -> int:
        """How many models keep keys and values of their own in a layer."""
        return self._copies[layer]

    def layer(self, layer: int, like: Tensor) -> tuple[Tensor, Tensor]:
        """A layer's keys and values; set aside when first asked for, as ``like``'s heads and dtype say."""
        if layer not in self._layers:
            shape = (self._copies[layer], self._slots, like.shape[1], self._context, like.shape[3])
            self._layers[layer] = (like.new_empty(shape), like.new_empty(shape))
        return self._layers[layer]

    def write(
        self,
        layer: int,
        slot: int,
        start: int,
        keys: Tensor,
        values: Tensor,
        copies: slice = _ALL,
    ) -> tuple[Tensor, Tensor]:
        """Store [copies, heads, time, head size] at ``start``, and give all keys and values up to its end."""
        all_keys, all_values = self.layer(layer, keys)
        end = start + keys.shape[2]
        all_keys[copies, slot, :, start:end] = keys
        all_values[copies, slot, :, start:end] = values
        return all_keys[copies, slot, :, :end], all_values[copies, slot, :, :end]

    def read(
        self, layer: int, slot: int, end: int, like: Tensor, copies: slice = _ALL
    ) -> tuple[Tensor, Tensor]:
        """Keys and values before ``end``."""
        all_keys, all_values = self.layer(layer, like)
        return all_keys[copies, slot, :, :end], all_values[copies, slot, :, :end]

    def copy(self, source: int, targets: Sequence[int], length: int) -> None:
        """Give slots the first ``length`` positions of another."""
        for tensors in self._layers.values():
            for tensor in tensors:
                # A copy alone is one piece of memory, of which torch reads no part while it writes another.
                tensor[:, list(targets), :, :length] = tensor[:, source, :, :length].clone().unsqueeze(1)


class StateSlots:
    """Recurrent states of an LSTM: per layer hidden and cell state, [copies of the layer, slots, size]."""

    def __init__(self, copies: Sequence[int], slots: int, size: int, like: Tensor) -> None:
        self._layers = [tuple(like.new_zeros(count, slots, size) for _ in range(2)) for count in copies]

    def clear(self, slot: int) -> None:
        """Start a text: the state of a slot becomes zero."""
        for layer in self._layers:
            for state in layer:
                state[:, slot] = 0

    def copy(self, source: int, targets: Sequence[int], length: int) -> None:
        """Give slots the state of another; ``length`` says nothing here."""
        for layer in self._layers:
            for state in layer:
                state[:, list(targets)] = state[:, source].clone().unsqueeze(1)

    def read(self, slots: Sequence[int]) -> list[tuple[Tensor, Tensor]]:
        """Hidden and cell state of some slots for every layer, rows model-major."""
        index = torch.tensor(slots)
        return [
            (hidden[:, index].flatten(0, 1), cell[:, index].flatten(0, 1)) for hidden, cell in self._layers
        ]

    def write(self, slots: Sequence[int], layers: Sequence[tuple[Tensor, Tensor]]) -> None:
        """Put back what `read` gave, one step later."""
        index = torch.tensor(slots)
        for stored, new in zip(self._layers, layers, strict=True):
            for state, value in zip(stored, new, strict=True):
                state[:, index] = value.view(len(state), len(slots), -1)
