"""Attention of an ensemble: every text attends to its own slot, at its exact length, without masks.

transformers lets a model's attention be replaced by name; the model's own code computes queries, keys and
values and hands them here. What is to be done with them, the current `Pass` says: it belongs to one forward
call and knows the texts in it. Nothing is padded and nothing is copied; a text's result does not depend on
how long the other texts are.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from typing import Any, Final, Protocol

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from tacit.errors import ModelError
from tacit.models.kv_slots import KVSlots

ATTENTION_NAME: Final = "tacit_ensemble"
# Arguments by which some models change what attention computes; ours does not know them.
_BEYOND_PLAIN: Final = ("softcap", "s_aux", "sliding_window", "head_mask", "position_bias")


class BeforeHead(Exception):
    """Raised by a pass to end a forward call whose logits nobody needs."""


class Pass(Protocol):
    """One forward call through an ensemble model."""

    def fork(self, hidden: Tensor) -> Tensor:
        """Rows above the trunk from the rows that come out of it."""

    def fork_positions(self, name: str, per_row: Tensor) -> Tensor:
        """What belongs to each row (positions, rotary angles) for the rows above the trunk."""

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float | None) -> Tensor:
        """Attention of [rows, heads, time, head size] in the same shape."""

    def select(self, hidden: Tensor) -> Tensor:
        """The rows and positions whose next token is asked for, before the head."""


_CURRENT: ContextVar[Pass] = ContextVar("tacit_current_pass")


@contextlib.contextmanager
def running(current: Pass) -> Iterator[None]:
    """Let the ensemble models called in this block follow ``current``."""
    token = _CURRENT.set(current)
    try:
        yield
    finally:
        _CURRENT.reset(token)


def current_pass() -> Pass:
    """The pass of the block we are in."""
    return _CURRENT.get()


def _attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    if odd := [name for name in _BEYOND_PLAIN if others.get(name) is not None]:
        raise ModelError(
            f"{type(module).__name__} attends in a way that ensembles do not support ({odd[0]}); "
            "choose a public model with plain causal attention."
        )
    return current_pass().attend(module.layer_idx, query, key, value, scaling).transpose(1, 2), None


AttentionInterface.register(ATTENTION_NAME, _attention)


def attend_causally(query: Tensor, keys: Tensor, values: Tensor, scaling: float | None) -> Tensor:
    """Queries of the last positions of a text against all its keys: [rows, heads, time, head size]."""
    time, all_time = query.shape[2], keys.shape[2]
    grouped = query.shape[1] != keys.shape[1]
    if time == 1:
        # Query heads that share keys become positions of one head: nothing has to be repeated or masked.
        folded = query.reshape(len(query), keys.shape[1], -1, query.shape[3])
        if query.device.type == "cpu":
            # For one query the fused kernel takes four times as long in half precision as it does in single.
            folded, keys, values = folded.float(), keys.float(), values.float()
        attended = scaled_dot_product_attention(folded, keys, values, scale=scaling)
        return attended.reshape(query.shape).to(query.dtype)
    mask = None
    if time < all_time:
        mask = torch.ones(time, all_time, dtype=torch.bool, device=query.device).tril(all_time - time)
    return scaled_dot_product_attention(
        query, keys, values, attn_mask=mask, is_causal=mask is None, scale=scaling, enable_gqa=grouped
    )


class GroupedPass:
    """Above the trunk, every model has a copy of the rows, model-major; enough without attention.

    ``rows`` are those whose next token is asked for; None asks for all.
    """

    def __init__(self, models: int, rows: Tensor | None = None) -> None:
        self._models, self._asked = models, rows

    def fork(self, hidden: Tensor) -> Tensor:
        """All models start from the trunk's output."""
        return hidden.repeat(self._models, *[1] * (hidden.dim() - 1))

    def fork_positions(self, name: str, per_row: Tensor) -> Tensor:
        """The same for every model; one row stands for all already."""
        return per_row if len(per_row) == 1 else GroupedPass.fork(self, per_row)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float | None) -> Tensor:
        """Never called by a model without attention."""
        raise NotImplementedError

    def select(self, hidden: Tensor) -> Tensor:
        """The last position of every row that is asked for."""
        last = hidden[:, -1:]
        return last if self._asked is None else last.index_select(0, self._asked)


class SlotPass(GroupedPass):
    """New tokens of texts in slots: the same number for each, after different numbers of earlier ones."""

    def __init__(
        self,
        models: int,
        memory: KVSlots,
        slots: Sequence[int],
        starts: Sequence[int],
        rows: Tensor | None = None,
    ) -> None:
        super().__init__(models, rows)
        self._memory, self._slots, self._starts = memory, slots, starts

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float | None) -> Tensor:
        """Each text against its own slot, all models of a layer at once."""
        query_CB = self._by_text(layer, query)
        out_CB = torch.empty_like(query_CB, memory_format=torch.contiguous_format)
        for text, (keys, values) in enumerate(self._remember(layer, key, value)):
            out_CB[:, text] = attend_causally(query_CB[:, text], keys, values, scaling)
        return out_CB.flatten(0, 1)

    def _remember(self, layer: int, key: Tensor, value: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Store each text's new keys and values, and give all that it has."""
        key_CB, value_CB = self._by_text(layer, key), self._by_text(layer, value)
        for text, (slot, start) in enumerate(zip(self._slots, self._starts, strict=True)):
            yield self._memory.write(layer, slot, start, key_CB[:, text], value_CB[:, text])

    def _by_text(self, layer: int, rows: Tensor) -> Tensor:
        return rows.view(self._memory.copies(layer), len(self._slots), *rows.shape[1:])


class ReadingPass(SlotPass):
    """Tokens are read into slots, and nobody asks what comes next: the last keys and values are the end."""

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float | None) -> Tensor:
        """As ever, but in the last layer: what it would compute of them is for the head alone."""
        if layer < self._memory.last_layer:
            return super().attend(layer, query, key, value, scaling)
        for _ in self._remember(layer, key, value):
            pass
        raise BeforeHead


class WholeTextPass(GroupedPass):
    """Whole texts at once, nothing remembered; the head is left to the caller, who finds its input here."""

    hidden: Tensor

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float | None) -> Tensor:
        """Each row against itself."""
        return attend_causally(query, key, value, scaling)

    def select(self, hidden: Tensor) -> Tensor:
        """Keep everything aside and let one position through."""
        self.hidden = hidden
        return hidden[:, -1:]
