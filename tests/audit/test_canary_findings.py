"""Which bounds canaries allow: the neighbours that a coin or a rank really tells apart."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from tacit.attacks.membership import MembershipScores
from tacit.audit.bounds import EpsilonLowerBound
from tacit.audit.canary_findings import coin_bound, coins_detectable, joined, pair_bound, shared
from tacit.audit.claimed import JudgedClaim
from tacit.audit.membership_findings import PRIMARY
from tacit.audit.model_audit import CanaryScores, ModelAudit
from tacit.audit.plans import AuditPlan
from tacit.audit.verdicts import Claim
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


@dataclass
class Ranks:
    """Stands for exposure, and remembers at what confidence it was asked."""

    asked: list[float] = field(default_factory=list)

    def bound(self, *, confidence: float, delta: float, **_: Any) -> EpsilonLowerBound:
        self.asked.append(confidence)
        return EpsilonLowerBound(0.1, delta, confidence, "ranks", "add/remove").per("user")

    detectable = bound


@pytest.mark.parametrize(("changes", "each"), [({}, 0.975), ({"ladder": (1, 5)}, 0.95)])
def test_what_could_have_been_shown_is_at_the_confidence_of_what_was(
    changes: dict[str, Any], each: float
) -> None:
    manifest = drawn(**changes)
    audit, ranks = ModelAudit.__new__(ModelAudit), Ranks()
    audit.plan, audit.manifest = AuditPlan(manifest=manifest), manifest
    judged = JudgedClaim(Claim("c", "user", "add/remove", 1.0, 0.0), "user", "add/remove")
    levels = {"unit": "user", "delta": 0.0}
    best = perfect(manifest)
    scores = CanaryScores(MembershipScores.__new__(MembershipScores), len(best))
    patched = dataclasses.replace(scores, found={PRIMARY: best})  # type: ignore[arg-type]
    shown = audit._bound(ranks, patched, levels, judged)  # type: ignore[arg-type]
    most = audit._detectable(ranks, levels, judged)  # type: ignore[arg-type]
    assert ranks.asked == pytest.approx([each, each])
    assert shown is not None
    assert most is not None
    assert shown.confidence == pytest.approx(most.confidence)
    assert shown.epsilon <= most.epsilon + 1e-9
    assert (coins_detectable(manifest, unit="user", delta=0.0, confidence=0.975) is None) == bool(changes)


def test_a_list_of_words_that_nothing_asked_for_is_told_of() -> None:
    audit = ModelAudit.__new__(ModelAudit)
    audit.plan, audit.manifest, audit.notes = AuditPlan(words=("apple", "pear")), None, []
    assert audit.exposure(None) is None  # type: ignore[arg-type]
    (note,) = audit.notes
    assert "--words" in note


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
