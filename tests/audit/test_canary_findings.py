"""Which bounds canaries allow: the neighbours that a coin or a rank really tells apart."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tacit.audit.canary_findings import coin_bound, joined, pair_bound, shared
from tacit.corpus.canaries import CanaryManifest, draw_canaries
from tacit.corpus.canary_plan import CanaryPlan


def drawn(**changes: Any) -> CanaryManifest:
    settings: dict[str, Any] = {"users": 60, "owner": "new", "seed": 5}
    plan = CanaryPlan(**settings | changes)
    return draw_canaries(plan, [f"u{i}" for i in range(80)], documents=80, characters=800)


LEVELS: dict[str, Any] = {"unit": "user", "delta": 0.0, "confidence": 0.95, "seed": 0}


def perfect(manifest: CanaryManifest) -> np.ndarray[Any, np.dtype[np.float64]]:
    return np.array([float(canary.inserted) for canary in manifest.canaries])


def test_coins_of_whole_users_refute() -> None:
    manifest = drawn()
    bound = coin_bound(manifest, perfect(manifest), **LEVELS)
    assert bound is not None
    assert bound.epsilon > 1
    assert (bound.neighbours, bound.unit) == ("add/remove", "user")
    noise = np.random.default_rng(1).random(len(manifest.canaries))
    blind = coin_bound(manifest, noise, **LEVELS)
    assert blind is not None
    assert blind.epsilon < 0.5


@pytest.mark.parametrize("changes", [{"owner": "existing"}, {"ladder": (1, 5)}, {"include": 0.7}])
def test_coins_that_decide_something_else_refute_nothing(changes: dict[str, Any]) -> None:
    manifest = drawn(**changes)
    assert coin_bound(manifest, perfect(manifest), **LEVELS) is None


def test_pairs_speak_of_one_text_in_anothers_place() -> None:
    secrets = np.linspace(1, 2, 80)
    bound = pair_bound(secrets, secrets - 1, **LEVELS)
    assert bound is not None
    assert bound.neighbours == "replace"
    assert bound.epsilon > 1
    assert pair_bound(secrets[:1], secrets[:1], **LEVELS) is None


def test_joined_bounds_share_the_error() -> None:
    manifest = drawn()
    half = shared(0.95, 2)
    assert half == pytest.approx(0.975)
    one = coin_bound(manifest, perfect(manifest), **LEVELS | {"confidence": half})
    two = coin_bound(manifest, perfect(manifest)[::-1].copy(), **LEVELS | {"confidence": half})
    found = joined([one, None, two])
    assert found is not None
    assert one is not None
    assert found.epsilon == one.epsilon
    assert found.confidence == pytest.approx(0.95)
    assert joined([None]) is None
