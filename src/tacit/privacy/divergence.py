"""Renyi divergences between discrete distributions, in float64 and without cancellation.

``D_a(P || Q) = 1/(a-1) * log sum_v P_v^a Q_v^(1-a)``; order 1 is the Kullback-Leibler divergence, order
infinity the largest log-ratio.

The sum is never formed directly: for nearly equal distributions it is 1 plus something tiny. With
``x = (P - Q) / Q``, the identity ``sum P = sum Q`` gives ``exp((a-1) D) - 1 = sum Q phi(x)`` where
``phi(x) = (1+x)^a - 1 - a x`` is never negative (Bernoulli), so no divergence computed here is either.
Where powers overflow, the sum is formed from logarithms instead; there it is far from 1.

Edge cases: mass of P where Q has none gives infinity; equal distributions give exactly 0; zeros on both
sides count nothing.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from tacit.errors import InputError

FloatArray = npt.NDArray[np.float64]

# How far a pmf's sum may be from one: what single precision leaves after a softmax over a large vocabulary.
SUM_TOLERANCE = 1e-5
# Below this |a x| the binomial series replaces (1+x)^a, which would cancel; eight terms then reach 1e-18.
_SERIES_BELOW = 1e-2
_SERIES_TERMS = 8


def renyi_divergence(p: npt.ArrayLike, q: npt.ArrayLike, order: float) -> FloatArray:
    """D_order(p || q) over the last axis, for order 1, any finite order above 1, or infinity.

    Leading axes are batches and broadcast against each other; the last axes are the same outcomes.
    """
    check_order(order)
    P, Q = _pmf(p, "p"), _pmf(q, "q")
    try:
        leading = np.broadcast_shapes(P.shape[:-1], Q.shape[:-1])
    except ValueError:
        raise InputError(f"p has shape {P.shape} and q {Q.shape}: leading axes must agree.") from None
    if P.shape[-1] != Q.shape[-1]:
        raise InputError(f"p has {P.shape[-1]} outcomes and q {Q.shape[-1]}: they must be the same ones.")
    P, Q = (np.broadcast_to(pmf, (*leading, pmf.shape[-1])) for pmf in (P, Q))
    with np.errstate(divide="ignore", invalid="ignore", over="ignore", under="ignore"):
        if order == 1:
            divergence = _kullback_leibler(P, Q)
        elif math.isinf(order):
            divergence = np.max(np.where(P > 0, _log_ratio(P, Q), 0.0), axis=-1)
        else:
            divergence = _finite_order(P, Q, order)
    escapes = np.any((P > 0) & (Q == 0), axis=-1)
    return np.where(escapes, np.inf, np.maximum(divergence, 0.0))


def symmetric_renyi_divergence(p: npt.ArrayLike, q: npt.ArrayLike, order: float) -> FloatArray:
    """The larger of both directions: what a guarantee for adding *and* removing text is made of."""
    return np.maximum(renyi_divergence(p, q, order), renyi_divergence(q, p, order))


def check_order(order: float) -> None:
    """Refuse what is no Renyi order of at least 1."""
    if math.isnan(order) or order < 1:
        raise InputError(f"order={order}: a Renyi order is at least 1; 2 is the usual choice.")


def _pmf(values: npt.ArrayLike, name: str) -> FloatArray:
    pmf = np.asarray(values, dtype=np.float64)
    if pmf.ndim == 0 or pmf.shape[-1] == 0:
        raise InputError(f"{name} is empty: a pmf needs at least one outcome.")
    if not np.all(np.isfinite(pmf)) or np.any(pmf < 0):
        raise InputError(f"{name} is no pmf: it has negative or non-finite entries.")
    worst = float(np.max(np.abs(pmf.sum(axis=-1) - 1), initial=0.0))
    if worst > SUM_TOLERANCE:
        raise InputError(f"{name} is no pmf: its sum is off by {worst:.2g}; normalise it to 1.")
    return pmf


def _log_ratio(P: FloatArray, Q: FloatArray) -> FloatArray:
    """log(P/Q); by log1p where P and Q are near, by a difference of logarithms where the ratio overflows."""
    x = (P - Q) / Q
    return np.where(np.abs(x) < 0.5, np.log1p(x), np.log(P) - np.log(Q))


def _kullback_leibler(P: FloatArray, Q: FloatArray) -> FloatArray:
    x = (P - Q) / Q
    # x^2/2 - x^3/6 + x^4/12 - ...: the series of (1+x) log(1+x) - x.
    series = Q * _horner(x, [(-1.0) ** j / (j * (j - 1)) for j in range(2, 2 + _SERIES_TERMS)])
    direct = P * np.where(P > 0, np.log(P) - np.log(Q), 0.0) - (P - Q)
    terms = np.where(np.abs(x) < _SERIES_BELOW, series, direct)
    return np.asarray(np.sum(np.where(Q > 0, terms, 0.0), axis=-1))


def _finite_order(P: FloatArray, Q: FloatArray, order: float) -> FloatArray:
    x = (P - Q) / Q
    series = _horner(x, _binomial_coefficients(order))
    # (1+x)^a - 1 - a x, written so that nothing larger than (a-1) x cancels.
    direct = (1 + x) * np.expm1((order - 1) * np.log1p(x)) - (order - 1) * x
    direct = np.where(P == 0, order - 1, direct)
    excess = Q * np.where(np.abs(order * x) < _SERIES_BELOW, series, direct)
    total = np.sum(np.where(Q > 0, excess, 0.0), axis=-1)
    logs = order * np.log(P) + (1 - order) * np.log(Q)
    logs = np.where(P > 0, logs, -np.inf)
    peak = np.max(logs, axis=-1, keepdims=True)
    from_logs = peak[..., 0] + np.log(np.sum(np.exp(logs - peak), axis=-1))
    return np.asarray(np.where(np.isfinite(total), np.log1p(total), from_logs) / (order - 1))


def _binomial_coefficients(order: float) -> list[float]:
    """C(order, j) for j = 2, 3, ..."""
    coefficients, value = [], order
    for j in range(2, 2 + _SERIES_TERMS):
        value *= (order - j + 1) / j
        coefficients.append(value)
    return coefficients


def _horner(x: FloatArray, coefficients: list[float]) -> FloatArray:
    """coefficients[0] x^2 + coefficients[1] x^3 + ..."""
    total = np.zeros_like(x)
    for coefficient in reversed(coefficients):
        total = total * x + coefficient
    return total * x * x
