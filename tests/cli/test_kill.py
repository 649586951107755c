"""A training process that is killed for real, and continued."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tacit.runs import Run
from tacit.training import loop
from tests.cli.conftest import RECIPE, Tacit, write_corpus

# A hundred steps: enough are left to be killed in after the first checkpoint, and nobody waits long.
LONGER = ("training.epochs=3", "training.batch_size=1", "performance.checkpoint_every=2")


def start(folder: Path, *arguments: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tacit", "train", "recipe.yaml", *LONGER, *arguments]
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def prepare(folder: Path, model: Path) -> None:
    write_corpus(folder / "dialogues.jsonl", users=20)
    (folder / "recipe.yaml").write_text(RECIPE + f"model: {{name: {model}}}\n")


def wait_for_checkpoint(folder: Path, process: subprocess.Popen[Any]) -> None:
    while process.poll() is None:
        if list((folder / "runs/first.partial/private/checkpoint").glob("step-*")):
            return
        time.sleep(0.02)


@pytest.mark.slow
def test_sigkill_and_resume_give_the_weights_of_an_undisturbed_run(
    tacit: Tacit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_transformer: Path
) -> None:
    """The one is killed in a process of its own and continued in another; the other is one process' work."""
    prepare(tmp_path, tiny_transformer)
    monkeypatch.chdir(tmp_path)
    process = start(tmp_path)
    wait_for_checkpoint(tmp_path, process)
    process.kill()
    assert process.wait() == -9
    assert not (tmp_path / "runs/first").exists()
    again = ("train", "recipe.yaml", *LONGER)
    assert tacit(*again).code == 2  # an unfinished run is neither overwritten nor continued unasked
    taken: list[int] = []
    step = loop._step

    def counted(*arguments: Any, **options: Any) -> Any:
        taken[-1] += 1
        return step(*arguments, **options)

    monkeypatch.setattr(loop, "_step", counted)
    for option in ("--resume", "output=runs/undisturbed"):
        taken.append(0)
        result = tacit(*again, option)
        assert result.code == 0, result.err
    killed, undisturbed = (Run.open(tmp_path / "runs" / name) for name in ("first", "undisturbed"))
    assert killed.weights_sha256() == undisturbed.weights_sha256()
    assert 0 < taken[0] < taken[1], "it was continued, not begun again"


@pytest.mark.slow
@pytest.mark.parametrize(("number", "word"), [(signal.SIGTERM, "terminated"), (signal.SIGINT, "interrupted")])
def test_a_polite_signal_cleans_up_and_says_so_in_a_line(
    tacit: Tacit,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    tiny_transformer: Path,
    number: signal.Signals,
    word: str,
) -> None:
    prepare(tmp_path, tiny_transformer)
    monkeypatch.chdir(tmp_path)
    elsewhere = tmp_path / "temporary"
    elsewhere.mkdir()
    process = subprocess.Popen(
        [sys.executable, "-m", "tacit", "train", "recipe.yaml", *LONGER, "training.epochs=500"],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"TMPDIR": str(elsewhere)},
    )
    wait_for_checkpoint(tmp_path, process)
    # One process at a time: the run is taken.
    second = tacit("train", "recipe.yaml", *LONGER, "training.epochs=500", "--resume")
    assert second.code == 2
    assert second.err.startswith("tacit: runs/first.partial is being trained by another process")
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert said.splitlines()[-2:] == [
        "stopped; continue with the same recipe and overrides: tacit train RECIPE [KEY=VALUE]... --resume",
        f"tacit: {word}.",
    ]
    assert "Traceback" not in said
    assert not (tmp_path / "runs/first.partial/private/work").exists()
    assert not [path for path in elsewhere.iterdir() if path.name.startswith("tacit")]


def test_an_interrupt_before_the_first_checkpoint_leaves_nothing(
    tacit: Tacit, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "recipe.yaml").write_text(RECIPE)

    def interrupt(*_: object, **__: object) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr("tacit.training.loop._step", interrupt)
        result = tacit("train", "recipe.yaml")
    assert result.code == 143
    assert result.err.splitlines() == [
        "stopped before the first checkpoint; nothing was kept",
        "tacit: terminated.",
    ]
    assert not list((folder / "runs").iterdir())
    assert tacit("train", "recipe.yaml", "training.max_steps=1").code == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_while_commands_are_imported_is_one_line(number: signal.Signals) -> None:
    code = f"""
import builtins, os
from tacit.cli import main
plain = builtins.__import__
def interrupted(name, *others):
    if name.startswith("rich"):
        os.kill(os.getpid(), {int(number)})
        raise ImportError("what C code makes of it")
    return plain(name, *others)
builtins.__import__ = interrupted
main()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 128 + number
    assert re.fullmatch(r"tacit: (interrupted|terminated)\.\n", done.stderr)


def test_signals_that_are_ignored_stay_ignored() -> None:
    code = """
import os, signal
signal.signal(signal.SIGHUP, signal.SIG_IGN)
import tacit.cli.app
from tacit.cli import main
tacit.cli.app.run = lambda: os.kill(os.getpid(), signal.SIGHUP)
main()
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("arguments", ["--help", "models --help", "--version", "models list --json"])
def test_a_reader_that_goes_away_is_no_error(arguments: str, tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "tacit", *arguments.split()]
    environment = os.environ | {"TACIT_HOME": str(tmp_path)}
    done = subprocess.run(
        command, stdout=writing, stderr=subprocess.PIPE, text=True, check=False, env=environment
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_many_kills_at_random_moments(tmp_path: Path, tiny_model: Path) -> None:
    prepare(tmp_path, tiny_model)
    trunk = "adapter.trunk_layers=1"
    assert start(tmp_path, trunk, "output=runs/undisturbed").wait() == 0
    undisturbed = Run.open(tmp_path / "runs/undisturbed").weights_sha256()
    draw = random.Random(0)
    for trial in range(10):
        output = f"output=runs/killed-{trial}"
        for _ in range(4):
            process = start(tmp_path, trunk, output, "--resume")
            time.sleep(draw.uniform(1, 12))
            process.kill()
            if process.wait() == 0:
                break
        if not (tmp_path / f"runs/killed-{trial}").exists():
            assert start(tmp_path, trunk, output, "--resume").wait() == 0
        assert Run.open(tmp_path / f"runs/killed-{trial}").weights_sha256() == undisturbed
