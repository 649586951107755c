"""The largest mixing weight under which two distributions stay close: SubMix's Eq. 2 and its relatives.

For a base distribution r and a pair (P, Q), let ``P_w = w P + (1-w) r`` and ``Q_w`` likewise. The excess
``E(w) = exp((a-1) D_a(P_w || Q_w)) - 1`` is 0 at w = 0, never falls in w (both arguments pass through the
same channel "keep with probability w, else redraw from r") and is convex. Hence:

- the weights with ``E(w) <= c`` form an interval, and its end is what is sought;
- any w, however it was found, becomes feasible as ``w * min(1, c / E(w))``. A search may therefore be rough:
  only that last step decides whether the bound holds, and where it is the guarantee, it is made in float64.

The number of evaluations is fixed, so that the time taken tells nothing about the distributions. Here is the
search for any order; order 2 has a faster one, :mod:`~tacit.mechanisms.chi_squared`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tacit.mechanisms.divergence import blocks_of, phi

# Where weights reach 1 the hard cases of the tests need all evaluations; ordinary ones arrive after half.
_STEPS = 24
# The bound is met with this much to spare, for the rounding of the evaluation itself.
MARGIN = 1 - 1e-11
# logit of the smallest and, mirrored, the largest weight that is looked at: 4e-18.
_FAR = 40.0


def allowed_excess(order: float, divergence: Tensor | float) -> Tensor:
    """The excess that belongs to a divergence: exp((a-1) D) - 1, kept finite for absurd targets."""
    exponent = (order - 1) * torch.as_tensor(divergence, dtype=torch.float64)
    return torch.expm1(exponent.clamp(max=700.0))


def largest_weights(
    targets: Tensor, differences: Tensor, public: Tensor, *, order: float, excess: Tensor, limit: Tensor
) -> Tensor:
    """For each row, the largest weight up to ``limit`` whose excess is at most ``excess``.

    targets      [N, k, D, V] the Q of every pair; D counts directions
    differences  [N, k, D, V] P - Q
    public       [N, V] the base r, above 0 everywhere
    excess       [N, k] or broadcastable
    limit        [N, k] or broadcastable, within [0, 1]
    Returns [N, k]: the smallest over directions, feasible in each.
    """
    rows = targets.shape[:-1]
    bound = (excess * MARGIN).to(torch.float64).expand(rows[:2]).unsqueeze(-1).expand(rows)
    top = limit.to(torch.float64).expand(rows[:2]).unsqueeze(-1).expand(rows)
    pair = _Pair(targets, differences, public, order)
    return _approach(pair.start(bound), pair, bound, top).amin(-1)


def _approach(start: Tensor, pair: _Pair, bound: Tensor, top: Tensor) -> Tensor:
    """Newton on log E, in a bracket; the largest weight that is known to keep the bound.

    Against log w the curve is straight for small weights and for high orders, against logit w for weights
    near 1; the shorter of both steps is taken. A step that is not half as long as the one before, or that
    leaves the bracket, is replaced by halving the bracket.
    """
    weight, feasible = torch.minimum(start, top), torch.zeros_like(top)
    low, high = torch.full_like(top, -_FAR), torch.logit(top).clamp(max=_FAR)
    before, goal = torch.full_like(top, torch.inf), bound.log()
    for _ in range(_STEPS):
        found, slope = pair.evaluate(weight)
        place = torch.logit(weight).clamp(-_FAR, _FAR)
        fits = found <= bound
        shrunk = torch.where(fits, weight, weight * (bound / found))  # feasible by convexity
        feasible = torch.maximum(feasible, torch.nan_to_num(shrunk, nan=0.0))
        low = torch.where(fits, torch.maximum(low, place), low)
        high = torch.where(fits, high, torch.minimum(high, place))
        move = (goal - found.log()) / slope
        by_logit = move / (1 - weight).clamp(min=1e-6)
        by_log = torch.logit((weight * torch.exp(move)).clamp(max=1.0)) - place
        length = torch.where(by_log.abs() < by_logit.abs(), by_log, by_logit)
        # A step to the right of everything looks at the right end; NaN, from an overflow, halves the bracket.
        newton = torch.where(fits & (place + length >= high), high, place + length)
        good = (newton > low) & (newton <= high) & ((newton - place).abs() <= before / 2)
        target = torch.where(good, newton, (low + high) / 2)
        before = (target - place).abs()
        weight = torch.where(target >= torch.logit(top), top, torch.minimum(torch.sigmoid(target), top))
        weight = torch.where(feasible >= top, top, weight)
    return feasible


class _Pair:
    """E(w) and its slope for many pairs at once.

    With x = w (P-Q) / Q_w:  E = sum Q_w phi(x)  and  w E' = sum phi(x) (Q_w - r) + a ((1+x)^(a-1) - 1) x r.
    """

    def __init__(self, targets: Tensor, differences: Tensor, public: Tensor, order: float) -> None:
        self._targets, self._order = targets, order
        self._base = public[:, None, None, :]
        self._differences = differences

    def start(self, bound: Tensor) -> Tensor:
        """Where E would reach the bound if it were ``a(a-1)/2 sum d^2/r`` times w^2, as it is near 0."""
        factor = self._order * (self._order - 1) / 2
        curvature = (self._differences.square() / self._base).sum(-1)
        return torch.sqrt(bound / (factor * curvature)).clamp(max=1.0)

    def evaluate(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Excess, and its slope in log-log coordinates."""
        excess, growth = torch.zeros_like(weight), torch.zeros_like(weight)
        w = weight.unsqueeze(-1)
        for block in blocks_of(self._targets.shape[-1], weight.numel()):
            r = self._base[..., block]
            mixed = torch.lerp(r, self._targets[..., block], w)  # it never cancels towards 0
            x = w * self._differences[..., block] / mixed
            bend = phi(x, self._order).clamp_(min=0)
            excess += (mixed * bend).sum(-1)
            power = torch.expm1((self._order - 1) * torch.log1p(x))
            growth += (bend * (mixed - r) + self._order * power * x * r).sum(-1)
        # An infinite slope would be a step of no length, for ever; without one the bracket is halved.
        return excess, growth.masked_fill_(growth.isinf(), torch.nan) / excess
