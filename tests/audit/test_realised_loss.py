"""Charges against losses that a plain reference recomputes: honest accountants pass, wrong ones never do."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.audit.realised_loss import LossCheck, RealisedLoss, realised_loss
from tacit.errors import InputError
from tacit.mechanisms import Certified, GNMax, Individual, SubMix
from tacit.prediction.drawing import mixed
from tests.audit.toys import AnotherDraw, GenerousCertified, HalvedIndividual, HalvedSubMix, queries
from tests.mechanisms import oracle

HONEST = [
    SubMix(2.0, 0.05),
    SubMix(2.0, 0.05, mixing="averaged"),
    SubMix(2.0, 0.05, mixing="averaged", weights="paper"),
    SubMix(2.0, 0.05, guard=0.02, cap=0.9),
    SubMix(8.0, 0.05),
    SubMix(1.5, 0.05, guard=0.1),
    Certified(2.0, 0.01),
    Certified(32.0, 0.02, cap=0.5),
    Individual(2.0, 0.01),
    Individual(4.0, 0.02, cap=0.7),
]


def check(mechanism: Any, members: torch.Tensor, public: torch.Tensor) -> RealisedLoss:
    return realised_loss(mechanism, [(members, public)], parts=members.shape[1])


@pytest.mark.parametrize("mechanism", HONEST, ids=str)
@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("spread", [0.1, 1.5, 6.0])
def test_no_honest_charge_is_below_the_loss(mechanism: Any, k: int, spread: float) -> None:
    members, public = queries(3, 6, k, 2, 7, spread)
    found = check(mechanism, members, public)
    assert (found.queries, found.excess, found.mismatched, found.worst_query) == (6, 0, 0, None)
    assert found.largest == 0
    assert found.verdict != "contradicted"
    assert all(loss <= paid for loss, paid in zip(found.realised, found.charged, strict=True))
    if isinstance(mechanism, SubMix):  # which charges just what is lost
        np.testing.assert_allclose(found.realised, found.charged, rtol=1e-7, atol=1e-10)
        assert found.verdict == "supported"


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    k=st.integers(1, 5),
    spread=st.floats(0.01, 12.0),
    mechanism=st.sampled_from(HONEST),
    single=st.booleans(),
)
def test_no_ensemble_makes_an_honest_accountant_look_wrong(
    seed: int, k: int, spread: float, mechanism: Any, single: bool
) -> None:
    members, public = queries(seed, 2, k, 2, 5, spread)
    if single:
        members, public = members.float(), public.float()
    assert check(mechanism, members, public).verdict != "contradicted"


def test_the_reference_agrees_with_the_slow_oracle() -> None:
    members, public = queries(1, 1, 4, 2, 6, 1.0)
    for averaged, guard in ((False, None), (True, None), (False, 0.05)):
        mechanism = SubMix(3.0, 0.1, mixing="averaged" if averaged else "per_part", guard=guard)
        _, _, charges = oracle.submix(
            members[0].numpy(), public[0].numpy(), order=3.0, target=0.1, averaged=averaged, guard=guard
        )
        np.testing.assert_allclose(check(mechanism, members, public).realised, charges, rtol=1e-5)
    certified = Certified(3.0, 0.1, cap=0.6)
    _, _, losses = oracle.certified(
        members[0].mean(1).numpy(), public[0].numpy(), order=3.0, target=0.1, cap=0.6
    )
    found = check(certified, members, public)
    # The worst others, built by definition, attain what the bound's formula says.
    np.testing.assert_allclose(found.worst_case, losses, rtol=1e-6)
    assert all(here <= worst for here, worst in zip(found.realised, found.worst_case, strict=True))


@pytest.mark.parametrize(
    ("wrong", "k"),
    [(HalvedSubMix(2.0, 0.05), 1), (HalvedSubMix(2.0, 0.05), 4), (HalvedSubMix(8.0, 0.1, guard=0.05), 3)]
    + [(HalvedIndividual(2.0, 0.01), k) for k in (1, 4)]
    + [(GenerousCertified(order, 0.01), k) for k in (1, 4, 8) for order in (2.0, 32.0)],
    ids=str,
)
def test_a_wrong_accountant_is_contradicted(wrong: Any, k: int) -> None:
    members, public = queries(5, 8, k, 2, 9, 1.5)
    found = check(wrong, members, public)
    assert found.verdict == "contradicted"
    assert found.excess == 8
    assert found.largest > 0
    assert found.worst_query is not None
    assert "more than it was charged" in found.reason


def test_the_worst_query_is_the_worst_one() -> None:
    members, public = queries(5, 9, 3, 2, 9, 1.5)
    mechanism = SubMix(2.0, 0.05)
    mixture = mixed(mechanism, members, public)
    charged = mixture.charges.clone()
    charged[4, 1] /= 3
    charged[7, 2] *= 0.999
    loss = float(mixture.charges[4, 1])
    looking = LossCheck(mechanism, parts=3)
    for rows in (slice(0, 5), slice(5, 9)):  # as a corpus streams
        part = type(mixture)(
            mixture.pmf[rows], mixture.weights[rows], mixture.charges[rows], mixture.sound[rows]
        )
        looking.observe(members[rows], public[rows], part, charged[rows])
    found = looking.result()
    assert (found.excess, found.worst_query) == (2, 4)
    assert found.largest == pytest.approx(loss * 2 / 3, rel=1e-6)
    np.testing.assert_allclose(found.charged, charged.sum(0))


def test_an_answer_that_was_drawn_from_something_else_is_found() -> None:
    members, public = queries(5, 3, 3, 2, 9, 1.5)
    found = check(AnotherDraw(2.0, 0.05), members, public)
    assert (found.excess, found.mismatched, found.verdict) == (0, 3, "contradicted")
    assert "not drawn" in found.reason


def test_a_weight_above_its_cap_is_part_of_the_worst_case() -> None:
    members, public = queries(5, 1, 4, 1, 9, 0.05)  # so near that every weight is the cap
    mechanism = Certified(2.0, 0.01, cap=0.3)
    honest = mixed(mechanism, members, public)
    assert float(honest.weights.min()) == pytest.approx(0.3)
    sneaky = mixed(Certified(2.0, 0.01, cap=1.0), members, public)
    before, after = LossCheck(mechanism, parts=4), LossCheck(mechanism, parts=4)
    before.observe(members, public, honest)
    after.observe(members, public, sneaky)
    assert max(after.result().worst_case) > 5 * max(before.result().worst_case)
    # The others may be as heavy as the heaviest weight that was seen.
    openly = check(Certified(2.0, 0.01, cap=1.0), members, public)
    np.testing.assert_allclose(after.result().worst_case, openly.worst_case, rtol=1e-9)


def test_charges_of_which_little_is_used_support_nothing() -> None:
    members, public = queries(2, 4, 8, 1, 6, 0.001)
    found = check(Certified(2.0, 0.05), members, public)
    assert found.verdict == "inconclusive"
    assert found.tightness < 0.01
    assert "would not show" in found.reason
    # The same answers at half the price are not contradicted either: that is what inconclusive means.
    assert check(GenerousCertified(2.0, 0.05), members, public).verdict == "inconclusive"


def test_a_member_that_is_not_finite_answers_as_the_public_model() -> None:
    members, public = queries(2, 2, 3, 2, 6, 1.0)
    members[1, 2, 0, 3] = math.nan
    found = check(SubMix(2.0, 0.1), members, public)
    assert (found.excess, found.mismatched) == (0, 0)


def test_budgets_are_spent_as_in_service() -> None:
    members, public = queries(4, 40, 3, 2, 6, 1.5)
    batches = [(members[:25], public[:25]), (members[25:], public[25:])]
    stopped = realised_loss(SubMix(2.0, 0.05), batches, parts=3, epsilon=0.1)
    assert stopped.queries == 40
    assert 0 < max(stopped.charged) < 0.1
    assert stopped.verdict == "supported"
    counted = realised_loss(Certified(2.0, 0.01), batches, parts=3, epsilon=0.1)
    np.testing.assert_allclose(counted.charged, 0.1)
    faded = realised_loss(Individual(2.0, 0.01), batches, parts=3, epsilon=0.1)
    assert max(faded.charged) <= 0.1
    assert min(faded.charged) > 0.0999
    assert {counted.verdict, faded.verdict} == {"supported"}
    halved = realised_loss(HalvedSubMix(2.0, 0.05), batches, parts=3, epsilon=0.1)
    assert halved.verdict == "contradicted"
    assert max(halved.realised) > max(stopped.realised)


def test_results_are_json_and_hold_no_pmfs() -> None:
    members, public = queries(2, 2, 3, 2, 6, 1.0)
    content = json.loads(json.dumps(check(SubMix(2.0, 0.1), members, public).to_json()))
    assert content["neighbours"] == "removed part"
    assert content["verdict"] == "supported"
    assert len(content["realised"]) == 3


def test_what_cannot_be_checked_is_refused() -> None:
    members, public = queries(2, 2, 3, 2, 6, 1.0)
    with pytest.raises(InputError, match="GNMax does not mix parts by weights"):
        LossCheck(GNMax(), parts=3)
    with pytest.raises(InputError, match="at least one part"):
        LossCheck(SubMix(), parts=0)
    looking = LossCheck(SubMix(), parts=3)
    mixture = SubMix().mix(members, public)
    with pytest.raises(InputError, match=r"expected \[n, 3, halves, V\]"):
        looking.observe(members[:, :2], public, mixture)
    with pytest.raises(InputError, match="charges for"):
        looking.observe(members, public, replace(mixture, charges=mixture.charges[:1]))
