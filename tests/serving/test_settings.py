"""What a service charges per answer, and which settings would say too much."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.errors import InputError
from tacit.ledger import RULES, Domain
from tacit.privacy.filter import nano, nano_budget
from tacit.serving.settings import Settings


def domain(mechanism: str = "certified", epsilon: float = 2.0) -> Domain:
    return Domain("people", 2.0, 4, "partition", epsilon, mechanism)


@given(st.floats(1e-3, 1e3), st.integers(1, 10**6))
def test_a_budget_for_so_many_answers_pays_for_so_many(epsilon: float, queries: int) -> None:
    """`Certified(2, 1/3).queries(1)` is 3; a ledger that rounds the price up would pay for 2."""
    budget = nano_budget(epsilon)
    if budget < queries:
        with pytest.raises(InputError, match="does not pay for"):
            Settings(queries=queries).choice(domain(epsilon=epsilon))
        return
    price = nano(Settings(queries=queries).choice(domain(epsilon=epsilon)).target)
    assert queries * price <= budget
    assert budget // price >= queries


@pytest.mark.parametrize("mechanism", ["submix", "submix-guarded", "individual"])
def test_only_a_public_counter_may_say_that_it_has_ended(mechanism: str) -> None:
    with pytest.raises(InputError, match="depends on private text"):
        Settings(on_exhausted="error").choice(domain(mechanism))
    Settings(on_exhausted="error").choice(domain("certified"))


def test_the_guard_is_on_where_the_domain_has_it() -> None:
    guarded = Settings(queries=1000).choice(domain("submix-guarded"))
    assert guarded.guard == pytest.approx(16 * 2 / 1000)
    assert Settings(guard=0.25).choice(domain("submix-guarded")).guard == 0.25
    assert Settings().choice(domain("submix")).guard is None
    with pytest.raises(InputError, match="guard is for domains of submix-guarded"):
        Settings(guard=0.25).choice(domain("submix"))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"queries": 0}, "queries=0"),
        ({"slots": 0}, "slots=0"),
        ({"most_tokens": 8}, "default_tokens=64 is above most_tokens=8"),
        ({"on_exhausted": "shrug"}, "on_exhausted='shrug'"),
    ],
)
def test_bad_settings_are_refused(changes: dict[str, object], words: str) -> None:
    with pytest.raises(InputError, match=words):
        Settings(**changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("target", [0.0, -1.0, float("nan"), float("inf")])
def test_a_price_is_a_finite_number_above_0(target: float) -> None:
    with pytest.raises(InputError, match="target="):
        Settings(target=target).choice(domain())


@pytest.mark.parametrize("mechanism", [name for name, rule in RULES.items() if rule.served])
def test_no_answer_may_cost_more_than_the_whole_budget(mechanism: str) -> None:
    with pytest.raises(InputError, match=r"target=3.0: .* budget of domain people \(epsilon=2.0\)"):
        Settings(target=3.0).choice(domain(mechanism))
    assert Settings(target=2.0).choice(domain(mechanism)).target == 2.0


def test_nor_may_a_guard_be_above_it() -> None:
    for guard in (3.0, float("inf")):
        with pytest.raises(InputError, match=f"guard={guard}: .* budget of domain people"):
            Settings(guard=guard).choice(domain("submix-guarded"))
    assert Settings(guard=2.0).choice(domain("submix-guarded")).guard == 2.0
    assert Settings(queries=1).choice(domain("submix-guarded")).guard == 2.0, "16 times the price is above it"


def test_no_request_may_ask_for_more_than_ever_fits() -> None:
    assert Settings(slots=1, waiting=2).fitting_choices == 3
    assert Settings().fitting_choices == 4


def test_mechanisms_that_the_service_does_not_have_are_named() -> None:
    for name, rule in RULES.items():
        if rule.served:
            Settings().choice(domain(name))
    with pytest.raises(InputError, match="gnmax, which the service does not have"):
        Settings().choice(domain("gnmax"))
