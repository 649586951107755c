"""Repeats: found from the second occurrence on, within a part only, by every kind of memory."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.corpus.screening import MASK, Deduplicator, DedupSettings, Screening
from tacit.corpus.screening.dedup import KEY_BYTES
from tacit.errors import InputError, RecipeError
from tests.corpus.screening.detectors import documents, words
from tests.corpus.screening.detectors import settings as screen_settings

POINTS = st.lists(st.sampled_from(["a", "b", "a b", "Hello.", "é", ""]), max_size=30)


def oracle(texts: list[str]) -> list[bool]:
    return [text in texts[:position] for position, text in enumerate(texts)]


@given(POINTS)
def test_exact_dedup_is_what_a_list_would_say(texts: list[str]) -> None:
    assert Deduplicator(DedupSettings("exact")).repeats(texts) == oracle(texts)


def test_points_are_remembered_by_a_keyed_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the key anybody could look for two texts of one hash beforehand."""
    made: list[dict[str, object]] = []

    def blake2b(*content: bytes, **settings: object) -> object:
        made.append(settings)
        return hashed(*content, **settings)

    hashed: Any = hashlib.blake2b
    monkeypatch.setattr("hashlib.blake2b", blake2b)
    for key in (b"k" * KEY_BYTES, None):
        deduplicator = Deduplicator(DedupSettings("exact"), key=key)
        assert deduplicator.repeats(["a", "a"]) == [False, True]
        assert made.pop()["key"] == deduplicator.key
    assert deduplicator.key != Deduplicator(DedupSettings("exact")).key
    assert len(deduplicator.key) == KEY_BYTES


@settings(max_examples=20)
@given(POINTS)
def test_a_bloom_filter_misses_no_repeat(texts: list[str]) -> None:
    found = Deduplicator(DedupSettings("bloom", expected_points=1000)).repeats(texts)
    assert all(is_found for is_found, repeat in zip(found, oracle(texts), strict=True) if repeat)


def test_a_bloom_filter_keeps_its_rate_and_its_size() -> None:
    texts = [f"sentence {number}" for number in range(20_000)]
    found = Deduplicator(DedupSettings("bloom", expected_points=20_000, false_positives=0.01)).repeats(texts)
    # All texts differ, so every flag is a false positive: at most 1% when full, fewer on the way.
    assert 0 < sum(found) < 0.01 * len(texts)


@pytest.mark.parametrize("kind", ["exact", "bloom", "near"])
def test_the_same_key_gives_the_same_answers(kind: str) -> None:
    chosen = DedupSettings(kind, expected_points=100, false_positives=0.5)  # type: ignore[arg-type]
    texts = [f"one sentence with number {number % 150}" for number in range(300)]
    runs = [Deduplicator(chosen, key=b"k" * 16).repeats(texts) for _ in range(2)]
    assert runs[0] == runs[1]


@pytest.mark.parametrize("kind", ["exact", "bloom", "near"])
def test_batches_do_not_matter(kind: str) -> None:
    texts = [f"one sentence with number {number % 7}" for number in range(20)]
    chosen = DedupSettings(kind)  # type: ignore[arg-type]
    whole = Deduplicator(chosen, key=b"k" * 16).repeats(texts)
    split = Deduplicator(chosen, key=b"k" * 16)
    assert split.repeats(texts[:9]) + split.repeats(texts[9:]) == whole


def test_near_repeats_are_found_and_others_are_not() -> None:
    first = "the quick brown fox jumps over the lazy dog near the old river bank on a sunny day"
    near = first.replace("sunny", "rainy")
    other = "nobody expected that the committee would publish its report before the end of summer"
    assert Deduplicator(DedupSettings("near", similarity=0.7)).repeats([first, near, other]) == [
        False,
        True,
        False,
    ]
    assert Deduplicator(DedupSettings("exact")).repeats([first, near]) == [False, False]


@pytest.mark.parametrize("kind", ["exact", "bloom", "near"])
def test_nothing_is_remembered_across_parts(kind: str) -> None:
    """Even a full filter of one part must say nothing about another: it would depend on its text."""
    chosen = DedupSettings(kind, expected_points=1, false_positives=0.5)  # type: ignore[arg-type]
    memory = Deduplicator(chosen, parts=2)
    memory.repeats([f"sentence number {number}" for number in range(2000)], part=0)
    alone = Deduplicator(chosen, parts=2, key=memory.key)
    texts = [f"sentence number {number}" for number in range(5)] * 2
    assert memory.repeats(texts, part=1) == alone.repeats(texts, part=1)


def test_screening_never_dedups_across_parts() -> None:
    docs = documents("Hello there.", "Hello there.", "Hello there.", users=["a", "b", "a"])
    part_of = {"a": 0, "b": 1}
    screening = Screening(screen_settings(words("x")), part_of=part_of.__getitem__, parts=2)
    assert [point.text for point in screening.screen(docs)] == ["Hello there.", "Hello there.", MASK]
    # Changing one part's text leaves the other part's points as they are, exactly.
    changed = documents("Hello there.", "Other words.", "Hello there.", users=["a", "b", "a"])
    other = Screening(screen_settings(words("x")), part_of=part_of.__getitem__, parts=2)
    assert [p.text for p in other.screen(changed) if p.user == "a"] == ["Hello there.", MASK]


def test_an_unknown_part_is_a_bug() -> None:
    with pytest.raises(ValueError, match="part=2 in"):
        Deduplicator(DedupSettings(), parts=2).repeats(["a"], part=2)


def test_settings_out_of_range_are_refused() -> None:
    with pytest.raises(RecipeError, match="dedup='sha1'"):
        DedupSettings("sha1")  # type: ignore[arg-type]
    with pytest.raises(RecipeError, match=r"false_positives=1\.0"):
        DedupSettings(false_positives=1.0)
    with pytest.raises(InputError, match="expected_points=0"):
        DedupSettings(expected_points=0)
