"""What every query really revealed about each part, against what it was charged. Any excess is a bug.

The reference is plain and knows nothing of how a mechanism accounts: from weights and floored pmfs it builds
the answer's distribution h and, for each part, the neighbour's h', both by definition, and compares them by
:func:`tacit.privacy.renyi_divergence` in both directions. There is no sampling error, and so no confidence.

Neighbours are those that each mechanism claims:

| mechanism              | without the part                                                              |
|------------------------|-------------------------------------------------------------------------------|
| SubMix                 | the ensemble with one part less; of one part, the public model                |
| SubMix with a guard    | the part answers as the public model                                          |
| certified, individual  | the part answers as the public model. What is claimed holds for *every* other |
|                        | part, so the charge is also compared with the worst others that there can be  |

The worst others of certified mixing are built by definition as well: all at the cap, on an outcome that
neither this part nor the public model has. No other slots make a part's loss larger (joint convexity).

Weights of the other parts are the same in both worlds, because each is claimed to be a function of its own
part. That this is so is not seen here; :mod:`tacit.audit.transcripts` mixes the neighbour's world anew.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

import numpy as np
import torch
from torch import Tensor

from tacit.audit.verdicts import Verdict
from tacit.errors import InputError
from tacit.mechanisms import Certified, Individual, Mixture, SubMix
from tacit.mechanisms.choice import Mechanism, needs_halves
from tacit.mechanisms.pmfs import FLOOR
from tacit.mechanisms.public_centred import cap_for
from tacit.prediction.drawing import mixed
from tacit.privacy import RenyiFilter, renyi_divergence
from tacit.statistics import FloatArray

# What two float64 computations of one divergence may differ by. Charges are padded by as much.
RELATIVE_TOLERANCE: Final = 1e-9
ABSOLUTE_TOLERANCE: Final = 1e-12
# How far, in logarithms, what was drawn from may be from the mixture.
_SAME_PMF: Final = 1e-9
# An audit has power if it would have found an accountant that charges half of what it should.
MEANINGFUL_FACTOR: Final = 2.0
_ENTRIES_AT_ONCE: Final = 2**21


@dataclass(frozen=True)
class RealisedLoss:
    """Losses per part over some queries, in nats at one order: functions of private text, the operator's.

    queries      how many were looked at
    excess       how many of them cost some part more than it was charged, beyond rounding
    largest      the largest such excess, 0 if there is none
    worst_query  the number of that query, counted from 0; None if there is none
    mismatched   how many were not drawn from the mixture that weights and pmfs define
    realised     what each part lost on this corpus, added up
    worst_case   what it may lose whatever the others hold; the same as ``realised`` for SubMix
    charged      what it was charged
    tightness    the largest share of a charge that one query used: what would be too little to notice
    """

    queries: int
    excess: int
    largest: float
    worst_query: int | None
    mismatched: int
    realised: tuple[float, ...]
    worst_case: tuple[float, ...]
    charged: tuple[float, ...]
    tightness: float
    order: float
    neighbours: str

    @property
    def verdict(self) -> Verdict:
        """Supported only where an accountant that charges half of the loss would have been found."""
        if self.excess or self.mismatched:
            return "contradicted"
        return "supported" if self.tightness * MEANINGFUL_FACTOR >= 1 else "inconclusive"

    @property
    def reason(self) -> str:
        """The verdict in a sentence."""
        if self.excess:
            return (
                f"{self.excess:,} of {self.queries:,} queries cost a part more than it was charged, by up to "
                f"{self.largest:.3g} nats."
            )
        if self.mismatched:
            return f"{self.mismatched:,} of {self.queries:,} answers were not drawn from the charged mixture."
        if self.verdict == "supported":
            return f"No charge of {self.queries:,} queries is below the loss, recomputed from the definition."
        return (
            f"No charge of {self.queries:,} queries is below the loss, but at most {self.tightness:.2g} of a "
            "charge was used: one that is half of what it should be would not show."
        )

    def to_json(self) -> dict[str, Any]:
        """JSON form."""
        return asdict(self) | {"verdict": self.verdict, "reason": self.reason}


def neighbours_of(mechanism: Mechanism) -> Literal["removed part", "null part"]:
    """The neighbours that a mechanism's claim is about; refuses mechanisms that mix by no weights."""
    if isinstance(mechanism, SubMix):
        return "removed part" if mechanism.guard is None else "null part"
    if isinstance(mechanism, Certified | Individual):
        return "null part"
    raise InputError(
        f"{type(mechanism).__name__} does not mix parts by weights; losses are recomputed for submix, "
        "certified and individual."
    )


class LossCheck:
    """Checks queries batch by batch, so that a corpus can stream through it."""

    def __init__(self, mechanism: Mechanism, *, parts: int) -> None:
        if parts < 1:
            raise InputError(f"parts={parts}: at least one part is needed.")
        self._neighbours = neighbours_of(mechanism)
        self._mechanism, self._parts = mechanism, parts
        self._queries = self._excess = self._mismatched = 0
        self._largest, self._worst_query = 0.0, None  # type: float, int | None
        self._realised, self._worst_case, self._charged = (np.zeros(parts) for _ in range(3))
        self._tightness = 0.0

    def observe(self, members: Tensor, public: Tensor, mixture: Mixture, charged: Any = None) -> FloatArray:
        """Some queries: members [n, k, halves, V], public [n, V], and what the mechanism made of them.

        ``charged`` [n, k] is what was booked, where that is not what the mixture says. Returns [n, k] what
        each part lost on this corpus.
        """
        if members.ndim != 4 or members.shape[1] != self._parts:
            raise InputError(
                f"members have shape {tuple(members.shape)}; expected [n, {self._parts}, halves, V]."
            )
        booked = np.asarray(mixture.charges if charged is None else charged, dtype=np.float64)
        if booked.shape != members.shape[:2]:
            raise InputError(f"{booked.shape} charges for {tuple(members.shape[:2])} parts of queries.")
        given = members if needs_halves(self._mechanism) else members.mean(2, keepdim=True)
        realised = np.empty(booked.shape)
        for row in range(len(members)):
            weights = mixture.weights[row].double().numpy()
            realised[row] = self._observe_one(
                given[row], public[row], weights, mixture.pmf[row].numpy(), booked[row]
            )
        return realised

    def public_answers(self, count: int) -> None:
        """Queries that the public model answered: they reveal nothing and cost nothing."""
        self._queries += count

    def _observe_one(
        self, members: Tensor, public: Tensor, weights: FloatArray, drawn: FloatArray, booked: FloatArray
    ) -> FloatArray:
        parts_KV, base_V = floored_parts(members, public)
        whole_V, without_KV = self._worlds(parts_KV, base_V, weights)
        order = self._mechanism.order  # type: ignore[union-attr] # the mechanisms with weights have one
        realised = both_directions(whole_V, without_KV, order)
        worst = realised
        if isinstance(self._mechanism, Certified | Individual):
            worst = np.maximum(realised, self._against_worst_others(parts_KV, base_V, weights))
        over = worst - booked
        if np.any(over > RELATIVE_TOLERANCE * booked + ABSOLUTE_TOLERANCE):
            self._excess += 1
            if over.max() > self._largest:
                self._largest, self._worst_query = float(over.max()), self._queries
        self._mismatched += bool(np.any(np.abs(np.log(drawn) - np.log(whole_V)) > _SAME_PMF))
        self._queries += 1
        self._realised += realised
        self._worst_case += worst
        self._charged += booked
        # A charge of next to nothing is all safety for rounding, and shows nothing.
        telling = booked > 1e3 * ABSOLUTE_TOLERANCE
        used = np.divide(worst, booked, out=np.zeros_like(worst), where=telling)
        self._tightness = max(self._tightness, float(used.max()))
        return realised

    def _worlds(
        self, parts_KV: FloatArray, base_V: FloatArray, weights: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """The distribution with all parts, and [k, V] those without each one."""
        k = len(parts_KV)
        others = 1.0 - np.eye(k)  # a product with zeros and ones adds the others up, and subtracts nothing
        if isinstance(self._mechanism, SubMix) and self._mechanism.mixing == "averaged":
            whole = _blend(weights.mean(), parts_KV.mean(0), base_V)
            if k == 1:
                return whole, base_V[None]
            mean_without = (others @ weights / (k - 1))[:, None]
            return whole, _blend(mean_without, others @ parts_KV / (k - 1), base_V)
        slots_KV = _blend(weights[:, None], parts_KV, base_V)
        whole = slots_KV.mean(0)
        if self._neighbours == "null part":
            return whole, (others @ slots_KV + base_V) / k
        return whole, base_V[None] if k == 1 else others @ slots_KV / (k - 1)

    def _against_worst_others(
        self, parts_KV: FloatArray, base_V: FloatArray, weights: FloatArray
    ) -> FloatArray:
        mechanism, k = self._mechanism, len(parts_KV)
        assert isinstance(mechanism, Certified | Individual)  # noqa: S101 - the caller's
        cap = mechanism.cap
        if cap is None:
            cap = cap_for(k, order=mechanism.order, target=mechanism.target)
        cap = max(cap, float(weights.max()))  # a weight above its cap is part of the worst case
        slots_KV = _blend(weights[:, None], parts_KV, base_V)
        rest_V = (k - 1) * (1 - cap) * base_V
        elsewhere = (k - 1) * cap / k
        with_part = np.concatenate([(slots_KV + rest_V) / k, np.full((k, 1), elsewhere)], axis=1)
        without = np.concatenate([(base_V + rest_V) / k, [elsewhere]])
        return both_directions(without, with_part, mechanism.order)

    def result(self) -> RealisedLoss:
        """What was found so far."""
        return RealisedLoss(
            queries=self._queries,
            excess=self._excess,
            largest=self._largest,
            worst_query=self._worst_query,
            mismatched=self._mismatched,
            realised=tuple(self._realised.tolist()),
            worst_case=tuple(self._worst_case.tolist()),
            charged=tuple(self._charged.tolist()),
            tightness=self._tightness,
            order=self._mechanism.order,  # type: ignore[union-attr]
            neighbours=self._neighbours,
        )


def realised_loss(
    mechanism: Mechanism,
    batches: Iterable[tuple[Tensor, Tensor]],
    *,
    parts: int,
    epsilon: float | None = None,
) -> RealisedLoss:
    """Let a mechanism answer batches of (members [n, k, halves, V], public [n, V]) and check every charge.

    With a budget ``epsilon`` queries are answered one after the other as they would be in service: SubMix
    stops, individual budgets fade, a certified counter ends. Without, every query is checked by itself.
    """
    check = LossCheck(mechanism, parts=parts)
    spending = None if epsilon is None else Spending(mechanism, parts=parts, epsilon=epsilon)
    for members, public in batches:
        if spending is None:
            check.observe(members, public, mixed(mechanism, members, public))
            continue
        for row in range(len(members)):
            one = slice(row, row + 1)
            mixture = mixed(mechanism, members[one], public[one], spending.left)
            if spending.pays(mixture.charges[0]):
                check.observe(members[one], public[one], mixture)
            else:
                check.public_answers(1)
    return check.result()


class Spending:
    """Whether the next answer is paid for, by the rule of each mechanism."""

    def __init__(self, mechanism: Mechanism, *, parts: int, epsilon: float) -> None:
        self._mechanism = mechanism
        self._filter = RenyiFilter(parts=parts, epsilon=epsilon)
        self._answered = 0
        self._last = mechanism.queries(epsilon) if isinstance(mechanism, Certified) else math.inf

    @property
    def left(self) -> Tensor:
        """[k] what every part has left."""
        return torch.from_numpy(self._filter.remaining)

    def copied(self) -> Spending:
        """The same, to go on differently from here."""
        other = copy.copy(self)
        other._filter = copy.copy(self._filter)  # which replaces what it counts, and never changes it
        return other

    def pays(self, charges: Any) -> bool:
        """Book the charges [k] of one answer, or say that the public model answers."""
        self._answered += 1
        if isinstance(self._mechanism, Certified):
            return self._answered <= self._last
        if isinstance(self._mechanism, Individual):
            self._filter.debit(np.asarray(charges))
            return True
        return self._filter.spend(np.asarray(charges))


def both_directions(one_V: FloatArray, each_KV: FloatArray, order: float) -> FloatArray:
    """[k] the larger of both directions of the divergence between one distribution and each of some."""
    rows = max(1, _ENTRIES_AT_ONCE // each_KV.shape[-1])
    found = []
    for first in range(0, len(each_KV), rows):
        some = each_KV[first : first + rows]
        there, back = renyi_divergence(one_V, some, order), renyi_divergence(some, one_V, order)
        found.append(np.maximum(there, back))
    return np.concatenate(found)


def floored_parts(members: Tensor, public: Tensor) -> tuple[FloatArray, FloatArray]:
    """Of one query: [k, V] the mean of each part's models and [V] the public model, as mechanisms see them.

    A part with a model that is not finite answers as the public model.
    """
    base_V = _floored(public.double().numpy())
    values = members.double().numpy()
    sound = np.isfinite(values).all(axis=(1, 2))
    parts_KV = np.empty((len(values), len(base_V)))
    for part in range(len(values)):
        # Halves are added up as they came, and their sum is made a distribution: single precision leaves
        # them sums that differ by some 1e-8, and a mechanism may weigh them so.
        parts_KV[part] = _floored(values[part].sum(0)) if sound[part] else base_V
    return parts_KV, base_V


def _floored(pmfs: FloatArray) -> FloatArray:
    normalised = pmfs / pmfs.sum(-1, keepdims=True)
    floored: FloatArray = (1 - FLOOR) * normalised + FLOOR / pmfs.shape[-1]
    return floored


def _blend(weight: Any, pmf: FloatArray, base: FloatArray) -> FloatArray:
    blended: FloatArray = weight * pmf + (1 - weight) * base
    return blended
