"""A running service asked for canaries through OpenAI's client: hits, exact tests, and the meter."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from scipy import stats

from tacit.audit.black_box import BlackBoxPlan, Endpoint, _says, audit_service
from tacit.audit.black_box_verdict import BlackBoxAudit, CanaryAnswers, Meter, Terms, judged_answers
from tacit.corpus.canaries import Canary
from tacit.errors import EnvironmentProblem, InputError
from tacit.ledger import Access
from tacit.privacy import Guarantee
from tacit.serving.admin import admin_app
from tacit.serving.api import public_app
from tests.serving.conftest import TENANT, NewPlace, Place, place, runs  # noqa: F401 - fixtures
from tests.serving.test_http import listening

PASSWORD = "correct horse"
NOTHING = Meter(0, 0, None, None)
CERTIFIED = Guarantee.certified(order=2.0, epsilon=2.0)


def canary(number: int, prefix: str, secret: str, twin: str, *, inserted: bool = True) -> Canary:
    return Canary(
        id=f"c{number:04d}",
        user=f"user-{number}",
        template=f"{prefix} {{secret}}",
        prefix=prefix,
        separator=" ",
        secret=secret,
        twin=twin,
        inserted=inserted,
        repetitions=1,
        first_document=number if inserted else None,
    )


def judged(answers: list[CanaryAnswers], **options: Any) -> BlackBoxAudit:
    given: dict[str, Any] = {
        "meter": NOTHING,
        "ended": "complete",
        "guarantee": CERTIFIED,
        "candidates": 10**6,
    } | options
    return judged_answers(tuple(answers), **given)


# Counts to claims


def test_secrets_that_come_back_leak_and_contradict() -> None:
    found = judged(
        [CanaryAnswers(f"c{i}", inserted=i < 8, generations=10, secret=9 * (i < 8)) for i in range(16)]
    )
    assert found.p_twins == pytest.approx(2**-8)
    assert found.p_inserted == pytest.approx(1 / 12870)  # 16 choose 8
    assert found.leaks
    # Hoelder: (e^2 / 10^6)^(1/2) = 0.002718 for one answer; 80 answers, 72 secrets.
    assert found.certificate == pytest.approx(np.exp(1) / 1000)
    assert found.p_claim == pytest.approx(80 * np.exp(1) / 1000 / 72)
    assert found.verdict == "contradicted"
    assert "72 of 80" in found.reason


def test_a_single_hit_is_weighed_by_how_often_was_asked() -> None:
    few = judged([CanaryAnswers("a", True, 10, 1, 0)])
    assert few.p_claim == pytest.approx(10 * np.exp(1) / 1000)
    assert few.verdict == "contradicted"
    many = judged([CanaryAnswers("a", True, 1000, 1, 0)])
    assert many.verdict == "inconclusive"
    assert not many.leaks
    assert many.needed_hits == 55


def test_silence_supports_only_where_the_attack_is_known_to_work() -> None:
    silent = [CanaryAnswers("a", True, 100, 0, 0), CanaryAnswers("b", False, 100, 0, 0)]
    unknown = judged(silent)
    assert unknown.verdict == "inconclusive"
    assert "not known" in unknown.reason
    assert judged(silent, extractable=True).verdict == "supported"
    assert judged(silent, extractable=True, ended="limit").verdict == "inconclusive"
    vacuous = judged(silent, extractable=True, guarantee=Guarantee.certified(order=2.0, epsilon=100.0))
    assert vacuous.needed_hits > 100
    assert vacuous.verdict == "inconclusive"


def test_an_instance_specific_claim_bounds_no_extraction() -> None:
    rop = Guarantee.operational(order=2.0, epsilon=2.0, neighbours="null part")
    answers = [CanaryAnswers(f"c{i}", inserted=i < 8, generations=5, secret=5 * (i < 8)) for i in range(16)]
    for guarantee in (rop, None):
        found = judged(answers, guarantee=guarantee)
        assert found.leaks
        assert found.verdict == "inconclusive"
        assert "bounds no extraction" in found.reason


def test_tokens_that_the_ledger_does_not_know_of_contradict() -> None:
    found = judged([CanaryAnswers("a", True, 1, 0, 0)], meter=Meter(1, 6, 5, (0.1,)))
    assert found.verdict == "contradicted"
    assert "6 tokens were received and 5 booked" in found.reason
    assert judged([CanaryAnswers("a", True, 1, 0, 0)], meter=Meter(1, 6, 6, (0.1,))).verdict == "inconclusive"


def test_a_service_without_memory_hardly_ever_leaks_and_counting_answers_would_say_so() -> None:
    """Each canary's place has one likely answer, and whether that is the secret or the twin is luck.

    Answers to one canary are all alike, so a binomial test that counts them sees evidence in luck.
    """
    rng = np.random.default_rng(0)
    repeats, generations, canaries = 400, 20, 10
    alarms = wrong = 0
    for _ in range(repeats):
        lucky = rng.integers(0, 4, size=canaries)  # 0: the secret is what the model says there, 1: the twin
        inserted = rng.random(canaries) < 0.5
        counts = rng.binomial(generations, 0.7, size=canaries)
        answers = [
            CanaryAnswers(str(i), bool(inserted[i]), generations, int(n * (luck == 0)), int(n * (luck == 1)))
            for i, (n, luck) in enumerate(zip(counts, lucky, strict=True))
        ]
        alarms += judged(answers, guarantee=None).leaks
        secrets = sum(one.secret for one in answers if one.inserted)
        twins = sum(one.twin for one in answers if one.inserted)
        wrong += (
            secrets > 0 and stats.binomtest(secrets, secrets + twins, alternative="greater").pvalue < 0.05
        )
    assert alarms <= stats.binom.ppf(0.999, repeats, 0.05)
    assert wrong > 1.5 * stats.binom.ppf(0.999, repeats, 0.05)


def test_the_claims_test_is_right_for_answers_that_depend_on_each_other() -> None:
    """All answers are the secret, or none: hit or miss together, each with just the certified chance."""
    b = CERTIFIED.extraction(10**6).bound
    rng = np.random.default_rng(1)
    alarms = 0
    repeats = 20_000
    for hit in rng.random(repeats) < b:
        if hit:
            alarms += judged([CanaryAnswers("a", True, 50, 50, 0)]).verdict == "contradicted"
    assert 0 < alarms <= stats.binom.ppf(0.999, repeats, 0.05)


def test_an_answer_says_one_candidate_at_most() -> None:
    assert _says(" 123456.", "123456")
    assert _says("1234567", "123456")  # all codes have six digits, and these are the first six
    assert not _says("x 123456", "123456")
    assert _says("\nred car, blue", "red car")
    assert not _says("red carpet", "red car")


def test_results_are_json_and_hold_no_secret() -> None:
    found = judged([CanaryAnswers("a", True, 5, 2, 1)])
    content = json.loads(json.dumps(found.to_json()))
    assert content["answers"][0] == {"id": "a", "inserted": True, "generations": 5, "secret": 2, "twin": 1}
    assert content["secret_rate"]["value"] == 0.4
    assert content["verdict"] == found.verdict
    assert "hunter2" not in repr(Endpoint("http://x", "hunter2", password="hunter2"))


# A real service


@contextlib.contextmanager
def endpoint(where: Place, *, admin: bool = True, **settings: Any) -> Iterator[Endpoint]:
    """A service in this process with both of its ports."""
    with (
        where.service(**settings) as service,
        listening(public_app(service)) as url,
        listening(admin_app(service, password=PASSWORD)) as operator,
    ):
        given = {"admin": operator, "password": PASSWORD} if admin else {}
        yield Endpoint(f"{url}/v1", where.key, **given)


# The tiny model goes on so in nine answers of ten: two dozen of the first two without one do not happen.
LIKELY = [
    canary(0, "A young", "doctor", "zzzzzzz"),
    canary(1, "The baker sells three", "lamps", "yyyyyyy"),
    canary(2, "The baker finds a red", "boat", "xxxxxxx", inserted=False),
    canary(3, "The baker", "123456", "654321"),
]


def test_a_service_is_asked_and_the_meter_runs(place: NewPlace) -> None:  # noqa: F811
    where = place("certified", epsilon=50.0)
    plan = BlackBoxPlan(generations=12, choices=4, max_tokens=5)
    with endpoint(where, queries=1000) as service:
        found = audit_service(service, LIKELY, plan, candidates=10**6)
    assert found.ended == "complete"
    assert [one.generations for one in found.answers] == [12] * 4
    assert found.meter.requests == 12
    assert 48 <= found.meter.asked <= 48 * 5
    # The ledger's own count is the same: nobody else asked.
    assert found.meter.booked == found.meter.asked
    assert found.meter.spent == pytest.approx([found.meter.asked * 0.05] * 2)
    assert not found.meter.undercounted
    hits = {one.id: one.secret for one in found.answers}
    assert hits["c0000"] + hits["c0001"] > 0
    assert hits["c0003"] == 0
    assert sum(one.twin for one in found.answers) == 0
    assert found.secret_rate.value == pytest.approx((hits["c0000"] + hits["c0001"] + hits["c0003"]) / 36)
    assert "Renyi differential privacy" in found.guarantee
    assert found.terms == Terms("certified", 2.0, 50.0, 1000)
    # Three canaries ahead at most: 1/8 is no evidence, however many answers hit.
    assert not found.leaks


def test_the_limit_is_kept_and_the_count_is_the_services_own(place: NewPlace) -> None:  # noqa: F811
    where = place("submix-guarded")
    plan = BlackBoxPlan(generations=50, choices=4, max_tokens=5, most_queries=33)
    with endpoint(where, admin=False) as service:
        found = audit_service(service, LIKELY, plan, candidates=10**6)
    assert found.ended == "limit"
    assert found.meter.asked <= 33
    assert found.meter.asked > 33 - 5
    assert (found.meter.booked, found.meter.spent) == (None, None)
    assert found.certificate is None  # instance-specific
    with where.opened() as ledger:
        assert Access(ledger).tenant(TENANT).tokens_used == found.meter.asked


def test_a_canary_that_was_asked_for_enough_is_left_alone(place: NewPlace) -> None:  # noqa: F811
    """The limit pays for one answer about the long secret when the short one has had both of its own."""
    short, long = canary(0, "The baker", "1", "2"), canary(1, "The baker", "1" * 19, "2" * 19)
    plan = BlackBoxPlan(generations=2, choices=2, most_queries=41)
    with endpoint(place("submix-guarded")) as service:
        found = audit_service(service, [short, long], plan, candidates=10**6)
    assert found.answers[0].generations == 2
    assert found.answers[1].generations >= 1
    assert found.meter.booked == found.meter.asked <= 41


def test_a_quota_that_ends_is_an_end_and_not_a_failure(place: NewPlace) -> None:  # noqa: F811
    where = place("submix-guarded", tokens=22)
    with endpoint(where) as service:
        found = audit_service(service, LIKELY, BlackBoxPlan(max_tokens=5), candidates=10**6)
    assert found.ended == "tenant_quota_exceeded"
    assert found.meter.booked == found.meter.asked <= 22
    assert found.verdict == "inconclusive"


def test_what_goes_wrong_is_told(place: NewPlace) -> None:  # noqa: F811
    where = place("submix-guarded")
    with endpoint(where) as service:
        wrong_key = Endpoint(service.url, "sk-wrong")
        with pytest.raises(InputError, match=r"401 \(invalid_api_key\)") as refusal:
            audit_service(wrong_key, LIKELY, candidates=10**6)
        assert "sk-wrong" not in str(refusal.value)
        wrong_password = Endpoint(service.url, service.key, admin=service.admin, password="no")
        with pytest.raises(InputError, match="admin port answered 401"):
            audit_service(wrong_password, LIKELY, candidates=10**6)
        nobody_there = Endpoint(service.url, service.key, admin="http://127.0.0.1:9", password="no")
        with pytest.raises(EnvironmentProblem, match=r"admin port at http://127\.0\.0\.1:9"):
            audit_service(nobody_there, LIKELY, candidates=10**6)
        with pytest.raises(InputError, match="max_tokens=9999"):
            audit_service(service, LIKELY, BlackBoxPlan(max_tokens=9999), candidates=10**6)
        with pytest.raises(InputError, match="No canary"):
            audit_service(service, [], candidates=10**6)
    with pytest.raises(EnvironmentProblem, match="No service answers at http"):
        audit_service(Endpoint("http://127.0.0.1:9/v1", "sk"), LIKELY, candidates=10**6)


def test_plans_that_make_no_sense_are_refused() -> None:
    for name in ("generations", "most_queries", "choices", "max_tokens"):
        with pytest.raises(InputError, match=f"{name}=0"):
            BlackBoxPlan(**{name: 0})
    with pytest.raises(InputError, match="confidence=2"):
        BlackBoxPlan(confidence=2.0)


def test_without_openais_client_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openai", None)
    with pytest.raises(EnvironmentProblem, match="pip install openai"):
        audit_service(Endpoint("http://x", "sk"), LIKELY, candidates=10**6)
