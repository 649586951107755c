"""From file to file: what is written, for whom, in how much memory, and what is left behind on the way."""

from __future__ import annotations

import hashlib
import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from tacit.corpus import Partition, SimulationPlan, UserCorpus, write_customersim
from tacit.corpus.reading import read_corpus, source_of
from tacit.corpus.screening import (
    MASK,
    DedupSettings,
    GoldSpans,
    PatternScorer,
    Policy,
    RawDocument,
    Screening,
    ScreenSettings,
    differing_points,
    read_screened,
)
from tacit.corpus.screening.binding import report_of, report_path
from tacit.corpus.screening.corpus_files import screen_corpus
from tacit.errors import CorpusError, OutputExists, Tampered
from tacit.progress import Silent
from tacit.recipes import CorpusSection
from tests.corpus.screening.detectors import documents, settings, words

PATTERNS = ScreenSettings(Policy((PatternScorer(),), 0.5, 0.5))


def section(path: Path, **more: Any) -> CorpusSection:
    return CorpusSection(path=str(path), user="user", text="text", **more)


def write(path: Path, *rows: tuple[str, str]) -> Path:
    path.write_text("".join(json.dumps({"user": user, "text": text}) + "\n" for user, text in rows))
    return path


@pytest.fixture
def sim(tmp_path: Path) -> Path:
    path = tmp_path / "sim.jsonl"
    write_customersim(SimulationPlan(users=10, dialogues_per_user=2), path)
    return path


def test_points_and_report_are_written_for_their_owner_alone(sim: Path, tmp_path: Path) -> None:
    out = tmp_path / "screened.jsonl"
    report = screen_corpus(section(sim), out, PATTERNS, Silent())
    assert json.loads(report_path(out).read_text()) == report
    assert {path.stat().st_mode & 0o777 for path in (out, report_path(out))} == {0o600}
    points = list(read_screened(out))
    counts = report["counts"]
    assert counts["points"] == len(points)
    assert counts["private"] == sum(point.private for point in points)
    assert counts["public"] == sum(not point.private for point in points)
    assert (
        counts["bare"] == sum(point.text == MASK for point in points) == sum(point.bare for point in points)
    )
    assert counts["private_without_bare"] == counts["private"] - counts["bare"]
    assert counts["duplicates"] == sum(point.duplicate for point in points) > 0
    assert counts["masks"] == sum(point.text.count(MASK) for point in points if not point.duplicate)
    assert sum(counts["labels"].values()) >= counts["masks"] > 0
    texts = [json.loads(line)["text"] for line in sim.read_text().splitlines()]
    for point in points:
        raw = texts[point.document]
        assert [
            raw[span.start : span.end] for span in point.masked if point.text == raw[point.start : point.end]
        ] == []


def test_the_report_binds_its_points(sim: Path, tmp_path: Path) -> None:
    out = tmp_path / "screened.jsonl"
    report = screen_corpus(section(sim), out, PATTERNS, Silent())
    assert report["points"] == {"sha256": hashlib.sha256(out.read_bytes()).hexdigest()}
    assert report_of(out) == report
    content = out.read_bytes()
    for edited in (content.replace(b'"private": true', b'"private": false', 1), content[:-1], content * 2):
        out.write_bytes(edited)
        with pytest.raises(Tampered, match="is not as its screening wrote it"):
            report_of(out)
        with pytest.raises(Tampered, match="is not as its screening wrote it"):
            read_corpus(section(out), None, Silent())
    report_path(out).write_text(json.dumps(report | {"format": "tacit screening report 1"}))
    with pytest.raises(CorpusError, match="does not say which data points it is about"):
        report_of(out)
    report_path(out).unlink()
    assert report_of(out) is None


def test_what_was_screened_is_a_corpus(sim: Path, tmp_path: Path) -> None:
    out = tmp_path / "screened.jsonl"
    screen_corpus(section(sim), out, PATTERNS, Silent())
    corpus = UserCorpus.read(source_of(section(out)))
    assert [document.text for document in corpus.documents()] == [point.text for point in read_screened(out)]


def test_the_same_corpus_gives_the_same_bytes(sim: Path, tmp_path: Path) -> None:
    outs = [tmp_path / name for name in ("a.jsonl", "b.jsonl")]
    for out in outs:
        screen_corpus(section(sim), out, PATTERNS, Silent())
    assert outs[0].read_bytes() == outs[1].read_bytes()


def test_the_corpus_brings_its_own_spans(sim: Path, tmp_path: Path) -> None:
    chosen = ScreenSettings(Policy((), 0.5, 0.5, gold=GoldSpans()))
    report = screen_corpus(section(sim), tmp_path / "out.jsonl", chosen, Silent())
    spans = [span for line in sim.read_text().splitlines() for span in json.loads(line)["spans"]]
    assert sum(report["counts"]["labels"].values()) <= len(
        spans
    )  # secrets in repeated points are masked with them
    assert set(report["counts"]["labels"]) == {span["label"] for span in spans}


def test_a_partition_keeps_repeats_within_its_parts(tmp_path: Path) -> None:
    rows = [(f"u{number}", "Hello there.") for number in range(12)]
    path = write(tmp_path / "c.jsonl", *rows)
    partition = Partition.create(UserCorpus.read(source_of(section(path))), parts=3, assign="balanced")
    report = screen_corpus(section(path), tmp_path / "out.jsonl", PATTERNS, Silent(), partition=partition)
    parts = {partition.slot_of(user).part for user, _ in rows}
    assert report["counts"]["points"] - report["counts"]["duplicates"] == len(parts) > 1
    kept = [point.user for point in read_screened(tmp_path / "out.jsonl") if not point.duplicate]
    assert len({partition.slot_of(user).part for user in kept}) == len(kept)


def test_bare_masks_are_counted_whatever_made_them(tmp_path: Path) -> None:
    path = write(tmp_path / "c.jsonl", ("a", "Ann\nHello you.\nHello you.\nHi Ann."))
    counts = screen_corpus(section(path), tmp_path / "o.jsonl", settings(words("Ann")), Silent())["counts"]
    assert (counts["private"], counts["bare"], counts["private_without_bare"]) == (3, 2, 1)


def test_a_group_of_secrets_is_counted_beside(tmp_path: Path) -> None:
    path = write(
        tmp_path / "c.jsonl", ("a", "I am Ann. Bye."), ("b", "I am Bob. Bye."), ("c", "Call 01223355013.")
    )
    chosen = settings(words("Ann", "Bob"), PatternScorer())
    out = tmp_path / "out.jsonl"
    report = screen_corpus(section(path), out, chosen, Silent(), secrets=["Ann", "Bob"])
    assert report["group"] == {
        "secrets": 2,
        "occurrences": 2,
        "differing_points": 1,
        "differing_public_points": 0,
        "most_points_of_one": 1,
    }
    alone = tmp_path / "alone.jsonl"
    screen_corpus(section(path), alone, chosen, Silent())
    assert out.read_bytes() == alone.read_bytes()


def test_how_many_secrets_occur_nowhere_is_noted_and_never_which(tmp_path: Path) -> None:
    path = write(tmp_path / "c.jsonl", ("a", "I am Ann Lee."), ("b", "Hello #4711."))
    given = {"one": ["Ann", "Ann Lee", "#4711", "Zoe"], "none": ["Ann", "Ann Lee", "#4711"]}
    notes = {
        name: screen_corpus(
            section(path), tmp_path / f"{name}.jsonl", settings(words("Ann")), Silent(), secrets=secrets
        )["notes"]
        for name, secrets in given.items()
    }
    (note,) = set(notes["one"]) - set(notes["none"])
    assert note.startswith("1 of 4 secrets occurs nowhere as it is spelt")
    assert "Zoe" not in note
    assert set(notes["none"]) <= set(notes["one"])


def test_in_how_many_points_one_secret_stands_is_counted_and_noted(tmp_path: Path) -> None:
    """Repeated sentences are points too, and what stands twice in one is one point."""
    texts = ("I am Ann.", "I am Ann.", "Bye Ann and Ann.", "I am Bob.", "Bob Ray.", "Nobody.")
    path = write(tmp_path / "c.jsonl", *((f"u{number}", text) for number, text in enumerate(texts)))
    chosen = settings(words("Ann"), conservative=None)
    report = screen_corpus(section(path), tmp_path / "o.jsonl", chosen, Silent(), secrets=["Bob", "Ann"])
    assert report["group"]["most_points_of_one"] == 3
    (note,) = (note for note in report["notes"] if "secret_points" in note)
    assert "up to 3 data points" in note
    assert "Ann" not in note
    # No more points than those can differ: masking all of one secret moves no other point.
    docs = [RawDocument(f"u{number}", text) for number, text in enumerate(texts)]
    assert differing_points(docs, ["Ann"], chosen) <= 3
    once = screen_corpus(section(path), tmp_path / "p.jsonl", chosen, Silent(), secrets=["Ray"])
    assert once["group"]["most_points_of_one"] == 1
    assert not any("secret_points" in note for note in once["notes"])


def test_a_secret_that_both_policies_miss_differs_in_public(tmp_path: Path) -> None:
    path = write(tmp_path / "c.jsonl", ("a", "I am Zoe."))
    report = screen_corpus(
        section(path), tmp_path / "o.jsonl", settings(words("x")), Silent(), secrets=["Zoe"]
    )
    assert report["group"]["differing_public_points"] == 1


@pytest.mark.parametrize(
    ("chosen", "notes"),
    [
        (settings(words("x")), ["D_pri is empty"]),
        (settings(words("x"), conservative=None), ["D_pub is empty: every data point is private because"]),
        (settings(words("Hello", "Bye")), ["D_pub is empty: every data point is private."]),
        (settings(words("x"), dedup="near"), ["D_pri is empty", "Near-duplicates"]),
        (settings(words("x"), dedup="bloom"), ["D_pri is empty", "A Bloom filter's false repeats"]),
        (settings(words("x"), dedup="off"), ["D_pri is empty", "Repeated sentences were left"]),
        (settings(words("x"), placeholders=True), ["D_pri is empty", "Placeholders"]),
    ],
)
def test_empty_sides_and_what_is_outside_the_proof_are_noted(
    tmp_path: Path, chosen: ScreenSettings, notes: list[str]
) -> None:
    path = write(tmp_path / "c.jsonl", ("a", "Hello you. Bye now."))
    report = screen_corpus(section(path), tmp_path / "out.jsonl", chosen, Silent())
    assert [note.startswith(begin) for note, begin in zip(report["notes"], notes, strict=True)] == [
        True
    ] * len(notes)
    assert bool(report["outside_the_proof"]) == (len(notes) > 1)


def test_a_bad_row_leaves_nothing_behind(tmp_path: Path) -> None:
    path = write(tmp_path / "c.jsonl", ("a", "Hello."))
    path.write_text(path.read_text() + '{"user": "b"}\n')
    with pytest.raises(CorpusError, match="line 2"):
        screen_corpus(section(path), tmp_path / "out.jsonl", PATTERNS, Silent())
    assert sorted(p.name for p in tmp_path.iterdir()) == ["c.jsonl"]
    report = screen_corpus(section(path, skip_bad=True), tmp_path / "out.jsonl", PATTERNS, Silent())
    assert report["skipped"] == {"missing column": 1}
    with pytest.raises(OutputExists):
        screen_corpus(section(path, skip_bad=True), tmp_path / "out.jsonl", PATTERNS, Silent())


def test_blocks_of_tokens_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "c.jsonl", ("a", "Hello."))
    with pytest.raises(CorpusError, match="not whole sentences"):
        screen_corpus(section(path, blocks=8), tmp_path / "out.jsonl", PATTERNS, Silent())


@pytest.mark.parametrize("line", ["nonsense", "{}", '{"user": 3}', "[]"])
def test_other_files_are_not_read_as_screened(tmp_path: Path, line: str) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(CorpusError, match="line 1: is not a screened data point"):
        list(read_screened(path))
    with pytest.raises(CorpusError, match="cannot be read"):
        list(read_screened(tmp_path / "none"))


def test_a_line_keeps_everything_about_a_point(tmp_path: Path) -> None:
    points = list(Screening(settings(words("Ann"))).screen(documents("Hé Ann and\u2028you. Bye.\nBye.")))
    path = tmp_path / "x.jsonl"
    path.write_bytes(b"".join(point.to_line() for point in points))
    assert list(read_screened(path)) == points


def test_memory_does_not_grow_with_the_corpus() -> None:
    def peak(count: int) -> int:
        chosen = ScreenSettings(
            Policy((PatternScorer(),), 0.5, 0.5), dedup=DedupSettings("bloom", expected_points=10_000)
        )
        docs = (
            doc for n in range(count) for doc in documents(f"Sentence {n} of them. My order is AB{n:06d}.")
        )
        tracemalloc.start()
        for _ in Screening(chosen).screen(docs):
            pass
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return most

    few = peak(700)  # more points than a batch has
    assert peak(3_500) < 1.2 * few
