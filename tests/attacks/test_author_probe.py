"""The probe: finds authors in states that separate, nothing in noise, and learns from no scored text."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
import torch
from scipy import special

from tacit.attacks import author_probe
from tacit.attacks.author_probe import NamedAuthors, ProbeSettings, fit_regression, name_authors
from tacit.attacks.token_statistics import IntArray
from tacit.errors import InputError
from tacit.statistics import FloatArray

QUICK = ProbeSettings(hidden=32, epochs=30)


def states(
    seed: int, *, authors: int = 6, texts: int = 12, width: int = 16, apart: float
) -> tuple[FloatArray, FloatArray, IntArray]:
    """Two draws of each author's texts around a mean of its own, on scales that differ by coordinate."""
    rng = np.random.default_rng(seed)
    whose = np.repeat(np.arange(authors), texts)
    means = apart * rng.normal(size=(authors, width))
    scales = 10.0 ** rng.uniform(-3, 3, width)
    first, second = (scales * (means[whose] + rng.normal(size=(len(whose), width)) + 7) for _ in range(2))
    return first, second, whose


def test_authors_who_differ_are_named_and_noise_is_not() -> None:
    learnt, scored, authors = states(0, apart=1.5)
    found = name_authors(learnt, authors, scored, settings=QUICK)
    assert (found.named == authors).mean() > 0.9
    assert found.among(1, authors).tolist() == (found.named == authors).tolist()
    assert found.among(6, authors).all()
    learnt, scored, authors = states(1, apart=0.0, texts=60)
    noise = name_authors(learnt, authors, scored, settings=QUICK)
    assert abs((noise.named == authors).mean() - 1 / 6) < 0.1


def test_what_only_two_layers_can_see_is_left_to_them() -> None:
    """Authors on rings around one centre have one mean: no regression tells them apart."""
    rng = np.random.default_rng(0)

    def ring() -> FloatArray:
        angles = rng.uniform(0, 2 * np.pi, 400)
        radius = np.where(authors == 0, 1.0, 3.0) + 0.1 * rng.normal(size=400)
        return np.stack([radius * np.cos(angles), radius * np.sin(angles)], axis=1)

    authors = np.repeat([0, 1], 200)
    learnt, scored = ring(), ring()
    found = name_authors(learnt, authors, scored, settings=ProbeSettings(hidden=64))
    assert found.probe.startswith("two layers of width 64")
    assert (found.named == authors).mean() > 0.95
    straight = name_authors(learnt, authors, scored, settings=ProbeSettings(hidden=0))
    assert straight.probe.startswith("logistic regression")
    assert (straight.named == authors).mean() < 0.65


def test_the_same_seed_names_the_same_and_leaves_torchs_numbers_alone() -> None:
    learnt, scored, authors = states(2, apart=0.5)
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    one, other = (name_authors(learnt, authors, scored, settings=QUICK) for _ in range(2))
    assert np.array_equal(one.scores, other.scores)
    assert torch.equal(torch.rand(3), expected)


def test_one_text_of_the_scored_ones_changes_nothing_for_the_others() -> None:
    learnt, scored, authors = states(3, apart=0.7)
    whole = name_authors(learnt, authors, scored, settings=QUICK)
    part = name_authors(learnt, authors, scored[:1], settings=QUICK)
    assert part.probe == whole.probe
    assert np.allclose(part.scores, whole.scores[:1], atol=1e-5)
    assert list(inspect.signature(name_authors).parameters) == ["learnt", "authors", "scored", "settings"]


def test_units_and_dead_coordinates_do_not_matter() -> None:
    learnt, scored, authors = states(4, apart=0.7)
    dead = np.full((len(authors), 1), 1e5)
    usual = name_authors(learnt, authors, scored, settings=QUICK)
    beside = name_authors(
        np.hstack([1000 * learnt, dead]), authors, np.hstack([1000 * scored, dead + 1e-3]), settings=QUICK
    )
    assert (usual.named == authors).mean() == pytest.approx((beside.named == authors).mean(), abs=0.05)


@pytest.mark.parametrize("penalty", [1.0, 0.001])
def test_a_regression_has_converged(penalty: float) -> None:
    learnt, _, authors = states(5, apart=0.5)
    features = author_probe._Scale.of(learnt)(learnt)
    weights = fit_regression(features, authors, penalty)
    shares = special.softmax(features @ weights[:-1] + weights[-1], axis=1)
    shares[np.arange(len(authors)), authors] -= 1
    slope = features.T @ shares / len(authors) + penalty * weights[:-1]
    assert np.abs(slope).max() < 1e-4
    assert np.abs(shares.mean(axis=0)).max() < 1e-4


def test_too_little_to_learn_from_is_refused() -> None:
    learnt, scored, authors = states(6, apart=1.0)
    for wrong in (np.zeros_like(authors), authors[:-1], np.where(np.arange(72) < 70, authors % 5, 5)):
        with pytest.raises(InputError, match="at least 3 texts of each"):
            name_authors(learnt, wrong, scored)
    for changes in ({"penalties": ()}, {"penalties": (0.0,)}, {"hidden": -1}, {"epochs": 0}, {"seed": -1}):
        with pytest.raises(InputError, match="Expected"):
            ProbeSettings(**changes)


def test_ties_count_against_the_author() -> None:
    """A probe that tells nobody apart names nobody among the first five."""
    scores, authors = np.zeros((3, 10)), np.arange(3)
    assert not NamedAuthors(scores, "none").among(5, authors).any()
    assert NamedAuthors(scores, "none").among(10, authors).all()
    scores[0, 0] = 1.0
    assert NamedAuthors(scores, "none").among(5, authors).tolist() == [True, False, False]
