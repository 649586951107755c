"""Scores of mixtures against mixing by hand, and what an attacker would pay for them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from tacit.attacks.ensemble_membership import score_texts_of_ensemble
from tacit.attacks.membership import score_texts
from tacit.errors import InputError
from tacit.mechanisms.choice import MechanismChoice
from tacit.models.ensemble import Ensemble
from tests.models.ensembles import ensemble_of, peft_logits
from tests.tiny import public_sentences

TEXTS = [*public_sentences(2, seed=5), "A lamp"]


@pytest.fixture(scope="module", params=["tiny_transformer", "tiny_lstm"])
def folder(request: pytest.FixtureRequest) -> Path:
    found: Path = request.getfixturevalue(request.param)
    return found


@pytest.fixture(scope="module")
def ensemble(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Ensemble:
    return ensemble_of(folder, tmp_path_factory.mktemp(folder.name), parts=2, halves=2)


@pytest.mark.parametrize("name", ["submix", "certified", "nonprivate"])
def test_losses_and_charges_are_those_of_mixing_token_by_token(
    folder: Path, ensemble: Ensemble, name: str
) -> None:
    choice = MechanismChoice(name, target=0.05)  # type: ignore[arg-type]
    found = score_texts_of_ensemble(ensemble, choice, TEXTS, positions=50)
    mechanism = choice.build(2)
    charges, queries = np.zeros(2), 0
    for number, text in enumerate(TEXTS):
        ids = ensemble.public.tokenizer.encode([text])[0]
        inputs = torch.tensor([[ensemble.public.start_token, *ids[:-1]]])
        pmfs = torch.stack(
            [
                peft_logits(folder, member, inputs)[0].double().softmax(-1)
                for member in (None, *ensemble.members)
            ]
        )
        losses = []
        for t, token in enumerate(ids):
            members = pmfs[1:, t].view(2, 2, -1)
            mixture = mechanism.mix(members if name == "submix" else members.mean(1), pmfs[0, t])
            losses.append(-float(mixture.pmf[token].log()))
            charges += mixture.charges.numpy()
            queries += 1
        assert found.scores["loss"][number] == pytest.approx(-np.mean(losses), rel=1e-3, abs=1e-4)
    assert found.queries == queries == found.scores.tokens.sum()
    np.testing.assert_allclose(found.charges, charges, rtol=2e-2, atol=1e-5)


def test_the_public_mechanism_is_the_public_model(ensemble: Ensemble) -> None:
    found = score_texts_of_ensemble(ensemble, MechanismChoice("public"), TEXTS)
    expected = score_texts(TEXTS, ensemble.public)
    for name in expected.scores:
        np.testing.assert_allclose(found.scores[name], expected[name], rtol=1e-3, atol=1e-3)
        np.testing.assert_allclose(found.public[name], expected[name], rtol=1e-3, atol=1e-3)
    assert found.charges.tolist() == [0, 0]
    # Nothing but the floor and rounding tells the mixture from its reference.
    assert np.abs(found.scores["bits"]).max() < 1e-2


def test_a_cheap_mixture_is_nearer_to_the_public_model_than_a_dear_one(ensemble: Ensemble) -> None:
    gaps = [
        np.abs(
            score_texts_of_ensemble(ensemble, MechanismChoice("certified", target=target), TEXTS).scores[
                "reference"
            ]
        ).max()
        for target in (1e-6, 1e-1)
    ]
    assert gaps[0] < gaps[1] / 10


@pytest.mark.parametrize("name", ["gnmax", "subsample_aggregate"])
def test_noisy_answers_have_no_fixed_score(ensemble: Ensemble, name: str) -> None:
    with pytest.raises(InputError, match="adds noise to every answer"):
        score_texts_of_ensemble(ensemble, MechanismChoice(name, target=0.05), TEXTS)  # type: ignore[arg-type]


def test_charges_are_not_shown(ensemble: Ensemble) -> None:
    found = score_texts_of_ensemble(ensemble, MechanismChoice("certified"), TEXTS[-1:])
    assert "charges" not in repr(found)
