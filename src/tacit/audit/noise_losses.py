"""What answers of the noise baselines reveal, against what they were charged; there is no sampling error.

Neighbours of both: any text in a part's place, the number of parts fixed. A neighbour that a corpus offers is
the part that answers as the public model (``realised``); the claim is about all (``worst_case``).

- **Subsample-and-aggregate** adds independent Laplace noise to every probability of the mean. What is
  compared is the noisy vector that a token is drawn from: the divergence of two is the sum over tokens of
  that of two Laplace laws, which is convex in each shift. So the worst text in a part's place is sure of one
  token, the one that the part finds least likely. The token alone reveals no more than the vector.
- **GNMax** releases the winner of a noisy vote. The winner's law is one integral for each token that has
  votes and one for all others together (Gauss-Legendre, in logarithms); the worst text votes for one of
  these. A data-dependent charge bounds one direction only, from the answer to its neighbour, and is held
  against that.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from scipy import special
from torch import Tensor

from tacit.audit.realised_loss import (
    ABSOLUTE_TOLERANCE,
    RELATIVE_TOLERANCE,
    LossCheck,
    RealisedLoss,
    floored_parts,
)
from tacit.errors import InputError
from tacit.mechanisms import GNMax, Mixture, SubsampleAggregate
from tacit.mechanisms.choice import Mechanism
from tacit.statistics import FloatArray

NEIGHBOURS: Final = "changed part"
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(32)
_PANEL: Final = 1.5  # standard deviations that 32 nodes integrate over
_MOST_PANELS: Final = 2_000
_REACH: Final = 12.0  # standard deviations: what lies beyond has probability below 1e-32
_QUADRATURE: Final = 1e-9  # relative: what the integral may be off


class NoiseLossCheck:
    """Checks queries batch by batch, as `LossCheck` does for mechanisms that mix."""

    def __init__(self, mechanism: SubsampleAggregate | GNMax, *, parts: int) -> None:
        if parts < 1:
            raise InputError(f"parts={parts}: at least one part is needed.")
        self._mechanism, self._parts = mechanism, parts
        self._queries = self._excess = 0
        self._largest, self._worst_query = 0.0, None  # type: float, int | None
        self._realised, self._worst_case, self._charged = (np.zeros(parts) for _ in range(3))
        self._tightness = 0.0

    def observe(self, members: Tensor, public: Tensor, mixture: Mixture, charged: Any = None) -> FloatArray:
        """Some queries: members [n, k, halves, V], public [n, V]; returns [n, k] what each part lost."""
        booked = np.asarray(mixture.charges if charged is None else charged, dtype=np.float64)
        if booked.shape != (len(members), self._parts):
            raise InputError(f"{booked.shape} charges for {tuple(members.shape[:2])} parts of queries.")
        realised = np.empty(booked.shape)
        for row in range(len(members)):
            parts_KV, base_V = floored_parts(members[row].mean(1, keepdim=True), public[row])
            realised[row], worst = self._losses(parts_KV, base_V)
            self._book(realised[row], worst, booked[row])
        return realised

    def _losses(self, parts_KV: FloatArray, base_V: FloatArray) -> tuple[FloatArray, FloatArray]:
        if isinstance(self._mechanism, SubsampleAggregate):
            return laplace_losses(parts_KV, base_V, self._mechanism)
        return vote_losses(parts_KV, base_V, self._mechanism)

    def _book(self, realised: FloatArray, worst: FloatArray, booked: FloatArray) -> None:
        exact = isinstance(self._mechanism, SubsampleAggregate)
        over = worst - booked
        if np.any(over > (RELATIVE_TOLERANCE if exact else _QUADRATURE) * booked + ABSOLUTE_TOLERANCE):
            self._excess += 1
            if over.max() > self._largest:
                self._largest, self._worst_query = float(over.max()), self._queries
        self._queries += 1
        self._realised += realised
        self._worst_case += worst
        self._charged += booked
        telling = booked > 1e3 * ABSOLUTE_TOLERANCE
        used = np.divide(worst, booked, out=np.zeros_like(worst), where=telling)
        self._tightness = max(self._tightness, float(used.max()))

    def result(self) -> RealisedLoss:
        """What was found so far. What an answer is drawn from is noise: it is not compared."""
        return RealisedLoss(
            queries=self._queries,
            excess=self._excess,
            largest=self._largest,
            worst_query=self._worst_query,
            mismatched=0,
            realised=tuple(self._realised.tolist()),
            worst_case=tuple(self._worst_case.tolist()),
            charged=tuple(self._charged.tolist()),
            tightness=self._tightness,
            order=self._mechanism.order,
            neighbours=NEIGHBOURS,
        )


def adds_noise(mechanism: Mechanism) -> bool:
    """Whether a mechanism draws noise anew for every answer, so that an answer has no fixed distribution."""
    return isinstance(mechanism, SubsampleAggregate | GNMax)


def check_for(mechanism: Mechanism, *, parts: int) -> LossCheck | NoiseLossCheck:
    """The check that a mechanism's charges are held against."""
    if isinstance(mechanism, SubsampleAggregate | GNMax):
        return NoiseLossCheck(mechanism, parts=parts)
    return LossCheck(mechanism, parts=parts)


def laplace_losses(
    parts_KV: FloatArray, base_V: FloatArray, mechanism: SubsampleAggregate
) -> tuple[FloatArray, FloatArray]:
    """[k] with the public model in the part's place, and with the worst text there."""
    unit = len(parts_KV) * mechanism.scale
    realised = laplace_divergences(np.abs(parts_KV - base_V) / unit, mechanism.order).sum(axis=1)
    own = laplace_divergences(parts_KV / unit, mechanism.order)
    least = parts_KV.argmin(axis=1)[:, None]
    kept = own.sum(axis=1) - np.take_along_axis(own, least, axis=1)[:, 0]
    moved = 1 - np.take_along_axis(parts_KV, least, axis=1)[:, 0]
    return realised, kept + laplace_divergences(moved / unit, mechanism.order)


def laplace_divergences(shifts: FloatArray, order: float) -> FloatArray:
    """Renyi divergence of two unit-scale Laplace laws for each shift >= 0 (Mironov 2017, Table II)."""
    grow, fall = order / (2 * order - 1), (order - 1) / (2 * order - 1)
    up, down = (order - 1) * shifts, -order * shifts
    # grow e^up + fall e^down - 1; for small shifts the first order cancels, and is left out before it can.
    small = np.maximum(up, -down) < 1e-3
    second = grow * (up**2 / 2 + up**3 / 6 + up**4 / 24) + fall * (down**2 / 2 + down**3 / 6 + down**4 / 24)
    large = np.logaddexp(math.log(grow) + up, math.log(fall) + down)
    found: FloatArray = np.where(small, np.log1p(np.where(small, second, 0.0)), large) / (order - 1)
    return found


def vote_losses(parts_KV: FloatArray, base_V: FloatArray, mechanism: GNMax) -> tuple[FloatArray, FloatArray]:
    """[k] with the public model's vote in the place of the part's, and with the worst vote there."""
    winners, public = parts_KV.argmax(axis=1).tolist(), int(base_V.argmax())
    tokens = list(dict.fromkeys([*winners, public]))
    place = {token: number for number, token in enumerate(tokens)}
    votes = np.bincount([place[token] for token in winners], minlength=len(tokens)).astype(np.float64)
    silent = len(base_V) - len(tokens)
    if silent:  # a neighbour may vote for one of these
        votes, silent = np.append(votes, 0.0), silent - 1
    here = winner_law(votes, silent, mechanism.sigma)

    def loss(source: int, target: int) -> float:
        if source == target:
            return 0.0
        moved = votes.copy()
        moved[source] -= 1
        moved[target] += 1
        there = winner_law(moved, silent, mechanism.sigma)
        forward = divergence(here, there, mechanism.order)
        # A data-dependent charge says nothing about the way back.
        return forward if mechanism.data_dependent else max(forward, divergence(there, here, mechanism.order))

    losses = {s: [loss(s, t) for t in range(len(votes))] for s in {place[token] for token in winners}}
    realised = np.array([losses[place[token]][place[public]] for token in winners])
    return realised, np.array([max(losses[place[token]]) for token in winners])


@dataclass(frozen=True)
class WinnerLaw:
    """Log-probabilities to win: of each token with a place of its own, and of each of ``silent`` others."""

    tokens: FloatArray
    other: float
    silent: int

    @property
    def total(self) -> float:
        """The probability of all, which is 1."""
        rest = self.silent * math.exp(self.other) if self.silent else 0.0
        return float(np.exp(self.tokens).sum()) + rest


def winner_law(votes: FloatArray, silent: int, sigma: float) -> WinnerLaw:
    """Who wins under Gaussian noise, with ``silent`` tokens without a vote beside those in ``votes``."""
    low = min(0.0, float(votes.min())) - _REACH * sigma
    high = float(votes.max()) + _REACH * sigma
    panels = math.ceil((high - low) / (_PANEL * sigma))
    if panels > _MOST_PANELS:
        raise InputError(
            f"sigma={sigma:.3g}: so little noise protects nothing; lower the price of a query (a smaller "
            "epsilon, or more queries)."
        )
    edges = np.linspace(low, high, panels + 1)
    half = (edges[1] - edges[0]) / 2
    points = (edges[:-1, None] + half * (_NODES + 1)).ravel()
    log_weights = np.tile(np.log(_WEIGHTS * half), panels)
    standard = (points[:, None] - np.append(votes, 0.0)) / sigma
    below = special.log_ndtr(standard)
    density = -(standard**2) / 2 - math.log(sigma * math.sqrt(2 * math.pi))
    all_below = below[:, :-1].sum(axis=1) + silent * below[:, -1]
    # Each token's own factor is its density in the place of its "below".
    logs = special.logsumexp(log_weights[:, None] + all_below[:, None] - below + density, axis=0)
    return WinnerLaw(logs[:-1], float(logs[-1]), silent)


def divergence(here: WinnerLaw, there: WinnerLaw, order: float) -> float:
    """Renyi divergence of one winner's law from another's."""
    terms = order * here.tokens + (1 - order) * there.tokens
    if here.silent:
        rest = math.log(here.silent) + order * here.other + (1 - order) * there.other
        terms = np.append(terms, rest)
    return max(0.0, float(special.logsumexp(terms)) / (order - 1))
