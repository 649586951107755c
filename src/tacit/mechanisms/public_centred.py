"""Bounds around the public model: how much one slot of a mixture can matter, from that slot alone.

k slots, fixed and public; slot i answers ``m_i = w_i g_i + (1-w_i) r`` with every ``w_i <= cap``, and the
mixture is their mean h. Neighbours: part i's text is replaced by nothing, so that its slot answers r; then
``h' = h - (m_i - r)/k``. Every other slot contributes at least (1-cap) r, so ``h' >= c r`` with
``c = (1 + (k-1)(1-cap))/k``. Writing both as ``c (.) + (1-c) R`` with one R, joint convexity gives

    l_i = 1/(a-1) log(1 + c (exp((a-1) D_a^sym(m~_i || r)) - 1))  >=  D_a^sym(h || h'),

``m~_i = r + mu (g_i - r)``, ``mu = w_i/(k c)``. l_i depends on part i alone: not on the other parts, not on
the corpus. That is what makes a bound on it a differential-privacy guarantee.
"""

from __future__ import annotations

import math
from functools import cache
from statistics import NormalDist

import torch
from torch import Tensor

from tacit.errors import InputError
from tacit.mechanisms.chi_squared import ChiSquaredPairs
from tacit.mechanisms.divergence import symmetric_divergence
from tacit.mechanisms.pmfs import MemberPmfs
from tacit.mechanisms.weights import MARGIN, allowed_excess, largest_weights
from tacit.privacy.conversions import check_number

# What the cap is chosen for. Parts lie at chi-squared distances from the public model that are lognormal
# around a median, and a weight w keeps 1 - (1-w)^2 of a part's improvement: both are guesses that fit what
# was measured on public text with 16 and 64 parts (docs/utility.md). Any cap is safe.
_MEDIAN_DISTANCE = 1.0
_DISTANCES = tuple(
    _MEDIAN_DISTANCE * math.exp(2.0 * NormalDist().inv_cdf((place + 0.5) / 32)) for place in range(32)
)


@cache
def cap_for(parts: int, *, order: float, target: float) -> float:
    """A cap for ``parts`` slots at this price: a function of public numbers alone.

    A low cap wastes weight that a slot could afford; a high one leaves little of the public model in the
    others, which makes every weight dearer. Near 0 the loss is ``order/2 w^2 chi2 / (k^2 c)``: so much weight
    a slot at a distance can afford, and the cap, in hundredths, is the one under which the most is kept.
    """
    if parts == 1:
        return 1.0
    return max(
        (hundredth / 100 for hundredth in range(1, 101)), key=lambda cap: _kept(cap, parts, order, target)
    )


def _kept(cap: float, parts: int, order: float, target: float) -> float:
    affordable = parts * math.sqrt(2 * target * shared_mass(parts, cap) / order)
    weights = (min(cap, affordable / math.sqrt(distance)) for distance in _DISTANCES)
    return sum(1 - (1 - weight) ** 2 for weight in weights)


def check_mixing(order: float, target: float, cap: float | None) -> None:
    """Refuse parameters for which no mixing is defined."""
    for name, value in (("order", order), ("target", target), ("cap", 1.0 if cap is None else cap)):
        check_number(name, value)
    if not 1 < order < math.inf:
        raise InputError(f"order={order}: private prediction needs a finite Renyi order above 1, e.g. 2.")
    if not 0 < target < math.inf:
        raise InputError(
            f"target={target}: the target per query must be a finite number above 0, e.g. 0.002."
        )
    if cap is not None and not 0 < cap <= 1:
        raise InputError(f"cap={cap}: the largest mixing weight lies in (0, 1].")


def shared_mass(parts: int, cap: float) -> float:
    """c: the share of the mixture that is the public model whatever the other slots hold."""
    return (1 + (parts - 1) * (1 - cap)) / parts


def weights_within(
    pmfs: MemberPmfs,
    *,
    order: float,
    loss: Tensor | float,
    cap: float,
    k: int | None = None,
    wanted: Tensor | None = None,
) -> Tensor:
    """[N, k]: each slot's largest weight up to ``cap`` with l_i at most ``loss`` (a number, or [N, k]).

    ``k`` is the number of slots of the whole mixture, where ``pmfs`` holds only some of them; nobody asks for
    weights beyond those ``wanted`` [N, k]. The bound is proven in double precision whatever the members came
    in: here it is the guarantee.
    """
    k = pmfs.parts.shape[1] if k is None else k
    c = shared_mass(k, cap)
    base = pmfs.public.unsqueeze(1)
    gap = pmfs.parts - base
    excess = allowed_excess(order, loss) / c
    limit = torch.tensor(cap, dtype=torch.float64) if wanted is None else wanted.clamp(max=cap)
    limit = limit / (k * c)
    if order == 2:
        # m~ against r is w^2 sum d^2/r: no search. What is left to search is r against m~, in the precision
        # that members came in; one evaluation in double precision then proves the bound.
        squares = gap.square_()
        forward = ((excess * MARGIN) / (squares @ base.reciprocal().mT).squeeze(-1)).sqrt()
        limit = torch.fmin(limit, forward)  # 0/0 is a part that answers as the public model
        exact, rough = (
            ChiSquaredPairs(pmfs.parts.to(kind).unsqueeze(2), squares.to(kind).unsqueeze(2), pmfs.public)
            for kind in (torch.float64, pmfs.members.dtype)
        )
        scaled = exact.proven(rough.largest_weights(excess, limit), excess)
    else:
        scaled = largest_weights(
            torch.stack((base.expand_as(gap), pmfs.parts), dim=2),  # m~ against r, and r against m~
            torch.stack((gap, -gap), dim=2),
            pmfs.public,
            order=order,
            excess=excess,
            limit=limit,
        )
    return (scaled * (k * c)).clamp(max=cap)


def slot_losses(pmfs: MemberPmfs, weights: Tensor, *, order: float, cap: float) -> Tensor:
    """[N, k]: l_i at the given weights."""
    k = weights.shape[1]
    c = shared_mass(k, cap)
    base = pmfs.public.unsqueeze(1)
    centred = torch.lerp(base, pmfs.parts, (weights / (k * c)).unsqueeze(-1))
    distance = symmetric_divergence(centred, base, order)
    exponent = (order - 1) * distance
    # log(1 + c (e^t - 1)), without overflow for the largest t.
    large = exponent + math.log(c) + torch.log1p((1 - c) / c * torch.exp(-exponent))
    return torch.where(exponent < 1, torch.log1p(c * torch.expm1(exponent)), large) / (order - 1)
