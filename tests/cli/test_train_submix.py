"""`tacit train` with method submix: the plan, the Run, mistakes in a sentence, and a kill for real."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tacit.corpus import CorpusSource, Partition, UserCorpus
from tacit.runs import Run
from tests.cli.conftest import RECIPE, Tacit, write_corpus

SUBMIX = RECIPE.replace("training: {epochs: 1,", "training: {max_steps: 4,") + (
    "method: submix\nensemble: {parts: 2}\n"
)


@pytest.fixture
def recipe(folder: Path) -> Path:
    (folder / "recipe.yaml").write_text(SUBMIX)
    return folder / "recipe.yaml"


def test_the_plan_and_the_run(tacit: Tacit, folder: Path, recipe: Path) -> None:
    before = sorted(folder.rglob("*"))
    plan = tacit("train", recipe, "--dry-run", "--json").json()
    assert sorted(folder.rglob("*")) == before
    assert (plan["method"], plan["members"], plan["steps"]) == ("submix", 4, 4)
    assert plan["trained_together"] == 4
    assert plan["users"] + plan["held_out_users"] == 30
    assert plan["users_per_member_least"] <= plan["users_per_member_median"] <= plan["users_per_member_most"]
    assert 0 < plan["trainable_parameters_per_member"] < plan["parameters"]
    assert plan["seconds"] > 0
    shown = tacit("train", recipe, "--dry-run", "adapter.kind=top", "adapter.rank=16")
    assert shown.code == 0, shown.err
    assert "users per member median" in shown.out
    assert "on this machine" in shown.out
    done = tacit("train", recipe, "--json")
    assert done.code == 0, done.err
    assert done.json()["weights"] == "runs/first/members"
    assert "must not be released" in done.json()["guarantee"]
    run = Run.open(folder / "runs/first")
    assert run.manifest.ensemble is not None
    assert sorted(path.name for path in run.weights.iterdir()) == run.manifest.ensemble.names


def test_epochs_that_are_not_used_are_remarked_on(tacit: Tacit, recipe: Path) -> None:
    said = "training.epochs=9 is not used: every member takes training.max_steps=4 steps"
    for option in ("--dry-run", "--json"):
        assert said in tacit("train", recipe, "training.epochs=9", option).err
        assert "epochs" not in tacit("train", recipe, "output=runs/other", "--dry-run").err


def test_members_without_text_are_counted_in_one_line(tacit: Tacit, recipe: Path) -> None:
    result = tacit("train", recipe, "ensemble.parts=40")
    assert result.code == 0, result.err
    (warning,) = (line for line in result.err.splitlines() if "warning" in line)
    assert "of 80 members hold no text and will answer as the public model: part-0" in warning
    assert "more." in warning


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("ensemble.parts=0", "expected a number of at least 1"),
        ("training.max_steps=null", "needs 'training.max_steps'"),
        ("ensemble.key=nowhere.key", "nowhere.key: cannot be read"),
        ("ensemble.key=recipe.yaml", "recipe.yaml: is not a partition key"),
        ("adapter.targets=[magic]", "'magic' is no linear layer of the model"),
        ("adapter.trunk_layers=4", "trunk_layers=4 leaves nothing to"),
        ("training.block_size=4096", "longer than the model's context"),
    ],
)
def test_mistakes_get_a_sentence_and_leave_nothing(
    tacit: Tacit, folder: Path, recipe: Path, override: str, sentence: str
) -> None:
    for option in ((), ("--dry-run",)):
        result = tacit("train", recipe, override, *option)
        assert result.code == 2, result.err
        assert sentence in result.err
        assert "Traceback" not in result.err
        assert not (folder / "runs").exists() or not list((folder / "runs").iterdir())


LONGER = (
    "training.max_steps=24",
    "training.batch_size=1",
    "performance.checkpoint_every=2",
    "ensemble.key=parts/private/partition.key",
)


def has_weights(folder: Path) -> bool:
    """Whether weights are below; os.walk passes over folders that are renamed while it looks."""
    return any(name.endswith(".safetensors") for _, _, names in os.walk(folder) for name in names)


@pytest.mark.slow
@pytest.mark.parametrize("joint", ["true", "false"])
def test_sigkill_and_resume_give_the_members_of_an_undisturbed_run(
    tacit: Tacit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_transformer: Path, joint: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write_corpus(tmp_path / "dialogues.jsonl", users=30)
    (tmp_path / "recipe.yaml").write_text(SUBMIX + f"model: {{name: {tiny_transformer}}}\n")
    source = CorpusSource(str(tmp_path / "dialogues.jsonl"), user="user", text="text")
    Partition.create(UserCorpus.read(source), 2).save(tmp_path / "parts")
    how = ("train", "recipe.yaml", *LONGER, f"ensemble.joint={joint}")
    process = subprocess.Popen(
        [sys.executable, "-m", "tacit", *how], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    unfinished = tmp_path / "runs/first.partial"
    # Jointly: in the middle of the only group. One by one: when one member is done and the next has begun.
    signs = [unfinished / "private/checkpoint"] + ([] if joint == "true" else [unfinished / "members"])
    while process.poll() is None and not all(has_weights(sign) for sign in signs):
        time.sleep(0.02)
    process.kill()
    assert process.wait() == -9
    assert not (tmp_path / "runs/first").exists()
    assert tacit(*how).code == 2  # an unfinished run is neither overwritten nor continued unasked
    assert tacit(*how, "--resume").code == 0
    assert tacit(*how, "output=runs/undisturbed").code == 0
    killed, undisturbed = (Run.open(tmp_path / "runs" / name) for name in ("first", "undisturbed"))
    assert killed.weights_sha256() == undisturbed.weights_sha256()
