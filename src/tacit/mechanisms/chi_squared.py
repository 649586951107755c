"""The largest weights at order 2, where ``E(w) = w^2 F(w)`` with ``F(w) = sum (P-Q)^2 / Q_w``.

``Q_w = r + w (Q-r)`` is a line in w at every token, and 1/F is their weighted harmonic mean: concave. Hence:

- a chord of 1/F lies below it, and the weight at which a chord would meet the bound keeps the bound;
- a chord drawn on beyond its ends lies above, and meets the bound where it is broken already.

The search follows chords from both sides. It needs no slopes, one pass over the vocabulary for every
evaluation, and as many evaluations whatever the distributions are.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tacit.mechanisms.divergence import blocks_of
from tacit.mechanisms.weights import MARGIN

# Evaluations: the hardest cases of the tests need all of them in double precision, ordinary ones arrive after
# four. In single precision five keep at least 0.999 of the largest weight, memorising halves apart.
EXACT_STEPS = 12
ROUGH_STEPS = 5
# Single precision knows the bound to a few parts in a million; this far away from it a weight is kept.
_ROUGH_MARGIN = 1 - 1e-5


class ChiSquaredPairs:
    """E(w) for many pairs (P, Q) around a public base, in the precision of ``targets``.

    targets  [N, k, D, V] the Q of every pair; D counts directions
    squares  [N, k, 1, V] (P - Q)^2
    public   [N, V] the base r, above 0 everywhere
    """

    def __init__(self, targets: Tensor, squares: Tensor, public: Tensor) -> None:
        self._targets = targets
        self._base = public.to(targets.dtype)[:, None, None]
        self._squares = squares.mT
        # Memory for what every evaluation computes anew: to ask the system for it each time costs more than
        # the arithmetic.
        widest = next(blocks_of(targets.shape[-1], targets.shape[:-1].numel()))
        self._mixed = torch.empty_like(targets[..., widest], memory_format=torch.contiguous_format)

    def largest_weights(self, excess: Tensor, limit: Tensor) -> Tensor:
        """[N, k]: the largest weight up to ``limit`` whose excess is at most ``excess`` in all directions.

        Both broadcast to [N, k]. In single precision the bound is kept as far as that goes: where it is the
        guarantee, `proven` follows.
        """
        rough = self._targets.dtype != torch.float64
        bound, top = self._rows(excess * MARGIN), self._rows(limit)
        # At weight 1 nothing of the public model is left to keep a sum finite in single precision.
        end = top.clamp(max=1 - 2**-23) if rough else top
        low, at_low = torch.zeros_like(top), 1 / self._factor_at_0()
        high = at_high = torch.full_like(top, torch.inf)
        weight, before, at_before = torch.minimum((bound * at_low).sqrt(), end), low, at_low
        for _ in range(ROUGH_STEPS if rough else EXACT_STEPS):
            at_weight = 1 / self._factor(weight)
            fits = weight.square() <= bound * at_weight
            low, at_low = torch.where(fits, weight, low), torch.where(fits, at_weight, at_low)
            high, at_high = torch.where(fits, high, weight), torch.where(fits, at_high, at_weight)
            meeting = _meeting(bound, before, at_before, weight, at_weight)
            before, at_before = weight, at_weight
            inside = (meeting > low) & (meeting < high)
            weight = torch.minimum(torch.where(inside, meeting, (low + high) / 2), end)
        # No number where everything fitted; anything where rounding is all that is between both ends.
        between = _meeting(bound, low, at_low, high, at_high)
        found = torch.minimum(torch.fmax(low, between), torch.minimum(high, end))
        if rough:
            found = torch.where(low >= end, top, found * _ROUGH_MARGIN)
        return found.amin(-1)

    def proven(self, weights: Tensor, excess: Tensor) -> Tensor:
        """Weights [N, k], those made smaller whose excess would be more: feasible by convexity."""
        weight = self._rows(weights)
        shrunk = self._rows(excess * MARGIN) / (weight.square() * self._factor(weight))
        return (weight * torch.nan_to_num(shrunk, nan=0.0).clamp(max=1.0)).amin(-1)

    def _rows(self, per_part: Tensor) -> Tensor:
        rows = self._targets.shape[:-1]
        return per_part.to(torch.float64).expand(rows[:2]).unsqueeze(-1).expand(rows)

    def _factor_at_0(self) -> Tensor:
        """F where nothing is mixed in: the same in all directions."""
        squares, base = self._squares.squeeze(-1), self._base.squeeze(1)
        return (squares @ base.reciprocal().mT).double().expand(self._targets.shape[:-1])

    def _factor(self, weight: Tensor) -> Tensor:
        """F at weights [N, k, D]."""
        total = torch.zeros_like(weight)
        w = weight.to(self._targets.dtype).unsqueeze(-1)
        for block in blocks_of(self._targets.shape[-1], weight.numel()):
            targets = self._targets[..., block]
            mixed = self._mixed[..., : targets.shape[-1]]
            torch.lerp(self._base[..., block], targets, w, out=mixed)  # it never cancels towards 0
            total += (mixed.reciprocal_() @ self._squares[:, :, block]).squeeze(-1)
        return total


def _meeting(bound: Tensor, first: Tensor, at_first: Tensor, second: Tensor, at_second: Tensor) -> Tensor:
    """Where w^2 is ``bound`` times the line through two points of 1/F; NaN where there is no line."""
    half_slope = (at_second - at_first) / (second - first) * (bound / 2)
    # A concave curve above 0 has chords that begin above 0, up to rounding.
    start = (bound * at_first - 2 * half_slope * first).clamp(min=0)
    root = (half_slope.square() + start).sqrt()
    return torch.where(half_slope > 0, root + half_slope, start / (root - half_slope))
