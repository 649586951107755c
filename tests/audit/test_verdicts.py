"""Verdicts: what contradicts a claim, what supports it, and what says nothing about it."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from tacit.audit import Claim, EpsilonLowerBound, detectable, judge, one_run_bound
from tacit.privacy import Guarantee, rdp_to_dp

DELTA = 1e-5


def bound(epsilon: float, **others: object) -> EpsilonLowerBound:
    fields = {"delta": DELTA, "confidence": 0.95, "method": "m", "unit": "part"} | others
    return EpsilonLowerBound(epsilon, **fields)  # type: ignore[arg-type]


def certified(epsilon: float = 0.5) -> Claim:
    return Claim.of(Guarantee.certified(order=32.0, epsilon=epsilon), neighbours="add/remove", delta=DELTA)


def test_a_renyi_claim_is_converted_first() -> None:
    claim = certified()
    expected = rdp_to_dp(order=32.0, epsilon=0.5, delta=DELTA)
    assert claim.epsilon == pytest.approx(expected)
    assert claim.delta == DELTA
    assert judge(claim, bound(expected + 0.01)).verdict == "contradicted"
    # Above the Renyi epsilon, below its DP.
    assert judge(claim, bound(0.51), bound(10.0), control=bound(9.0)).verdict == "supported"


def test_the_three_verdicts() -> None:
    claim = Claim("s", "part", "add/remove", 2.0, DELTA)
    found = judge(claim, bound(2.01), bound(5.0))
    assert found.verdict == "contradicted"
    assert "2.01" in found.reason
    supported = judge(claim, bound(2.0), bound(3.0), control=bound(3.0))
    assert supported.verdict == "supported"
    assert "where nothing protects, the same attack shows at least 3" in supported.reason
    untested = judge(claim, bound(2.0), bound(3.0))
    assert untested.verdict == "inconclusive"
    assert "No control shows" in untested.reason
    weak = judge(claim, bound(0.0), bound(2.9))
    assert weak.verdict == "inconclusive"
    assert "could have detected epsilon = 2.9" in weak.reason
    assert judge(claim, bound(0.0)).verdict == "inconclusive"
    assert json.loads(json.dumps(found.to_json()))["bound"]["epsilon"] == 2.01


def test_a_control_that_fails_takes_the_support_away() -> None:
    claim = Claim("s", "part", "add/remove", 2.0, DELTA)
    works = judge(claim, bound(0.1), bound(5.0), control=bound(4.0))
    assert works.verdict == "supported"
    assert works.to_json()["control"]["epsilon"] == 4.0
    fails = judge(claim, bound(0.1), bound(5.0), control=bound(0.3))
    assert fails.verdict == "inconclusive"
    assert "0.3" in fails.reason
    assert judge(claim, bound(2.5), bound(5.0), control=bound(0.3)).verdict == "contradicted"


@pytest.mark.parametrize(
    ("others", "reason"),
    [
        ({"unit": "user"}, "per part and the audit per user"),
        ({"unit": None}, "not stated"),
        ({"neighbours": "replace"}, "'add/remove' neighbours"),
        ({"delta": 0.0}, "delta = 1e-05 and the audit 0"),
        ({"family": "gaussian", "mu": 3.0}, "gaussian mechanisms only"),
    ],
)
def test_a_bound_about_something_else_says_nothing(others: dict[str, object], reason: str) -> None:
    claim = Claim("s", "part", "add/remove", 2.0, DELTA)
    found = judge(claim, bound(9.0, **others), bound(20.0))
    assert found.verdict == "inconclusive"
    assert reason in found.reason
    # Nor does it support a claim that it could have shown something about something else.
    able, other = bound(20.0), bound(20.0, **others)
    assert judge(claim, bound(0.0), other, control=able).verdict == "inconclusive"
    assert judge(claim, bound(0.0), able, control=other).verdict == "inconclusive"
    assert judge(claim, bound(0.0), able, control=able).verdict == "supported"


def test_a_claim_holds_at_every_larger_delta_too() -> None:
    pure = Claim("s", "part", "add/remove", 2.0, 0.0)
    assert judge(pure, bound(2.1)).verdict == "contradicted"
    assert judge(Claim("s", "part", "add/remove", 2.0, 1e-3), bound(2.1)).verdict == "inconclusive"


def test_gaussian_bounds_speak_about_gaussian_claims_only() -> None:
    claim = Claim("s", "part", "add/remove", 2.0, DELTA, family="gaussian")
    assert judge(claim, bound(2.1, family="gaussian", mu=0.6)).verdict == "contradicted"
    assert judge(claim, bound(2.1)).verdict == "contradicted"


@pytest.mark.parametrize(
    ("guarantee", "reason"),
    [
        (Guarantee.unprotected("user"), "no guarantee"),
        (Guarantee.public_text("user"), "no guarantee"),
        (Guarantee("empirical", "user"), "no guarantee"),
        (Guarantee.operational(order=2.0, epsilon=1.0), "transcripts"),
    ],
)
def test_without_a_comparable_claim_there_is_no_verdict(guarantee: Guarantee, reason: str) -> None:
    claim = Claim.of(guarantee, neighbours="add/remove", delta=DELTA)
    found = judge(claim, bound(9.0, unit=guarantee.unit), bound(20.0))
    assert found.verdict == "inconclusive"
    assert reason in found.reason
    content = json.loads(json.dumps(found.to_json()))
    assert content["claim"]["epsilon"] is None


def test_extremes() -> None:
    endless = Claim("s", "part", "add/remove", math.inf, DELTA)
    assert judge(endless, bound(400.0), bound(450.0)).verdict == "inconclusive"
    assert json.dumps(endless.to_json(), allow_nan=False)
    perfect = Claim("s", "part", "add/remove", 0.0, DELTA)
    assert judge(perfect, bound(0.01)).verdict == "contradicted"
    assert judge(perfect, bound(0.0), bound(0.0), control=bound(0.0)).verdict == "inconclusive"
    assert judge(perfect, bound(0.0), bound(0.5), control=bound(0.0)).verdict == "inconclusive"
    assert judge(perfect, bound(0.0), bound(0.5), control=bound(0.4)).verdict == "supported"


@given(st.floats(0, 20), st.floats(0, 20), st.floats(0, 20), st.floats(0, 20))
def test_contradicted_exactly_when_the_bound_exceeds_the_claim(
    claimed: float, found: float, could: float, did: float
) -> None:
    claim = Claim("s", "part", "add/remove", claimed, DELTA)
    verdict = judge(claim, bound(found), bound(could), control=bound(did)).verdict
    assert (verdict == "contradicted") == (found > claimed)
    able = min(could, did) >= 1.5 * claimed and min(could, did) > claimed
    assert (verdict == "supported") == (found <= claimed and able)


def test_a_true_claim_is_contradicted_at_most_as_often_as_the_level_and_halved_charges_are_caught() -> None:
    """Randomised response at epsilon = 2 on 400 coins: claimed rightly, and claimed at half."""
    canaries, true = 400, 2.0
    counts = np.arange(canaries + 1)
    law = stats.binom.pmf(counts, canaries, 1 / (1 + math.exp(-true)))
    limit = detectable("one run", canaries).per("part")
    for claimed, lowest, highest in ((true, 0.0, 0.05), (true / 2, 0.95, 1.0)):
        claim = Claim("s", "part", "add/remove", claimed, 0.0)
        contradicted = np.array(
            [
                judge(
                    claim,
                    one_run_bound(correct=int(v), guesses=canaries, canaries=canaries).per("part"),
                    limit,
                ).verdict
                == "contradicted"
                for v in counts
            ]
        )
        assert lowest <= law[contradicted].sum() <= highest
