"""How a request may shape the distributions, before anything is mixed or charged.

Temperature, penalties and truncation change the mechanism, not its output: sharpening a mixture after it was
charged sharpens the difference between worlds too. So every model's logits are transformed alike, first; and
the tokens that truncation keeps come from the public model and the request alone. A kept set that depended on
private models would give two worlds different supports, and an infinite loss.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from tacit.errors import InputError
from tacit.privacy.conversions import check_number

_REPETITION = (0.1, 10)
_MOST_BIAS = 100  # as in OpenAI's API


@dataclass(frozen=True)
class Decoding:
    """Transformations of a request; all are functions of the public model, the released text and the request.

    temperature          divides every model's logits
    top_k                keep the k tokens that the public model ranks highest
    top_p                keep the smallest set of tokens that holds this much of the public pmf
    repetition_penalty   divides positive and multiplies negative logits of tokens in the text; 0.1 to 10
    presence_penalty     taken from the logits of tokens that the answer has so far; -100 to 100
    frequency_penalty    the same, for every time that it has them
    logit_bias           token id to a number from -100 to 100 that is added to every model's logit
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            may_be_none = name in ("top_k", "top_p")
            if name != "logit_bias" and not (value is None and may_be_none):
                check_number(name, value)
        # Below 1e-3 a softmax is an argmax, and what remains is rounding.
        if not 1e-3 <= self.temperature < math.inf:
            raise InputError(
                f"temperature={self.temperature}: must be at least 0.001; greedy decoding cannot be private."
            )
        if self.top_k is not None and self.top_k < 1:
            raise InputError(f"top_k={self.top_k}: must be at least 1.")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise InputError(f"top_p={self.top_p}: must lie in (0, 1].")
        # Beyond these, single precision overflows, and the public model would look broken.
        low, high = _REPETITION
        if not low <= self.repetition_penalty <= high:
            raise InputError(
                f"repetition_penalty={self.repetition_penalty}: must lie between {low} and {high}; 1 is none."
            )
        for name in ("presence_penalty", "frequency_penalty"):
            if not abs(getattr(self, name)) <= _MOST_BIAS:
                raise InputError(
                    f"{name}={getattr(self, name)}: must lie between -{_MOST_BIAS} and {_MOST_BIAS}."
                )
        for token, bias in self.logit_bias.items():
            if not isinstance(token, int) or token < 0:
                raise InputError(f"logit_bias={{{token}: {bias}}}: a token id is a whole number from 0.")
            check_number("a bias", bias)
            if not abs(bias) <= _MOST_BIAS:
                raise InputError(
                    f"logit_bias={{{token}: {bias}}}: a bias must lie between -{_MOST_BIAS} and {_MOST_BIAS}."
                )

    def pmfs(self, logits: Tensor, text: Sequence[int] = (), answer: Sequence[int] = ()) -> DecodedPmfs:
        """Distributions for one query: logits [M, V] with the public model in row 0, after ``text``.

        ``answer`` is the end of the text that was written in answer to a request.
        """
        values = _at_least_single(logits)
        if values.ndim != 2:
            raise InputError(f"logits have shape {tuple(logits.shape)}; expected [models, vocabulary].")
        values = self._penalised(values, text, answer)
        if self.temperature != 1:
            values = values / self.temperature
        probabilities = _exact_softmax(values)
        kept = self._kept(probabilities[0])
        if kept is None:
            return DecodedPmfs(probabilities, None)
        restricted = probabilities[:, kept]
        return DecodedPmfs(_renormalised(restricted), kept)

    def _penalised(self, values: Tensor, text: Sequence[int], answer: Sequence[int]) -> Tensor:
        if self.repetition_penalty != 1 and text:
            seen = torch.tensor(sorted(set(text)), device=values.device)
            own = values[:, seen]
            penalty = self.repetition_penalty
            values = values.index_copy(1, seen, torch.where(own > 0, own / penalty, own * penalty))
        if answer and (self.presence_penalty or self.frequency_penalty):
            written, counts = torch.unique(torch.tensor(answer, device=values.device), return_counts=True)
            penalties = self.presence_penalty + self.frequency_penalty * counts.to(values.dtype)
            values = values.index_add(1, written, -penalties.expand(values.shape[0], -1))
        if self.logit_bias:
            highest = max(self.logit_bias)
            if highest >= values.shape[1]:
                raise InputError(f"logit_bias: there is no token {highest}, only {values.shape[1]} tokens.")
            tokens = torch.tensor(list(self.logit_bias), device=values.device)
            bias = torch.tensor(list(self.logit_bias.values()), dtype=values.dtype, device=values.device)
            values = values.index_add(1, tokens, bias.expand(values.shape[0], -1))
        return values

    def _kept(self, public: Tensor) -> Tensor | None:
        if self.top_k is None and self.top_p is None:
            return None
        ordered, tokens = public.sort(descending=True, stable=True)
        count = len(public) if self.top_k is None else min(self.top_k, len(public))
        if self.top_p is not None:
            # A token is kept while the mass before it is short of top_p; the first one whatever top_p is.
            short = (ordered.cumsum(0) - ordered) < self.top_p
            count = max(1, min(count, int(short.sum())))
        return tokens[:count].sort().values


@dataclass(frozen=True)
class DecodedPmfs:
    """Distributions over the kept tokens: pmfs [M, n], public in row 0; ``tokens`` maps back, None if all."""

    pmfs: Tensor
    tokens: Tensor | None

    def token(self, index: int) -> int:
        """The token id behind an index into the kept set."""
        return token_at(index, self.tokens)


def token_at(index: int, kept: Tensor | None) -> int:
    """The token id behind an index into a kept set; None keeps all."""
    return index if kept is None else int(kept[index])


def _renormalised(pmfs: Tensor) -> Tensor:
    """A row without mass on the kept tokens becomes uniform there: a function of that row alone."""
    mass = pmfs.sum(-1, keepdim=True, dtype=torch.float64).to(pmfs.dtype)
    uniform = torch.full_like(pmfs, 1 / pmfs.shape[-1])
    return torch.where(mass == 0, uniform, pmfs / mass)


def softmax_pmfs(logits: Any) -> Tensor:
    """Plain distributions, the same that `Decoding` gives for a plain request."""
    return _exact_softmax(_at_least_single(torch.as_tensor(logits)))


def _exact_softmax(logits: Tensor) -> Tensor:
    """A softmax whose rows sum to one as far as their precision goes.

    In single precision the sum that a softmax divides by is added up one by one: where a member is sure of
    one token and all others are alike, the row was off by 2e-4 for 50,000 tokens. Mechanisms refuse what is
    further off than 1e-4, and a query that is refused because of one member would tell about its text. `sum`
    adds up in pairs, and loses no more than the last digit or two.
    """
    pmfs = torch.softmax(logits, dim=-1)
    return pmfs.div_(pmfs.sum(-1, keepdim=True))


def _at_least_single(logits: Tensor) -> Tensor:
    """Single precision is what models answer in; what is charged becomes float64 in the mechanism."""
    return logits.detach() if logits.dtype == torch.float64 else logits.detach().float()
