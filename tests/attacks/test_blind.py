"""The blind attacker finds shifted sets and, at its level, nothing in exchangeable ones."""

from __future__ import annotations

import random

import numpy as np
import pytest
from scipy import sparse, special, stats

from tacit.attacks.blind import attack_blindly, features_of, fit_logistic
from tacit.attacks.token_statistics import BoolArray
from tacit.errors import InputError
from tests.tiny import public_sentences


def labels_for(count: int) -> BoolArray:
    return np.array([number % 2 == 0 for number in range(count)])


def test_a_shifted_set_is_separated() -> None:
    texts = public_sentences(60, seed=1)
    shifted = [text if number % 2 else text.replace("the", "that") for number, text in enumerate(texts)]
    found = attack_blindly(shifted, labels_for(60))
    assert found.separates
    assert found.p_value <= 0.001
    assert found.auc.value > 0.9
    assert found.auc.low > 0.5


@pytest.mark.parametrize("shift", ["length", "digits"])
def test_sizes_alone_separate(shift: str) -> None:
    draw = random.Random(3)
    texts = []
    for number in range(80):
        if shift == "length":
            length = 40 if number % 2 else 60
            texts.append("".join(draw.choice("abcdefghij ") for _ in range(length)))
        else:
            letters = "0123456789abcd" if number % 2 else "01abcdefghijkl"
            texts.append("".join(draw.choice(letters) for _ in range(50)))
    assert attack_blindly(texts, labels_for(80)).separates


def test_scores_are_out_of_fold() -> None:
    """Texts of random words are learnt by heart easily; a text's own label must not help."""
    draw = random.Random(0)
    texts = [" ".join(str(draw.getrandbits(60)) for _ in range(5)) for _ in range(100)]
    labels = labels_for(100)
    inside = features_of(texts) @ fit_logistic(features_of(texts), labels, 1e4)
    assert inside[labels].min() > inside[~labels].max()  # by heart
    found = attack_blindly(texts, labels, strength=1e4)
    assert abs(found.auc.value - 0.5) < 0.2
    assert found.scores.min() > 0
    assert found.scores.max() < 1


@pytest.mark.slow
def test_false_alarms_on_exchangeable_sets_are_at_most_the_level() -> None:
    """Level 0.2, so that few repetitions say much: at most as many alarms as a binomial would give."""
    runs, alarms, areas = 60, 0, []
    for seed in range(runs):
        texts = public_sentences(40, seed=1000 + seed)
        labels = np.random.default_rng(seed).permutation(labels_for(40))
        found = attack_blindly(texts, labels, level=0.2, seed=seed)
        alarms += found.separates
        areas.append(found.auc.value)
    assert alarms <= stats.binom.ppf(0.999, runs, 0.2)
    assert alarms >= stats.binom.ppf(0.001, runs, 0.2)  # exact, so not far below either
    assert abs(np.mean(areas) - 0.5) < 4 * 0.09 / np.sqrt(runs)


def pairs(count: int, draw: random.Random, first: str, second: str) -> list[str]:
    """Lines and look-alikes in turn, which differ in a name: its letters are drawn from one of two lists."""

    def name(letters: str) -> str:
        return "".join(draw.choices(letters, k=6)).title()

    tags = [public_sentences(1, seed=draw.randrange(10**6))[0] for _ in range(count)]
    return [f"{tag} I am {name(letters)}." for tag in tags for letters in (first, second)]


@pytest.mark.slow
def test_twins_raise_no_more_alarms_than_the_level_and_hardly_fewer() -> None:
    runs, alarms, areas = 100, 0, []
    for seed in range(runs):
        texts = pairs(20, random.Random(seed), "abcdefghij", "abcdefghij")
        found = attack_blindly(texts, labels_for(40), partners=np.arange(40) ^ 1, level=0.2, seed=seed)
        alarms += found.separates
        areas.append(found.auc.value)
    assert alarms <= stats.binom.ppf(0.999, runs, 0.2)
    assert alarms >= stats.binom.ppf(0.001, runs, 0.1)  # exact up to the steps of a binomial
    assert abs(np.mean(areas) - 0.5) < 4 * 0.1 / np.sqrt(runs)


def test_look_alikes_with_rarer_letters_are_separated() -> None:
    """Also where the rest of each line is the same, and would lead the wrong way by itself."""
    texts = pairs(80, random.Random(1), "aaaabbbbccccddddefgh", "abcdeeeeffffgggghhhh")
    found = attack_blindly(texts, labels_for(160), partners=np.arange(160) ^ 1)
    assert found.separates
    assert found.p_value <= 0.001
    assert found.auc.low > 0.5
    alone = attack_blindly(texts, labels_for(160))
    assert found.auc.value > alone.auc.value


def test_the_regression_is_at_its_minimum() -> None:
    generator = np.random.default_rng(0)
    features = sparse.csr_array(np.column_stack([generator.normal(size=(50, 4)), np.ones(50)]))
    labels = generator.random(50) < 0.4
    weights = fit_logistic(features, labels, 2.0)
    residual = special.expit(features @ weights) - labels
    gradient = 2.0 * (features.T @ residual) + weights * np.array([1, 1, 1, 1, 0])
    assert np.abs(gradient).max() < 1e-3


def test_the_same_seed_gives_the_same_result() -> None:
    texts = public_sentences(30, seed=5)
    first, second = (attack_blindly(texts, labels_for(30), seed=4) for _ in range(2))
    assert first.p_value == second.p_value
    np.testing.assert_array_equal(first.scores, second.scores)


def test_empty_and_odd_texts_have_features() -> None:
    found = features_of(["", "ab", "\ud800", "x" * 10_000])
    assert np.isfinite(found.toarray()).all()


def test_too_few_texts_are_refused() -> None:
    with pytest.raises(InputError, match="at least 5 members"):
        attack_blindly(public_sentences(20), [True] * 16 + [False] * 4)
    with pytest.raises(InputError, match="one label"):
        attack_blindly(public_sentences(20), [True] * 10)
    with pytest.raises(InputError, match="level"):
        attack_blindly(public_sentences(20), labels_for(20), level=1.0)
    assert "baker" not in repr(attack_blindly(public_sentences(20), labels_for(20)))
