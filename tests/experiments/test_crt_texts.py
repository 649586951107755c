"""CRT's corpora: data points, canaries, what a dialled policy leaves, and whom membership is about."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tacit.experiments import Workshop
from tacit.experiments.crt_attacks import group_accuracy
from tacit.experiments.crt_settings import settings_of
from tacit.experiments.crt_texts import Ground, Point, ground_of, screened
from tacit.experiments.crt_words import geometric, student

SETTINGS = settings_of("tiny")


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    return Workshop(tmp_path_factory.mktemp("work"))


@pytest.fixture(scope="module")
def ground(shop: Workshop) -> Ground:
    return ground_of(shop, SETTINGS, "simulated", 1)


def learnt(ground: Ground) -> list[Point]:
    return [Point.from_row(json.loads(line)) for line in ground.corpus.read_text().splitlines()]


def test_half_of_the_dialogues_are_learnt_and_canaries_are_among_them(ground: Ground) -> None:
    points = learnt(ground)
    users, others = {point.user for point in points}, {point.user for point in ground.held_out}
    assert not users & others
    canaries = SETTINGS["canaries"]
    half = SETTINGS["corpora"]["simulated"]["dialogues"] // 2
    assert len(users) == half + canaries["number"]
    assert len(others) == half
    planted = [point for point in points if point.text.startswith("My ID is: ")]
    assert len(planted) == canaries["number"] * canaries["repetitions"]
    secrets = {one.secret for one in ground.manifest.canaries}
    for point in planted:
        (span,) = point.spans
        assert point.text[span.start : span.end] in secrets


def test_every_point_is_one_sentence_and_screening_keeps_them_apart(shop: Workshop, ground: Ground) -> None:
    points = learnt(ground)
    assert not any("\n" in point.text for point in points)
    for dedup in (False, True):
        lines = screened(shop, ground, 0.0, dedup=dedup).read_text().splitlines()
        found = [json.loads(line) for line in lines]
        assert [one["document"] for one in found] == list(range(len(points)))
        repeats = len(points) - len({point.text for point in points})
        assert sum(one["duplicate"] for one in found) == (repeats if dedup else 0)


def test_a_policy_misses_the_share_that_it_is_told(shop: Workshop, ground: Ground) -> None:
    points = learnt(ground)
    spans = sum(len(point.spans) for point in points)
    masked = {}
    for gamma in (0.0, 0.5):
        found = [
            json.loads(line) for line in screened(shop, ground, gamma, dedup=False).read_text().splitlines()
        ]
        masked[gamma] = found
        # Whoever has a secret is private, whether the policy found it or not.
        for point, one in zip(points, found, strict=True):
            assert one["private"] == bool(point.spans)
    for point, one in zip(points, masked[0.0], strict=True):
        assert not any(point.text[span.start : span.end] in one["text"] for span in point.spans)
    caught = sum(one["text"].count("<MASK>") for one in masked[0.5])
    assert 0.3 * spans < caught < 0.7 * spans
    assert {tuple(span) for one in masked[0.5] for span in one["masked"]} <= {
        tuple(span) for one in masked[0.0] for span in one["masked"]
    }


def test_membership_is_about_secrets_of_both_halves_and_no_canary(ground: Ground) -> None:
    found = ground.members(None, 100)
    assert int(found.is_member.sum()) * 2 == len(found)
    assert not any("My ID is" in text for text in found.texts)
    held_out = {point.text for point in ground.held_out}
    own = {point.text for point in learnt(ground)}
    members = [text for text, inside in zip(found.texts, found.is_member, strict=True) if inside]
    # A pair gives the lines of both: a member has the secret of whoever was trained on.
    assert any(text in own for text in members)
    assert not any(text in held_out for text in members)


def test_another_seed_has_another_half_and_the_same_dialogues(shop: Workshop, ground: Ground) -> None:
    other = ground_of(shop, SETTINGS, "simulated", 2)

    def users(one: Ground) -> tuple[set[str], set[str]]:
        return {p.user for p in learnt(one) if not p.user.startswith("canary")}, {
            p.user for p in one.held_out
        }

    assert set.union(*users(other)) == set.union(*users(ground))
    assert users(other)[0] != users(ground)[0]


def test_means_over_trainings_claim_no_certainty() -> None:
    alone, alike = student([0.5], least=0.0, most=1.0), student([0.5, 0.5], least=0.0, most=1.0)
    assert (alone.low, alone.high) == (alike.low, alike.high) == (0.0, 1.0)
    three = student([1.0, 2.0, 3.0])
    assert three.high - three.value == pytest.approx(4.3027 / np.sqrt(3), abs=1e-3)
    assert geometric([2.0, 8.0]).value == pytest.approx(4.0)
    assert geometric([2.0]).low == 0.0


def test_groups_that_are_all_told_apart_count_as_those_that_share_nothing() -> None:
    runs: list[dict[str, Any]] = [{"groups": {"accuracy": 1.0}, "right": [1.0] * 45}] * 3
    found = group_accuracy(runs, 20)
    assert found.value == 1.0
    assert found.low == pytest.approx(0.025 ** (1 / 6), abs=1e-6)  # six groups of twenty pairs


def test_a_corpus_of_files_is_known_by_them(tmp_path: Path) -> None:
    from tacit.experiments.crt_texts import text_of

    shop = Workshop(tmp_path / "work", tmp_path)
    corpus = {"texts": ["one.jsonl", "folder"]}
    assert text_of(shop, corpus) is None
    (tmp_path / "one.jsonl").write_text("{}")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "dialogues_001.json").write_text("[]")
    before = text_of(shop, corpus)
    (tmp_path / "folder" / "dialogues_001.json").write_text("[ ]")
    assert before is not None
    assert text_of(shop, corpus) != before
