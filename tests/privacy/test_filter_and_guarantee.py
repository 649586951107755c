"""Budgets that cannot be passed, and guarantees that cannot be converted into more than they are."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.errors import InputError
from tacit.privacy import Guarantee, RenyiFilter
from tacit.privacy.filter import MOST_BUDGET, NANO, nano


@given(st.lists(st.lists(st.floats(0, 0.9), min_size=3, max_size=3), max_size=40))
def test_random_charges_never_pass_the_budget(charges: list[list[float]]) -> None:
    budget = RenyiFilter(parts=3, epsilon=2.0)
    booked = np.zeros(3)
    for charge in charges:
        if budget.spend(charge):
            booked += charge
        else:
            assert budget.stopped
    assert np.all(booked < 2.0)
    assert np.all(budget.spent >= booked - 1e-12)  # rounding may overstate, never understate
    assert np.all(budget.remaining > 0)


def test_a_charge_that_reaches_the_budget_stops_for_good() -> None:
    budget = RenyiFilter(parts=2, epsilon=1.0)
    assert budget.spend([0.5, 0.1])
    assert not budget.spend([0.5, 0.1])
    assert budget.stopped
    assert not budget.spend([0.0, 0.0])
    assert budget.spent == pytest.approx([0.5, 0.1])


@pytest.mark.parametrize("charge", [math.nan, -0.1, math.inf])
def test_charges_that_are_no_charges_stop(charge: float) -> None:
    budget = RenyiFilter(parts=2, epsilon=1.0)
    assert not budget.spend([0.1, charge])
    assert budget.stopped
    assert budget.spent == pytest.approx([0, 0])


def test_many_tiny_charges_add_up() -> None:
    budget = RenyiFilter(parts=1, epsilon=1e-5)
    answered = sum(budget.spend([1e-12]) for _ in range(20_000))
    assert answered == 9_999  # each is rounded up to a billionth; floats of 1e-12 would have allowed all
    assert nano(1e-12) == 1
    assert nano(2.0) == 2 * NANO


def test_one_charge_per_part() -> None:
    budgets = RenyiFilter(parts=2, epsilon=1)
    for book in (budgets.spend, budgets.debit):
        with pytest.raises(InputError, match="one charge per part"):
            book([0.1])


def test_debits_are_refused_whole() -> None:
    budget = RenyiFilter(parts=2, epsilon=1.0)
    budget.debit([1.0, 0.2])
    with pytest.raises(InputError, match="nothing was booked"):
        budget.debit([0.0, 0.9])
    assert budget.spent == pytest.approx([1.0, 0.2])
    assert not budget.stopped


@pytest.mark.parametrize("epsilon", [0, -1, 9e-10, 1e-300, 5e9, 1e300, math.nan, math.inf])
def test_budgets_that_cannot_be_counted_are_refused(epsilon: float) -> None:
    with pytest.raises(InputError, match=r"epsilon=.* from 1e-9 to 4.61e\+09"):
        RenyiFilter(parts=1, epsilon=epsilon)


def test_the_smallest_and_the_largest_budget_can_be_spent() -> None:
    smallest = RenyiFilter(parts=1, epsilon=1e-9)
    smallest.debit([1e-9])
    largest = RenyiFilter(parts=1, epsilon=MOST_BUDGET)
    assert largest.spend([4e9])
    assert not largest.spend([math.inf])


def test_operational_privacy_is_not_converted() -> None:
    measured = Guarantee.operational(order=2, epsilon=2)
    assert "instance-specific, not DP" in str(measured)
    for convert in (
        lambda: measured.to_dp(1e-5),
        measured.to_user,
        lambda: measured.for_group(2),
        lambda: measured.extraction(1e6),
    ):
        with pytest.raises(InputError, match="one corpus only"):
            convert()


def test_certified_guarantees_convert() -> None:
    certified = Guarantee.certified(order=2, epsilon=2)
    assert certified.to_dp(1e-5).epsilon == pytest.approx(12.1266, abs=1e-4)
    user = certified.to_user()
    assert user.unit == "user"
    assert user.order == pytest.approx(4 / 3)
    assert user.epsilon == pytest.approx(6)
    assert certified.extraction(1e5).bound == pytest.approx(0.0086, rel=0.01)
    assert not any("replaced by nothing" in one for one in user.assumptions)
    assert "one user's text, arbitrarily replaced" in user.assumptions[0]
    pair = Guarantee.certified(order=8, epsilon=1).for_group(2)
    assert (pair.epsilon, pair.group, pair.to_dp(1e-5).group) == (3, 2, 2)
    assert Guarantee.from_json(pair.to_json()) == pair
    with pytest.raises(InputError, match="group"):
        pair.to_user()
    with pytest.raises(InputError, match="group"):
        pair.for_group(2)
    with pytest.raises(InputError, match="per user already"):
        user.to_user()
    with pytest.raises(InputError, match="no Renyi bound"):
        Guarantee.unprotected("user").to_dp(1e-5)


def test_a_renyi_bound_is_shown_beside_what_it_means() -> None:
    """ "Epsilon 2" at order 2 sounds like less than it is."""
    certified = Guarantee.certified(order=2, epsilon=2)
    assert str(certified).startswith(
        "Renyi differential privacy (order 2, epsilon 2), which implies (epsilon 12.1266, delta 1e-05) "
        "(unit: part)."
    )
    assert "implies" not in str(certified.to_dp(1e-6))
    pure = Guarantee.certified(order=math.inf, epsilon=0.5)
    assert "which implies (epsilon 0.5, delta 0)" in str(pure)
    assert "delta" not in str(Guarantee.operational(order=2, epsilon=2))
    group = Guarantee.certified(order=8, epsilon=0.5).for_group(2)
    assert group.to_dp(1e-5).numbers in str(group)


def test_a_certificate_names_whose_secret_it_is_about() -> None:
    part = Guarantee.certified(order=16, epsilon=0.1)
    user = part.to_user()
    assert "confined to one part, is guessed" in str(part.extraction(1e5))
    assert "confined to one user, is guessed" in str(user.extraction(1e5))
    assert "confined to a group of 4 parts, is guessed" in str(part.for_group(4).extraction(1e5))
    assert "confined to a group of 3 users, is guessed" in str(user.for_group(3).extraction(1e5))
    assert str(part.for_group(1).extraction(1e5)) == str(part.extraction(1e5))


def test_where_a_part_may_change_arbitrarily_a_user_pays_no_conversion() -> None:
    noisy = Guarantee.certified(order=2, epsilon=2, neighbours="changed part")
    assert noisy.neighbours == "changed part"
    assert Guarantee.certified(order=2, epsilon=2).neighbours == "null part"
    user = noisy.to_user()
    assert (user.unit, user.order, user.epsilon, user.neighbours) == ("user", 2, 2, None)
    assert "one user's text, arbitrarily replaced" in user.assumptions[0]
    assert not any("one part's text" in one for one in user.assumptions)
    assert Guarantee.from_json(noisy.to_json()).to_user() == user


@pytest.mark.parametrize(
    "guarantee",
    [
        Guarantee.unprotected("block", outside=("vocabulary",)),
        Guarantee.operational(order=2, epsilon=2),
        Guarantee.certified(order=math.inf, epsilon=0.5),
        Guarantee.certified(order=2, epsilon=2).to_dp(1e-5),
        Guarantee.dp_sgd(epsilon=2, delta=1e-5, adjacency="replace-one", unit="user"),
        Guarantee.confidentiality(epsilon=0.4, delta=1e-5, about="a random secret"),
        Guarantee.selective(epsilon=2, delta=1e-5, perfect_policy=False),
    ],
    ids=["none", "rop", "pure", "dp", "dp-sgd", "confidentiality", "infinite"],
)
def test_guarantees_survive_json(guarantee: Guarantee) -> None:
    import json

    written = json.dumps(guarantee.to_json(), allow_nan=False)
    assert Guarantee.from_json(json.loads(written)) == guarantee


@pytest.mark.parametrize("unit", ["example", "user"])
@pytest.mark.parametrize("adjacency", ["add-remove", "replace-one"])
def test_dp_sgd_names_its_neighbours(unit: Any, adjacency: Any) -> None:
    made = Guarantee.dp_sgd(epsilon=2, delta=1e-5, adjacency=adjacency, unit=unit)
    assert (made.kind, made.unit, made.adjacency, made.promises) == ("dp", unit, adjacency, True)
    assert str(made).startswith(f"differential privacy (epsilon 2, delta 1e-05), {adjacency} (unit: {unit}).")
    assert Guarantee.from_json(made.to_json()).adjacency == adjacency
    assert made.neighbours is None  # which is about parts
    with pytest.raises(InputError, match="no Renyi bound"):
        made.to_user()


def test_where_there_is_no_finite_epsilon_nothing_sounds_like_one() -> None:
    for made in (
        Guarantee.dp_sgd(epsilon=math.inf, delta=1e-5, adjacency="add-remove"),
        Guarantee.confidentiality(epsilon=math.inf, delta=1e-5, about="each secret"),
        Guarantee.selective(epsilon=2, delta=1e-5, perfect_policy=False),
    ):
        assert not made.promises
        assert "without a finite epsilon" in str(made)
        assert "No finite epsilon" in made.caveat
        assert made.to_json()["epsilon"] == "inf"


def test_selective_training_promises_with_a_perfect_policy_only() -> None:
    perfect = Guarantee.selective(epsilon=2, delta=1e-5, perfect_policy=True)
    assert (perfect.epsilon, perfect.delta, perfect.promises) == (2, 1e-5, True)
    assert "Void as soon as the policy misses one secret" in str(perfect)
    imperfect = Guarantee.selective(epsilon=2, delta=1e-5, perfect_policy=False)
    assert (imperfect.epsilon, imperfect.delta) == (math.inf, 0)


def test_confidentiality_says_whose() -> None:
    each = Guarantee.confidentiality(epsilon=1, delta=1e-5, about="each secret")
    random = Guarantee.confidentiality(epsilon=1, delta=1e-5, about="a random secret")
    assert each.adjacency == random.adjacency == "mask"
    assert "not for each" in random.caveat
    assert "confidentiality of secrets (epsilon 1, delta 1e-05) (unit: secret)" in str(each)
    group = Guarantee.confidentiality(epsilon=1, delta=1e-5, about="a group of secrets", group=4)
    assert (group.group, "up to 4 data points" in str(group)) == (4, True)


def test_guarantees_without_their_numbers_are_refused() -> None:
    with pytest.raises(InputError, match="an order and an epsilon"):
        Guarantee(kind="rdp", unit="part", order=2)
    for kind in ("rdp", "rop"):
        with pytest.raises(InputError, match="loss above 0"):
            Guarantee(kind=kind, unit="part", order=2, epsilon=0.0)
    weak = Guarantee.certified(order=100, epsilon=0.001).to_dp(0.01)
    assert weak.epsilon == 0  # (0, delta) is legal
    with pytest.raises(InputError, match="an epsilon and a delta"):
        Guarantee(kind="dp", unit="user", epsilon=1)
    with pytest.raises(InputError, match="an epsilon and a delta"):
        Guarantee(kind="confidentiality", unit="secret", epsilon=1)
    with pytest.raises(InputError, match="no numbers"):
        Guarantee(kind="none", unit="user", epsilon=1)
