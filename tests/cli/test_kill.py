"""A training process that is killed for real, and continued."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tacit.runs import Run
from tests.cli.conftest import RECIPE, write_corpus

LONGER = ("training.epochs=6", "training.batch_size=1", "performance.checkpoint_every=2")


def start(folder: Path, *arguments: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tacit", "train", "recipe.yaml", *LONGER, *arguments]
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def prepare(folder: Path, model: Path) -> None:
    write_corpus(folder / "dialogues.jsonl", users=60)
    (folder / "recipe.yaml").write_text(RECIPE + f"model: {{name: {model}}}\n")


def wait_for_checkpoint(folder: Path, process: subprocess.Popen[bytes]) -> None:
    while process.poll() is None:
        if list((folder / "runs/first.partial/private/checkpoint").glob("step-*")):
            return
        time.sleep(0.02)


@pytest.mark.slow
def test_sigkill_and_resume_give_the_weights_of_an_undisturbed_run(
    tmp_path: Path, tiny_transformer: Path
) -> None:
    prepare(tmp_path, tiny_transformer)
    process = start(tmp_path)
    wait_for_checkpoint(tmp_path, process)
    process.kill()
    assert process.wait() == -9
    assert not (tmp_path / "runs/first").exists()
    assert start(tmp_path).wait() == 2  # an unfinished run is neither overwritten nor continued unasked
    assert start(tmp_path, "--resume").wait() == 0
    assert start(tmp_path, "output=runs/undisturbed").wait() == 0
    killed, undisturbed = (Run.open(tmp_path / "runs" / name) for name in ("first", "undisturbed"))
    assert killed.manifest.weights_sha256 == undisturbed.manifest.weights_sha256


@pytest.mark.soak
def test_many_kills_at_random_moments(tmp_path: Path, tiny_model: Path) -> None:
    prepare(tmp_path, tiny_model)
    trunk = "adapter.trunk_layers=1"
    assert start(tmp_path, trunk, "output=runs/undisturbed").wait() == 0
    undisturbed = Run.open(tmp_path / "runs/undisturbed").manifest.weights_sha256
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
        assert Run.open(tmp_path / f"runs/killed-{trial}").manifest.weights_sha256 == undisturbed
