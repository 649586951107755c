"""The search at order 2: chords keep the bound, a few evaluations are enough, rough finds are proven."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.mechanisms import Certified, SubMix, chi_squared
from tacit.mechanisms.chi_squared import ChiSquaredPairs
from tests.mechanisms import oracle
from tests.mechanisms.oracle import Array
from tests.mechanisms.test_against_oracle import CASES, soft


def pairs(halves: Array, public: Array, dtype: torch.dtype = torch.float64) -> ChiSquaredPairs:
    """Both halves of every part around the public model."""
    H, r = (torch.tensor(oracle.floored(values))[None] for values in (halves, public))
    return ChiSquaredPairs(H.to(dtype), (H[:, :, :1] - H[:, :, 1:]).square().to(dtype), r)


def number(value: float) -> torch.Tensor:
    return torch.tensor(value, dtype=torch.float64)


def excess(weight: float, p: Array, q: Array, r: Array) -> float:
    """E by its definition, in the worse direction."""
    P, Q = oracle.blend(weight, p, r), oracle.blend(weight, q, r)
    return max(float((P * P / Q).sum()), float((Q * Q / P).sum())) - 1


logits = st.lists(st.floats(-14, 14), min_size=6, max_size=6)


@settings(max_examples=60, deadline=None)
@given(logits, logits, logits, st.integers(1, chi_squared.EXACT_STEPS), st.floats(1e-6, 5))
def test_however_few_evaluations_there_are_the_bound_is_kept(
    first: list[float], second: list[float], base: list[float], steps: int, bound: float
) -> None:
    """The chord between both ends is feasible by concavity: nobody looks at the weight that is returned."""
    halves, public = soft(np.array([[first, second]])), soft(np.array(base))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chi_squared, "EXACT_STEPS", steps)
        found = pairs(halves, public).largest_weights(number(bound), number(1)).item()
    (p, q), r = oracle.floored(halves)[0], oracle.floored(public)
    assert 0 < found <= 1
    assert excess(found, p, q, r) <= bound * (1 + 1e-7) + 1e-13  # the definition cancels, ours does not


@pytest.mark.parametrize("bound", [1e-6, 0.002, 0.5, 20.0])
@pytest.mark.parametrize("case", CASES)
def test_a_few_evaluations_find_nearly_all(case: str, bound: float) -> None:
    halves, public = CASES[case]
    exact = pairs(halves, public).largest_weights(number(bound), number(0.9))
    rough = pairs(halves, public, torch.float32).largest_weights(number(bound), number(0.9))
    assert bool((rough <= exact * (1 + 1e-6)).all())
    assert bool((rough >= exact * 0.99).all())
    H, r = oracle.floored(halves), oracle.floored(public)
    for (p, q), weight in zip(H, exact[0].tolist(), strict=True):
        assert weight == pytest.approx(
            oracle.halves_weight(p, q, r, 2.0, math.log1p(bound), 0.9, both=True), rel=1e-8
        )


@pytest.mark.parametrize("case", CASES)
def test_a_weight_that_is_too_large_is_made_smaller(case: str) -> None:
    halves, public = CASES[case]
    exact = pairs(halves, public)
    bound, wanted = number(0.002), torch.full((1, len(halves)), 0.7, dtype=torch.float64)
    largest = exact.largest_weights(bound, number(1))
    proven = exact.proven(wanted, bound)
    assert bool((proven <= largest * (1 + 1e-9)).all())
    assert torch.equal(exact.proven(largest / 2, bound), largest / 2)


@pytest.mark.parametrize("case", CASES)
def test_a_search_that_finds_too_much_breaks_no_guarantee(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Single precision wrong by half: where weights are the guarantee, double has the last word."""
    monkeypatch.setattr(chi_squared, "_ROUGH_MARGIN", 1.5)
    halves, public = (torch.tensor(values, dtype=torch.float32) for values in CASES[case])
    G, r = oracle.floored(halves.mean(1).double().numpy()), oracle.floored(public.double().numpy())
    target, cap = 0.002, 0.9
    mixture = Certified(2.0, target, cap).mix(halves.mean(1), public)
    for g, w in zip(G, mixture.weights.tolist(), strict=True):
        assert oracle.slot_loss(g, r, w, len(G), 2.0, cap) <= target
    guarded = SubMix(2.0, 0.5, guard=target, cap=cap).mix(halves, public)
    assert bool((guarded.charges <= target).all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_a_caller_gives_is_left_as_it_was(dtype: torch.dtype) -> None:
    halves, public = (torch.tensor(values, dtype=dtype) for values in CASES["ordinary"])
    before = halves.clone(), public.clone()
    SubMix(2.0, 0.01, guard=0.02, cap=0.9).mix(halves, public)
    SubMix(3.0, 0.01).mix(halves, public)
    Certified(2.0, 0.01).mix(halves[:, 0], public)
    assert torch.equal(halves, before[0])
    assert torch.equal(public, before[1])
