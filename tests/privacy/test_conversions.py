"""Conversions: golden values, tightness, and the published claims that are false."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.errors import InputError
from tacit.privacy import (
    extraction_certificate,
    part_to_user,
    pure_group,
    pure_part_to_user,
    random_stopping,
    rdp_group,
    rdp_to_dp,
    renyi_divergence,
    symmetric_renyi_divergence,
    zcdp_group,
)
from tacit.privacy.conversions import public_share


def hockey_stick(p: np.ndarray, q: np.ndarray, epsilon: float) -> float:
    return float(np.maximum(p - math.exp(epsilon) * q, 0).sum())


def test_submix_headline_in_epsilon_and_delta() -> None:
    # "eps = 2 at order 2" of the SubMix paper, at delta = 1e-5.
    assert rdp_to_dp(order=2, epsilon=2, delta=1e-5, formula="mironov") == pytest.approx(13.5129, abs=1e-4)
    assert rdp_to_dp(order=2, epsilon=2, delta=1e-5) == pytest.approx(12.1266, abs=1e-4)
    assert rdp_to_dp(order=math.inf, epsilon=2, delta=1e-5) == 2


pmfs = st.lists(st.floats(1e-6, 1.0), min_size=2, max_size=5)


@settings(max_examples=300)
@given(pmfs, pmfs, st.floats(1.05, 40), st.floats(1e-9, 0.5), st.sampled_from(["tight", "mironov"]))
def test_dp_conversion_holds_for_random_pairs(
    a: list[float], b: list[float], order: float, delta: float, formula: str
) -> None:
    size = min(len(a), len(b))
    p, q = (np.array(values[:size]) / math.fsum(values[:size]) for values in (a, b))
    epsilon = float(symmetric_renyi_divergence(p, q, order))
    converted = rdp_to_dp(order=order, epsilon=epsilon, delta=delta, formula=formula)  # type: ignore[arg-type]
    assert hockey_stick(p, q, converted) <= delta * (1 + 1e-9)


def test_the_tight_formula_is_nearly_attained() -> None:
    """A smaller epsilon would be wrong: for some pair the hockey-stick divergence reaches delta."""
    order, delta = 2.0, 1e-3
    worst = 0.0
    for mass in np.geomspace(1e-6, 0.5, 150):  # p puts `mass` on a point where q has far less
        for ratio in np.geomspace(1.5, 1e5, 40):
            p, q = np.array([mass, 1 - mass]), np.array([mass / ratio, 1 - mass / ratio])
            epsilon = float(renyi_divergence(p, q, order))
            claimed = rdp_to_dp(order=order, epsilon=epsilon, delta=delta)
            worst = max(worst, hockey_stick(p, q, claimed) / delta)
    assert 0.5 < worst <= 1


@pytest.mark.parametrize(
    ("order", "paper", "better"),
    [
        (2, None, (4 / 3, 3.0)),
        (3, (1.5, 3.0), (1.8, 2.5)),
        (4, (2, 2.5), (16 / 7, 7 / 3)),
        (8, (4, 13 / 6), (64 / 15, 15 / 7)),
        (32, (16, 61 / 30), (1024 / 63, 63 / 31)),
    ],
)
def test_part_to_user_table(
    order: float, paper: tuple[float, float] | None, better: tuple[float, float]
) -> None:
    bound = part_to_user(order=order, epsilon=1)
    assert (bound.order, bound.epsilon) == pytest.approx(better)
    if paper is None:
        with pytest.raises(InputError, match="order above 2"):
            part_to_user(order=order, epsilon=1, theorem="paper")
    else:
        printed = part_to_user(order=order, epsilon=1, theorem="paper")
        assert (printed.order, printed.epsilon) == pytest.approx(paper)


@settings(max_examples=300)
@given(pmfs, pmfs, pmfs, st.floats(1.2, 20))
def test_part_to_user_holds_for_random_triples(
    a: list[float], b: list[float], c: list[float], order: float
) -> None:
    size = min(len(a), len(b), len(c))
    p, without, q = (np.array(values[:size]) / math.fsum(values[:size]) for values in (a, b, c))
    epsilon = max(
        float(symmetric_renyi_divergence(p, without, order)),
        float(symmetric_renyi_divergence(q, without, order)),
    )
    user = part_to_user(order=order, epsilon=epsilon)
    assert float(renyi_divergence(p, q, user.order)) <= user.epsilon * (1 + 1e-9) + 1e-12
    if order > 2:
        printed = part_to_user(order=order, epsilon=epsilon, theorem="paper")
        if printed.order > 1:
            assert float(renyi_divergence(p, q, printed.order)) <= printed.epsilon * (1 + 1e-9) + 1e-12


def test_huge_orders_never_become_pure_privacy() -> None:
    bound = part_to_user(order=1e200, epsilon=1)
    assert bound.order == pytest.approx(5e199)
    assert bound.epsilon == pytest.approx(2)
    assert rdp_to_dp(order=2, epsilon=1, delta=1e-320, formula="mironov") == pytest.approx(
        1 + 736.8, rel=1e-3
    )


def test_part_to_user_is_nearly_attained_by_gaussians() -> None:
    """Gaussians at -1, 0, 1: the factor at the converted order is order'*4/order, 2.667 of 3 at order 2."""
    for order, attained in ((2, 2.667), (3, 2.400), (8, 2.133)):
        bound = part_to_user(order=order, epsilon=1)
        gaussian = bound.order * 4 / order
        assert gaussian == pytest.approx(attained, abs=1e-3)
        assert gaussian <= bound.epsilon


def gaussian_loss(order: float, distance: float) -> float:
    return order * distance**2 / 2


def test_linear_group_privacy_is_false_for_renyi_and_the_correct_form_holds() -> None:
    order, size = 8.0, 4
    one = gaussian_loss(order, 0.1)
    group = gaussian_loss(order, 0.1 * size)
    assert group > size * one  # SubMix C.2 and C.3 claim group <= size * one
    bound = rdp_group(order=order, epsilon=one, size=size)
    assert bound.order == 2
    assert bound.epsilon == pytest.approx(9 * one)
    assert gaussian_loss(bound.order, 0.1 * size) <= bound.epsilon
    rho = 0.1**2 / 2
    assert zcdp_group(rho=rho, size=size) == pytest.approx((0.1 * size) ** 2 / 2)


def test_group_sizes() -> None:
    assert rdp_group(order=2, epsilon=1, size=1).epsilon == 1
    assert rdp_group(order=8, epsilon=1, size=3) == rdp_group(order=8, epsilon=1, size=4)
    assert rdp_group(order=math.inf, epsilon=1, size=3).epsilon == 3  # pure DP
    assert pure_group(epsilon=0.5, size=3) == 1.5
    assert pure_part_to_user(0.7) == 1.4
    with pytest.raises(InputError, match="at least 8"):
        rdp_group(order=7.9, epsilon=1, size=4)
    with pytest.raises(InputError, match="size=0"):
        rdp_group(order=8, epsilon=1, size=0)


@pytest.mark.parametrize(("expansion", "perplexity"), [(1, 32.2), (10, 27.43), (100, 26.95)])
def test_random_stopping_example_of_the_paper_with_its_arithmetic_mended(
    expansion: float, perplexity: float
) -> None:
    """Public 37.5, private 26.9, B = 1000; the paper prints 31.3, 27.78 and 26.988."""
    stop = random_stopping(order=2, epsilon=2, queries=1000, expansion=expansion)
    assert stop.epsilon == pytest.approx(2 + math.log(1000 * expansion))
    assert "one-directional" in stop.direction
    mixed = (1 - stop.public_share) * 26.9 + stop.public_share * 37.5
    assert mixed == pytest.approx(perplexity, abs=0.01)


@given(st.integers(1, 40), st.floats(0.51, 5))
def test_public_share_is_the_expectation(queries: int, expansion: float) -> None:
    horizon = math.floor(queries * expansion)
    if horizon:
        counted = sum(max(0, queries - stop + 1) for stop in range(1, horizon + 1)) / horizon / queries
        assert public_share(queries, horizon) == pytest.approx(counted)


@pytest.mark.parametrize(
    ("candidates", "epsilon", "fano", "hoelder"),
    [(1e3, 1, 0.245, 0.052), (1e5, 2, 0.234, 0.0086), (1e9, 4, 0.227, 2.3e-4)],
)
def test_extraction_certificate_table(candidates: float, epsilon: float, fano: float, hoelder: float) -> None:
    certificate = extraction_certificate(order=2, epsilon=epsilon, candidates=candidates)
    assert certificate.fano == pytest.approx(fano, rel=0.01)
    assert certificate.hoelder == pytest.approx(hoelder, rel=0.05)
    assert certificate.bound == certificate.hoelder
    assert certificate.chance == 1 / candidates


def test_extraction_certificate_holds_for_the_best_guesser_and_is_not_idle() -> None:
    """m worlds with laws around one law Q: the best guesser stays under both bounds."""
    m, closest = 8, 1.0
    for lift in np.linspace(0.05, 0.95, 19):
        worlds = np.full((m, m), (1 - lift) / m) + lift * np.eye(m)
        around = np.full(m, 1 / m)
        epsilon = max(float(renyi_divergence(world, around, 2)) for world in worlds)
        success = worlds.max(axis=0).sum() / m
        certificate = extraction_certificate(order=2, epsilon=epsilon, candidates=m)
        assert success <= certificate.bound * (1 + 1e-12)
        closest = min(closest, certificate.bound / success)
    assert closest < 1.5  # a bound that were much smaller would be broken here


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: rdp_to_dp(order=1, epsilon=1, delta=1e-5), "order=1"),
        (lambda: rdp_to_dp(order=2, epsilon=-1, delta=1e-5), "epsilon=-1"),
        (lambda: rdp_to_dp(order=2, epsilon=1, delta=0), "delta=0"),
        (lambda: rdp_to_dp(order=2, epsilon=math.nan, delta=0.1), "epsilon=nan"),
        (lambda: random_stopping(order=2, epsilon=1, queries=0, expansion=1), "queries=0"),
        (lambda: random_stopping(order=2, epsilon=1, queries=9, expansion=0.5), "expansion=0.5"),
        (lambda: random_stopping(order=2, epsilon=1, queries=1, expansion=0.6), "no number of queries"),
        (lambda: random_stopping(order=2, epsilon=1, queries=9, expansion=1e308), "no number of queries"),
        (lambda: extraction_certificate(order=2, epsilon=1, candidates=1), "candidates=1"),
        (lambda: rdp_to_dp(order=2, epsilon=1, delta=0.1, formula="typo"), "formula='typo'"),  # type: ignore[arg-type]
        (lambda: part_to_user(order=3, epsilon=1, theorem="typo"), "theorem='typo'"),  # type: ignore[arg-type]
    ],
    ids=[
        "order",
        "negative",
        "delta",
        "nan",
        "queries",
        "expansion",
        "no moment",
        "no end",
        "candidates",
        "formula",
        "theorem",
    ],
)
def test_bad_numbers_are_refused_in_a_sentence(call: object, words: str) -> None:
    with pytest.raises(InputError, match=words):
        call()  # type: ignore[operator]
