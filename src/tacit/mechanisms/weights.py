"""The largest mixing weight under which two distributions stay close: SubMix's Eq. 2 and its relatives.

For a base distribution r and a pair (P, Q), let ``P_w = w P + (1-w) r`` and ``Q_w`` likewise. The excess
``E(w) = exp((a-1) D_a(P_w || Q_w)) - 1`` is 0 at w = 0, never falls in w (both arguments pass through the
same channel "keep with probability w, else redraw from r") and is convex. Hence:

- the weights with ``E(w) <= c`` form an interval, and its end is what is sought;
- any w, however it was found, becomes feasible as ``w * min(1, c / E(w))``. The search below may therefore
  be rough: only that last step decides whether the bound holds, and it is made in float64.

The number of evaluations is fixed, so that the time taken tells nothing about the distributions.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tacit.mechanisms.divergence import blocks_of, phi

# Evaluations: in single precision to come near (order 2, where nothing overflows), in double precision to
# arrive and to prove. The hard cases of the tests need all of them; ordinary ones arrive after half.
ROUGH_STEPS = 6
EXACT_STEPS = {2.0: 5}
EXACT_STEPS_OTHERWISE = 16
# The bound is met with this much to spare, for the rounding of the evaluation itself.
_MARGIN = 1 - 1e-11
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
    differences  [N, k, D, V] P - Q (D may be 1 where only its square matters, at order 2)
    public       [N, V] the base r
    excess       [N, k] or broadcastable
    limit        [N, k] or broadcastable, within [0, 1]
    Returns [N, k]: the smallest over directions, feasible in each.
    """
    rows = targets.shape[:-1]
    bound = (excess * _MARGIN).to(torch.float64).expand(rows[:2]).unsqueeze(-1).expand(rows)
    top = limit.to(torch.float64).expand(rows[:2]).unsqueeze(-1).expand(rows)
    base = public[:, None, None, :]
    weight = top
    if order == 2:
        rough = (targets.float(), differences.float(), base.float())
        weight = _approach(
            top.float(), rough, order, bound.float(), top.float(), ROUGH_STEPS
        ).nearest.double()
    steps = EXACT_STEPS.get(order, EXACT_STEPS_OTHERWISE)
    return _approach(weight, (targets, differences, base), order, bound, top, steps).feasible.amin(-1)


@dataclass(frozen=True)
class _Approach:
    nearest: Tensor  # where the search would look next
    feasible: Tensor  # the largest weight that is known to keep the bound


def _approach(
    start: Tensor, pair: tuple[Tensor, Tensor, Tensor], order: float, bound: Tensor, top: Tensor, steps: int
) -> _Approach:
    """Newton on log E against logit w, where the curve is nearly straight at both ends, within a bracket."""
    weight, feasible = torch.minimum(start, top), torch.zeros_like(top)
    low, high = torch.full_like(top, -_FAR), torch.logit(top).clamp(max=_FAR)
    goal = bound.log()
    for _ in range(steps):
        found, slope = _evaluate(weight, *pair, order)
        place = torch.logit(weight).clamp(-_FAR, _FAR)
        fits = found <= bound
        shrunk = torch.where(fits, weight, weight * (bound / found))  # feasible by convexity
        feasible = torch.maximum(feasible, torch.nan_to_num(shrunk, nan=0.0))
        low = torch.where(fits, torch.maximum(low, place), low)
        high = torch.where(fits, high, torch.minimum(high, place))
        # d logit(w) = d log(w) / (1 - w); at w = 1 the distance to go is all there is to know.
        newton = place + (goal - found.log()) / (slope * (1 - weight)).clamp(min=1e-6)
        inside = (newton > low) & (newton < high)  # false for NaN, so that an overflow halves the bracket
        weight = torch.minimum(torch.sigmoid(torch.where(inside, newton, (low + high) / 2)), top)
        weight = torch.where(feasible >= top, top, weight)
    return _Approach(weight, feasible)


def _evaluate(
    weight: Tensor, targets: Tensor, differences: Tensor, base: Tensor, order: float
) -> tuple[Tensor, Tensor]:
    """Excess and its slope in log-log coordinates.

    With x = w (P-Q) / Q_w:  E = sum Q_w phi(x)  and  w E' = sum phi(x) (Q_w - r) + a ((1+x)^(a-1) - 1) x r.
    """
    excess = torch.zeros_like(weight)
    growth = torch.zeros_like(weight)
    w = weight.unsqueeze(-1)
    for block in blocks_of(targets.shape[-1], weight.numel()):
        r, d = base[..., block], differences[..., block]
        mixed = torch.lerp(r, targets[..., block], w)  # exact to rounding: it never cancels towards 0
        if order == 2:
            term = d * d / mixed
            excess += term.sum(-1)
            growth += term.mul_(r).div_(mixed).sum(-1)
        else:
            x = w * d / mixed
            bend = phi(x, order).clamp_(min=0)
            excess += (mixed * bend).sum(-1)
            power = torch.expm1((order - 1) * torch.log1p(x))
            growth += (bend * (mixed - r) + order * power * x * r).sum(-1)
    if order == 2:
        return weight * weight * excess, 1 + growth / excess
    return excess, growth / excess
