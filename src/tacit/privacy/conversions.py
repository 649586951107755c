"""From one statement of privacy to another: what each conversion costs, and which published ones are false.

All of them need a bound that holds for *every* corpus. SubMix's operational privacy (ROP) is measured on
one corpus, so :class:`~tacit.privacy.guarantee.Guarantee` refuses to convert it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real
from typing import Any, Literal, get_args

from tacit.errors import InputError

MOST_QUERIES = 10**15  # or people: beyond any use, and within what floats count
DpFormula = Literal["tight", "mironov"]
UserTheorem = Literal["better", "paper"]


@dataclass(frozen=True)
class RenyiBound:
    """(order, epsilon): every Renyi divergence of this order is at most epsilon nats."""

    order: float
    epsilon: float

    def __post_init__(self) -> None:
        check_renyi(self.order, self.epsilon)


@dataclass(frozen=True)
class RandomStop:
    """What random stopping promises, in the one direction in which it promises anything (`paper`)."""

    order: float
    epsilon: float
    public_share: float
    direction: str = "one-directional: early-stopping world against late-stopping world only"


def rdp_to_dp(*, order: float, epsilon: float, delta: float, formula: DpFormula = "tight") -> float:
    """The epsilon of (epsilon, delta)-DP that (order, epsilon)-RDP implies.

    ``tight``    epsilon + log((a-1)/a) - (log delta + log a)/(a-1)   (Canonne et al. 2020, Prop. 12)
    ``mironov``  epsilon + log(1/delta)/(a-1)                          (Mironov 2017, Prop. 3)
    """
    _check_choice("formula", formula, DpFormula)
    check_renyi(order, epsilon)
    check_delta(delta)
    if math.isinf(order) or math.isinf(epsilon):
        return epsilon
    if formula == "mironov":
        return epsilon - math.log(delta) / (order - 1)
    tight = epsilon + math.log1p(-1 / order) - (math.log(delta) + math.log(order)) / (order - 1)
    return max(0.0, tight)


def part_to_user(*, order: float, epsilon: float, theorem: UserTheorem = "better") -> RenyiBound:
    """From "one part removed" to "one user's text replaced".

    ``better``  (a^2/(2a-1), (2a-1)/(a-1) epsilon) for every a > 1: Mironov 2017, Prop. 11, with its free
                exponent chosen so that both divergences have order at most a.
    ``paper``   (a/2, (2a-3)/(a-2) epsilon) for a > 2: SubMix, Theorem C.1.
    """
    _check_choice("theorem", theorem, UserTheorem)
    check_renyi(order, epsilon)
    if math.isinf(order):
        return RenyiBound(order, pure_part_to_user(epsilon))
    if theorem == "better":
        # a^2/(2a-1), in a form that does not overflow: order infinity would promise pure DP.
        return RenyiBound(order / (2 - 1 / order), (2 - 1 / order) / (1 - 1 / order) * epsilon)
    if order <= 2:
        raise InputError(
            f"order={order}: the paper's Theorem C.1 needs an order above 2; use theorem 'better'."
        )
    return RenyiBound(order / 2, (2 * order - 3) / (order - 2) * epsilon)


def pure_part_to_user(epsilon: float) -> float:
    """Pure DP: replacing a user is at most one removal and one addition of a part."""
    check_epsilon(epsilon)
    return 2 * epsilon


def rdp_group(*, order: float, epsilon: float, size: int) -> RenyiBound:
    """Renyi bound for a group, after Mironov 2017, Prop. 2: groups of 2^c pay (a/2^c, 3^c epsilon).

    The size is rounded up to a power of two. "A group of n costs n epsilon" at the same order, as in
    SubMix's appendix C, is false: the Gaussian mechanism costs n^2 epsilon.
    """
    check_renyi(order, epsilon)
    _check_group(size)
    if math.isinf(order):
        return RenyiBound(order, pure_group(epsilon=epsilon, size=size))
    doublings = (size - 1).bit_length()
    if doublings and order < 2 ** (doublings + 1):
        raise InputError(
            f"order={order}: a group of {size} needs an order of at least {2 ** (doublings + 1)}; "
            "track a higher order."
        )
    return RenyiBound(order / 2**doublings, 3**doublings * epsilon)


def zcdp_group(*, rho: float, size: int) -> float:
    """Zero-concentrated DP for a group: size^2 rho (Bun and Steinke 2016, Prop. 27)."""
    check_epsilon(rho, name="rho")
    _check_group(size)
    return size * size * rho


def pure_group(*, epsilon: float, size: int) -> float:
    """Pure DP for a group: size * epsilon."""
    check_epsilon(epsilon)
    _check_group(size)
    return size * epsilon


def random_stopping(*, order: float, epsilon: float, queries: int, expansion: float) -> RandomStop:
    """SubMix's Proposition C.3: stop at a uniform time in 1..expansion*queries, if not stopped before.

    Only one direction of the divergence survives at epsilon + log(expansion * queries); the other is
    unbounded, because no random stop can hide that one world already answers publicly.
    """
    check_renyi(order, epsilon)
    horizon = stopping_horizon(queries, expansion)
    share = public_share(queries, horizon)
    return RandomStop(order, epsilon + math.log(horizon), share)


def stopping_horizon(queries: int, expansion: float) -> int:
    """The last moment of a random stop: expansion * queries, rounded down."""
    if not isinstance(queries, int) or not 1 <= queries <= MOST_QUERIES:
        raise InputError(f"queries={queries}: a number from 1 to {MOST_QUERIES:,} is needed.")
    if not 0.5 < expansion < math.inf:
        raise InputError(f"expansion={expansion}: must be above 1/2 (and finite); 10 is the paper's example.")
    if not 1 <= expansion * queries < 2**53:
        raise InputError(
            f"expansion={expansion} times queries={queries} is no number of queries; the paper has 10."
        )
    return math.floor(expansion * queries)


def public_share(queries: int, horizon: int) -> float:
    """Expected share of `queries` that come at or after a stop drawn uniformly from 1..horizon."""
    if horizon >= queries:
        return (queries + 1) / (2 * horizon)
    return 1 - (horizon - 1) / (2 * queries)


def check_number(name: str, value: object) -> None:
    """Refuse what is no number at all: a string, a tensor, nothing."""
    if not isinstance(value, Real):
        raise InputError(f"{name} is of type {type(value).__name__}; a number is needed.")


def check_renyi(order: float, epsilon: float) -> None:
    """Refuse an order that is not above 1 and a negative epsilon."""
    check_number("order", order)
    if math.isnan(order) or order <= 1:
        raise InputError(f"order={order}: a Renyi guarantee needs an order above 1, e.g. 2.")
    check_epsilon(epsilon)


def check_epsilon(epsilon: float, *, name: str = "epsilon") -> None:
    """Refuse a privacy loss that is negative or not a number."""
    check_number(name, epsilon)
    if math.isnan(epsilon) or epsilon < 0:
        raise InputError(f"{name}={epsilon}: a privacy loss is a number of at least 0.")


def check_delta(delta: float) -> None:
    """Refuse a delta outside (0, 1)."""
    check_number("delta", delta)
    if not 0 < delta < 1:
        raise InputError(f"delta={delta}: must lie strictly between 0 and 1, e.g. 1e-5.")


def _check_choice(name: str, value: str, choices: Any) -> None:
    if value not in get_args(choices):
        raise InputError(f"{name}='{value}' is unknown; choose one of {', '.join(get_args(choices))}.")


def _check_group(size: int) -> None:
    if not isinstance(size, int) or not 1 <= size <= MOST_QUERIES:
        raise InputError(f"size={size:.6g}: a group has 1 to {MOST_QUERIES:,} members.")
