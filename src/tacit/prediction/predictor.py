"""Private answers: an ensemble, a mechanism and a budget behind `generate` and `next_token`."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from tacit.errors import InputError
from tacit.mechanisms import Decoding
from tacit.mechanisms.choice import MechanismChoice
from tacit.mechanisms.sampling import RandBelow
from tacit.models.ensemble import Ensemble
from tacit.prediction.answering import Answering, Budget, OperatorView
from tacit.privacy import Guarantee


@dataclass(frozen=True)
class Prediction:
    """What may leave: the tokens that were drawn, and what follows from them."""

    text: str
    tokens: tuple[int, ...]
    finish: Literal["stop", "length"]


class PrivatePredictor:
    """Answers from an ensemble, each charged before it is drawn.

    The budget lives in this object's memory: it ends with the process. One ensemble must have one predictor
    at a time, or budgets add up unseen.
    """

    def __init__(
        self,
        ensemble: Ensemble,
        choice: MechanismChoice,
        budget: Budget,
        *,
        slots: int = 4,
        context: int | None = None,
        lazy: bool = False,
        dtype: torch.dtype = torch.float32,
        randbelow: RandBelow = secrets.randbelow,
    ) -> None:
        """``lazy``: run one secret part per token instead of all (certified mixing, one model per part)."""
        if slots < 1:
            raise InputError(f"slots={slots}: at least one text must fit.")
        if lazy and choice.name != "certified":
            raise InputError("Only certified mixing can run one part per token; leave lazy out.")
        ensemble.public.require_public()
        outside = (
            ("the vocabulary, which was built from private text",)
            if ensemble.public.vocabulary == "private"
            else ()
        )
        self._ensemble = ensemble
        self._answering = Answering(
            choice,
            parts=ensemble.parts,
            halves=ensemble.halves,
            budget=budget,
            outside=outside,
            randbelow=randbelow,
        )
        length = min(context or 1024, ensemble.public.context_length)
        self._lazy = ensemble.lazy_executor(slots=slots, context=length, dtype=dtype) if lazy else None
        self._whole = None if lazy else ensemble.executor(slots=slots, context=length, dtype=dtype)
        self._slots, self._context = slots, length

    @property
    def guarantee(self) -> Guarantee:
        """What holds for all answers of this predictor together."""
        return self._answering.guarantee

    def operator_view(self) -> OperatorView:
        """Spending and STOP, which no client may see."""
        return self._answering.operator_view()

    def next_token(self, text: str, decoding: Decoding | None = None) -> int:
        """One token after ``text``: one query."""
        return self.generate(text, max_tokens=1, decoding=decoding, stop_at_end=False).tokens[0]

    def generate(
        self, prompt: str, *, max_tokens: int = 64, decoding: Decoding | None = None, stop_at_end: bool = True
    ) -> Prediction:
        """Continue one prompt; every token is a query."""
        return self.generate_all([prompt], max_tokens=max_tokens, decoding=decoding, stop_at_end=stop_at_end)[
            0
        ]

    def generate_all(
        self,
        prompts: Sequence[str],
        *,
        max_tokens: int = 64,
        decoding: Decoding | None = None,
        stop_at_end: bool = True,
    ) -> list[Prediction]:
        """Continue several prompts, as many at a time as there are slots."""
        if max_tokens < 1:
            raise InputError(f"max_tokens={max_tokens}: at least one token is needed.")
        tokenizer = self._ensemble.public.tokenizer
        encoded = [[tokenizer.start_token, *ids] for ids in tokenizer.encode(list(prompts))]
        longest = max((len(ids) for ids in encoded), default=0)
        if longest + max_tokens - 1 > self._context:
            raise InputError(
                f"A prompt of {longest} tokens and {max_tokens} new ones do not fit the context of "
                f"{self._context}; shorten it."
            )
        stop = tokenizer.stop_tokens if stop_at_end else frozenset()
        predictions: list[Prediction] = []
        for first in range(0, len(encoded), self._slots):
            group = encoded[first : first + self._slots]
            for written in self._continue(group, max_tokens, decoding or Decoding(), stop):
                ended = bool(written) and written[-1] in stop
                shown = written[:-1] if ended else written
                text = tokenizer.decode(shown)
                predictions.append(Prediction(text, tuple(written), "stop" if ended else "length"))
        return predictions

    def _continue(
        self, texts: list[list[int]], max_tokens: int, decoding: Decoding, stop: frozenset[int]
    ) -> list[list[int]]:
        run = self._continue_whole if self._whole is not None else self._continue_lazily
        return run(texts, max_tokens, decoding, stop)

    @torch.inference_mode()
    def _continue_whole(
        self, texts: list[list[int]], max_tokens: int, decoding: Decoding, stop: frozenset[int]
    ) -> list[list[int]]:
        executor = self._whole
        assert executor is not None  # noqa: S101 - an invariant of the caller
        slots = [executor.open() for _ in texts]
        written: list[list[int]] = [[] for _ in texts]
        try:
            logits = {i: executor.prefill(slots[i], text) for i, text in enumerate(texts)}
            while logits:
                for i, rows in logits.items():
                    pmfs = decoding.pmfs(rows, [*texts[i], *written[i]])
                    members = self._ensemble.members_of(pmfs.pmfs)
                    written[i].append(pmfs.token(self._answering.draw(members, pmfs.pmfs[0])))
                going = [i for i in logits if len(written[i]) < max_tokens and written[i][-1] not in stop]
                if not going:
                    break
                stepped = executor.step([slots[i] for i in going], [written[i][-1] for i in going])
                logits = {i: stepped[:, row] for row, i in enumerate(going)}
        finally:
            for slot in slots:
                executor.close(slot)
        return written

    @torch.inference_mode()
    def _continue_lazily(
        self, texts: list[list[int]], max_tokens: int, decoding: Decoding, stop: frozenset[int]
    ) -> list[list[int]]:
        executor, parts = self._lazy, self._ensemble.parts
        assert executor is not None  # noqa: S101 - an invariant of the caller
        slots = [executor.open() for _ in texts]
        written: list[list[int]] = [[] for _ in texts]
        try:
            for slot, text in zip(slots, texts, strict=True):
                executor.read(slot, text[:-1])
            going = list(range(len(texts)))
            while going:
                last = [(written[i] or texts[i])[-1] for i in going]
                drawn = [self._answering.secret_slot(parts) for _ in going]
                logits = executor.step([slots[i] for i in going], last, drawn)
                for row, i in enumerate(going):
                    pmfs = decoding.pmfs(logits[:, row], [*texts[i], *written[i]])
                    token = self._answering.draw_lazily(pmfs.pmfs[1], pmfs.pmfs[0], parts=parts)
                    written[i].append(pmfs.token(token))
                going = [i for i in going if len(written[i]) < max_tokens and written[i][-1] not in stop]
        finally:
            for slot in slots:
                executor.close(slot)
        return written
