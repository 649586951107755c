"""Losses of the noise baselines: against integrals and counts, honest charges stand and halved ones fall."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy import integrate, stats

from tacit.audit.noise_losses import (
    NoiseLossCheck,
    adds_noise,
    check_for,
    divergence,
    laplace_divergences,
    laplace_losses,
    vote_losses,
    winner_law,
)
from tacit.audit.realised_loss import LossCheck
from tacit.errors import InputError
from tacit.mechanisms import Certified, GNMax, SubsampleAggregate
from tacit.mechanisms.baselines import laplace_divergence
from tacit.mechanisms.choice import MechanismChoice


def pmfs(rng: np.random.Generator, *shape: int, sharp: float = 3.0) -> np.ndarray:
    values = np.exp(sharp * rng.standard_normal(shape))
    return np.asarray(values / values.sum(-1, keepdims=True))


@pytest.mark.parametrize("order", [1.5, 2.0, 8.0])
def test_laplace_divergences_are_the_integrals(order: float) -> None:
    shifts = np.array([0.0, 1e-6, 1e-3, 0.05, 0.7, 3.0])
    found = laplace_divergences(shifts, order)
    one_by_one = [laplace_divergence(shift, order) for shift in shifts]
    np.testing.assert_allclose(found, one_by_one, rtol=1e-9, atol=1e-20)
    shift = 0.7
    value, _ = integrate.quad(
        lambda x: stats.laplace.pdf(x) ** order * stats.laplace.pdf(x - shift) ** (1 - order),
        -40,
        40,
        points=[0, shift],
        limit=200,
    )
    assert found[4] == pytest.approx(math.log(value) / (order - 1), rel=1e-6)


def test_the_worst_text_is_sure_of_the_least_likely_token() -> None:
    rng = np.random.default_rng(0)
    parts, base = pmfs(rng, 3, 6), pmfs(rng, 6)
    mechanism = SubsampleAggregate(2.0, 0.2)
    realised, worst = laplace_losses(parts, base, mechanism)
    for part in range(3):

        def loss(other: np.ndarray, part: int = part) -> float:
            shifts = np.abs(parts[part] - other) / (3 * 0.2)
            return sum(laplace_divergence(float(shift), 2.0) for shift in shifts)

        assert realised[part] == pytest.approx(loss(base))
        assert worst[part] == pytest.approx(max(loss(vertex) for vertex in np.eye(6)))
        assert all(loss(other) <= worst[part] for other in pmfs(rng, 200, 6, sharp=6.0))
        assert worst[part] <= mechanism.price(3)
    sure = np.eye(6)[:3]
    assert laplace_losses(sure, base, mechanism)[1] == pytest.approx([mechanism.price(3)] * 3, rel=2e-9)


def test_winners_are_as_frequent_as_the_law_says() -> None:
    rng = np.random.default_rng(1)
    votes, silent, sigma = np.array([3.0, 1.0, 0.0]), 20, 1.3
    law = winner_law(votes, silent, sigma)
    assert law.total == pytest.approx(1, abs=1e-12)
    noisy = np.concatenate([votes, np.zeros(silent)]) + sigma * rng.standard_normal((60_000, 23))
    counts = np.bincount(noisy.argmax(1), minlength=23)
    seen = [*counts[:3], counts[3:].sum()]
    expected = [*np.exp(law.tokens), silent * math.exp(law.other)]
    assert stats.chisquare(seen, 60_000 * np.array(expected)).pvalue > 1e-3
    assert math.exp(law.other) == pytest.approx(math.exp(law.tokens[2]))  # a silent one, named or not
    # Two tokens: one wins by the difference of two normals.
    two = winner_law(np.array([2.0, 0.0]), 0, 0.7)
    assert np.exp(two.tokens[0]) == pytest.approx(stats.norm.cdf(2 / (0.7 * math.sqrt(2))), rel=1e-12)
    assert np.exp(two.tokens[1]) == pytest.approx(stats.norm.sf(2 / (0.7 * math.sqrt(2))), rel=1e-9)
    with pytest.raises(InputError, match="so little noise"):
        winner_law(np.array([8.0]), 5, 1e-3)


@pytest.mark.parametrize("sigma", [0.05, 1.0, 14.0])
def test_a_winners_law_sums_to_one_whatever_the_noise(sigma: float) -> None:
    assert winner_law(np.array([5.0, 3.0, 0.0]), 49_000, sigma).total == pytest.approx(1, abs=1e-9)


@pytest.mark.parametrize("data_dependent", [False, True])
def test_votes_cost_at_most_their_price(data_dependent: bool) -> None:
    rng = np.random.default_rng(2)
    for sigma in (0.8, 2.0, 6.0):
        mechanism = GNMax(2.0, sigma, data_dependent=data_dependent)
        parts, base = pmfs(rng, 5, 30), pmfs(rng, 30)
        realised, worst = vote_losses(parts, base, mechanism)
        charges = mechanism.mix(torch.tensor(parts), torch.tensor(base)).charges.numpy()
        assert (realised <= worst + 1e-15).all()
        assert (worst <= charges).all()
        assert worst.max() > 0


def test_the_divergence_of_winners_by_the_definition() -> None:
    here, there = winner_law(np.array([3.0, 1.0]), 4, 1.0), winner_law(np.array([2.0, 2.0]), 4, 1.0)
    p = np.append(np.exp(here.tokens), [math.exp(here.other)] * 4)
    q = np.append(np.exp(there.tokens), [math.exp(there.other)] * 4)
    assert divergence(here, there, 3.0) == pytest.approx(math.log((p**3 * q**-2).sum()) / 2)
    assert divergence(here, here, 3.0) == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("name", ["subsample_aggregate", "gnmax"])
def test_honest_charges_stand_and_wrong_ones_fall(name: Any) -> None:
    rng = np.random.default_rng(3)
    mechanism = MechanismChoice(name, target=0.5).build(4)
    assert adds_noise(mechanism)
    members = torch.tensor(pmfs(rng, 6, 4, 1, 12, sharp=6.0))
    public = torch.tensor(pmfs(rng, 6, 12))
    mixture = mechanism.mix(members[:, :, 0], public)
    honest = check_for(mechanism, parts=4)
    assert isinstance(honest, NoiseLossCheck)
    losses = honest.observe(members, public, mixture)
    found = honest.result()
    assert (found.excess, found.mismatched, found.queries) == (0, 0, 6)
    assert found.verdict in ("supported", "inconclusive")
    assert losses.sum(0) == pytest.approx(found.realised)
    assert found.neighbours == "changed part"
    # Charged a tenth of what the worst neighbour takes.
    wrong = check_for(mechanism, parts=4)
    wrong.observe(members, public, mixture, charged=mixture.charges.numpy() * found.tightness / 10)
    assert wrong.result().verdict == "contradicted"
    assert wrong.result().largest > 0


def test_mechanisms_that_mix_keep_their_own_check() -> None:
    assert isinstance(check_for(Certified(2.0, 0.01), parts=2), LossCheck)
    with pytest.raises(InputError, match="parts=0"):
        check_for(GNMax(), parts=0)
    members, public = torch.ones(1, 2, 1, 3) / 3, torch.ones(1, 3) / 3
    mixture = GNMax().mix(members[:, :, 0], public)
    with pytest.raises(InputError, match="charges for"):
        check_for(GNMax(), parts=2).observe(members, public, mixture, [[1.0]])
