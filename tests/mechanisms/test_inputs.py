"""What mechanisms refuse, and what they do when a member fails."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

from tacit.errors import InputError
from tacit.mechanisms import (
    Certified,
    Decoding,
    GNMax,
    Individual,
    NonPrivate,
    Public,
    RandomStopping,
    SubMix,
    SubsampleAggregate,
)
from tacit.mechanisms.choice import MechanismChoice
from tests.mechanisms.oracle import floored

V, k = 5, 4
PUBLIC = np.array([0.1, 0.2, 0.3, 0.25, 0.15])
HALVES = np.stack([np.stack([np.roll(PUBLIC, i), PUBLIC]) for i in range(k)])
PARTS = HALVES.mean(1)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_non_finite_half_turns_only_its_own_slot_public(value: float) -> None:
    broken = HALVES.copy()
    broken[2, 1, 3] = value
    public_slot = HALVES.copy()
    public_slot[2] = PUBLIC
    mechanism = SubMix(2.0, 0.05)
    mixture = mechanism.mix(broken, PUBLIC)
    assert mixture.sound.tolist() == [True, True, False, True]
    assert float(mixture.weights[2]) == 0
    torch.testing.assert_close(mixture.pmf, mechanism.mix(public_slot, PUBLIC).pmf, rtol=1e-12, atol=0)
    others = [0, 1, 3]
    torch.testing.assert_close(mixture.weights[others], mechanism.mix(HALVES, PUBLIC).weights[others])
    assert bool(torch.isfinite(mixture.charges).all())


@pytest.mark.parametrize(
    "mechanism", [Certified(2.0, 0.05), Individual(2.0, 0.05)], ids=["certified", "individual"]
)
def test_a_non_finite_part_turns_only_its_own_slot_public(mechanism: Certified | Individual) -> None:
    broken = PARTS.copy()
    broken[1, 0] = math.nan
    mixture = mechanism.mix(broken, PUBLIC)
    assert mixture.sound.tolist() == [True, False, True, True]
    weights = mechanism.mix(PARTS, PUBLIC).weights
    assert mixture.weights.tolist() == [float(weights[0]), 0.0, float(weights[2]), float(weights[3])]


def test_a_non_finite_public_model_is_refused() -> None:
    with pytest.raises(InputError, match="public model's pmf is not finite"):
        SubMix().mix(HALVES, np.array([math.nan, 0.25, 0.25, 0.25, 0.25]))


REFUSED: dict[str, tuple[Callable[[], object], str]] = {
    "order 1": (lambda: SubMix(order=1.0), "order=1.0"),
    "order nan": (lambda: Certified(order=math.nan), "order=nan"),
    "order infinite": (lambda: SubMix(order=math.inf), "order=inf"),
    "target 0": (lambda: SubMix(target=0), "target=0"),
    "target negative": (lambda: Individual(target=-1), "target=-1"),
    "cap 0": (lambda: Certified(cap=0), "cap=0"),
    "cap above 1": (lambda: SubMix(cap=1.1), "cap=1.1"),
    "guard 0": (lambda: SubMix(guard=0), "guard=0"),
    "guard averaged": (lambda: SubMix(guard=0.1, mixing="averaged"), "bounds nothing"),
    "mixing": (lambda: SubMix(mixing="mean"), "mixing='mean'"),  # type: ignore[arg-type]
    "weights": (lambda: SubMix(weights="both"), "weights='both'"),  # type: ignore[arg-type]
    "epsilon 0": (lambda: Certified().queries(0), "epsilon=0"),
    "epsilon huge": (lambda: Certified().queries(1e300), r"epsilon=1e\+300"),
    "epsilon tiny": (lambda: Certified(target=1e-12).queries(1e-10), "epsilon=1e-10"),
    "scale 0": (lambda: SubsampleAggregate(scale=0), "scale=0"),
    "sigma nan": (lambda: GNMax(sigma=math.nan), "sigma=nan"),
    "sum": (lambda: SubMix().mix(HALVES * 0.9, PUBLIC), "sum is off by 0.1"),
    "public sum": (lambda: SubMix().mix(HALVES, PUBLIC * 1.1), "public: a pmf's sum"),
    "negative": (lambda: SubMix().mix(HALVES - 0.2, PUBLIC), "negative"),
    "vocabulary": (lambda: SubMix().mix(HALVES, np.full(4, 0.25)), "share one vocabulary"),
    "no halves": (lambda: SubMix().mix(PARTS, PUBLIC), r"expected \[..., k, 2, V\]"),
    "no parts": (lambda: Certified().mix(PARTS[:0], PUBLIC), "at least one"),
    "leading axes": (lambda: SubMix().mix(HALVES[None], np.tile(PUBLIC, (2, 1))), "leading axes"),
    "public without an axis": (
        lambda: SubMix().mix(torch.full((2, 2, 3), 1 / 3), torch.tensor(1.0)),
        r"public has shape \(\)",
    ),
    "members without an axis": (lambda: SubMix().mix(torch.tensor(1.0), PUBLIC), "members have shape"),
    "too few budgets": (
        lambda: Individual().mix(PARTS, PUBLIC, remaining=[1.0] * 3),
        r"remaining has shape \(3,\); expected \(4,\)",
    ),
    "budgets in words": (lambda: Individual().mix(PARTS, PUBLIC, remaining=["much"] * 4), "remaining is no"),
    "ragged": (lambda: Certified().mix([[0.5, 0.5], [1.0]], [0.5, 0.5]), "members is no array"),
    "words": (lambda: Certified().mix([["half", "half"]], [0.5, 0.5]), "members is no array"),
    "nothing": (lambda: Certified().mix(PARTS, [None] * V), "public is no array|not finite"),
    "ragged public": (lambda: Certified().mix(PARTS, [[0.5], [0.5, 0.5]]), "public is no array"),
    "huge integers": (lambda: Certified().mix(PARTS, [10**400] * V), "public is no array"),
    "complex": (lambda: Certified().mix(PARTS.astype(complex), PUBLIC), "complex"),
    "complex tensor": (lambda: Certified().mix(torch.tensor(PARTS) + 0j, PUBLIC), "complex"),
    "slot without an axis": (lambda: Certified().slot(0.5, PUBLIC, parts=2), r"part has shape \(\)"),
    "slot of no parts": (lambda: Certified().slot(PUBLIC, PUBLIC, parts=0), "parts=0"),
    "order in words": (lambda: SubMix(order="2"), "order is of type str"),  # type: ignore[arg-type]
    "target in words": (lambda: Certified(target="1"), "target is of type str"),  # type: ignore[arg-type]
    "cap in words": (lambda: Individual(cap="1"), "cap is of type str"),  # type: ignore[arg-type]
    "guard in words": (lambda: SubMix(guard="1"), "guard is of type str"),  # type: ignore[arg-type]
    "sigma in words": (lambda: GNMax(sigma="1"), "sigma is of type str"),  # type: ignore[arg-type]
    "order of votes in words": (lambda: GNMax(order="2"), "order is of type"),  # type: ignore[arg-type]
    "sigma huge": (lambda: GNMax(sigma=1e200), r"sigma=1e\+200"),
    "sigma tiny": (lambda: GNMax(sigma=1e-200), "sigma=1e-200"),
    "budget in words": (lambda: Certified().queries("2"), "epsilon is of type str"),  # type: ignore[arg-type]
    "temperature in words": (lambda: Decoding(temperature="1"), "temperature is"),  # type: ignore[arg-type]
    "choice in words": (lambda: MechanismChoice("gnmax", target="1"), "target is"),  # type: ignore[arg-type]
    "stopping": (lambda: RandomStopping(0, 1.0), "queries=0"),
    "expansion": (lambda: RandomStopping(5, 0.5), "expansion=0.5"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_in_a_sentence(case: str) -> None:
    call, words = REFUSED[case]
    with pytest.raises(InputError, match=words) as problem:
        call()
    assert str(problem.value).endswith(".")


def test_a_price_of_next_to_nothing_buys_a_number_of_answers() -> None:
    assert Certified(target=1e-310).queries(2.0) == 2**62
    assert Certified(target=0.01).queries(2.0) == 200


def test_one_part_is_charged_against_the_public_model() -> None:
    mixture = SubMix(2.0, 0.05).mix(HALVES[1:2], PUBLIC)
    from tacit.privacy import symmetric_renyi_divergence

    expected = symmetric_renyi_divergence(mixture.pmf.numpy(), floored(PUBLIC), 2.0)
    assert float(mixture.charges) == pytest.approx(float(expected), rel=1e-8)


def test_budgets_may_come_per_query_or_once_for_all() -> None:
    mechanism, batch = Individual(2.0, 0.05), np.stack([PARTS, PARTS])
    for remaining in ([0.0, 0.05, 0.05, 0.05], [[0.0, 0.05, 0.05, 0.05]] * 2):
        weights = mechanism.mix(batch, PUBLIC, remaining=remaining).weights
        assert (weights > 0).tolist() == [[False, True, True, True]] * 2


def test_an_exhausted_part_fades_to_the_public_model() -> None:
    mixture = Individual(2.0, 0.05).mix(PARTS, PUBLIC, remaining=[0.0, 0.05, -1.0, 0.05])
    assert mixture.weights[[0, 2]].tolist() == [0, 0]
    assert mixture.charges[[0, 2]].tolist() == [0, 0]
    assert float(mixture.weights[1]) > 0


def test_nothing_private_shows_in_a_log_line() -> None:
    mixture = SubMix(2.0, 0.05).mix(HALVES, PUBLIC)
    assert repr(mixture) == "Mixture(pmf (5,), 4 parts)"


def test_lines_of_comparison() -> None:
    assert NonPrivate().mix(PARTS, PUBLIC).charges.tolist() == [math.inf] * k
    torch.testing.assert_close(NonPrivate().mix(PARTS, PUBLIC).pmf, torch.tensor(floored(PARTS).mean(0)))
    public = Public().mix(PARTS, PUBLIC)
    assert public.charges.tolist() == [0.0] * k
    torch.testing.assert_close(public.pmf, torch.tensor(floored(PUBLIC)))
