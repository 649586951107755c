"""The README: every command that it shows is run, every snippet is valid, every claim names its test."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tacit.recipes import parse_recipe
from tests.cli.conftest import Tacit
from tests.cli.test_help import commands, serving

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def fenced(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def console_with(command: str) -> list[str]:
    """The lines of the only block of commands that has this one, without the word tacit."""
    (block,) = (text for text in fenced("console") if command in text)
    return [line.removeprefix("tacit ") for line in block.strip().splitlines()]


def test_the_readme_names_every_command() -> None:
    for path, _ in commands():
        group = " ".join(path[:1] if path[0] == "account" else path)
        assert f"tacit {group}" in README or f"`{path[-1]}`" in README, path
    assert "make demo" in README
    assert "make test" in README


def test_recipes_in_the_readme_and_the_examples_are_valid() -> None:
    (recipe,) = fenced("yaml")
    assert parse_recipe(yaml.safe_load(recipe)).method == "finetune"
    guide = (ROOT / "docs" / "private_training.md").read_text()
    recipes = re.findall(r"```yaml\n(.*?)```", guide, re.DOTALL)
    assert [parse_recipe(yaml.safe_load(one)).method for one in recipes] == ["dpsgd", "crt"]
    for path in (ROOT / "examples").glob("*.yaml"):
        assert parse_recipe(yaml.safe_load(path.read_text())).output


# The first use, word by word, with the embedded model; only the corpus and the steps are fewer

BLOCKS = {  # by a command that no other block has
    "first use": "tacit evaluate first",
    "private answers": "examples/submix.yaml",
    "secrets": "examples/crt.yaml",
    "audit": "tacit audit",
}
SMALLER = {
    "--users 50 --dialogues 4": "--users 24 --dialogues 1",
    "--queries 256": "--queries 64 --block-size 32 --max-blocks 4",
    "--users 12 --ladder 1,12 --length 3": "--users 4 --ladder 1,12 --length 2 --include 1",
    "--documents 100": "--documents 3 --lines 0 --authors 0 --real none",
    "--users 60": "--users 9",
}
FEWER = ("training.max_steps=1", "training.block_size=64", "training.batch_size=1")


@pytest.fixture
def beside_the_examples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder like that in which the README's commands are given."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TACIT_LEDGER", str(tmp_path / "ledger.db"))
    return tmp_path


def run_all(tacit: Tacit, lines: Iterable[str]) -> None:
    for line in lines:
        for large, small in SMALLER.items():
            line = line.replace(large, small)
        words = shlex.split(line)
        if "examples/crt.yaml" in words:  # which takes whole epochs, here of large batches
            words += ["training.epochs=1", "training.batch_size=400", "public_phase.batch_size=100"]
        elif words[0] == "train":
            words += FEWER
        elif words[0] == "generate":
            words += ["--tokens", "5"]
        result = tacit(*words)
        assert result.code == 0, (line, result.err)
        assert result.out


def make_dialogues(tacit: Tacit) -> None:
    """What the first command of the first block leaves for all others."""
    run_all(tacit, console_with(BLOCKS["first use"])[:1])
    assert Path("dialogues.jsonl").is_file()


def test_every_block_of_commands_is_run() -> None:
    trains = [text for text in fenced("console") if "tacit train" in text]
    assert [any(sign in text for text in trains) for sign in BLOCKS.values()] == [True] * len(trains)
    assert [large for large in SMALLER if large not in README] == []


@pytest.mark.slow
@pytest.mark.download
@pytest.mark.usefixtures("beside_the_examples")
@pytest.mark.parametrize("block", ["first use", "secrets", "audit"])
def test_commands_of_the_readme_run(tacit: Tacit, block: str) -> None:
    if block != "first use":
        make_dialogues(tacit)
    run_all(tacit, console_with(BLOCKS[block]))


@pytest.mark.slow
@pytest.mark.download
@pytest.mark.usefixtures("beside_the_examples")
def test_the_snippets_of_python_run(tacit: Tacit, capfd: pytest.CaptureFixture[str]) -> None:
    make_dialogues(tacit)
    _, training, mechanisms = fenced("python")
    overrides = ", ".join(map(repr, FEWER))
    smaller = training.replace('"output=second"]', f'"output=second", {overrides}]')
    assert smaller != training
    found: dict[str, Any] = {}
    exec(smaller, found)  # noqa: S102 - our own
    assert capfd.readouterr().out.startswith("no guarantee")
    assert found["model"].num_parameters() > 134_000_000
    exec(mechanisms, found)  # noqa: S102 - our own
    for mixture in (found["mixture"], found["sure"]):
        assert float(mixture.pmf.sum()) == pytest.approx(1)
        assert len(mixture.charges) == 4


@pytest.mark.slow
@pytest.mark.download
def test_private_answers_are_given_and_served_as_the_readme_says(
    tacit: Tacit,
    beside_the_examples: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    make_dialogues(tacit)
    run_all(tacit, console_with(BLOCKS["private answers"]))
    init, keys, serve = (shlex.split(line) for line in console_with("tacit serve"))
    assert tacit(*init).code == 0
    monkeypatch.setenv("KEY", tacit(*keys, "--json").json()["key"])
    (curl,), (client, *_) = fenced("sh"), fenced("python")
    with serving([*serve, "--port", "0", "--admin-port", "0"], cwd=beside_the_examples) as said:
        found = re.search(r"http://127\.0\.0\.1:\d+(?=/v1)", said)
        assert found
        asked = subprocess.run(
            ["/bin/bash", "-c", curl.replace("http://localhost:8000", found[0])],
            check=True,
            capture_output=True,
            text=True,
        )
        assert json.loads(asked.stdout)["choices"][0]["finish_reason"] in ("stop", "length")
        assert "http://localhost:8000" in client
        capfd.readouterr()
        made: dict[str, Any] = {}
        exec(client.replace("http://localhost:8000", found[0]), made)  # noqa: S102 - our own
        made["client"].close()
        assert capfd.readouterr().out.strip()


def test_claims_in_the_guarantees_name_tests_that_exist() -> None:
    text = (ROOT / "docs" / "guarantees.md").read_text()
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", text)
    assert len(named) > 15
    for file, test in named:
        assert (ROOT / file).is_file(), file
        assert not test or f"def {test}(" in (ROOT / file).read_text(), test
