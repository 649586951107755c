"""Every mechanism against its slow definition, in the cases that break solvers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tacit.mechanisms import Certified, Individual, SubMix
from tacit.mechanisms.choice import MechanismChoice
from tacit.mechanisms.public_centred import cap_for, shared_mass
from tacit.mechanisms.submix import sums_without_each
from tacit.privacy import renyi_divergence, symmetric_renyi_divergence
from tests.mechanisms import oracle
from tests.mechanisms.oracle import Array

ORDERS = (1.5, 2.0, 32.0)
TARGETS = (1e-4, 0.002, 0.5, 8.0)


def soft(logits: Array) -> Array:
    e = np.exp(logits - logits.max(-1, keepdims=True))
    return np.asarray(e / e.sum(-1, keepdims=True))


def one_hot(token: int, size: int) -> Array:
    return np.asarray(np.eye(size)[token])


def cases() -> dict[str, tuple[Array, Array]]:
    """Halves [k, 2, V] and public [V]."""
    rng = np.random.default_rng(7)
    V = 12
    r = soft(rng.normal(size=V) * 2)
    ordinary = soft(np.log(r) + rng.normal(size=(4, 2, V)) * 0.5)
    twins = np.repeat(ordinary[:, :1], 2, axis=1)
    memorised = ordinary.copy()
    memorised[0, 0] = 0.999 * one_hot(int(r.argmin()), V) + 0.001 * r
    half_memorised = ordinary.copy()
    half_memorised[1, 1] = 0.5 * one_hot(3, V) + 0.5 * r
    hot = ordinary.copy()
    hot[2] = np.stack([one_hot(0, V), one_hot(1, V)])
    sharp = soft(rng.normal(size=V) * 15)
    return {
        "ordinary": (ordinary, r),
        "equal halves": (twins, r),
        "all public": (np.broadcast_to(r, (4, 2, V)).copy(), r),
        "a memorising half": (memorised, r),
        "a half-memorising half": (half_memorised, r),
        "one-hot halves": (hot, r),
        "a sharp public model": (ordinary, sharp),
        "one part": (ordinary[:1], r),
        "two parts": (ordinary[:2], r),
    }


CASES = cases()


def assert_close(found: torch.Tensor, expected: Array) -> None:
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-8, atol=1e-8)


VARIANTS: dict[str, dict[str, Any]] = {
    "per part": {},
    "averaged": {"averaged": True},
    "one direction": {"both": False},
    "guarded": {"guard": 0.01, "cap": 0.9},
}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("case", CASES)
def test_submix(case: str, variant: str, order: float) -> None:
    halves, public = CASES[case]
    options = VARIANTS[variant]
    for target in TARGETS if variant == "per part" else (0.002,):
        mechanism = SubMix(
            order,
            target,
            mixing="averaged" if options.get("averaged") else "per_part",
            weights="symmetric" if options.get("both", True) else "paper",
            guard=options.get("guard"),
            cap=options.get("cap", 1.0),
        )
        mixture = mechanism.mix(halves, public)
        pmf, weights, charges = oracle.submix(halves, public, order=order, target=target, **options)
        assert_close(mixture.weights, weights)
        assert_close(mixture.pmf, pmf)
        assert_close(mixture.charges, charges)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("case", CASES)
def test_certified_and_individual(case: str, order: float, target: float) -> None:
    halves, public = CASES[case]
    parts = halves.mean(1)
    for cap in (0.5,) if target == 0.5 else (1.0,):
        pmf, weights, losses = oracle.certified(parts, public, order=order, target=target, cap=cap)
        certified = Certified(order, target, cap).mix(parts, public)
        assert_close(certified.weights, weights)
        assert_close(certified.pmf, pmf)
        assert torch.equal(certified.charges, torch.full_like(certified.charges, target))
        individual = Individual(order, target, cap).mix(parts, public)
        assert_close(individual.weights, weights)
        assert_close(individual.charges, losses)
        assert bool((individual.charges <= target).all())


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("case", CASES)
def test_weights_are_feasible_and_maximal(case: str, order: float) -> None:
    """Checked on both sides: the weight keeps the bound, and a slightly larger one breaks it."""
    halves, public = CASES[case]
    target = 0.002
    weights = SubMix(order, target).mix(halves, public).weights.numpy()
    H, r = oracle.floored(halves), oracle.floored(public)
    for (p, q), w in zip(H, weights, strict=True):
        P, Q = oracle.blend(w, p, r), oracle.blend(w, q, r)
        assert symmetric_renyi_divergence(P, Q, order) <= target * (1 + 1e-12)
        if w < 1:
            more = w * (1 + 1e-7)
            P, Q = oracle.blend(more, p, r), oracle.blend(more, q, r)
            assert symmetric_renyi_divergence(P, Q, order) > target


logits = st.lists(st.floats(-12, 12), min_size=5, max_size=5)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(logits, logits), min_size=1, max_size=4),
    logits,
    st.sampled_from(ORDERS),
    st.sampled_from(TARGETS),
)
@example([([0.0, 0.0, 0.0, 0.0, 4.0], [0.0, 0.0, 0.0, 12.0, -12.0])], [0.0] * 5, 32.0, 0.5)  # slope overflows
def test_random_ensembles(
    members: list[tuple[list[float], list[float]]], base: list[float], order: float, target: float
) -> None:
    halves, public = soft(np.array(members)), soft(np.array(base))
    mixture = SubMix(order, target).mix(halves, public)
    pmf, weights, charges = oracle.submix(halves, public, order=order, target=target)
    np.testing.assert_allclose(mixture.weights.numpy(), weights, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(mixture.pmf.numpy(), pmf, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(mixture.charges.numpy(), charges, rtol=1e-5, atol=1e-9)
    parts = halves.mean(1)
    sure = Certified(order, target, 0.8).mix(parts, public)
    pmf, weights, _ = oracle.certified(parts, public, order=order, target=target, cap=0.8)
    np.testing.assert_allclose(sure.weights.numpy(), weights, rtol=1e-6, atol=1e-9)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(logits, min_size=1, max_size=5),
    logits,
    st.lists(st.floats(0, 1), min_size=5, max_size=5),
    st.sampled_from((1.2, 2.0, 6.0)),
    st.sampled_from((0.3, 0.9, 1.0)),
)
def test_the_slot_loss_bounds_the_divergence_whatever_the_others_do(
    members: list[list[float]], base: list[float], shares: list[float], order: float, cap: float
) -> None:
    """The lemma behind certified mixing: l_i >= D_sym(h || h with slot i public), for any other slots."""
    G, r = oracle.floored(soft(np.array(members))), oracle.floored(soft(np.array(base)))
    k = len(G)
    weights = np.array(shares[:k]) * cap
    slots = [oracle.blend(w, g, r) for w, g in zip(weights, G, strict=True)]
    h = np.mean(slots, axis=0)
    for i in range(k):
        replaced = np.mean([r if j == i else slot for j, slot in enumerate(slots)], axis=0)
        loss = oracle.slot_loss(G[i], r, weights[i], k, order, cap)
        assert symmetric_renyi_divergence(h, replaced, order) <= loss * (1 + 1e-9) + 1e-13


def test_the_slot_loss_is_nearly_attained() -> None:
    """With the other slots' mass elsewhere the bound is met exactly: a smaller one would be false."""
    k, cap, order = 4, 1.0, 2.0
    elsewhere = np.array([0.0, 0.0, 1.0])
    tightest = 0.0
    for rest in np.geomspace(1e-6, 0.5, 10):  # public mass where the other slots answer
        r = np.array([(1 - rest) / 2, (1 - rest) / 2, rest])
        mine = np.array([(1 - rest) * 0.99, (1 - rest) * 0.01, rest])
        slots = [mine, *[elsewhere] * (k - 1)]
        h, without = np.mean(slots, axis=0), np.mean([r, *slots[1:]], axis=0)
        loss = oracle.slot_loss(mine, r, cap, k, order, cap)
        tightest = max(tightest, float(symmetric_renyi_divergence(h, without, order)) / loss)
    assert 0.999 < tightest <= 1 + 1e-12
    assert shared_mass(4, 0.9) == pytest.approx(1.3 / 4)


@given(st.integers(1, 300), st.floats(1.01, 64), st.floats(1e-9, 20))
def test_the_default_cap_keeps_the_most_of_what_slots_afford(k: int, order: float, target: float) -> None:
    cap = cap_for(k, order=order, target=target)
    assert 0 < cap <= 1
    z = scipy.stats.norm.ppf((np.arange(32) + 0.5) / 32)
    distances = np.exp(2 * z)

    def kept(cap: float) -> float:
        c = (1 + (k - 1) * (1 - cap)) / k
        weights = np.minimum(cap, np.sqrt(2 * target * k * k * c / (order * distances)))
        return float((1 - (1 - weights) ** 2).sum())

    assert k == 1 or kept(cap) >= max(map(kept, np.linspace(0.01, 1, 100))) - 1e-9


@pytest.mark.parametrize("case", CASES)
def test_without_a_cap_the_default_one_holds(case: str) -> None:
    """And with it the price: the cap that weights were found under is the cap that they keep to."""
    halves, public = CASES[case]
    parts = halves.mean(1)
    k, target = len(parts), 0.002
    cap = cap_for(k, order=2.0, target=target)
    sure = Certified(2.0, target).mix(parts, public)
    assert_close(sure.weights, Certified(2.0, target, cap).mix(parts, public).weights.numpy())
    assert float(sure.weights.max()) <= cap
    G, r = oracle.floored(parts), oracle.floored(public)
    for i, weight in enumerate(sure.weights.tolist()):
        assert oracle.slot_loss(G[i], r, weight, k, 2.0, cap) <= target * (1 + 1e-9)
        one = Certified(2.0, target).slot(parts[i], public, parts=k)
        assert one.weights.item() == pytest.approx(weight, rel=1e-9)
    own = Individual(2.0, target).mix(parts, public)
    assert_close(own.weights, Individual(2.0, target, cap).mix(parts, public).weights.numpy())


def test_leave_one_out_sums_keep_what_subtraction_loses() -> None:
    """Where one part alone holds a token, total minus part is 0 in single precision; sums are not."""
    V, k = 6, 8
    values = torch.full((1, k, V), 2e-10, dtype=torch.float32)
    values[0, 3, 0] = 0.5
    exact = values.double().sum(1, keepdim=True) - values.double()
    ours = sums_without_each(values)
    torch.testing.assert_close(ours.double(), exact, rtol=1e-6, atol=0)
    subtracted = values.sum(1, keepdim=True) - values
    assert float(subtracted[0, 3, 0]) == 0.0 != float(exact[0, 3, 0])


@pytest.mark.parametrize("k", [1, 2, 3, 9])
def test_leave_one_out_sums_equal_the_naive_ones(k: int) -> None:
    values = torch.rand(2, k, 7, dtype=torch.float64)
    naive = torch.stack([values[:, [j for j in range(k) if j != i]].sum(1) for i in range(k)], dim=1)
    torch.testing.assert_close(sums_without_each(values), naive, rtol=1e-12, atol=1e-12)


def test_the_two_directions_of_equation_2_differ_a_thousandfold_for_a_memorising_half() -> None:
    V = 50
    r = oracle.floored(soft(np.linspace(0, 18, V)))
    memorised = 0.5 * one_hot(0, V) + 0.5 * r
    forward = SubMix(2.0, 1e-3, weights="paper").mix(np.stack([memorised, r])[None], r).weights
    backward = SubMix(2.0, 1e-3, weights="paper").mix(np.stack([r, memorised])[None], r).weights
    both = SubMix(2.0, 1e-3).mix(np.stack([memorised, r])[None], r).weights
    assert float(backward) > 100 * float(forward)
    assert float(both) == pytest.approx(float(torch.minimum(forward, backward)), rel=1e-7)


def test_a_memorising_half_costs_nothing_per_part_and_everything_averaged() -> None:
    V, k = 200, 8
    rng = np.random.default_rng(0)
    r = soft(rng.normal(size=V) * 4)
    halves = np.repeat(soft(np.log(r) + rng.normal(size=(k, 1, V)) * 0.05), 2, axis=1)
    rare = int(r.argmin())
    halves[0, 0] = 0.999 * one_hot(rare, V) + 0.001 * r
    target = 2 / 1024
    per_part = SubMix(2.0, target).mix(halves, r)
    averaged = SubMix(2.0, target, mixing="averaged").mix(halves, r)
    assert float(per_part.charges.max()) < 1e-3
    assert float(averaged.charges.max()) > 5


def test_batches_are_queries_one_by_one() -> None:
    rng = np.random.default_rng(1)
    public = soft(rng.normal(size=(2, 3, 9)))
    halves = soft(np.log(public)[:, :, None, None] + rng.normal(size=(2, 3, 4, 2, 9)))
    whole = SubMix(2.0, 0.01).mix(halves, public)
    assert whole.pmf.shape == (2, 3, 9)
    assert whole.charges.shape == whole.weights.shape == whole.sound.shape == (2, 3, 4)
    single = SubMix(2.0, 0.01).mix(halves[1, 2], public[1, 2])
    torch.testing.assert_close(whole.charges[1, 2], single.charges, rtol=1e-10, atol=1e-14)
    torch.testing.assert_close(whole.pmf[1, 2], single.pmf, rtol=1e-12, atol=0)
    shared = SubMix(2.0, 0.01).mix(halves[0], public[0, 0])
    assert shared.pmf.shape == (3, 9)


@pytest.mark.parametrize("order", [2.0, 3.0])
@pytest.mark.parametrize("kind", [Certified, Individual])
def test_a_batch_of_public_centred_mixing_is_its_single_queries(
    kind: type[Certified | Individual], order: float
) -> None:
    rng = np.random.default_rng(2)
    public = soft(rng.normal(size=(5, 9)))
    spread = np.array([0.1, 0.5, 1.0, 2.0, 4.0])[:, None, None]  # so that every query has other weights
    parts = soft(np.log(public)[:, None] + spread * rng.normal(size=(5, 4, 9)))
    mechanism = kind(order, 0.01)
    whole = mechanism.mix(parts, public)
    assert len({round(float(row[0]), 3) for row in whole.weights}) > 2
    for query in range(5):
        single = mechanism.mix(parts[query], public[query])
        for name in ("pmf", "weights", "charges"):
            ours, alone = getattr(whole, name)[query], getattr(single, name)
            torch.testing.assert_close(ours, alone, rtol=1e-10, atol=1e-14)


def test_paper_order_of_mixing_is_the_divergence_of_the_transcript_of_one_query() -> None:
    """The charge is the divergence between the two worlds' answers, nothing else."""
    halves, public = CASES["ordinary"]
    mixture = SubMix(3.0, 0.05).mix(halves, public)
    without = SubMix(3.0, 0.05).mix(halves[1:], public)
    expected = max(
        float(renyi_divergence(mixture.pmf, without.pmf, 3.0)),
        float(renyi_divergence(without.pmf, mixture.pmf, 3.0)),
    )
    assert float(mixture.charges[0]) == pytest.approx(expected, rel=1e-8)
    assert math.isfinite(expected)


def test_a_guard_without_a_cap_takes_the_one_of_certified_mixing_at_that_price() -> None:
    guarded = MechanismChoice("submix", target=0.001, guard=0.03).build(8)
    assert guarded == SubMix(2.0, 0.001, guard=0.03, cap=cap_for(8, order=2.0, target=0.03))
    assert MechanismChoice("submix", target=0.001, guard=0.03, cap=0.9).build(8) == SubMix(
        2.0, 0.001, guard=0.03, cap=0.9
    )
    assert MechanismChoice("submix", target=0.001).build(8) == SubMix(2.0, 0.001)
