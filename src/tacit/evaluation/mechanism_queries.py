"""Distributions of all models at held-out queries: over the whole vocabulary, or condensed.

Condensed to n tokens, a query has the n that the models together find likeliest (the token that came among
them) and one outcome for all others. Divergences within the rest are lost, so that mixing is an
approximation: weights are a little too large. What has a meaning for single tokens only (noise on each of
them, votes) spreads the rest evenly over the tokens that it stands for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import torch
from torch import Tensor

from tacit.evaluation.mechanism_blocks import HeldOutBlocks
from tacit.mechanisms import softmax_pmfs
from tacit.mechanisms.choice import Mechanism, needs_halves
from tacit.mechanisms.pmfs import FLOOR
from tacit.models.ensemble import Ensemble
from tacit.statistics import FloatArray

# Distributions held at once: 8 bytes each, and mechanisms make some copies. More is not faster.
_ENTRIES_AT_ONCE: Final = 4_000_000
# The sampler draws every token with at least this probability; a pmf with zeros is not what is answered.
LEAST: Final = 2.0**-62


@dataclass(frozen=True)
class Queries:
    """Some successive queries: distributions of all models, and the tokens that came.

    own_public   [n] log-probability of the token that came by the public model, over the whole vocabulary
    own_members  [n, parts, halves] the same by each member
    approximate  condensed: the last outcome stands for all tokens that have none of their own
    """

    start: int
    members: Tensor  # [n, parts, halves, V]
    public: Tensor  # [n, V]
    tokens: Tensor  # [n]
    own_public: FloatArray
    own_members: FloatArray
    approximate: bool = False

    def given_to(self, mechanism: Mechanism, parts: int) -> Tensor:
        """What a mechanism over the first parts mixes: halves, or their mean."""
        members = self.members[:, :parts]
        return members if needs_halves(mechanism) else members.mean(2)

    def of_tokens(self, pmfs: Tensor) -> FloatArray:
        """[n] log-probabilities of the tokens that came under pmfs [n, V]."""
        own = pmfs.gather(-1, self.tokens.unsqueeze(-1)).squeeze(-1)
        return as_floats(own.clamp(min=LEAST).log())

    @property
    def rows(self) -> slice:
        """Where these queries are among all."""
        return slice(self.start, self.start + len(self.tokens))

    def some(self, first: int, last: int) -> Queries:
        """Those from ``first`` to ``last`` (not included), counted from this start."""
        chosen = slice(first, last)
        return replace(
            self,
            start=self.start + first,
            members=self.members[chosen],
            public=self.public[chosen],
            tokens=self.tokens[chosen],
            own_public=self.own_public[chosen],
            own_members=self.own_members[chosen],
        )

    def condensed(self, support: int | None) -> Queries:
        """The same over ``support`` likely tokens, the token that came and the rest; unchanged for None."""
        if support is None or support + 2 >= self.public.shape[-1] or self.approximate:
            return self
        likely = (self.public + self.members.sum((1, 2))).nan_to_num(0.0).topk(support).indices
        there = likely == self.tokens[:, None]
        # Where the token that came is not among them, it takes the place of the least likely.
        missing = ~there.any(-1)
        likely[missing, -1] = self.tokens[missing]
        return replace(
            self,
            members=_with_rest(self.members, likely[:, None, None].expand(*self.members.shape[:-1], -1)),
            public=_with_rest(self.public, likely),
            tokens=(likely == self.tokens[:, None]).int().argmax(-1),
            approximate=True,
        )

    def spread(self, vocabulary: int) -> Queries:
        """Over the whole vocabulary, in another order of tokens: the rest evenly over those it stands for."""
        if not self.approximate:
            return self
        return replace(
            self,
            members=_spread(self.members, vocabulary),
            public=_spread(self.public, vocabulary),
            approximate=False,
        )


def together(some: Sequence[Queries]) -> Queries:
    """Successive queries as one."""
    first = some[0]
    if len(some) == 1:
        return first
    return replace(
        first,
        members=torch.cat([one.members for one in some]),
        public=torch.cat([one.public for one in some]),
        tokens=torch.cat([one.tokens for one in some]),
        own_public=np.concatenate([one.own_public for one in some]),
        own_members=np.concatenate([one.own_members for one in some]),
    )


class Asker:
    """An ensemble that is asked about blocks, one at a time and in order: individual mixing needs that."""

    def __init__(self, ensemble: Ensemble, blocks: HeldOutBlocks) -> None:
        self._ensemble, self._blocks = ensemble, blocks
        self._executor = ensemble.executor(slots=1, context=int(blocks.lengths.max()))
        self.vocabulary = int(ensemble.public.model.config.vocab_size)
        models = 1 + len(ensemble.members)
        self._at_once = max(1, min(32, _ENTRIES_AT_ONCE // (models * self.vocabulary)))
        self._starts = blocks.starts

    def asked(self, first: int, last: int) -> Iterator[Queries]:
        """The queries of blocks ``first`` to ``last`` (not included)."""
        for block in range(first, last):
            tokens = torch.from_numpy(self._blocks.tokens[block])
            inputs = torch.from_numpy(self._blocks.inputs(block)).unsqueeze(0)
            for scored in self._executor.score(inputs, block=self._at_once):
                logits = scored.logits[:, 0].cpu()
                pmfs = softmax_pmfs(logits)
                members = self._ensemble.members_of(pmfs).permute(2, 0, 1, 3).contiguous()
                came = tokens[scored.start : scored.start + logits.shape[1]]
                own = _own(members, pmfs[0], came)
                yield Queries(int(self._starts[block]) + scored.start, members, pmfs[0], came, *own)


def _own(members: Tensor, public: Tensor, tokens: Tensor) -> tuple[FloatArray, FloatArray]:
    """Log-probabilities [n] of the public model and [n, parts, halves] of single members.

    With the floor that answers have. A member that is not finite answers as the public model, as in every
    mechanism.
    """
    vocabulary = public.shape[-1]
    base = public.gather(-1, tokens[:, None]).double()
    base /= public.sum(-1, keepdim=True, dtype=torch.float64)  # single precision sums to nearly 1
    own = members.gather(-1, tokens[:, None, None, None].expand(*members.shape[:-1], 1))
    own = own.squeeze(-1).double() / members.sum(-1, dtype=torch.float64)
    own = torch.where(torch.isfinite(own), own, base.unsqueeze(-1))
    by_public, by_members = ((p * (1 - FLOOR) + FLOOR / vocabulary).log() for p in (base.squeeze(-1), own))
    return as_floats(by_public), as_floats(by_members)


def _with_rest(pmfs: Tensor, kept: Tensor) -> Tensor:
    """The kept entries of pmfs [..., V], and the mass of all others as one entry more."""
    found = pmfs.gather(-1, kept)
    return torch.cat([found, (1 - found.sum(-1, keepdim=True)).clamp(min=0)], -1)


def _spread(pmfs: Tensor, vocabulary: int) -> Tensor:
    """Pmfs [..., n + 1] whose last entry is spread over what makes them ``vocabulary`` long."""
    others = vocabulary - pmfs.shape[-1] + 1
    rest = pmfs[..., -1:] / others
    return torch.cat([pmfs[..., :-1], rest.expand(*pmfs.shape[:-1], others)], -1)


def as_floats(values: Tensor) -> FloatArray:
    """Numbers as statistics take them."""
    return values.to(torch.float64).numpy()
