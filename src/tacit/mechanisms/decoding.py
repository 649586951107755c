"""How a request may shape the distributions, before anything is mixed or charged.

Temperature, penalties and truncation change the mechanism, not its output: sharpening a mixture after it was
charged sharpens the difference between worlds too. So every model's logits are transformed alike, first; and
the tokens that truncation keeps come from the public model and the request alone. A kept set that depended on
private models would give two worlds different supports, and an infinite loss.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from tacit.errors import InputError
from tacit.mechanisms.sampling import RandBelow, sample


@dataclass(frozen=True)
class Decoding:
    """Transformations of a request; all are functions of the public model, the released text and the request.

    temperature          divides every model's logits
    top_k                keep the k tokens that the public model ranks highest
    top_p                keep the smallest set of tokens that holds this much of the public pmf
    repetition_penalty   divides positive and multiplies negative logits of tokens already in the text
    presence_penalty     taken from the logits of tokens that the answer has so far
    frequency_penalty    the same, for every time that it has them
    logit_bias           token id to a number that is added to every model's logit
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # Below 1e-3 a softmax is an argmax, and what remains is rounding.
        if not 1e-3 <= self.temperature < math.inf:
            raise InputError(
                f"temperature={self.temperature}: must be at least 0.001; greedy decoding cannot be private."
            )
        if self.top_k is not None and self.top_k < 1:
            raise InputError(f"top_k={self.top_k}: must be at least 1.")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise InputError(f"top_p={self.top_p}: must lie in (0, 1].")
        if not 0 < self.repetition_penalty < math.inf:
            raise InputError(
                f"repetition_penalty={self.repetition_penalty}: must be a finite number above 0."
            )
        for name in ("presence_penalty", "frequency_penalty"):
            if not math.isfinite(getattr(self, name)):
                raise InputError(f"{name}={getattr(self, name)}: must be a finite number.")
        for token, bias in self.logit_bias.items():
            if token < 0 or not math.isfinite(bias):
                raise InputError(
                    f"logit_bias={{{token}: {bias}}}: a token id and a finite number are needed."
                )

    def pmfs(self, logits: Tensor, text: Sequence[int] = (), answer: Sequence[int] = ()) -> DecodedPmfs:
        """Distributions for one query: logits [M, V] with the public model in row 0, after ``text``.

        ``answer`` is the end of the text that was written in answer to a request.
        """
        values = _at_least_single(logits)
        if values.ndim != 2:
            raise InputError(f"logits have shape {tuple(logits.shape)}; expected [models, vocabulary].")
        probabilities = self._shaping(values.shape[1], text, answer).pmfs(values)
        kept = self._kept(probabilities[0])
        if kept is None:
            return DecodedPmfs(probabilities, None)
        return DecodedPmfs(_renormalised(probabilities[:, kept]), kept)

    def pmfs_among(
        self,
        public: Tensor,
        members: Tensor,
        tokens: Tensor,
        text: Sequence[int] = (),
        answer: Sequence[int] = (),
    ) -> DecodedPmfs:
        """The same where members are heard on some tokens only: public [V], members [M, n], tokens [n].

        On all others a member says what the public model says. They are one outcome, the last, with the same
        probability in every row, and which of them it is, the public model decides. ``tokens`` must be a
        function of the public model and the request.
        """
        shaping = self._shaping(len(public), text, answer)
        r_V = shaping.pmfs(_at_least_single(public))
        kept = self._kept(r_V)
        others = torch.full_like(r_V, fill_value=kept is None, dtype=torch.bool)
        if kept is not None:
            others[kept] = True
            heard = others[tokens]
            tokens, members = tokens[heard], members[:, heard]
            r_V = torch.where(others, r_V, 0.0) / r_V[kept].sum()
        others[tokens] = False
        rest_V = torch.where(others, r_V, 0.0)
        mass = rest_V.sum()
        heard_pmfs = shaping.pmfs(_at_least_single(members), tokens) * (1 - mass).clamp(min=0)
        pmfs = torch.cat([r_V[tokens].unsqueeze(0), heard_pmfs])
        if not bool(others.any()):
            return DecodedPmfs(_renormalised(pmfs), tokens)
        pmfs = torch.cat([pmfs, mass.expand(len(pmfs), 1)], dim=1)
        # Others without any mass are all alike; the mechanisms' floor may still lead to one of them.
        rest_V = torch.where(mass > 0, rest_V / mass, others / others.sum())
        return DecodedPmfs(_renormalised(pmfs), tokens, rest_V)

    def _shaping(self, vocabulary: int, text: Sequence[int], answer: Sequence[int]) -> _Shaping:
        seen = shift = None
        if self.repetition_penalty != 1 and text:
            seen = torch.zeros(vocabulary, dtype=torch.bool)
            seen[list(text)] = True
        if self.logit_bias or (answer and (self.presence_penalty or self.frequency_penalty)):
            shift = torch.zeros(vocabulary, dtype=torch.float64)
            for token in answer:
                shift[token] -= self.frequency_penalty
            for token in set(answer):
                shift[token] -= self.presence_penalty
            if self.logit_bias and max(self.logit_bias) >= vocabulary:
                raise InputError(
                    f"logit_bias: there is no token {max(self.logit_bias)}, only {vocabulary} tokens."
                )
            for token, bias in self.logit_bias.items():
                shift[token] += bias
        return _Shaping(self.temperature, self.repetition_penalty, seen, shift)

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
class _Shaping:
    """What a request does to logits after a text: for each token whether it was seen, and what is added."""

    temperature: float
    penalty: float
    seen: Tensor | None  # [V]
    shift: Tensor | None  # [V]

    def pmfs(self, logits: Tensor, tokens: Tensor | None = None) -> Tensor:
        """Distributions over the last axis, whose columns are ``tokens`` (None: all, in order)."""
        values = logits
        if self.seen is not None:
            seen = self.seen.to(values.device) if tokens is None else self.seen.to(values.device)[tokens]
            penalised = torch.where(values > 0, values / self.penalty, values * self.penalty)
            values = torch.where(seen, penalised, values)
        if self.shift is not None:
            shift = self.shift.to(values)
            values = values + (shift if tokens is None else shift[tokens])
        return torch.softmax(values / self.temperature, dim=-1)


@dataclass(frozen=True)
class DecodedPmfs:
    """Distributions over outcomes: pmfs [M, n], public in row 0.

    tokens  [n] what the outcomes are; None: all tokens, in order
    rest    [V] where there is one outcome more: which token that is, by the public model
    """

    pmfs: Tensor
    tokens: Tensor | None
    rest: Tensor | None = None

    def token(self, index: int, randbelow: RandBelow = secrets.randbelow) -> int:
        """The token id behind an outcome."""
        if self.tokens is None:
            return index
        if self.rest is None:
            return int(self.tokens[index])
        # Drawn in any case: the time must not tell what was drawn and then not released.
        other = sample(self.rest, randbelow)
        return other if index == len(self.tokens) else int(self.tokens[index])


def _renormalised(pmfs: Tensor) -> Tensor:
    """A row without mass on the kept tokens becomes uniform there: a function of that row alone."""
    mass = pmfs.sum(-1, keepdim=True)
    uniform = torch.full_like(pmfs, 1 / pmfs.shape[-1])
    return torch.where(mass == 0, uniform, pmfs / mass)


def softmax_pmfs(logits: Any) -> Tensor:
    """Plain distributions, the same that `Decoding` gives for a plain request."""
    return torch.softmax(_at_least_single(torch.as_tensor(logits)), dim=-1)


def _at_least_single(logits: Tensor) -> Tensor:
    """Single precision is what models answer in; what is charged becomes float64 in the mechanism."""
    return logits.detach() if logits.dtype == torch.float64 else logits.detach().float()
