"""What a budget makes of a trace: which answers are paid for, and what the others are.

The rules are those of :class:`tacit.prediction.Answering`, applied to every stretch with a fresh budget: the
Renyi filter stops for good before a charge that a part cannot pay; a certified budget buys a public number
of answers; individual mixing has been budgeted along the way and never stops. After STOP, and for what a
budget does not buy, the public model answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tacit.evaluation.mechanism_blocks import HeldOutBlocks, Stretch
from tacit.evaluation.mechanism_pmfs import Traces, probe_of
from tacit.evaluation.mechanism_settings import Setting
from tacit.mechanisms import Certified, Individual, NonPrivate, Public
from tacit.privacy import RenyiFilter
from tacit.statistics import FloatArray


@dataclass(frozen=True)
class Answers:
    """One setting's answers over all its stretches."""

    log_probability: FloatArray  # [queries]; NaN where a query is of no stretch
    answered: FloatArray  # [stretches] queries before STOP
    stopped: FloatArray  # [stretches] 1 where STOP came


def answers_of(
    setting: Setting, traces: Traces, blocks: HeldOutBlocks, stretched: Sequence[Stretch]
) -> Answers:
    """Apply a setting's budget to every stretch anew."""
    mechanism = setting.choice.build(setting.parts)
    queries = np.array([stretch.queries for stretch in stretched], dtype=np.float64)
    if isinstance(mechanism, Individual):
        return Answers(traces.fading[setting], queries, np.zeros(len(stretched)))
    found = traces.probes[probe_of(setting)]
    starts = blocks.starts
    log_probability = np.full(len(traces.public), np.nan)
    answered = np.zeros(len(stretched))
    for number, stretch in enumerate(stretched):
        begin, end = int(starts[stretch.first]), int(starts[stretch.last])
        if isinstance(mechanism, Public | NonPrivate):
            paid = stretch.queries
        elif isinstance(mechanism, Certified):
            paid = min(stretch.queries, mechanism.queries(setting.budget.epsilon))
        else:
            paid = paid_for(found.charges[begin:end], setting.budget.epsilon)
        log_probability[begin : begin + paid] = found.log_probability[begin : begin + paid]
        log_probability[begin + paid : end] = traces.public[begin + paid : end]
        answered[number] = paid
    return Answers(log_probability, answered, (answered < queries).astype(np.float64))


def paid_for(charges: FloatArray, epsilon: float) -> int:
    """How many queries a budget pays before STOP, by the filter that answers are booked with."""
    budget = RenyiFilter(parts=charges.shape[1], epsilon=epsilon)
    for number, row in enumerate(charges):
        if not budget.spend(row):
            return number
    return len(charges)


def block_perplexities(log_probability: FloatArray, blocks: HeldOutBlocks) -> FloatArray:
    """[blocks] exp(mean negative log-probability) of each block, from [queries]."""
    sums = np.add.reduceat(log_probability, blocks.starts[:-1])
    perplexities: FloatArray = np.exp(-sums / blocks.lengths)
    return perplexities
