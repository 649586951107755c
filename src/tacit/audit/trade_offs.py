"""One run against a whole trade-off curve: f-DP and Gaussian DP (Mahloujifar, Melis and Chaudhuri 2024).

A mechanism is f-DP if no test between neighbours has, at false-alarm rate x, a miss rate below f(x). Write
g(x) = 1 - f(x), the highest detection rate at x. Both (epsilon, delta)-DP and Gaussian DP are curves f.

The recursion. Of m uniform secrets from an alphabet of K, c' are guessed by a list of s values each; t of the
lists hold their secret. Let r_i = E[t/m; t >= i] and h_i = E[(c' - t)/m; t >= i], and pick an index at
random. Its list holds the secret while i others do with probability r_{i+1}; misses it while i others do:
h_i. A test "a is in the list, b is not, and i other lists hold theirs" between the worlds u = a and u = b,
averaged over all pairs (g is concave), gives

    (K-s)/(K-1) r_{i+1} <= g( s/(K-1) h_i ),   so   h_i >= (K-1)/s g^-1( (K-s)/(K-1) r_{i+1} ).

(s = 1: the published h_i >= (K-1) g^-1(r_{i+1}).) If t >= c had probability at least alpha, then
r_c >= alpha c/m, and r_i, h_i would have to grow so towards i = 0 that r_0 + h_0 passes c'/m, which it
cannot: then f is refuted. The smallest steps give the smallest sum, because

    r_i = ( i h_i + (c'/m) sum_{j>i} P[t >= j] ) / (c' - i)

grows in h_i and in every P[t >= j]: by induction the sequence of least h_i stays below every other.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from scipy import special

from tacit.errors import InputError

Inverse = Callable[[float], float]

_LEAST_ERROR = 1e-12  # surer than that nobody need be
_LOG_WIDTH = 1e-4


def refutes(
    inverse: Inverse,
    *,
    correct: int,
    guesses: int,
    canaries: int,
    alphabet: int,
    error: float,
    list_size: int = 1,
) -> bool:
    """Whether ``correct`` or more right guesses have probability below ``error`` under the curve.

    ``inverse`` is g^-1: the false-alarm rate that a detection rate needs at least.
    """
    if not 1 <= list_size < alphabet:
        raise InputError(f"Expected 1 <= list_size={list_size} < alphabet={alphabet}.")
    limit = guesses / canaries
    right = error * correct / canaries
    wrong = error * (guesses - correct) / canaries
    lists = (alphabet - 1) / list_size
    share = (alphabet - list_size) / (alphabet - 1)
    for index in range(correct - 1, -1, -1):
        # Where the first step needs no growth, none does: r and h stay as they are, and nothing is refuted.
        grown = max(wrong, lists * inverse(share * right))
        right += index / (guesses - index) * (grown - wrong)
        wrong = grown
        if right + wrong > limit:
            return True
    return False


def least_error(
    inverse: Inverse, *, correct: int, guesses: int, canaries: int, alphabet: int, list_size: int = 1
) -> float:
    """The least error at which the curve is refuted, rounded up: a p-value of the curve; 1 if there is none.

    If ``correct`` or more right guesses had probability above it, :func:`refutes` would not say so below it.
    """

    def refuted(log_error: float) -> bool:
        return refutes(
            inverse,
            correct=correct,
            guesses=guesses,
            canaries=canaries,
            alphabet=alphabet,
            list_size=list_size,
            error=math.exp(log_error),
        )

    low, high = math.log(_LEAST_ERROR), 0.0
    if not refuted(high):
        return 1.0
    if refuted(low):
        return _LEAST_ERROR
    while high - low > _LOG_WIDTH:
        middle = (low + high) / 2
        low, high = (low, middle) if refuted(middle) else (middle, high)
    return math.exp(high)


def curve_inverse(epsilons: npt.NDArray[np.float64], deltas: npt.NDArray[np.float64]) -> Inverse:
    """g^-1 of all (epsilon, delta) of a table at once: each of them is a bound, and so is the largest."""
    shrink, grow = np.exp(-epsilons), np.exp(np.minimum(epsilons, 700.0))

    def inverse(rate: float) -> float:
        there = float(((rate - deltas) * shrink).max())
        back = float((1 - deltas - grow * (1 - rate)).max())
        return max(0.0, there, back)

    return inverse


def both(one: Inverse, other: Inverse) -> Inverse:
    """g^-1 of what satisfies two curves."""
    return lambda rate: max(one(rate), other(rate))


def approximate_inverse(epsilon: float, delta: float) -> Inverse:
    """g^-1 of (epsilon, delta)-DP: max(0, (y - delta) e^-epsilon, 1 - delta - e^epsilon (1 - y))."""
    shrink, grow = math.exp(-epsilon), math.exp(min(epsilon, 700.0))
    return lambda rate: max(0.0, (rate - delta) * shrink, 1 - delta - grow * (1 - rate))


def gaussian_inverse(mu: float) -> Inverse:
    """g^-1 of mu-Gaussian DP: Phi(Phi^-1(y) - mu)."""
    return lambda rate: float(special.ndtr(special.ndtri(min(rate, 1.0)) - mu))


def iterated(inverse: Inverse, steps: int) -> Inverse:
    """g^-1 between corpora that are ``steps`` neighbours apart."""
    if steps == 1:
        return inverse

    def walk(rate: float) -> float:
        for _ in range(steps):
            rate = inverse(rate)
        return rate

    return walk
