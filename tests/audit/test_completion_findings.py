"""People's own texts, completed: who picks them, whom they are compared with, and how often luck alarms."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from tacit.attacks.tab import TabCanaries, TabCanary, TabResult
from tacit.audit.attempts import judged_together
from tacit.audit.completion_findings import RealCompletion, complete_real_canaries
from tacit.corpus import UserCorpus, split_held_out
from tacit.errors import InputError
from tacit.models.loading import load_public_model
from tacit.models.trained import TrainedModel
from tacit.progress import Silent
from tacit.training.preparation import SplitCorpus
from tests.attacks.overfitted import overfit

# Nobody shares a first letter with another, so that every completion is attainable.
OWN = [
    (f"in-{letter}", f"{letter}{number} {number * 37 % 97} {letter}")
    for number, letter in enumerate("abcdefgh")
]
OTHERS = [
    (f"out-{letter}", f"{letter}{number} {number * 53 % 89} {letter}")
    for number, letter in enumerate("stuvwxyz")
]
USUAL = [(user, "The baker sells three lamps at home.") for user, _ in OWN]


@pytest.fixture(scope="module")
def texts() -> SplitCorpus:
    train, held_out = UserCorpus.from_pairs([*USUAL, *OWN]), UserCorpus.from_pairs(OTHERS)
    return SplitCorpus(train, train, held_out)


@pytest.fixture(scope="module")
def learned(tiny_transformer: Path) -> TrainedModel:
    return overfit(tiny_transformer, [text for _, text in OWN], steps=240, learning_rate=3e-3)


def completed(
    texts: SplitCorpus, model: TrainedModel, **changes: Any
) -> tuple[RealCompletion | None, list[str]]:
    notes: list[str] = []
    given: dict[str, Any] = {
        "choice": "independent",
        "users": 100,
        "planted": frozenset(),
        "seed": 0,
        "notes": notes,
        "progress": Silent(),
    }
    unmitigated = changes.pop("unmitigated", None)
    return complete_real_canaries(texts, model, unmitigated, **(given | changes)), notes


def test_texts_that_were_learned_by_heart_are_completed_and_others_are_not(
    texts: SplitCorpus, learned: TrainedModel
) -> None:
    found, _ = completed(texts, learned)
    assert found is not None
    # The public model finds the strange text of each user strangest, and never the usual one.
    assert {canary.text for canary in found.own.canaries.canaries} == {text for _, text in OWN}
    assert found.own.hits == 8
    assert found.public.hits == 0
    assert found.others is not None
    assert found.others.hits == 0
    assert found.p_value == pytest.approx(1 / 12870)  # 16 choose 8
    (attempt,) = judged_together(found.attempts(0.99))
    assert attempt.leaks(0.01)
    assert attempt.chance == 0
    content = found.to_json()
    assert content["source"] == "real, picked by an independent model"
    assert (content["users"], content["other_users"]) == (8, 8)
    assert content["accuracy"]["value"] == content["attainable"] == 1


def test_an_untouched_model_completes_nobodys_text(texts: SplitCorpus, tiny_transformer: Path) -> None:
    public = load_public_model(str(tiny_transformer))
    found, _ = completed(texts, TrainedModel(public, public.model))
    assert found is not None
    assert found.own.hits == 0
    assert found.p_value == 1
    assert not any(one.leaks(0.05) for one in judged_together(found.attempts(0.95)))


def test_the_papers_choice_is_labelled_and_is_no_attack(texts: SplitCorpus, learned: TrainedModel) -> None:
    found, _ = completed(texts, learned, choice="paper", unmitigated=learned)
    assert found is not None
    # Who knows the strange texts by heart finds the usual one strangest.
    assert {canary.text for canary in found.own.canaries.canaries} == {USUAL[0][1]}
    assert found.to_json()["source"] == "real, picked by the paper's rule"
    assert found.others is None
    assert found.p_value is None
    assert found.attempts(0.95) == []
    with pytest.raises(InputError, match="--against"):
        completed(texts, learned, choice="paper")


def test_users_are_drawn_and_canaries_left_out(texts: SplitCorpus, learned: TrainedModel) -> None:
    some, _ = completed(texts, learned, users=3)
    assert some is not None
    assert some.others is not None
    assert (len(some.own.canaries), len(some.others.canaries)) == (3, 3)
    without, _ = completed(texts, learned, planted=frozenset(text for _, text in OWN))
    assert without is not None
    assert {canary.text for canary in without.own.canaries.canaries} == {USUAL[0][1]}
    assert completed(texts, learned, choice="none")[0] is None
    assert completed(texts, learned, users=0)[0] is None


@pytest.mark.parametrize("among", [None, 14])
def test_held_out_within_users_nothing_is_tested(learned: TrainedModel, among: int | None) -> None:
    """The strangest of a user's many training texts is stranger than that of the few that were held out."""
    whole = UserCorpus.from_pairs([*USUAL, *OWN, *OTHERS])
    halves = split_held_out(whole, share=0.5, by="within", seed=1, among=among)
    found, notes = completed(SplitCorpus(whole, halves.train, halves.held_out), learned)
    assert found is not None
    assert found.own.hits  # it describes
    assert found.others is None
    assert found.p_value is None
    assert found.attempts(0.95) == []
    assert "held out within users" in notes[0]


def test_texts_too_short_to_complete_are_told_of(learned: TrainedModel) -> None:
    letters = UserCorpus.from_pairs([("a", "a"), ("b", "b")])
    found, notes = completed(SplitCorpus(letters, letters, None), learned)
    assert found is None
    assert notes[0].startswith("Users' own texts were not completed.")


def test_luck_alarms_at_most_as_often_as_the_level() -> None:
    """Everybody's text is completed with the same chance, trained on or not."""
    rng, runs = np.random.default_rng(0), 400

    def side(people: int) -> TabResult:
        canaries = TabCanaries(tuple(TabCanary(str(n), str(n), "") for n in range(people)), "synthetic")
        return TabResult(canaries, rng.random(people) < 0.3, people)

    alarms = 0
    for _ in range(runs):
        own, others = side(30), side(12)
        (attempt,) = judged_together(RealCompletion(own, own, others).attempts(0.95))
        alarms += attempt.leaks(0.05)
    assert alarms <= stats.binom.ppf(0.999, runs, 0.05)
