"""The tab attack by one forward pass against real greedy generation."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from tacit.attacks.tab import (
    TabCanaries,
    TabCanary,
    TabResult,
    attainable,
    real_canaries,
    synthetic_canaries,
    tab_attack,
)
from tacit.attacks.token_statistics import LanguageModel, encode_texts, public_of, token_statistics
from tacit.corpus import CanaryPlan, UserCorpus, draw_canaries
from tacit.errors import InputError
from tacit.models.loading import load_public_model
from tacit.models.trained import TrainedModel
from tacit.statistics import clopper_pearson
from tests.attacks.overfitted import as_public, overfit
from tests.tiny import public_sentences

KNOWN = ["Xylophone 48213 quiet", "zebra lamp 77", "Marble: 5550123", "three lamps sell the hill"]
UNKNOWN = ["Quartz 99 lantern", "zebra boat 12", *public_sentences(4, seed=77)]


def canaries_of(texts: list[str]) -> TabCanaries:
    return TabCanaries(
        tuple(TabCanary(f"c{number}", f"u{number % 3}", text) for number, text in enumerate(texts)),
        "synthetic",
    )


@pytest.fixture(scope="module", params=["transformer", "lora", "lstm"])
def trained(request: pytest.FixtureRequest, tiny_transformer: Path, tiny_lstm: Path) -> TrainedModel:
    if request.param == "lora":
        return overfit(tiny_transformer, KNOWN, lora=True, steps=40)
    if request.param == "lstm":
        return overfit(tiny_lstm, KNOWN, steps=200)
    return overfit(tiny_transformer, KNOWN, steps=200, learning_rate=3e-3)


@torch.no_grad()
def greedy(model: LanguageModel, text: str) -> bool:
    """Feed the start token and the text's first token, and let the model write the rest."""
    public = public_of(model)
    ids = public.tokenizer.encode([text])[0]
    written = [public.start_token, ids[0]]
    while len(written) <= len(ids):
        written.append(int(model.model(input_ids=torch.tensor([written])).logits[0, -1].argmax()))
    return written[1:] == ids


@torch.no_grad()
def completions(model: LanguageModel) -> list[str]:
    """What a model writes greedily after some first tokens, where that text encodes to the same tokens."""
    public = public_of(model)
    written = []
    for word in ("The", "A", "Our", "My", "zebra", "three"):
        ids = [public.start_token, public.tokenizer.encode([word])[0][0]]
        for _ in range(5):
            ids.append(int(model.model(input_ids=torch.tensor([ids])).logits[0, -1].argmax()))
        if public.tokenizer.encode([public.tokenizer.decode(ids[1:])])[0] == ids[1:]:
            written.append(public.tokenizer.decode(ids[1:]))
    return written


def test_one_pass_equals_greedy_generation(trained: TrainedModel) -> None:
    own = completions(trained)
    assert own
    texts = [*KNOWN, *UNKNOWN, *own, *(text + "#" for text in own)]
    found = tab_attack(canaries_of(texts), trained, positions=50)
    assert found.reproduced.tolist() == [greedy(trained, text) for text in texts]
    start = len(KNOWN) + len(UNKNOWN)
    assert found.reproduced[start : start + len(own)].all()
    assert not found.reproduced[start + len(own) :].any()


@pytest.mark.parametrize("trained", ["transformer", "lstm"], indirect=True)
def test_memorised_texts_are_reproduced_and_others_are_not(trained: TrainedModel) -> None:
    found = tab_attack(canaries_of([*KNOWN, *UNKNOWN]), trained)
    assert found.reproduced[: len(KNOWN)].sum() >= 3
    assert not found.reproduced[len(KNOWN) :].any()
    assert not tab_attack(canaries_of(KNOWN), trained.public).reproduced.any()


def test_the_first_token_is_given(tiny_transformer: Path) -> None:
    """A first token that the model would never write first does not matter; the others all do."""
    public = load_public_model(str(tiny_transformer))
    own = completions(public)
    found = tab_attack(canaries_of(own), public)
    assert found.reproduced.all()
    encoded = encode_texts(own, public.tokenizer, public.context_length)
    first = token_statistics(encoded, public).likeliest[encoded.token_starts[:-1]]
    assert not first.all()


def test_attainable_counts_one_completion_for_each_first_token() -> None:
    assert attainable([(1, 2, 3), (1, 2, 4), (5, 6)]) == 2
    assert attainable([(1, 2), (1, 2, 3), (1, 2, 3), (1, 4)]) == 3  # beginnings and copies go together
    assert attainable([(1, 2), (1, 2, 3), (1, 4), (1, 4, 5), (1, 4, 5, 6)]) == 3


def test_accuracy_counts_users_and_never_claims_certainty(trained: TrainedModel) -> None:
    found = tab_attack(canaries_of([*KNOWN, *UNKNOWN]), trained)
    accuracy = found.accuracy()
    assert accuracy.value == pytest.approx(found.hits / len(found.canaries))
    assert "3 users" in accuracy.method
    # `zebra` begins two: nine of ten at most, whoever attacks; other first tokens may coincide too.
    assert found.attainable <= len(found.canaries) - 1
    assert found.largest_accuracy == found.attainable / len(found.canaries)
    alike = TabResult(canaries_of(["a b"] * 6), np.ones(6, dtype=np.bool_), 6)
    assert alike.accuracy().value == alike.accuracy().high == 1
    assert alike.accuracy().low < 0.5  # three users of two canaries each


def test_one_canary_of_each_user_is_an_exact_share() -> None:
    texts = tuple(TabCanary(f"c{i}", f"u{i}", "a b") for i in range(5))
    found = TabResult(TabCanaries(texts, "synthetic"), np.zeros(5, dtype=np.bool_), 5)
    assert found.accuracy() == clopper_pearson(0, 5)
    assert found.accuracy(confidence=0.5).high < found.accuracy().high == pytest.approx(0.5218, abs=1e-4)


def test_canaries_come_from_the_manifest() -> None:
    plan = CanaryPlan(users=6, owner="new", ladder=(1, 5), seed=2)
    manifest = draw_canaries(plan, [], documents=0, characters=0)
    found, others = synthetic_canaries(manifest), synthetic_canaries(manifest, inserted=False)
    assert {canary.id for canary in found.canaries} == {c.id for c in manifest.canaries if c.inserted}
    assert len(found) + len(others) == 12
    assert {canary.repetitions for canary in found.canaries} <= {1, 5}
    assert not any(canary.secret in repr(found) for canary in manifest.canaries)


def test_real_canaries_are_each_users_strangest_text(tiny_transformer: Path) -> None:
    public = load_public_model(str(tiny_transformer))
    sentences = public_sentences(6, seed=9)
    pairs = [("a", sentences[0]), ("a", "qzx 0918 vv"), ("b", sentences[1]), ("b", "!"), ("c", sentences[2])]
    corpus = UserCorpus.from_pairs([*pairs, ("d", "~"), ("e", "qzx " * 200)])
    found = real_canaries(corpus, public)
    # One token leaves nothing to complete, and two hundred words do not fit.
    assert {canary.user: canary.text for canary in found.canaries} == {
        "a": "qzx 0918 vv",
        "b": sentences[1],
        "c": sentences[2],
    }
    assert found.source == "real, picked by an independent model"


def test_a_model_that_saw_the_text_picks_only_by_the_papers_rule(tiny_transformer: Path) -> None:
    corpus = UserCorpus.from_pairs(
        [("a", "zebra lamp 77"), ("a", "the old farmer sells three lamps at home")]
    )
    trained = overfit(tiny_transformer, ["zebra lamp 77"], steps=120, learning_rate=1e-3)
    for judge in (trained, as_public(trained)):
        with pytest.raises(InputError, match="paper=True"):
            real_canaries(corpus, judge)
    by_paper = real_canaries(corpus, trained, paper=True)
    assert by_paper.source == "real, picked by the paper's rule"
    # The bias: the model that knows the strange text does not find it strange.
    assert by_paper.canaries[0].text != real_canaries(corpus, trained.public).canaries[0].text


def test_what_cannot_be_completed_is_refused(tiny_transformer: Path) -> None:
    public = load_public_model(str(tiny_transformer))
    for text in ("!", "qzx " * 200):
        with pytest.raises(InputError, match="2 to 128 tokens"):
            tab_attack(canaries_of([text]), public)
    with pytest.raises(InputError, match="two tokens"):
        real_canaries(UserCorpus.from_pairs([("a", "!")]), public)
    plan = CanaryPlan(users=2, owner="new", include=1.0, seed=2)
    with pytest.raises(InputError, match="inserted=False"):
        synthetic_canaries(draw_canaries(plan, [], documents=0, characters=0), inserted=False)
