"""Membership scores against slow ones in float64, and what they find in models that know texts or do not."""

from __future__ import annotations

import dataclasses
import math
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from tacit.attacks.membership import (
    WITH_REFERENCE,
    WITHOUT_REFERENCE,
    MembershipScores,
    ScoreSettings,
    score_texts,
    scores_of,
)
from tacit.attacks.token_statistics import LanguageModel, TokenStatistics, encode_texts, token_statistics
from tacit.errors import InputError, ModelError
from tacit.models import likelihood
from tacit.models.loading import load_public_model
from tacit.models.trained import TrainedModel
from tests.attacks.overfitted import naive_log_probabilities, overfit
from tests.tiny import public_sentences

MEMBERS = public_sentences(12, seed=101)
OTHERS = [text for text in public_sentences(20, seed=202) if text not in MEMBERS][:12]
TEXTS = [*MEMBERS, *OTHERS, "A", "Zx 907!", MEMBERS[0] + " " + OTHERS[0]]


@pytest.fixture(scope="module")
def whole(tiny_transformer: Path) -> TrainedModel:
    return overfit(tiny_transformer, MEMBERS)


@pytest.fixture(scope="module", params=["transformer", "lora", "lstm", "lstm lora"])
def trained(request: pytest.FixtureRequest, tiny_transformer: Path, tiny_lstm: Path) -> TrainedModel:
    folder = tiny_lstm if "lstm" in request.param else tiny_transformer
    return overfit(folder, MEMBERS, lora="lora" in request.param, steps=20)


def naive_scores(text: str, target: LanguageModel, reference: LanguageModel) -> dict[str, float]:
    """Every score of one text from whole softmaxes, by the formulas and loops."""
    public = target.public if isinstance(target, TrainedModel) else target
    ids = public.tokenizer.encode([text])[0]
    own, other = (naive_log_probabilities(m.model, public.start_token, ids) for m in (target, reference))
    l, r = ([-float(log_p[t, token]) for t, token in enumerate(ids)] for log_p in (own, other))  # noqa: E741
    n = len(ids)
    lowest = max(1, int(0.2 * n))
    standard = []
    for t in range(n):
        p = own[t].exp()
        mu = float((p * own[t]).sum())
        variance = float((p * own[t] ** 2).sum()) - mu**2
        standard.append((-l[t] - mu) / math.sqrt(variance))
    errors = [t for t in range(n) if int(own[t].argmax()) != ids[t]] or list(range(n))
    risen = sum(max(0.0, r[t] - l[t]) for t in errors)
    fallen = sum(max(0.0, l[t] - r[t]) for t in errors)
    shares = []
    for size in [w for w in (2, 3, 4, 6, 9, 13, 18, 25, 32, 40) if w <= n] or [n]:
        votes = [sum(l[at : at + size]) < sum(r[at : at + size]) for at in range(n - size + 1)]
        shares.append(sum(votes) / len(votes))
    return {
        "loss": -sum(l) / n,
        "perplexity": -math.exp(sum(l) / n),
        "zlib": -sum(l) / n / len(zlib.compress(text.encode())),
        "min_k": sum(sorted(-x for x in l)[:lowest]) / lowest,
        "min_k_plus": sum(sorted(standard)[:lowest]) / lowest,
        "reference": (sum(r) - sum(l)) / n,
        "error_zone": risen / (risen + fallen) if risen + fallen else 0.5,
        "windows": sum(shares) / len(shares),
        "bits": sum(max(0.0, r[t] - l[t]) for t in range(n)) / math.log(2),
    }


def auc(scores: np.ndarray, members: int) -> float:
    first, second = scores[:members, None], scores[None, members:]
    return float(((first > second) + 0.5 * (first == second)).mean())


def test_every_score_equals_the_slow_one(trained: TrainedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(likelihood, "_BLOCK", 100)
    monkeypatch.setattr(likelihood, "_LAW_ROWS", 7)
    found = score_texts(TEXTS, trained, trained.public, positions=70)
    assert set(found.scores) == {*WITHOUT_REFERENCE, *WITH_REFERENCE}
    for number, text in enumerate(TEXTS):
        for name, expected in naive_scores(text, trained, trained.public).items():
            value = found.scores[name][number]  # type: ignore[index]
            assert value == pytest.approx(expected, rel=1e-3, abs=1e-3), name


@pytest.mark.parametrize("positions", [1, 40, 100_000])
def test_scores_do_not_depend_on_batches_or_on_company(whole: TrainedModel, positions: int) -> None:
    expected = score_texts(TEXTS, whole, whole.public)
    found = score_texts(TEXTS[::-1], whole, whole.public, positions=positions)
    for name in expected.scores:
        np.testing.assert_allclose(found[name][::-1], expected[name], rtol=1e-3, atol=1e-4)


def test_padding_is_never_counted(whole: TrainedModel) -> None:
    short = "A"
    alone = score_texts([short], whole, whole.public)
    beside = score_texts([short, " ".join(MEMBERS[:2])], whole, whole.public)
    for name in alone.scores:
        assert beside[name][0] == pytest.approx(alone[name][0], rel=1e-3, abs=1e-4)
    assert list(beside.tokens) == [
        len(ids) for ids in whole.public.tokenizer.encode([short, " ".join(MEMBERS[:2])])
    ]


def test_long_texts_are_cut_into_equal_pieces_with_their_own_start(whole: TrainedModel) -> None:
    text = " ".join(MEMBERS + OTHERS)
    public = whole.public
    ids = public.tokenizer.encode([text])[0]
    encoded = encode_texts([text, "A"], public.tokenizer, public.context_length)
    lengths = [len(piece) for piece in encoded.pieces[:-1]]
    assert [token for piece in encoded.pieces[:-1] for token in piece] == ids
    assert max(lengths) <= public.context_length
    assert max(lengths) - min(lengths) <= 1
    found = token_statistics(encoded, whole)
    expected: list[float] = []
    for piece in map(list, encoded.pieces[:-1]):
        log_p = naive_log_probabilities(whole.model, public.start_token, piece)
        expected += (-log_p[range(len(piece)), piece]).tolist()
    np.testing.assert_allclose(found.losses[found.of(0)], expected, rtol=1e-3, atol=1e-4)
    assert len(found.losses[found.of(1)]) == 1


def test_an_overfitted_model_is_caught_by_every_score(whole: TrainedModel) -> None:
    found = score_texts([*MEMBERS, *OTHERS], whole, whole.public)
    areas = {name: auc(values, len(MEMBERS)) for name, values in found.scores.items()}
    # A model that knows its texts errs only where they part, in their first words: a small error zone.
    assert areas.pop("error_zone") > 0.6
    assert min(areas.values()) > 0.95, areas
    assert found["bits"][: len(MEMBERS)].min() > 2


def test_an_untouched_model_is_not(tiny_transformer: Path) -> None:
    """Members and others are draws from one law, and the model saw neither: every score is a coin."""
    public = load_public_model(str(tiny_transformer))
    texts = list(dict.fromkeys(public_sentences(160, seed=7)))[:120]
    found = score_texts(texts, public, load_public_model(str(tiny_transformer)))
    for name in WITHOUT_REFERENCE:
        # The standard deviation of an AUC of 60 against 60 is 0.053 without a signal.
        assert abs(auc(found[name], 60) - 0.5) < 4 * 0.053, name
    # The reference is the model itself: nothing differs, and nothing is found.
    assert np.abs(found["reference"]).max() < 1e-6
    assert np.abs(found["bits"]).max() < 1e-3


def test_equal_statistics_score_the_middle() -> None:
    statistics = made([1.0, 2.0, 3.0], likeliest=[False, True, False])
    found = scores_of(["abc"], statistics, statistics)
    assert found["error_zone"][0] == found["windows"][0] == 0.5
    assert found["reference"][0] == found["bits"][0] == 0


def made(losses: list[float], likeliest: list[bool] | None = None, variance: float = 1.0) -> TokenStatistics:
    n = len(losses)
    return TokenStatistics(
        np.array([0, n]),
        np.array(losses),
        np.full(n, -2.0),
        np.full(n, variance),
        np.array(likeliest or [False] * n),
    )


def test_known_answers() -> None:
    target = made([1.0, 4.0, 0.0, 2.0], likeliest=[False, False, True, False], variance=4.0)
    reference = made([2.0, 3.0, 5.0, 2.0])
    found = scores_of(["aaaa"], target, reference, ScoreSettings(min_k=0.5, windows=(1, 2, 9)))
    assert found["loss"][0] == -1.75
    assert found["perplexity"][0] == pytest.approx(-math.exp(1.75))
    assert found["zlib"][0] == pytest.approx(-1.75 / len(zlib.compress(b"aaaa")))
    assert found["min_k"][0] == -3.0
    assert found["min_k_plus"][0] == pytest.approx(((-4 + 2) / 2 + (-2 + 2) / 2) / 2)
    assert found["reference"][0] == pytest.approx(1.25)
    # Errors at 0, 1 and 3: up by 1, down by 1, level. The fifth bit gained at 2 is not an error's.
    assert found["error_zone"][0] == 0.5
    # Tokens: won, lost, won, level. Pairs: level, won, won. Nine tokens do not fit.
    assert found["windows"][0] == pytest.approx((2.5 / 4 + 2.5 / 3) / 2)
    assert found["bits"][0] == pytest.approx(6 / math.log(2))


def test_a_text_without_errors_is_judged_by_all_of_it() -> None:
    found = scores_of(["a"], made([0.1, 0.1], likeliest=[True, True]), made([3.0, 4.0]))
    assert found["error_zone"][0] == 1.0


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.floats(0, 20), st.floats(0, 20), st.booleans()), min_size=1, max_size=60))
def test_scores_keep_within_their_bounds_and_turn_with_the_models(
    tokens: list[tuple[float, float, bool]],
) -> None:
    target, reference = (
        made([token[side] for token in tokens], [token[2] for token in tokens]) for side in (0, 1)
    )
    one, other = scores_of(["x"], target, reference), scores_of(["x"], reference, target)
    for name in ("error_zone", "windows"):
        assert 0 <= one[name][0] <= 1
        assert one[name][0] + other[name][0] == pytest.approx(1, abs=1e-6)
    bits = (one["bits"][0] - other["bits"][0]) * math.log(2)
    assert bits == pytest.approx(one["reference"][0] * len(tokens), abs=1e-6)
    assert one["min_k"][0] <= one["loss"][0] + 1e-9


def test_a_certain_prediction_gives_no_wild_standard_score() -> None:
    found = scores_of(["x"], dataclasses.replace(made([0.0], variance=0.0), means=np.array([-1e-7])))
    assert abs(found["min_k_plus"][0]) < 1e-2


def test_a_model_that_bends_its_logits_is_scored_by_its_own(
    tiny_transformer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    public = load_public_model(str(tiny_transformer))
    original = type(public.model).forward

    def capped(self: nn.Module, *args: object, **kwargs: object) -> object:
        output = original(self, *args, **kwargs)
        output.logits = 2 * torch.tanh(output.logits / 2)
        return output

    plain = score_texts(TEXTS[:3], public)
    monkeypatch.setattr(type(public.model), "forward", capped)
    found = score_texts(TEXTS[:3], public)
    for number, text in enumerate(TEXTS[:3]):
        expected = naive_scores(text, public, load_public_model(str(tiny_transformer)))
        assert found["loss"][number] == pytest.approx(expected["loss"], rel=1e-3)
        assert found["min_k_plus"][number] == pytest.approx(expected["min_k_plus"], rel=1e-3)
    assert np.abs(found["loss"] - plain["loss"]).min() > 0.1


def test_a_models_mode_and_head_are_left_as_they_were(whole: TrainedModel) -> None:
    whole.model.train()
    try:
        score_texts(TEXTS[:2], whole)
        assert whole.model.training
    finally:
        whole.model.eval()
    assert whole.model(input_ids=torch.tensor([[1]])).logits.shape[-1] == whole.public.model.config.vocab_size


def test_what_cannot_be_scored_is_refused(whole: TrainedModel, tiny_lstm: Path, tiny_llama: Path) -> None:
    with pytest.raises(InputError, match="no texts"):
        score_texts([], whole)
    with pytest.raises(InputError, match="Text 1 has no token"):
        score_texts(["a", ""], whole)
    with pytest.raises(InputError, match="positions=0"):
        score_texts(["a"], whole, positions=0)
    with pytest.raises(InputError, match="min_k"):
        ScoreSettings(min_k=0)
    with pytest.raises(InputError, match="windows"):
        ScoreSettings(windows=(0,))
    found: MembershipScores = score_texts(["a"], whole)
    with pytest.raises(InputError, match="give a reference"):
        found["windows"]
    other = load_public_model(str(tiny_lstm))
    stranger = dataclasses.replace(other, tokenizer=dataclasses.replace(other.tokenizer, start_token=5))
    with pytest.raises(InputError, match="cannot be compared"):
        score_texts(["a"], whole, stranger)
    assert "abc" not in repr(found)


def test_a_damaged_model_is_refused(tiny_transformer: Path) -> None:
    public = load_public_model(str(tiny_transformer))
    loss = score_texts(["a b c"], public)["loss"]
    public.model.transformer.ln_f.weight.data.fill_(math.nan)
    with pytest.raises(ModelError, match="not finite"):
        score_texts(["a b c"], public)
    assert np.isfinite(loss).all()
