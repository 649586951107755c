"""How many guesses to make without cheating.

An attacker guesses the coins it is surest of and abstains on the others. How many guesses give the best bound
is not known beforehand; who tries all numbers and keeps the best bound has a false-alarm rate far above the
stated one (20 % instead of 5 % with 100 canaries, 34 % with 1,000). Three honest ways:

- :func:`preregistered_bound`: the numbers were fixed before the scores were seen. Several share the error.
- :func:`split_bound`: a random half of the canaries chooses the share of guesses, the other half counts.
- :func:`multi_split_bound`: the median over many random splits, each at half of the error. Of bounds that are
  each too high with probability at most alpha/2, half are so at once with probability at most alpha (Markov).

All count on :func:`~tacit.audit.bounds.one_run_bound`, and so on fair, independent coins. Splitting is sound
because the guesses of the second half may depend on the first half's coins: given those, the mechanism is as
private in each of the others as before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import numpy.typing as npt
from scipy import stats

from tacit.audit.bounds import EpsilonLowerBound, Neighbours, check_levels, one_run_bound
from tacit.errors import InputError

Sides = Literal["both", "in"]
BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class CoinScores:
    """What an attack has on each canary, and how its coin fell. Higher = more likely in.

    ``sides``: ``both`` guesses "in" at the top and "out" at the bottom in turn, ``in`` at the top only.
    ``neighbours``: what a coin decides; ``replace`` if it chooses one of two texts.
    """

    scores: npt.NDArray[np.float64] = field(repr=False)
    included: BoolArray = field(repr=False)
    sides: Sides = "both"
    neighbours: Neighbours = "add/remove"

    def __post_init__(self) -> None:
        """Refuse scores that do not belong to the coins."""
        if self.scores.ndim != 1 or self.scores.shape != self.included.shape or len(self.scores) == 0:
            raise InputError("Expected one score and one coin for each of at least one canary.")
        if np.isnan(self.scores).any():
            raise InputError("Expected scores that are numbers; leave out the canaries that have none.")

    @classmethod
    def of(
        cls,
        scores: npt.ArrayLike,
        included: npt.ArrayLike,
        *,
        sides: Sides = "both",
        neighbours: Neighbours = "add/remove",
    ) -> CoinScores:
        """From canaries that a fair coin put in or left out."""
        return cls(
            np.asarray(scores, dtype=np.float64),
            np.asarray(included, dtype=np.bool_),
            sides,
            neighbours,
        )

    @classmethod
    def of_pairs(cls, planted: npt.ArrayLike, twins: npt.ArrayLike, *, seed: int = 0) -> CoinScores:
        """From pairs of exchangeable texts of which one was planted: the coin is which of the two.

        The names "first" and "second" are drawn here, so that neither the order nor a tie tells anything.
        """
        gaps = np.asarray(planted, dtype=np.float64) - np.asarray(twins, dtype=np.float64)
        coins = np.random.default_rng(seed).random(gaps.shape) < 0.5
        return cls(np.where(coins, gaps, -gaps), coins, "both", "replace")

    def __len__(self) -> int:
        return len(self.scores)

    def right_by_confidence(self, seed: int) -> BoolArray:
        """Whether each guess is right, the surest guess first. Equal scores are ordered by lot."""
        lots = np.random.default_rng(seed).random(len(self))
        if self.neighbours == "replace" and self.sides == "both":
            # A gap has a natural zero: the sign is the guess and the size is how sure it is.
            order = np.lexsort((lots, -abs(self.scores)))
            guess = np.where(self.scores == 0, lots < 0.5, self.scores > 0)
            return np.asarray(guess == self.included)[order]
        falling = np.lexsort((lots, -self.scores))
        if self.sides == "in":
            return self.included[falling]
        turns = np.empty(len(self), dtype=np.int64)
        turns[0::2], turns[1::2] = falling[: (len(self) + 1) // 2], falling[::-1][: len(self) // 2]
        right = self.included[turns].copy()
        right[1::2] = ~right[1::2]
        return right

    def part(self, index: npt.NDArray[np.int64]) -> CoinScores:
        """Some of the canaries."""
        return replace(self, scores=self.scores[index], included=self.included[index])


def preregistered_bound(
    coins: CoinScores,
    guesses: Sequence[int],
    *,
    delta: float = 0.0,
    confidence: float = 0.95,
    seed: int = 0,
) -> EpsilonLowerBound:
    """The best of the numbers of guesses that were fixed beforehand; each has an equal share of the error."""
    check_levels(delta, confidence)
    if not guesses or not all(1 <= count <= len(coins) for count in guesses):
        raise InputError(f"Expected numbers of guesses from 1 to {len(coins)} canaries, not {list(guesses)}.")
    right = np.cumsum(coins.right_by_confidence(seed))
    shared = 1 - (1 - confidence) / len(guesses)
    bounds = [
        one_run_bound(
            correct=int(right[count - 1]),
            guesses=count,
            canaries=len(coins),
            delta=delta,
            confidence=shared,
            neighbours=coins.neighbours,
        )
        for count in guesses
    ]
    best = max(bounds, key=lambda bound: bound.epsilon)
    among = "" if len(guesses) == 1 else f", corrected over {len(guesses)} numbers"
    return replace(best, confidence=confidence, method=f"{best.method}; guesses fixed beforehand{among}")


def split_bound(
    coins: CoinScores, *, delta: float = 0.0, confidence: float = 0.95, seed: int = 0
) -> EpsilonLowerBound:
    """A random half of the canaries chooses the share of guesses; the other half is counted."""
    check_levels(delta, confidence)
    if len(coins) < 2:
        raise InputError(f"Expected at least 2 canaries to split, not {len(coins)}.")
    generator = np.random.default_rng(seed)
    order = generator.permutation(len(coins))
    choosing, counting = coins.part(order[: len(order) // 2]), coins.part(order[len(order) // 2 :])
    share = _best_share(choosing.right_by_confidence(seed), confidence)
    guesses = max(1, round(share * len(counting)))
    bound = one_run_bound(
        correct=int(counting.right_by_confidence(seed)[:guesses].sum()),
        guesses=guesses,
        canaries=len(counting),
        delta=delta,
        confidence=confidence,
        neighbours=coins.neighbours,
    )
    return replace(bound, method=f"{bound.method}; guesses chosen on the other {len(choosing)}")


def multi_split_bound(
    coins: CoinScores, *, delta: float = 0.0, confidence: float = 0.95, splits: int = 51, seed: int = 0
) -> EpsilonLowerBound:
    """The median of :func:`split_bound` over random splits, each at half of the error."""
    check_levels(delta, confidence)
    if splits < 1:
        raise InputError(f"Expected splits={splits} >= 1, e.g. 51.")
    seeds = np.random.default_rng(seed).integers(0, 2**63, splits)
    halved = 1 - (1 - confidence) / 2
    bounds = sorted(
        (split_bound(coins, delta=delta, confidence=halved, seed=int(one)) for one in seeds),
        key=lambda bound: bound.epsilon,
    )
    median = bounds[(splits - 1) // 2]  # the lower one of two: the proof needs half of all above it
    method = (
        f"one run (Steinke et al. 2023): median of {splits} splits of {len(coins)} canaries at half the error"
    )
    return replace(median, confidence=confidence, method=method)


def _best_share(right: BoolArray, confidence: float) -> float:
    """The share of guesses whose bound, without delta, is best on these canaries; of equals the greatest."""
    counts = np.arange(1, len(right) + 1)
    hits = np.cumsum(right)
    # Clopper-Pearson's lower end: monotone in the bound, so that the best share is the same.
    lower = np.where(hits > 0, stats.beta.ppf(1 - confidence, np.maximum(hits, 1), counts - hits + 1), 0.0)
    best = len(counts) - 1 - int(np.argmax(lower[::-1]))
    return float(counts[best] / len(counts))
