"""Mechanisms as scorers: the mixture itself, every query counted, every charge summed."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from tacit.attacks import Places, pmf_of
from tacit.attacks.exposure import ExposureSettings, MechanismScorer, MechanismTarget, measure_exposure
from tacit.attacks.exposure.candidates import CandidateTrie
from tacit.attacks.exposure.ranking import Rule, branch_and_bound, walk
from tacit.attacks.exposure.token_tree import TokenRows
from tacit.errors import InputError, ModelError
from tacit.mechanisms.choice import MechanismChoice, needs_halves
from tacit.models.ensemble import Ensemble
from tests.attacks.exposure.memorised import number_canaries
from tests.models.ensembles import ensemble_of

PREFIX = (0, 40, 41, 42)
SEQUENCES = [(a, b, c) for a in (7, 9, 300) for b in (5, 11) for c in (7, 8, 9)]
CHOICES = [
    MechanismChoice("submix", target=0.05),
    MechanismChoice("submix", target=0.05, mixing="averaged"),
    MechanismChoice("submix", target=0.05, weights="paper"),
    MechanismChoice("certified", target=0.2),
    MechanismChoice("individual", target=0.2),
    MechanismChoice("public"),
    MechanismChoice("nonprivate"),
]


@pytest.fixture(scope="module", params=["transformer", "lstm"])
def ensemble(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Ensemble:
    model: Path = request.getfixturevalue(f"tiny_{request.param}")
    return ensemble_of(model, tmp_path_factory.mktemp("members"), parts=3, halves=2)


@pytest.mark.parametrize("choice", CHOICES, ids=lambda choice: choice.label)
def test_scores_are_those_of_the_mixture(ensemble: Ensemble, choice: MechanismChoice) -> None:
    """Against the distributions that whole texts give, mixed one place at a time."""
    scorer = MechanismScorer(ensemble, choice, context=len(PREFIX) + 3, texts=4)
    trie = CandidateTrie(PREFIX, TokenRows.of(SEQUENCES), SEQUENCES)
    root = scorer.root(PREFIX, whole=True)
    rule = Rule.of("perplexity", root)
    walked = walk(scorer, trie, root, rule)
    mechanism = choice.build(ensemble.parts)
    pmf = pmf_of(mechanism)
    assert pmf is not None
    places = Places(ensemble, PREFIX, 3)
    for found, sequence in zip(walked.log_probabilities, SEQUENCES, strict=True):
        expected = sum(
            math.log(float(pmf(places.at(sequence[:depth]))[sequence[depth]])) for depth in range(3)
        )
        assert found == pytest.approx(expected, abs=1e-3)
    behind_start = Places(ensemble, PREFIX[:1], 3)
    own = sum(
        math.log(float(pmf(behind_start.at(PREFIX[1:end]))[PREFIX[end]])) for end in range(1, len(PREFIX))
    )
    assert root.prefix_log_probability == pytest.approx(own, abs=1e-3)
    # The prefix's three places, the root, and two steps for every text.
    asked = 3 + 1 + 2 * len(SEQUENCES)
    assert scorer.queries == asked
    charges = torch.zeros(ensemble.parts, dtype=torch.float64)
    told = [behind_start.at(PREFIX[1:end]) for end in range(1, len(PREFIX))] + [places.at(())]
    told += [places.at(sequence[:depth]) for sequence, depth in itertools.product(SEQUENCES, (1, 2))]
    for place in told:
        given = place.members if needs_halves(mechanism) else place.members.mean(1)
        charges += mechanism.mix(given, place.public).charges
    np.testing.assert_allclose(scorer.spent, charges.numpy(), rtol=2e-2, atol=1e-6)


def test_a_search_asks_as_often_as_it_says(ensemble: Ensemble) -> None:
    choice = MechanismChoice("certified", target=0.2)
    scorer = MechanismScorer(ensemble, choice, context=len(PREFIX) + 3)
    trie = CandidateTrie(PREFIX, TokenRows.of(SEQUENCES), [SEQUENCES[4]])
    root = scorer.root(PREFIX)
    assert scorer.queries == 1
    found = branch_and_bound(scorer, trie, root, Rule("logprob"), rows=100)
    assert found.positions == trie.internal - 1
    assert scorer.queries == trie.internal
    assert scorer.spent == pytest.approx([0.2 * trie.internal] * 3)
    again = scorer.root(PREFIX)
    torch.testing.assert_close(again.scored.log_probs, root.scored.log_probs)


def test_canaries_under_a_mechanism(ensemble: Ensemble) -> None:
    manifest = number_canaries(length=2, users=3)
    target = MechanismTarget(ensemble, MechanismChoice("certified", target=0.1))
    report = measure_exposure(target, manifest, settings=ExposureSettings(budget=200))
    assert report.target == "certified over 3 parts"
    assert {found.method for found in report.canaries} == {"exact"}
    assert report.queries > 0
    assert report.spent == pytest.approx([0.1 * report.queries] * 3)
    plain = MechanismTarget(ensemble, MechanismChoice("nonprivate"))
    fields = measure_exposure(plain, manifest, settings=ExposureSettings(budget=200)).to_json()
    assert fields["spent"] == [None] * 3  # infinite: no filter would have let it answer


@pytest.mark.parametrize("name", ["gnmax", "subsample_aggregate"])
def test_noise_has_no_probability(ensemble: Ensemble, name: str) -> None:
    with pytest.raises(InputError, match="sampling instead"):
        MechanismScorer(ensemble, MechanismChoice(name, target=0.1), context=8)  # type: ignore[arg-type]


def test_branches_do_not_disturb_each_other(ensemble: Ensemble) -> None:
    """Slots extended from one beginning equal texts that were read in full, again and again."""
    executor = ensemble.executor(slots=4, context=8)
    source, *slots = (executor.open() for _ in range(4))
    executor.prefill(source, PREFIX)
    for paths in ([[7, 9], [11, 5], [8, 8]], [[300], [7], [41]]):
        found = executor.extend(source, slots, paths)
        for number, path in enumerate(paths):
            other = ensemble.executor(slots=1, context=8)
            expected = other.prefill(other.open(), [*PREFIX, *path])
            torch.testing.assert_close(found[:, number], expected, rtol=1e-3, atol=1e-3)
    assert executor.length(source) == len(PREFIX)
    with pytest.raises(ModelError, match="extension"):
        executor.extend(source, [source], [[1]])
