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


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (GOOD + b'{"user": "b", "text": "\xff"}\n', "line 2: .*UTF-8"),
        (GOOD + GOOD + b'{"user": "b", "text": \n', "line 3: .*JSON"),
        (GOOD + b'{"user": null, "text": "x"}\n', "line 2: .*user"),
        (GOOD + b'{"user": "b", "text": ""}\n', "line 2: .*empty"),
        (GOOD + b'{"user": "b"}\n', "line 2: .*text"),
        (b'{"name": "a", "body": "x"}\n', "name"),
        (b"", "no documents|empty"),
        (GOOD + b"[1]\n", "line 2"),
    ],
)
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


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (("corpus", "stats", "absent.jsonl", "--user", "u", "--text", "t"), 2, "absent.jsonl"),
        (("corpus", "stats", "dialogues.jsonl", "--text", "text"), 2, "user"),
        (("corpus", "stats", "dialogues.jsonl", "--user", "user"), 2, "text"),
        (("corpus", "stats", "dialogues.jsonl", "--user", "who", "--text", "text"), 2, "who.*user"),
        (("corpus", "simulate", "dialogues.jsonl"), 2, "exists already"),
        (("corpus", "simulate", "new.jsonl", "--users", "0"), 2, "users"),
        (("corpus", "simulate", "new.jsonl", "--repeat-secrets", "1.5"), 2, "repeat_secrets"),
        (
            (
                "corpus",
                "partition",
                "dialogues.jsonl",
                "p",
                "--parts",
                "0",
                "--user",
                "user",
                "--text",
                "text",
            ),
            2,
            "parts",
        ),
        (
            *(
                (
                    (
                        "corpus",
                        "partition",
                        "dialogues.jsonl",
                        "p",
                        "--key",
                        "absent",
                        "--user",
                        "user",
                        "--text",
                        "text",
                    )
                ),
            ),
            2,
            "partition.key",
        ),
        (("train", "absent.yaml"), 2, "absent.yaml"),
        (("train", "recipe.yaml", "training.epoch=2"), 2, "did you mean 'epochs'"),
        (("train", "recipe.yaml", "output=dialogues.jsonl"), 2, "exists already"),
        (("train", "recipe.yaml", "adapter.trunk_layers=9"), 2, "leaves nothing to train"),
        (("train", "recipe.yaml", "model.name=./absent"), 2, "no model folder"),
        (("train", "recipe.yaml", "model.name=owner/absent"), 3, "owner/absent"),
        (("train", "recipe.yaml", "model.name=pickled"), 4, "safetensors"),
        (("train", "recipe.yaml", "model.name=no-tokenizer"), 2, "no tokenizer"),
        (("train", "recipe.yaml", "model.name=remote-code"), 4, "remote|trust_remote_code"),
        (("train", "recipe.yaml", "held_out.share=0.001"), 2, "held"),
        (("evaluate", "absent"), 2, "not a Run"),
        (("evaluate",), 2, "--corpus"),
        (("generate", "dialogues.jsonl"), 2, "not a Run"),
        (("models", "path", "owner/absent"), 3, "owner/absent"),
        (("models", "create", "x"), 2, "--tokenizer"),
        (("models", "create", "x", "--vocabulary-from", "absent"), 2, "absent"),
        (
            (
                "corpus",
                "plant",
                "dialogues.jsonl",
                "o",
                "m",
                "--user",
                "user",
                "--text",
                "text",
                "--ladder",
                "x",
            ),
            2,
            "ladder",
        ),
        (
            (
                "corpus",
                "plant",
                "dialogues.jsonl",
                "o",
                "m",
                "--user",
                "user",
                "--text",
                "text",
                "--template",
                "x",
            ),
            2,
            "secret",
        ),
    ],
)
def test_bad_calls(
    tacit: Tacit, folder: Path, tiny_transformer: Path, arguments: tuple[str, ...], code: int, sentence: str
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
    result = tacit(*arguments)
    assert_one_sentence(result.code, result.err, code, sentence)
    assert files_in(folder) == before


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


def test_a_seed_out_of_range_leaves_nothing(tacit: Tacit, folder: Path) -> None:
    (folder / "recipe.yaml").write_text(RECIPE)
    for seed in ("-1", "99999999999999999999999"):
        result = tacit("train", "recipe.yaml", f"training.seed={seed}")
        assert_one_sentence(result.code, result.err, 2, "training.seed")
    assert not (folder / "runs").exists()
