"""`tacit corpus` at its edges: columns, splits, keys, limits, and one sentence for what cannot be used."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

import datasets
import pytest

from tacit.corpus import CanaryManifest, UserCorpus, split_held_out
from tests.cli.conftest import Result, Tacit

COLUMNS = ("--user", "user", "--text", "text")
PLANT = ("corpus", "plant", "dialogues.jsonl", "planted.jsonl", "canaries.json", *COLUMNS)
PARTITION = ("corpus", "partition", "dialogues.jsonl", "parts", *COLUMNS, "--no-tokens")


def lines_of(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def assert_one_sentence(result: Result, *words: str) -> None:
    assert result.code == 2, result.err
    assert result.out == ""
    assert len(result.err.strip().splitlines()) == 1, result.err
    assert result.err.startswith("tacit: ")
    assert all(word in result.err for word in words), result.err


# Planting


@pytest.mark.parametrize("owner", ["existing", "new"])
def test_planted_canaries_are_in_training_with_the_default_recipe(
    tacit: Tacit, folder: Path, owner: str
) -> None:
    result = tacit(*PLANT, "--users", "20", "--owner", owner, "--include", "1", "--json")
    assert result.code == 0, result.err
    assert "held_out.seed=0" in result.json()["in_training"]
    assert result.err == f"note: {result.json()['in_training']}\n"
    manifest = CanaryManifest.load(folder / "canaries.json")
    rows = lines_of(folder / "planted.jsonl")
    corpus = UserCorpus.from_pairs([(row["user"], row["text"]) for row in rows])
    train = split_held_out(corpus, 0.2, seed=0).train
    assert {canary.user for canary in manifest.canaries} <= set(train.users)
    for canary in manifest.canaries:
        assert [rows[place]["text"] for place in canary.documents] == [canary.text]
    assert result.json()["planted_documents"] == 20
    assert result.json()["share_of_documents"] == pytest.approx(20 / 80)
    assert result.json()["share_of_characters"] == manifest.cost.share_of_characters


def test_another_split_may_be_named_or_none(tacit: Tacit, folder: Path) -> None:
    split = ("--held-out-share", "0.4", "--held-out-seed", "9")
    assert "held_out.seed=9" in tacit(*PLANT, *split).err
    plan = CanaryManifest.load(folder / "canaries.json").plan
    assert (plan.held_out_share, plan.held_out_seed) == (0.4, 9)
    common = ("corpus", "plant", "dialogues.jsonl", "all.jsonl", "all.json", *COLUMNS, "--users", "30")
    assert_one_sentence(tacit(*common), "users=30", "stay in training")
    anybody = tacit(*common, "--held-out-share", "0")
    assert anybody.code == 0
    assert "held_out=null" in anybody.err


@pytest.mark.parametrize("options", [(), ("--format", "jsonl")])
def test_rows_of_compressed_jsonl_keep_their_columns(
    tacit: Tacit, folder: Path, options: tuple[str, ...]
) -> None:
    rows = [{"user": f"u{n}", "text": "hello", "half": "\ud800", "é": [n, None]} for n in range(30)]
    content = "\ufeff" + "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "zipped.jsonl.gz").write_bytes(gzip.compress(content.encode()))
    result = tacit("corpus", "plant", "zipped.jsonl.gz", "out.jsonl", "c.json", *COLUMNS, *options)
    assert result.code == 0, result.err
    assert lines_of(folder / "out.jsonl")[:30] == rows


def test_rows_of_csv_keep_their_columns(tacit: Tacit, folder: Path) -> None:
    (folder / "mail.csv").write_text("who,when,what\n" + "".join(f"p{n},{n},Hello\n" for n in range(30)))
    common = ("--user", "who", "--text", "what")
    assert tacit("corpus", "plant", "mail.csv", "out.jsonl", "c.json", *common).code == 0
    assert lines_of(folder / "out.jsonl")[4] == {"who": "p4", "when": "4", "what": "Hello"}


def test_text_files_get_two_columns(tacit: Tacit, folder: Path) -> None:
    (folder / "notes").mkdir()
    for number in range(30):
        (folder / "notes" / f"{number:02d}.txt").write_text("One note.")
    assert tacit("corpus", "plant", "notes", "out.jsonl", "c.json", "--user", "file").code == 0
    assert lines_of(folder / "out.jsonl")[0] == {"file": "00.txt", "text": "One note."}


def test_planting_can_skip_bad_rows(tacit: Tacit, folder: Path) -> None:
    with (folder / "dialogues.jsonl").open("a") as handle:
        handle.write('{"user": "u0", "text": "half of a pair: \\ud800"}\n')
    refused = tacit(*PLANT)
    assert_one_sentence(refused, "line 61", "surrogate", "--skip-bad")
    assert "half of a pair:" not in refused.err
    assert not (folder / "planted.jsonl").exists()
    assert not (folder / "canaries.json").exists()
    assert tacit(*PLANT, "--skip-bad", "--include", "0").code == 0
    assert len(lines_of(folder / "planted.jsonl")) == 60


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--ladder", "1000000000000"), ("ladder", "1,000,000")),
        (("--ladder", "100001"), ("users=10", "1,000,000 documents, not 1,000,010")),
        (("--ladder", "9" * 5000), ("--ladder", "whole numbers")),
        (("--ladder", "0"), ("ladder=0",)),
        (("--users", "1000000000000"), ("users=", "1,000,000")),
        (("--held-out-share", "0.99"), ("held_out_share=0.99",)),
        (("--seed", "-1"), ("seed=-1",)),
        (("--template", os.fsdecode(b"\xff {secret}")), ("template", "surrogate")),
        (("--document", "line"), ("document", "leave it out")),
        (("--split", "train"), ("split", "datasets")),
    ],
)
def test_what_cannot_be_planted(
    tacit: Tacit, folder: Path, options: tuple[str, ...], words: tuple[str, ...]
) -> None:
    result = tacit(*PLANT, *options)
    assert_one_sentence(result, *words)
    assert len(result.err) < 300
    assert sorted(path.name for path in folder.iterdir()) == ["dialogues.jsonl"]


# Datasets


def test_a_split_of_a_saved_dataset(tacit: Tacit, folder: Path) -> None:
    data = datasets.Dataset.from_list(lines_of(folder / "dialogues.jsonl"))
    datasets.DatasetDict({"train": data, "test": data.select(range(4))}).save_to_disk(str(folder / "saved"))
    stats = ("corpus", "stats", "saved", *COLUMNS, "--no-tokens", "--json")
    assert_one_sentence(tacit(*stats), "'train', 'test'")
    assert tacit(*stats, "--split", "test").json()["documents"] == 4
    assert_one_sentence(tacit(*stats, "--split", "test", "--revision", "main"), "Hugging Face id")
    assert_one_sentence(tacit(*stats, "--split", "test", "--config", "en"), "Hugging Face id")
    parted = tacit("corpus", "partition", "saved", "p", *COLUMNS, "--split", "test", "--parts", "1", "--json")
    assert sum(half["documents"] for half in parted.json()["halves"]) == 4
    planted = tacit("corpus", "plant", "saved", "o.jsonl", "c.json", *COLUMNS, "--split", "train")
    assert planted.code == 0, planted.err
    assert lines_of(folder / "o.jsonl")[0]["user"] == "u0"


# Counting


def test_no_tokens_are_counted_where_a_template_renders(
    tacit: Tacit, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = [{"role": "user", "content": "Where is it?"}]
    rows = [{"user": f"u{number}", "turns": turns} for number in range(20)]
    (folder / "chat.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    template = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}{% endfor %}"
    (folder.parent / "home" / "models" / "smollm2-135m-instruct" / "chat_template.jinja").write_text(template)
    common = ("chat.jsonl", "--user", "user", "--messages", "turns", "--json")
    assert tacit("corpus", "stats", *common).json()["tokens"] > 20
    stats = tacit("corpus", "stats", *common, "--no-tokens").json()
    assert (stats["tokens"], stats["measured_in"], stats["documents"]) == (None, "bytes", 20)
    halves = tacit("corpus", "partition", common[0], "p", *common[1:], "--no-tokens", "--parts", "1").json()
    assert [half["tokens"] for half in halves["halves"]] == [None, None]


# Partitions


@pytest.mark.parametrize("content", [b"x" * 32, b"x" * 64, bytes(33), b""])
def test_a_file_that_is_no_key(tacit: Tacit, folder: Path, content: bytes) -> None:
    (folder / "key").write_bytes(content)
    assert_one_sentence(tacit(*PARTITION, "--key", "key"), "not a partition key", "partition.key")
    assert not (folder / "parts").exists()


@pytest.mark.parametrize("parts", ["0", "10001", "1000000000000"])
def test_a_number_of_parts_has_limits(tacit: Tacit, folder: Path, parts: str) -> None:
    assert_one_sentence(tacit(*PARTITION, "--parts", parts), f"parts={parts}", "10,000")
    assert not (folder / "parts").exists()


def test_a_warning_of_many_empty_halves_is_short(tacit: Tacit, folder: Path) -> None:
    result = tacit(*PARTITION, "--parts", "200")
    assert result.code == 0
    (warning,) = result.err.strip().splitlines()
    assert " more." in warning
    assert len(warning) < 250


# Options


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("dialogues.jsonl", "--user", "", "--text", "text"), ("--user", "not empty")),
        (("", *COLUMNS), ("CORPUS", "not empty")),
        ((os.fsdecode(b"\xff.jsonl"), *COLUMNS), ("CORPUS", "text")),
        (("dialogues.jsonl", *COLUMNS, "--blocks", "100000000"), ("--blocks", "at most")),
    ],
)
def test_options_are_refused_in_our_own_words(
    tacit: Tacit, folder: Path, arguments: tuple[str, ...], words: tuple[str, ...]
) -> None:
    result = tacit("corpus", "stats", *arguments, "--no-tokens")
    assert_one_sentence(result, *words)
    assert not any(foreign in result.err for foreign in ("Input should", "String should", "pydantic"))


def test_published_texts_are_converted_and_options_stay_where_they_mean_something(
    tacit: Tacit, tmp_path: Path
) -> None:
    path, out = tmp_path / "reddit.jsonl", tmp_path / "out.jsonl"
    path.write_text('{"author": "ann", "body": "Home."}\n{"author": "[deleted]", "body": "Gone."}\n')
    for option in (("--secrets", "Ref"), ("--field", "abstract")):
        refused = tacit("corpus", "convert", "reddit", path, out, *option)
        assert (refused.code, "leave it out" in refused.err) == (2, True)
    assert tacit("corpus", "convert", "multiwoz", path, out, "--field", "abstract").code == 2
    assert not out.exists()
    found = tacit("corpus", "convert", "reddit", path, out, "--json").json()
    assert (found["documents"], found["users"], found["without_author"]) == (1, 1, 1)
    assert json.loads(out.read_text()) == {"user": "ann", "text": "Home."}
