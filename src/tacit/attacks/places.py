"""The distributions of an ensemble at places behind one prompt, each computed once.

All generations of an extraction attack begin alike, and so do the codes: what the models say after a
beginning is a function of that beginning alone, and serves every mechanism, budget and generation.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from tacit.errors import ModelError
from tacit.mechanisms import softmax_pmfs
from tacit.models.ensemble import Ensemble

_MOST_BYTES: Final = 512 * 2**20  # of distributions that are kept
_TEXTS_AT_ONCE: Final = 8


@dataclass(frozen=True, eq=False, repr=False)
class Place:
    """What all models predict after some tokens: members [parts, halves, V] and public [V]."""

    members: Tensor
    public: Tensor


class Places:
    """Distributions behind a prompt, by the tokens written so far."""

    def __init__(
        self, ensemble: Ensemble, prompt: Sequence[int], longest: int, dtype: torch.dtype = torch.float32
    ) -> None:
        """``longest`` is the most tokens behind the prompt after which anybody will ask."""
        self._ensemble = ensemble
        self._prompt = tuple(prompt)
        context = len(self._prompt) + longest
        if context > ensemble.public.context_length:
            raise ModelError(
                f"The prompt and a code take {context} tokens, more than the model's "
                f"{ensemble.public.context_length}; use another model."
            )
        self._executor = ensemble.executor(slots=1, context=context, dtype=dtype)
        self._kept: OrderedDict[tuple[int, ...], Place] = OrderedDict()
        self._most = 0

    def at(self, written: tuple[int, ...]) -> Place:
        """The distributions of the token after ``written``."""
        if written not in self._kept:
            self._compute([written])
        self._kept.move_to_end(written)
        return self._kept[written]

    def together(self, places: Sequence[tuple[int, ...]]) -> Iterator[Place]:
        """The distributions at places of one depth, in order, computed several at a time."""
        for first in range(0, len(places), _TEXTS_AT_ONCE):
            some = places[first : first + _TEXTS_AT_ONCE]
            self._compute([place for place in some if place not in self._kept])
            yield from map(self.at, some)

    @torch.inference_mode()
    def _compute(self, places: list[tuple[int, ...]]) -> None:
        if not places:
            return
        tokens = torch.tensor([[*self._prompt, *place] for place in places])
        # One position at a time: the logits of all positions of all models would fill the memory.
        *_, last = self._executor.score(tokens, block=1)
        logits = last.logits[:, :, -1].cpu()  # [models, texts, V]
        if not bool(torch.isfinite(logits[0]).all()):
            raise ModelError("The public model's predictions are not finite numbers; it is damaged.")
        for text, place in enumerate(places):
            pmfs = softmax_pmfs(logits[:, text])
            self._kept[place] = Place(self._ensemble.members_of(pmfs), pmfs[0])
            self._most = self._most or max(
                _TEXTS_AT_ONCE, _MOST_BYTES // (pmfs.numel() * pmfs.element_size())
            )
        while len(self._kept) > self._most:
            self._kept.popitem(last=False)
