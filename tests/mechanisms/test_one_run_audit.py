"""An audit of one run (Steinke et al. 2023): what an attacker guesses never contradicts what is claimed.

Every part holds a canary or, by the fall of a coin, nothing. A part with its canary predicts a token of its
own. The attacker sees the answers, and guesses for every part whether its coin said yes. More right guesses
than (epsilon, delta) allows would refute the claim; the plain mean of the parts is refuted so.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tacit.audit import one_run_bound
from tacit.mechanisms import NonPrivate
from tacit.mechanisms.choice import MechanismChoice
from tacit.privacy import Guarantee

PARTS, QUERIES, ORDER, EPSILON, DELTA = 200, 1024, 32.0, 0.5, 1e-5


def lower_bound(right: int) -> float:
    """What so many right guesses of all coins prove, at the claim's delta."""
    return one_run_bound(correct=right, guesses=PARTS, canaries=PARTS, delta=DELTA).epsilon


def right_guesses(pmf: torch.Tensor, coins: np.ndarray, rng: np.random.Generator) -> int:
    """Of the half of parts whose tokens came most often, and of the other half: how many guesses hold."""
    seen = np.bincount(rng.choice(PARTS + 1, size=QUERIES, p=pmf.numpy()), minlength=PARTS + 1)[:PARTS]
    order = np.argsort(seen + rng.random(PARTS))  # ties by lot
    guesses = np.zeros(PARTS, dtype=bool)
    guesses[order[PARTS // 2 :]] = True
    return int((guesses == coins).sum())


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
    found = lower_bound(right_guesses(private, coins, rng))
    assert found <= claimed
    unprotected = NonPrivate().mix(parts, public).pmf
    control = lower_bound(right_guesses(unprotected, coins, rng))
    assert control > 1.5 > claimed  # the attack works where nothing protects
