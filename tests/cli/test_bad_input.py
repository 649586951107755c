"""Bad input: one sentence with the remedy, the right exit code, no traceback, nothing written."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
import torch

from tests.cli.conftest import RECIPE, Tacit

STATS = ("corpus", "stats", "bad", "--format", "jsonl", "--user", "user", "--text", "text", "--no-tokens")
GOOD = b'{"user": "a", "text": "hello"}\n'


BAD_ROWS = {
    "not UTF-8": (GOOD + b'{"user": "b", "text": "\xff"}\n', "line 2: .*UTF-8"),
    "broken JSON": (GOOD + GOOD + b'{"user": "b", "text": \n', "line 3: .*JSON"),
    "null user": (GOOD + b'{"user": null, "text": "x"}\n', "line 2: .*user"),
    "empty text": (GOOD + b'{"user": "b", "text": ""}\n', "line 2: .*empty"),
    "missing text": (GOOD + b'{"user": "b"}\n', "line 2: .*text"),
    "other columns": (b'{"name": "a", "body": "x"}\n', "name"),
    "empty file": (b"", "no documents|empty"),
    "not an object": (GOOD + b"[1]\n", "line 2"),
}


@pytest.mark.parametrize(("content", "sentence"), BAD_ROWS.values(), ids=BAD_ROWS)
def test_bad_rows(tacit: Tacit, folder: Path, content: bytes, sentence: str) -> None:
    (folder / "bad").write_bytes(content)
    before = files_in(folder)
    result = tacit(*STATS)
    assert_one_sentence(result.code, result.err, 2, sentence)
    assert "hello" not in result.err
    assert files_in(folder) == before


def files_in(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def assert_one_sentence(code: int, err: str, expected: int, sentence: str) -> None:
    assert code == expected, err
    assert "Traceback" not in err
    assert len(err.strip().splitlines()) == 1, err
    assert err.startswith("tacit: ")
    assert re.search(sentence, err), err


COLUMNS = "--user user --text text"

BAD_CALLS = [
    ("corpus stats absent.jsonl --user u --text t", 2, "absent.jsonl"),
    ("corpus stats dialogues.jsonl --text text", 2, "user"),
    ("corpus stats dialogues.jsonl --user user", 2, "text"),
    ("corpus stats dialogues.jsonl --user who --text text", 2, "who.*user"),
    ("corpus simulate dialogues.jsonl", 2, "exists already"),
    ("corpus simulate new.jsonl --users 0", 2, "users"),
    ("corpus simulate new.jsonl --repeat-secrets 1.5", 2, "repeat_secrets"),
    (f"corpus partition dialogues.jsonl p --parts 0 {COLUMNS}", 2, "parts"),
    (f"corpus partition dialogues.jsonl p --key absent {COLUMNS}", 2, "partition.key"),
    (f"corpus plant dialogues.jsonl o m --ladder x {COLUMNS}", 2, "ladder"),
    (f"corpus plant dialogues.jsonl o m --template x {COLUMNS}", 2, "secret"),
    ("train absent.yaml", 2, "absent.yaml"),
    ("train recipe.yaml training.epoch=2", 2, "did you mean 'epochs'"),
    ("train recipe.yaml output=dialogues.jsonl", 2, "exists already"),
    ("train recipe.yaml output=/proc/nope", 2, r"Cannot create /proc/nope \(.*choose another output"),
    ("corpus simulate /proc/nope.jsonl", 2, r"Cannot create /proc/nope.jsonl \(.*choose another output"),
    ("corpus stats dialogues.jsonl --user text --text text", 2, "cannot name both the user and the text"),
    ("train recipe.yaml output=dialogues.jsonl/x", 2, "Cannot create the folder dialogues.jsonl"),
    ("train recipe.yaml --dry-run --resume", 2, "--dry-run plans .* --resume continues"),
    ("train recipe.yaml training.learning_rate=1e30", 2, "training.learning_rate.*at most 1"),
    ("train recipe.yaml adapter.kind=top", 2, "'rank' belongs to kind 'lora'"),
    ("train recipe.yaml training.early_stop.public_text=absent.txt", 2, "absent.txt does not exist"),
    (
        "train recipe.yaml training.early_stop.public_text=absent.txt --dry-run",
        2,
        "absent.txt does not exist",
    ),
    (
        "train recipe.yaml training.early_stop.public_text=dialogues.jsonl --dry-run",
        2,
        "of the private corpus",
    ),
    ("train recipe.yaml adapter.trunk_layers=9", 2, "leaves nothing to train"),
    ("train recipe.yaml adapter.rank=1000000000", 2, "adapter.rank.*at most"),
    ("train recipe.yaml adapter.targets=[]", 2, "adapter.targets.*not empty"),
    ("train recipe.yaml performance.threads=100000", 2, "performance.threads.*at most"),
    ("train recipe.yaml training.block_size=129", 2, "longer than the model's context of 128"),
    ("train recipe.yaml training.seed=-1", 2, "training.seed"),
    ("train recipe.yaml training.seed=99999999999999999999999", 2, "training.seed"),
    ("train recipe.yaml model.name=", 2, "model.name.*expected text"),
    ("train recipe.yaml model.name=./absent", 2, "no model folder"),
    ("train recipe.yaml model.name=owner/absent", 3, "owner/absent"),
    ("train recipe.yaml model.name=pickled", 4, "safetensors"),
    ("train recipe.yaml model.name=no-tokenizer", 2, "no tokenizer"),
    ("train recipe.yaml model.name=remote-code", 4, "remote|trust_remote_code"),
    ("train recipe.yaml held_out.share=0.001", 2, "held"),
    ("evaluate absent", 2, "not a Run"),
    ("evaluate", 2, "--corpus"),
    ("evaluate absent --model x", 2, "--model goes without a Run"),
    ("evaluate absent --user user", 2, "--user says how --corpus FILE is read"),
    ("evaluate absent --split train", 2, "--split says how --corpus FILE is read"),
    ("evaluate absent --skip-bad", 2, "--skip-bad says how --corpus FILE is read"),
    (f"evaluate --no-public --corpus dialogues.jsonl {COLUMNS}", 2, "--public goes with a Run"),
    (f"evaluate --corpus dialogues.jsonl --device tpu {COLUMNS}", 2, "device 'tpu'"),
    ("generate dialogues.jsonl", 2, "not a Run"),
    ("audit absent", 2, "not a Run"),
    ("models path owner/absent", 3, "owner/absent"),
    ("models create x", 2, "--tokenizer"),
    ("models create x --vocabulary-from absent", 2, "absent"),
    ("models create x --vocabulary-from dialogues.jsonl --hidden 0", 2, "--hidden"),
    ("models create x --vocabulary-from dialogues.jsonl --embedding 0", 2, "--embedding"),
    ("models create x --vocabulary-from dialogues.jsonl --layers 0", 2, "--layers"),
    ("models create x --vocabulary-from dialogues.jsonl --vocabulary-size 1", 2, "--vocabulary-size"),
]


@pytest.mark.parametrize(("call", "code", "sentence"), BAD_CALLS, ids=[call for call, _, _ in BAD_CALLS])
def test_bad_calls(
    tacit: Tacit, folder: Path, tiny_transformer: Path, call: str, code: int, sentence: str
) -> None:
    (folder / "recipe.yaml").write_text(RECIPE)
    for name in ("pickled", "no-tokenizer", "remote-code"):
        shutil.copytree(tiny_transformer, folder / name)
    (folder / "pickled" / "model.safetensors").unlink()
    torch.save({}, folder / "pickled" / "pytorch_model.bin")
    for path in (folder / "no-tokenizer").glob("tokenizer*"):
        path.unlink()
    config = json.loads((folder / "remote-code" / "config.json").read_text())
    config["auto_map"] = {"AutoModelForCausalLM": "evil.Evil"}
    (folder / "remote-code" / "config.json").write_text(json.dumps(config))
    before = files_in(folder)
    result = tacit(*call.split())
    assert_one_sentence(result.code, result.err, code, sentence)
    assert ".partial" not in result.err
    assert files_in(folder) == before


BAD_AUDITS = [
    ("--canaries absent.json", "Cannot read the canary manifest absent.json"),
    ("--words absent.txt", "Cannot read the word list absent.txt"),
    ("--seed -1 --documents 0", "seed=-1"),
    ("--mechanism certified --epsilon 2 --queries 8 --seed -1", "seed=-1"),
    ("--confidence 1.5", "confidence=1.5"),
]


def test_bad_audits(tacit: Tacit, folder: Path) -> None:
    (folder / "recipe.yaml").write_text(RECIPE)
    assert tacit("train", "recipe.yaml", "training.max_steps=1").code == 0
    before = files_in(folder)
    for options, sentence in BAD_AUDITS:
        result = tacit("audit", "runs/first", *options.split())
        assert_one_sentence(result.code, result.err, 2, sentence)
    changed = (folder / "dialogues.jsonl").read_text().replace("a", "b")
    (folder / "dialogues.jsonl").write_text(changed)
    result = tacit("audit", "runs/first")
    assert_one_sentence(result.code, result.err, 2, "has changed since.*restore it, or train again")
    assert "--corpus" not in result.err
    assert files_in(folder) == before


def test_resuming_what_was_never_begun_begins_it_and_says_so(tacit: Tacit, folder: Path) -> None:
    (folder / "recipe.yaml").write_text(RECIPE)
    result = tacit("train", "recipe.yaml", "training.max_steps=1", "--resume")
    assert result.code == 0, result.err
    assert "nothing to resume at runs/first; starting from the beginning" in result.err
    again = tacit("train", "recipe.yaml", "training.max_steps=1", "--resume")
    assert_one_sentence(again.code, again.err, 2, "exists already")


def test_an_existing_run_is_not_touched(tacit: Tacit, folder: Path) -> None:
    (folder / "recipe.yaml").write_text(RECIPE)
    assert tacit("train", "recipe.yaml", "training.max_steps=1").code == 0
    before = {path: path.read_bytes() for path in (folder / "runs").rglob("*") if path.is_file()}
    again = tacit("train", "recipe.yaml")
    assert_one_sentence(again.code, again.err, 2, "exists already")
    assert {path: path.read_bytes() for path in (folder / "runs").rglob("*") if path.is_file()} == before
    (folder / "runs/first/run.json").write_text('{"format": 99}')
    broken = tacit("evaluate", "runs/first")
    assert_one_sentence(broken.code, broken.err, 2, "cannot be read by this version")


def test_what_the_operating_system_refuses_is_one_sentence(tacit: Tacit, folder: Path) -> None:
    result = tacit("corpus", "simulate", "x" * 300, "--users", "1")
    assert_one_sentence(result.code, result.err, 3, "too long")


def test_damaged_runs_are_one_sentence(tacit: Tacit, folder: Path) -> None:
    (folder / "recipe.yaml").write_text(RECIPE)
    assert tacit("train", "recipe.yaml", "training.max_steps=1").code == 0
    run = folder / "runs/first"
    manifest = json.loads((run / "run.json").read_text())
    other = json.loads((run / "private" / "data.json").read_text()) | {"corpus_fingerprint": "x"}
    damages = {
        "run.json": [
            (json.dumps(manifest | {"recipe": {}}), "run.json"),
            (json.dumps(manifest | {"recipe": {"corpus": 3, "output": "x"}}), "corpus"),
            (json.dumps(manifest | {"guarantee": {}}), "guarantee.statement"),
            ("{", "cannot be read"),
        ],
        "private/data.json": [("{", "data.json is damaged"), (json.dumps(other), "has changed since")],
        "metrics.json": [("[1]", "metrics.json is damaged"), ("\0", "metrics.json is damaged")],
    }
    for name, contents in damages.items():
        before = (run / name).read_text() if (run / name).exists() else "{}"
        for content, sentence in contents:
            (run / name).write_text(content)
            result = tacit("evaluate", "runs/first")
            assert_one_sentence(result.code, result.err.splitlines()[-1] + "\n", 2, sentence)
            assert "Traceback" not in result.err
        (run / name).write_text(before)
    (run / "private/data.json").unlink()
    result = tacit("evaluate", "runs/first", "--block-size", "128")
    assert_one_sentence(result.code, result.err, 2, "data.json is missing; restore it or train again")


def test_too_little_memory_is_one_sentence(tacit: Tacit, monkeypatch: pytest.MonkeyPatch) -> None:
    # What torch says when it asks for more than there is.
    refusals = [MemoryError()]
    try:
        torch.empty(2**60, dtype=torch.uint8)
    except RuntimeError as problem:
        refusals.append(problem)  # type: ignore[arg-type]
    assert len(refusals) == 2
    for refusal in refusals:

        def refuse(problem: BaseException = refusal) -> None:
            raise problem

        monkeypatch.setattr("tacit.cli.app.app", refuse)
        result = tacit("train", "x")
        assert_one_sentence(result.code, result.err, 3, "memory does not suffice")


def test_a_bug_keeps_its_traceback(tacit: Tacit, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr("tacit.cli.app.app", broken)
    with pytest.raises(RuntimeError, match="a bug"):
        tacit("train", "x")
