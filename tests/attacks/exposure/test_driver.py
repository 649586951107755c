"""Exposure of planted canaries: known answers on models that memorised them, and on one that did not."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from tacit.attacks.exposure import (
    CanaryExposure,
    ExposureReport,
    ExposureSettings,
    measure_exposure,
    measure_exposures,
)
from tacit.attacks.exposure.driver import Target, prefix_groups
from tacit.corpus.canaries import CanaryManifest
from tacit.errors import InputError, ModelError
from tacit.models.loading import load_public_model
from tacit.models.trained import TrainedModel
from tacit.models.words import whole_words
from tacit.statistics import Estimate
from tests.attacks.exposure.memorised import digits_naively, memorising, number_canaries


@pytest.fixture(scope="module")
def manifest() -> CanaryManifest:
    drawn = number_canaries()
    assert 1 < sum(canary.inserted for canary in drawn.canaries) < 6
    return drawn


@pytest.fixture(scope="module")
def trained(number_transformer: Path, manifest: CanaryManifest) -> TrainedModel:
    # Until all five are equally likely: halfway, rounding decides which of them are known.
    return memorising(number_transformer, manifest, steps=120, learning_rate=3e-3)


@pytest.fixture(scope="module")
def scores(trained: TrainedModel) -> np.ndarray:
    return digits_naively(trained.model, trained.public, "My number is:", 3)


def check_against(report: ExposureReport, manifest: CanaryManifest, scores: np.ndarray) -> None:
    """Every rank holds the one that counting over all candidates gives."""
    secrets = {int(canary.secret) for canary in manifest.canaries if canary.inserted}
    for found, canary in zip(report.canaries, manifest.canaries, strict=True):
        own = int(canary.secret)
        better = {number for number in range(1000) if scores[number] > scores[own]}
        assert found.rank_low <= 1 + len(better) <= found.rank_high
        assert found.alone_low <= 1 + len(better - secrets) <= found.alone_high
        assert found.log_probability == pytest.approx(scores[own], abs=1e-3)
        assert found.exposure.high <= math.log2(1000)
        assert found.certified <= found.exposure.low + 1e-9
        assert found.inserted == canary.inserted


def test_memorised_secrets_are_first(
    trained: TrainedModel, manifest: CanaryManifest, scores: np.ndarray
) -> None:
    report = measure_exposure(trained, manifest, settings=ExposureSettings(budget=100_000))
    check_against(report, manifest, scores)
    for found in report.canaries:
        assert found.method == "exact"
        if found.inserted:
            assert found.alone_high <= 3
            assert found.exposure.value > 8
            assert found.certified > 3
    raw = sorted(found.rank_low for found in report.canaries if found.inserted)
    assert raw[-1] > 1  # they compete for the first place


def test_several_targets_are_measured_as_each_is_alone(
    trained: TrainedModel, manifest: CanaryManifest, number_transformer: Path, tiny_lstm: Path
) -> None:
    settings = ExposureSettings(budget=300, samples=100, seed=5)
    targets: list[Target] = [trained, trained.public]
    together = measure_exposures(targets, manifest, settings=settings)
    assert together == [measure_exposure(one, manifest, settings=settings) for one in targets]
    assert [report.target for report in together] == ["trained model", "public model"]
    with pytest.raises(InputError, match="of one tokenizer"):
        measure_exposures([trained, load_public_model(str(tiny_lstm))], manifest)


def test_the_inserted_are_found_with_few_positions(trained: TrainedModel, manifest: CanaryManifest) -> None:
    """Only inserted secrets are within this budget; the others are sampled, and the interval is honest."""
    report = measure_exposure(trained, manifest, settings=ExposureSettings(budget=100, samples=200, seed=1))
    assert {found.method for found in report.canaries if found.inserted} == {"exact"}
    unseen = [found for found in report.canaries if not found.inserted]
    assert {found.method for found in unseen} == {"sampled"}
    assert all("n=200" in found.exposure.method for found in unseen)
    again = measure_exposure(trained, manifest, settings=ExposureSettings(budget=100, samples=200, seed=1))
    assert again == report


@pytest.mark.parametrize(
    "settings",
    [
        ExposureSettings(full=True),
        ExposureSettings(full=True, rows=7),
        ExposureSettings(budget=1_000_000, rows=3),
        ExposureSettings(budget=1_000_000, check="scored"),
    ],
    ids=["packed", "packed, other rows", "three at a time", "from symbols"],
)
def test_every_way_gives_the_same_ranks(
    settings: ExposureSettings, trained: TrainedModel, manifest: CanaryManifest, scores: np.ndarray
) -> None:
    report = measure_exposure(trained, manifest, settings=settings)
    check_against(report, manifest, scores)
    usual = measure_exposure(trained, manifest, settings=ExposureSettings(budget=1_000_000))
    for found, other in zip(report.canaries, usual.canaries, strict=True):
        assert found.method == other.method == "exact"
        assert found.rank_low <= other.rank_high
        assert other.rank_low <= found.rank_high


def test_lstm_and_perplexity(number_lstm: Path, manifest: CanaryManifest) -> None:
    """All candidates have one token count here, so that both rules give one order."""
    trained = memorising(number_lstm, manifest, steps=150, learning_rate=1e-2)
    scores = digits_naively(trained.model, trained.public, "My number is:", 3)
    for score in ("logprob", "perplexity"):
        report = measure_exposure(
            trained,
            manifest,
            settings=ExposureSettings(score=score, budget=100_000),
        )
        check_against(report, manifest, scores)
        inserted = [found.exposure.value for found in report.canaries if found.inserted]
        assert min(inserted) > 7, inserted


def test_a_search_that_runs_out_is_still_certain(
    trained: TrainedModel, manifest: CanaryManifest, scores: np.ndarray
) -> None:
    """1/p is within the budget but the search is not: the interval is wide, and it holds."""
    bound = math.ceil(max(1 / math.exp(scores[int(c.secret)]) for c in manifest.canaries if c.inserted))
    seen = set()
    for budget in (bound + 1, 2 * bound + 2):
        report = measure_exposure(trained, manifest, settings=ExposureSettings(budget=budget, samples=50))
        for found, canary in zip(report.canaries, manifest.canaries, strict=True):
            seen.add(found.method)
            if found.method != "sampled":
                own = int(canary.secret)
                assert found.rank_low <= 1 + int((scores > scores[own]).sum()) <= found.rank_high
    assert "exact" in seen


def test_an_untouched_model_gives_uniform_ranks(number_transformer: Path) -> None:
    public = load_public_model(str(number_transformer))
    manifest = number_canaries(users=40, include=0.5, seed=11)
    report = measure_exposure(public, manifest, settings=ExposureSettings(full=True))
    ranks = np.array([(found.rank_low + found.rank_high) / 2 for found in report.canaries]) / 1000
    assert stats.kstest(ranks, "uniform").pvalue > 1e-3
    exposures = [found.exposure.value for found in report.canaries]
    # P(exposure >= x) <= 2^-x: of 40, more than 8 beyond 4.32 bits have a chance below 1e-3.
    assert sum(value > math.log2(20) for value in exposures) <= 8


def test_distinct_prefixes_are_separate_groups(number_transformer: Path) -> None:
    words = ["red", "boat", "old", "door", "clock"]
    manifest = number_canaries(prefix="distinct", users=3, length=2, words=words)
    assert len(prefix_groups(manifest.canaries)) == 3
    report = measure_exposure(load_public_model(str(number_transformer)), manifest)
    assert [found.id for found in report.canaries] == [canary.id for canary in manifest.canaries]
    assert all(found.alone_low == found.rank_low for found in report.canaries)
    assert report.positions == sum(found.positions for found in report.canaries)


def test_words_are_the_tokenizers_own_unless_a_list_is_given(number_transformer: Path) -> None:
    public = load_public_model(str(number_transformer))
    own = whole_words(public.tokenizer)
    few = ExposureSettings(budget=50, samples=20, seed=0)
    plan = {
        "secret": "words",
        "prefix": "distinct",
        "users": 2,
        "length": 2,
        "template": "My house is: {secret}",
    }
    drawn = number_canaries(words=own, **plan)
    found = measure_exposure(public, drawn, settings=few)
    assert found == measure_exposure(public, drawn, settings=few, words=own)
    assert found.canaries[0].candidates == len(own) ** 2
    assert found.nested == 1  # a token each: no word begins another
    nested = ["b", "bx", "bxy", "zq", "house"]
    others = number_canaries(words=nested, **plan)
    assert measure_exposure(public, others, settings=few, words=nested).nested == 3
    with pytest.raises(InputError, match="--words"):
        measure_exposure(public, others, settings=few)
    with pytest.raises(InputError, match="not the one"):
        measure_exposure(public, others, settings=few, words=own)


def test_reports_hold_no_secret(trained: TrainedModel, manifest: CanaryManifest) -> None:
    report = measure_exposure(trained, manifest, settings=ExposureSettings(budget=100_000))
    fields = json.loads(json.dumps(report.to_json(), allow_nan=False))
    assert set(fields["canaries"][0]) == {
        "id", "inserted", "repetitions", "candidates", "rank_low", "rank_high", "alone_low", "alone_high",
        "exposure", "raw_exposure", "p_value", "certified", "method", "tokens", "positions",
        "log_probability",
    }  # fmt: skip
    assert "log_probability" not in repr(report)
    assert fields["queries"] == 0
    assert fields["spent"] == []


def test_more_than_all_bits_is_impossible() -> None:
    too_much = Estimate(11.0, 10.0, 12.0, 0.95, "wrong")
    with pytest.raises(ValueError, match="impossible"):
        CanaryExposure(
            id="c", inserted=True, repetitions=1, candidates=1000, rank_low=1, rank_high=1, alone_low=1,
            alone_high=1, exposure=too_much, raw_exposure=too_much, p_value=0.1, certified=0.0,
            method="exact", tokens=3, positions=3, log_probability=-1.0,
        )  # fmt: skip


def test_texts_beyond_the_context_are_refused(number_transformer: Path) -> None:
    manifest = number_canaries(template="My " + "house " * 40 + "is: {secret}")
    with pytest.raises(ModelError, match="more than the model's 48"):
        measure_exposure(load_public_model(str(number_transformer)), manifest)


@pytest.mark.parametrize(
    "wrong",
    [{"budget": 0}, {"samples": 0}, {"rows": 0}, {"confidence": 1.0}, {"check": "some"}, {"score": "x"}],
)
def test_bad_settings_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(InputError, match=next(iter(wrong))):
        ExposureSettings(**wrong)  # type: ignore[arg-type]
