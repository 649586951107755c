"""The command line in a folder of its own, with a tiny model under the embedded model's name."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tacit.cli import main
from tacit.recipes import DEFAULT_MODEL
from tests.tiny import public_sentences


@dataclass(frozen=True)
class Result:
    """What a command did."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        """Standard output, which must be one JSON value and nothing else."""
        return json.loads(self.out)


Tacit = Callable[..., Result]


@pytest.fixture
def tacit(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Tacit:
    """Run the command line in this process, as its entry point does."""

    def run(*arguments: str | Path) -> Result:
        monkeypatch.setattr("sys.argv", ["tacit", *map(str, arguments)])
        capfd.readouterr()
        try:
            main()
            code = 0
        except SystemExit as stopped:
            code = stopped.code if isinstance(stopped.code, int) else 0 if stopped.code is None else 1
        captured = capfd.readouterr()
        return Result(code, captured.out, captured.err)

    return run


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_transformer: Path) -> Path:
    """The current folder, with a corpus; the embedded model's name means the tiny transformer here."""
    home = tmp_path / "home"
    shutil.copytree(tiny_transformer, home / "models" / DEFAULT_MODEL)
    monkeypatch.setenv("TACIT_HOME", str(home))
    monkeypatch.setenv("COLUMNS", "100")
    place = tmp_path / "place"
    place.mkdir()
    monkeypatch.chdir(place)
    write_corpus(place / "dialogues.jsonl")
    return place


def write_corpus(path: Path, users: int = 30) -> None:
    """A small corpus with the columns user and text, and one column more."""
    rows = [
        {"user": f"u{user}", "text": " ".join(public_sentences(2, seed=user + turn)), "extra": [turn]}
        for user in range(users)
        for turn in range(2)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


RECIPE = """\
output: runs/first
corpus: {path: dialogues.jsonl, user: user, text: text}
adapter: {rank: 4, trunk_layers: 2}
training: {epochs: 1, block_size: 64, batch_size: 4, seed: 1}
"""
