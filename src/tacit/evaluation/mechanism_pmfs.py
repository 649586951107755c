"""One pass over an ensemble's distributions for any number of mechanisms.

Distributions of all models for all queries would fill a disk (17 models of 50,000 tokens are 7 MB a query).
So they are kept for a handful of positions only: every mechanism mixes them then and there, and what stays is
one probability and one charge per part. Whether a budget pays for the answers is decided afterwards, on those
small arrays; a sweep over budgets, orders and numbers of parts runs the models once.

Individual mixing alone depends on what is left of its budgets. Queries come in order, so that its budgets
are kept along the way: where every part can still pay the target, the common mixture is its answer; where
not, the query is mixed again with what is left. The result is that of answering one query after the other.

With ``support`` n, mechanisms that mix see the n tokens that the models together find likeliest, the token
that came, and one outcome for all others. That is many times faster and an approximation: divergences
within the rest are lost, so that weights are a little too large. It serves to choose among targets.

All of this is a function of private text and of the held-out text: the operator's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from torch import Tensor

from tacit.errors import InputError
from tacit.evaluation.mechanism_blocks import HeldOutBlocks, stretches
from tacit.evaluation.mechanism_settings import Setting
from tacit.mechanisms import GNMax, Individual, Mixture, SubsampleAggregate, softmax_pmfs
from tacit.mechanisms.choice import Mechanism, MechanismChoice, needs_halves
from tacit.mechanisms.pmfs import FLOOR, member_pmfs
from tacit.models.ensemble import Ensemble
from tacit.privacy import RenyiFilter
from tacit.progress import Progress, Silent
from tacit.statistics import FloatArray

# Distributions held at once: 8 bytes each, and mechanisms make some copies. More is not faster.
_ENTRIES_AT_ONCE: Final = 4_000_000
_SMALL_AT_ONCE: Final = 64  # queries over some tokens only
# The sampler draws every token with at least this probability; a pmf with zeros is not what is answered.
_LEAST: Final = 2.0**-62


@dataclass(frozen=True)
class Probe:
    """A mechanism over the first ``parts`` parts, whatever its budget."""

    choice: MechanismChoice
    parts: int


@dataclass(frozen=True)
class Trace:
    """What one mechanism does with every query: log-probability of the true token, and charges."""

    log_probability: FloatArray  # [queries]
    charges: FloatArray  # [queries, parts]


@dataclass(frozen=True)
class Traces:
    """What is kept of a pass."""

    public: FloatArray  # [queries] log-probability of the true token
    members: FloatArray  # [queries, parts, halves]
    probes: dict[Probe, Trace]
    fading: dict[Setting, FloatArray]  # individual mixing, whose answers depend on the budget: [queries]

    def ensemble(self, parts: int) -> FloatArray:
        """[queries] log-probability by the plain mean of the first ``parts`` parts, without any privacy."""
        mean: FloatArray = np.log(np.exp(self.members[:, :parts]).mean((1, 2)))
        return mean


@dataclass(frozen=True)
class _Queries:
    """Some successive queries: distributions of all models, and the tokens that came."""

    start: int
    members: Tensor  # [n, parts, halves, V]
    public: Tensor  # [n, V]
    tokens: Tensor  # [n]
    approximate: bool = False  # over some tokens only

    def given_to(self, mechanism: Mechanism, parts: int) -> Tensor:
        """What a mechanism over the first parts mixes: halves, or their mean."""
        members = self.members[:, :parts]
        return members if needs_halves(mechanism) else members.mean(2)

    def of_tokens(self, pmfs: Tensor) -> FloatArray:
        """[n] log-probabilities of the tokens that came under pmfs [n, V]."""
        own = pmfs.gather(-1, self.tokens.unsqueeze(-1)).squeeze(-1)
        return _numpy(own.clamp(min=_LEAST).log())

    @property
    def rows(self) -> slice:
        """Where these queries are among all."""
        return slice(self.start, self.start + len(self.tokens))

    def condensed(self, support: int | None) -> _Queries:
        """The same over ``support`` likely tokens, the token that came and the rest; unchanged for None."""
        if support is None or support + 2 >= self.public.shape[-1]:
            return self
        likely = (self.public + self.members.sum((1, 2))).nan_to_num(0.0).topk(support).indices
        there = likely == self.tokens[:, None]
        # Where the token that came is not among them, it takes the place of the least likely.
        missing = ~there.any(-1)
        likely[missing, -1] = self.tokens[missing]
        place = (likely == self.tokens[:, None]).int().argmax(-1)
        return _Queries(
            self.start,
            _with_rest(self.members, likely[:, None, None].expand(*self.members.shape[:-1], -1)),
            _with_rest(self.public, likely),
            place,
            approximate=True,
        )


def _together(some: list[_Queries]) -> _Queries:
    """Successive queries as one."""
    if len(some) == 1:
        return some[0]
    return _Queries(
        some[0].start,
        torch.cat([one.members for one in some]),
        torch.cat([one.public for one in some]),
        torch.cat([one.tokens for one in some]),
        some[0].approximate,
    )


@torch.inference_mode()
def trace(
    ensemble: Ensemble,
    blocks: HeldOutBlocks,
    settings: Sequence[Setting] = (),
    *,
    support: int | None = None,
    progress: Progress | None = None,
) -> Traces:
    """Run all models over all blocks, once, and every mechanism over every query."""
    if support is not None and support < 1:
        raise InputError(f"support={support}: at least one token is needed.")
    progress = progress or Silent()
    count = int(blocks.starts[-1])
    public = np.empty(count)
    members = np.empty((count, ensemble.parts, ensemble.halves))
    probes = [_ProbeInProgress(probe, count) for probe in dict.fromkeys(map(probe_of, settings))]
    fading = [_Fading(setting, blocks) for setting in settings if setting.choice.name == "individual"]
    progress.phase("answering held-out queries", count)
    waiting: list[_Queries] = []

    def observe_waiting() -> None:
        queries = _together(waiting)
        waiting.clear()
        mixtures = {probe.probe: probe.observe(queries) for probe in probes if probe.mixes}
        for running in fading:
            running.observe(queries, mixtures[probe_of(running.setting)], public[queries.rows])

    for queries in _queries(ensemble, blocks):
        public[queries.rows], members[queries.rows] = _plain(queries)
        for probe in probes:
            if not probe.mixes:
                probe.observe(queries)
        waiting.append(queries.condensed(support))
        # Over some tokens only, a query is small, and many at once are many times faster.
        if not waiting[-1].approximate or sum(len(one.tokens) for one in waiting) >= _SMALL_AT_ONCE:
            observe_waiting()
        progress.advance(len(queries.tokens))
    if waiting:
        observe_waiting()
    return Traces(
        public,
        members,
        {probe.probe: probe.trace for probe in probes},
        {running.setting: running.log_probability for running in fading},
    )


def probe_of(setting: Setting) -> Probe:
    """The probe that a setting's answers come from."""
    return Probe(setting.choice, setting.parts)


def _queries(ensemble: Ensemble, blocks: HeldOutBlocks) -> Iterator[_Queries]:
    """Every query in order. Blocks run one at a time: individual mixing needs that order."""
    models = 1 + len(ensemble.members)
    executor = ensemble.executor(slots=1, context=int(blocks.lengths.max()))
    starts = blocks.starts
    for block in range(len(blocks)):
        tokens = torch.from_numpy(blocks.tokens[block])
        inputs = torch.from_numpy(blocks.inputs(block)).unsqueeze(0)
        vocabulary = ensemble.public.model.config.vocab_size
        at_once = max(1, min(32, _ENTRIES_AT_ONCE // (models * vocabulary)))
        for scored in executor.score(inputs, block=at_once):
            logits = scored.logits[:, 0].cpu()
            pmfs = softmax_pmfs(logits)
            members = ensemble.members_of(pmfs).permute(2, 0, 1, 3).contiguous()
            until = scored.start + logits.shape[1]
            yield _Queries(int(starts[block]) + scored.start, members, pmfs[0], tokens[scored.start : until])


def _plain(queries: _Queries) -> tuple[FloatArray, FloatArray]:
    """Log-probabilities [n] of the public model and [n, parts, halves] of single members.

    With the floor that answers have. A member that is not finite answers as the public model, as in every
    mechanism.
    """
    vocabulary = queries.public.shape[-1]
    base = queries.public.gather(-1, queries.tokens[:, None]).double()
    base /= queries.public.sum(-1, keepdim=True, dtype=torch.float64)  # single precision sums to nearly 1
    own = queries.members.gather(
        -1, queries.tokens[:, None, None, None].expand(*queries.members.shape[:-1], 1)
    )
    own = own.squeeze(-1).double() / queries.members.sum(-1, dtype=torch.float64)
    own = torch.where(torch.isfinite(own), own, base.unsqueeze(-1))
    public, members = ((p * (1 - FLOOR) + FLOOR / vocabulary).log() for p in (base.squeeze(-1), own))
    return _numpy(public), _numpy(members)


class _ProbeInProgress:
    """One mechanism's trace, growing."""

    def __init__(self, probe: Probe, count: int) -> None:
        self.probe = probe
        self.trace = Trace(np.empty(count), np.empty((count, probe.parts)))
        self._mechanism = probe.choice.build(probe.parts)
        # Noise on every token and votes for single tokens have no meaning for tokens taken together.
        self.mixes = not isinstance(self._mechanism, SubsampleAggregate | GNMax)

    def observe(self, queries: _Queries) -> Mixture:
        """Mix some queries and keep what is small."""
        mechanism, given = self._mechanism, queries.given_to(self._mechanism, self.probe.parts)
        if queries.approximate:  # which a batch is no more than
            mixture = mechanism.mix(given, queries.public)
        else:
            mixture = _one_by_one(mechanism, given, queries)
        self.trace.charges[queries.rows] = _numpy(mixture.charges)
        if isinstance(mechanism, GNMax):
            pmfs = member_pmfs(given, queries.public, halves=False)
            bound = mechanism.probability_bound(mechanism.votes(pmfs.parts), queries.tokens)
            self.trace.log_probability[queries.rows] = _numpy(bound.clamp(min=_LEAST).log())
        else:
            self.trace.log_probability[queries.rows] = queries.of_tokens(mixture.pmf)
        return mixture


def _with_rest(pmfs: Tensor, kept: Tensor) -> Tensor:
    """The kept entries of pmfs [..., V], and the mass of all others as one entry more."""
    found = pmfs.gather(-1, kept)
    return torch.cat([found, (1 - found.sum(-1, keepdim=True)).clamp(min=0)], -1)


def _one_by_one(mechanism: Mechanism, given: Tensor, queries: _Queries) -> Mixture:
    """Mix each query alone, as the service does: the search for weights ends elsewhere for a batch.

    Noise is a function of the query's number, so that sweeps agree with single runs. Nothing is released
    here: it need not be unpredictable.
    """
    mixtures = []
    for row in range(len(given)):
        if isinstance(mechanism, SubsampleAggregate | GNMax):
            mechanism.noise.manual_seed(queries.start + row)
        mixtures.append(mechanism.mix(given[row], queries.public[row]))
    return Mixture(
        *(
            torch.stack([getattr(m, name) for m in mixtures])
            for name in ("pmf", "weights", "charges", "sound")
        )
    )


class _Fading:
    """Individual mixing under one budget: its parts' budgets along the queries, fresh at every stretch."""

    def __init__(self, setting: Setting, blocks: HeldOutBlocks) -> None:
        self.setting = setting
        # Individual, which is all that fades.
        built = setting.choice.build(setting.parts)
        assert isinstance(built, Individual)  # noqa: S101 - an invariant of the caller
        self._mechanism = built
        found = stretches(blocks, setting.budget.queries)
        self._fresh = {int(blocks.starts[stretch.first]) for stretch in found}
        self._end = int(blocks.starts[found[-1].last])
        self.log_probability = np.full(int(blocks.starts[-1]), np.nan)
        self._filter = self._new_filter()

    def _new_filter(self) -> RenyiFilter:
        return RenyiFilter(parts=self.setting.parts, epsilon=self.setting.budget.epsilon)

    def observe(self, queries: _Queries, unlimited: Mixture, public: FloatArray) -> None:
        """Answer some queries in turn; ``unlimited`` are their mixtures at budgets that suffice."""
        log_probability, charges = queries.of_tokens(unlimited.pmf), _numpy(unlimited.charges)
        given = queries.given_to(self._mechanism, self.setting.parts)
        for row in range(len(charges)):
            number = queries.start + row
            if number >= self._end:  # of no stretch
                return
            if number in self._fresh:
                self._filter = self._new_filter()
            left = self._filter.remaining
            if left.min() >= self._mechanism.target:
                self.log_probability[number] = log_probability[row]
                self._filter.debit(charges[row])
            elif left.max() == 0:
                self.log_probability[number] = public[row]
            else:
                mixture = self._mechanism.mix(given[row], queries.public[row], torch.from_numpy(left))
                own = mixture.pmf[queries.tokens[row]]
                self.log_probability[number] = float(own.clamp(min=_LEAST).log())
                self._filter.debit(_numpy(mixture.charges))


def _numpy(values: Tensor) -> FloatArray:
    return values.to(torch.float64).numpy()
