"""The mechanisms again, slowly: one query, one part at a time, by bisection and from the definitions."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from tacit.privacy import renyi_divergence, symmetric_renyi_divergence

Array = npt.NDArray[np.float64]


def floored(pmf: Array) -> Array:
    return np.asarray((1 - 1e-9) * pmf / pmf.sum(-1, keepdims=True) + 1e-9 / pmf.shape[-1])


def blend(weight: float, pmf: Array, public: Array) -> Array:
    return weight * pmf + (1 - weight) * public


def largest(fits: object, limit: float) -> float:
    """The largest weight that fits, by 70 halvings."""
    if fits(limit):  # type: ignore[operator]
        return limit
    low, high = 0.0, limit
    for _ in range(70):
        middle = math.sqrt(low * high) if low > 0 else high / 16
        low, high = (middle, high) if fits(middle) else (low, middle)  # type: ignore[operator]
    return low


def halves_weight(p: Array, q: Array, r: Array, order: float, target: float, cap: float, both: bool) -> float:
    def fits(w: float) -> bool:
        P, Q = blend(w, p, r), blend(w, q, r)
        divergence = symmetric_renyi_divergence if both else renyi_divergence
        return bool(divergence(P, Q, order) <= target)

    return largest(fits, cap)


def slot_loss(g: Array, r: Array, weight: float, k: int, order: float, cap: float) -> float:
    c = (1 + (k - 1) * (1 - cap)) / k
    mu = weight / (k * c)
    distance = float(symmetric_renyi_divergence(blend(mu, g, r), r, order))
    return math.log1p(c * math.expm1((order - 1) * distance)) / (order - 1)


def slot_weight(g: Array, r: Array, k: int, order: float, loss: float, cap: float) -> float:
    return largest(lambda w: slot_loss(g, r, w, k, order, cap) <= loss, cap)


def submix(
    halves: Array,
    public: Array,
    *,
    order: float,
    target: float,
    averaged: bool = False,
    both: bool = True,
    guard: float | None = None,
    cap: float = 1.0,
) -> tuple[Array, Array, Array]:
    """pmf, weights and charges of one query, every leave-one-out ensemble computed from scratch."""
    H, r = floored(halves), floored(public)
    k = len(H)
    parts = H.mean(1)
    weights = np.array([halves_weight(p, q, r, order, target, cap, both) for p, q in H])
    if guard is not None:
        limits = [slot_weight(g, r, k, order, guard, cap) for g in parts]
        weights = np.minimum(weights, limits)

    def answer(kept: list[int]) -> Array:
        if not kept:
            return r
        if averaged:
            return blend(float(weights[kept].mean()), parts[kept].mean(0), r)
        return np.asarray(np.mean([blend(weights[i], parts[i], r) for i in kept], axis=0))

    everyone = list(range(k))
    h = answer(everyone)
    charges = []
    for i in everyone:
        others = [j for j in everyone if j != i]
        if guard is None:
            without = answer(others)
        else:
            without = (sum((blend(weights[j], parts[j], r) for j in others), np.zeros_like(r)) + r) / k
        charges.append(float(symmetric_renyi_divergence(h, without, order)))
    return h, weights, np.array(charges)


def certified(
    parts: Array, public: Array, *, order: float, target: float, cap: float
) -> tuple[Array, Array, Array]:
    """pmf, weights and the losses l_i of one query."""
    G, r = floored(parts), floored(public)
    k = len(G)
    weights = np.array([slot_weight(g, r, k, order, target, cap) for g in G])
    losses = np.array([slot_loss(g, r, w, k, order, cap) for g, w in zip(G, weights, strict=True)])
    return np.mean([blend(w, g, r) for w, g in zip(weights, G, strict=True)], axis=0), weights, losses
