"""One pass over an ensemble's distributions for any number of mechanisms.

Distributions of all models for all queries would fill a disk (17 models of 50,000 tokens are 7 MB a query).
So they are held for a handful of positions only: every mechanism mixes them then and there, and what stays is
one probability and one charge per part. Whether a budget pays for the answers is decided afterwards, on those
small arrays; a sweep over budgets, orders and numbers of parts runs the models once. What is condensed to
likely tokens can be kept on the disk (`mechanism_kept`), and then no model runs at all.

Individual mixing alone depends on what is left of its budgets. Queries come in order, so that its budgets
are kept along the way: where every part can still pay the target, the common mixture is its answer; where
not, the query is mixed again with what is left. The result is that of answering one query after the other.

With ``support`` n, mechanisms that mix see the n likeliest tokens and one outcome for all others. That is
many times faster and an approximation (`mechanism_queries`). It serves to choose among targets.

All of this is a function of private text and of the held-out text: the operator's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from torch import Tensor

from tacit.errors import InputError
from tacit.evaluation.mechanism_blocks import HeldOutBlocks, stretches
from tacit.evaluation.mechanism_kept import KeptPmfs
from tacit.evaluation.mechanism_queries import LEAST, Asker, Queries, as_floats, together
from tacit.evaluation.mechanism_settings import Setting
from tacit.mechanisms import GNMax, Individual, Mixture, SubsampleAggregate
from tacit.mechanisms.choice import Mechanism, MechanismChoice
from tacit.mechanisms.pmfs import member_pmfs
from tacit.models.ensemble import Ensemble
from tacit.privacy import RenyiFilter
from tacit.progress import Progress, Silent
from tacit.statistics import FloatArray

_SMALL_AT_ONCE: Final = 64  # queries over some tokens only
_WHOLE_AT_ONCE: Final = 4  # of those, queries over the whole vocabulary again


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


@torch.inference_mode()
def trace(
    ensemble: Ensemble | KeptPmfs,
    blocks: HeldOutBlocks,
    settings: Sequence[Setting] = (),
    *,
    support: int | None = None,
    progress: Progress | None = None,
) -> Traces:
    """Run all models over all blocks, once, and every mechanism over every query.

    Kept distributions are read instead of running models; ``blocks`` are their first ones, or all.
    """
    if support is not None and support < 1:
        raise InputError(f"support={support}: at least one token is needed.")
    progress = progress or Silent()
    count = int(blocks.starts[-1])
    public = np.empty(count)
    members = np.empty((count, ensemble.parts, ensemble.halves))
    probes = [_ProbeInProgress(probe, count) for probe in dict.fromkeys(map(probe_of, settings))]
    fading = [_Fading(setting, blocks) for setting in settings if setting.choice.name == "individual"]
    progress.phase("answering held-out queries", count)
    waiting: list[Queries] = []
    asked: Asker | KeptPmfs = ensemble if isinstance(ensemble, KeptPmfs) else Asker(ensemble, blocks)

    def observe_waiting() -> None:
        queries = together(waiting)
        waiting.clear()
        mixtures = {probe.probe: probe.observe(queries) for probe in probes if probe.mixes}
        for running in fading:
            running.observe(queries, mixtures[probe_of(running.setting)], public[queries.rows])

    for queries in asked.asked(0, len(blocks)):
        public[queries.rows], members[queries.rows] = queries.own_public, queries.own_members
        _observe_whole([probe for probe in probes if not probe.mixes], queries, asked.vocabulary)
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


def _observe_whole(probes: Sequence[_ProbeInProgress], queries: Queries, vocabulary: int) -> None:
    """What has no meaning for tokens taken together: noise on every token, and votes for single ones."""
    if not probes:
        return
    size = _WHOLE_AT_ONCE if queries.approximate else len(queries.tokens)
    for first in range(0, len(queries.tokens), size):
        whole = queries.some(first, first + size).spread(vocabulary)
        for probe in probes:
            probe.observe(whole)


def probe_of(setting: Setting) -> Probe:
    """The probe that a setting's answers come from."""
    return Probe(setting.choice, setting.parts)


class _ProbeInProgress:
    """One mechanism's trace, growing."""

    def __init__(self, probe: Probe, count: int) -> None:
        self.probe = probe
        self.trace = Trace(np.empty(count), np.empty((count, probe.parts)))
        self._mechanism = probe.choice.build(probe.parts)
        self.mixes = not isinstance(self._mechanism, SubsampleAggregate | GNMax)

    def observe(self, queries: Queries) -> Mixture:
        """Mix some queries and keep what is small."""
        mechanism, given = self._mechanism, queries.given_to(self._mechanism, self.probe.parts)
        if queries.approximate:  # which a batch is no more than
            mixture = mechanism.mix(given, queries.public)
        else:
            mixture = _one_by_one(mechanism, given, queries)
        self.trace.charges[queries.rows] = as_floats(mixture.charges)
        if isinstance(mechanism, GNMax):
            pmfs = member_pmfs(given, queries.public, halves=False)
            bound = mechanism.probability_bound(mechanism.votes(pmfs.parts), queries.tokens)
            self.trace.log_probability[queries.rows] = as_floats(bound.clamp(min=LEAST).log())
        else:
            self.trace.log_probability[queries.rows] = queries.of_tokens(mixture.pmf)
        return mixture


def _one_by_one(mechanism: Mechanism, given: Tensor, queries: Queries) -> Mixture:
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

    def observe(self, queries: Queries, unlimited: Mixture, public: FloatArray) -> None:
        """Answer some queries in turn; ``unlimited`` are their mixtures at budgets that suffice."""
        log_probability, charges = queries.of_tokens(unlimited.pmf), as_floats(unlimited.charges)
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
                self.log_probability[number] = float(own.clamp(min=LEAST).log())
                self._filter.debit(as_floats(mixture.charges))
