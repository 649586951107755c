"""Members in single precision, as models give them: rough weights, exact charges, proven bounds."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tacit.mechanisms import Certified, SubMix
from tacit.mechanisms.pmfs import floored_public
from tacit.mechanisms.submix import Mixing
from tacit.privacy import symmetric_renyi_divergence
from tests.mechanisms import oracle
from tests.mechanisms.test_against_oracle import CASES


@pytest.mark.parametrize("target", [1e-4, 0.002, 0.5])
@pytest.mark.parametrize("case", CASES)
def test_weights_are_near_and_charges_exact(case: str, target: float) -> None:
    halves, public = (torch.tensor(values, dtype=torch.float32) for values in CASES[case])
    rough = SubMix(2.0, target).mix(halves, public)
    exact = SubMix(2.0, target).mix(halves.double(), public.double())
    assert bool((rough.weights <= exact.weights * (1 + 1e-6) + 1e-12).all())
    ordinary = case != "a memorising half"  # where the search has further to go, it may stop short: safe
    assert bool((rough.weights >= exact.weights * (0.999 if ordinary else 0.9)).all())
    H, r = oracle.floored(halves.double().numpy()), oracle.floored(public.double().numpy())
    weights = rough.weights.numpy()
    slots = np.array([oracle.blend(w, g, r) for w, g in zip(weights, H.mean(1), strict=True)])
    for i in range(len(slots)):
        others = np.delete(slots, i, axis=0)
        without = others.mean(0) if len(others) else r
        charge = float(symmetric_renyi_divergence(slots.mean(0), without, 2.0))
        assert float(rough.charges[i]) == pytest.approx(charge, rel=1e-6, abs=1e-11)


@pytest.mark.parametrize("mixing", ["per_part", "averaged"])
@pytest.mark.parametrize("target", [1e-4, 0.002, 0.5])
@pytest.mark.parametrize("case", CASES)
def test_charges_are_the_divergence_from_an_ensemble_that_really_is_smaller(
    case: str, target: float, mixing: Mixing
) -> None:
    """Mixed anew from the other parts' models, in the precision that models answer in."""
    halves, public = (torch.tensor(values, dtype=torch.float32) for values in CASES[case])
    mechanism = SubMix(2.0, target, mixing=mixing)
    whole = mechanism.mix(halves, public)
    for i in range(len(halves)):
        others = torch.cat([halves[:i], halves[i + 1 :]])
        without = mechanism.mix(others, public).pmf if len(others) else floored_public(public)
        true = float(symmetric_renyi_divergence(whole.pmf.numpy(), without.numpy(), 2.0))
        assert float(whole.charges[i]) == pytest.approx(true, rel=1e-6, abs=1e-11)


@pytest.mark.parametrize("cap", [0.5, 0.9, 1.0])  # few steps of the search up to a weight of 0.8, many above
@pytest.mark.parametrize("target", [1e-4, 0.002, 0.5])
@pytest.mark.parametrize("case", CASES)
def test_certified_bounds_are_proven_in_double_precision(case: str, target: float, cap: float) -> None:
    halves, public = (torch.tensor(values, dtype=torch.float32) for values in CASES[case])
    parts = halves.mean(1)
    mixture = Certified(2.0, target, cap).mix(parts, public)
    G, r = oracle.floored(parts.double().numpy()), oracle.floored(public.double().numpy())
    for g, w in zip(G, mixture.weights.numpy(), strict=True):
        assert oracle.slot_loss(g, r, float(w), len(G), 2.0, cap) <= target
    exact = Certified(2.0, target, cap).mix(parts.double(), public.double()).weights
    assert bool((mixture.weights >= exact * 0.99).all())
