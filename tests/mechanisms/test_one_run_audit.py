"""An audit of one run (Steinke et al. 2023): what an attacker guesses never contradicts what is claimed.

Every part holds a canary or, by the fall of a coin, nothing. A part with its canary predicts a token of its
own. The attacker sees the answers, and guesses for every part whether its coin said yes. More right guesses
than (epsilon, delta) allows would refute the claim; the plain mean of the parts is refuted so.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from tacit.mechanisms import NonPrivate
from tacit.mechanisms.choice import MechanismChoice
from tacit.privacy import Guarantee

PARTS, QUERIES, ORDER, EPSILON, DELTA = 200, 1024, 32.0, 0.5, 1e-5


def lower_bound(right: int, guesses: int, coins: int, *, delta: float, error: float = 0.05) -> float:
    """The largest epsilon that so many right guesses refute with confidence 1 - error (their Theorem 5.2)."""

    def p_value(epsilon: float) -> float:
        law = stats.binom(guesses, 1 / (1 + np.exp(-epsilon)))
        steps = np.arange(1, right + 1)
        between = (law.cdf(right - 1) - law.cdf(right - steps - 1)) / steps
        return float(law.sf(right - 1) + 2 * coins * delta * between.max(initial=0.0))

    refuted = [epsilon for epsilon in np.arange(0, 12, 0.01) if p_value(epsilon) < error]
    return max(refuted, default=0.0)


def right_guesses(pmf: torch.Tensor, coins: np.ndarray, rng: np.random.Generator) -> int:
    """Of the half of parts whose tokens came most often, and of the other half: how many guesses hold."""
    seen = np.bincount(rng.choice(PARTS + 1, size=QUERIES, p=pmf.numpy()), minlength=PARTS + 1)[:PARTS]
    order = np.argsort(seen + rng.random(PARTS))  # ties by lot
    guesses = np.zeros(PARTS, dtype=bool)
    guesses[order[PARTS // 2 :]] = True
    return int((guesses == coins).sum())


def test_the_bound_itself_has_its_published_value() -> None:
    """All of m guesses right: 1.05, 2.78 and 3.49 at m = 10, 50 and 100, without delta."""
    for coins, published in ((10, 1.05), (50, 2.78), (100, 3.49)):
        assert lower_bound(coins, coins, coins, delta=0.0) == pytest.approx(published, abs=0.011)


@pytest.mark.parametrize("name", ["certified", "individual"])
def test_one_run_does_not_contradict_the_claim(name: str) -> None:
    rng = np.random.default_rng(7)
    coins = rng.random(PARTS) < 0.5
    public = torch.full((PARTS + 1,), 1e-3, dtype=torch.float64)
    public[-1] = 1 - 1e-3 * PARTS
    parts = public.repeat(PARTS, 1)
    for part in np.flatnonzero(coins):
        parts[part] = public * 0.05
        parts[part, part] += 0.95
    claimed = Guarantee.certified(order=ORDER, epsilon=EPSILON).to_dp(DELTA).epsilon
    assert claimed is not None
    assert claimed < 1
    choice = MechanismChoice(name, ORDER, EPSILON / QUERIES)  # type: ignore[arg-type]
    private = choice.build(PARTS).mix(parts, public).pmf
    found = lower_bound(right_guesses(private, coins, rng), PARTS, PARTS, delta=DELTA)
    assert found <= claimed
    unprotected = NonPrivate().mix(parts, public).pmf
    control = lower_bound(right_guesses(unprotected, coins, rng), PARTS, PARTS, delta=DELTA)
    assert control > 1.5 > claimed  # the attack works where nothing protects
