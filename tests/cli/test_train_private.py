"""`tacit train` with private methods: the plan tells the price, the Run its promise."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from tacit.models.vocabulary import LSTMShape, create_lstm
from tacit.privacy import DpSgdProcess, dpsgd_curve
from tacit.runs import Run
from tests.cli.conftest import RECIPE, Tacit
from tests.tiny import byte_level_tokenizer
from tests.training.private_runs import screened, write_documents

PRIVATE = ("privacy.noise_multiplier=1", "privacy.delta=1e-4", "held_out=null")
DPSGD = ("method=dpsgd", *PRIVATE)
CRT = ("method=crt", *PRIVATE, "corpus={path: screened.jsonl}", "confidentiality={gamma: 0.1, delta2: 0}")
SAID = [(f"u{i % 5}", text) for i in range(8) for text in (f"Parcel {i} waits.", f"My number is {1000 + i}.")]


@pytest.fixture
def recipe(folder: Path) -> Path:
    (folder / "recipe.yaml").write_text(RECIPE)
    write_documents(folder / "raw.jsonl", SAID)
    screened(folder / "screened.jsonl", SAID)
    return folder / "recipe.yaml"


def test_the_plan_tells_rate_steps_and_epsilon_for_both_neighbours(
    tacit: Tacit, folder: Path, recipe: Path
) -> None:
    before = sorted(folder.rglob("*"))
    result = tacit("train", recipe, *DPSGD, "training.batch_size=6", "--dry-run", "--json")
    assert result.code == 0, result.err
    assert sorted(folder.rglob("*")) == before
    plan = result.json()
    process = DpSgdProcess(6 / 60, 1.0, 10)
    assert (plan["examples"], plan["expected_batch"]) == (60, 6)
    assert (plan["sampling_rate"], plan["private_steps"]) == (process.sampling_rate, process.steps)
    assert plan["epsilon_add_remove"] == dpsgd_curve(process, "add-remove").epsilon_at(1e-4)
    assert plan["epsilon_replace_one"] == dpsgd_curve(process, "replace-one").epsilon_at(1e-4)
    assert plan["gaussian_dp_mu"] == pytest.approx(0.1 * math.sqrt(10 * (math.e - 1)))
    assert plan["certificate"] is None
    shown = tacit("train", recipe, *DPSGD, "--dry-run")
    assert "epsilon replace one" in shown.out
    assert "on this machine" in shown.out


def test_crt_shows_its_certificate_before_and_after(tacit: Tacit, folder: Path, recipe: Path) -> None:
    planned = tacit("train", recipe, *CRT, "--dry-run", "--json")
    assert planned.code == 0, planned.err
    plan = planned.json()
    assert (plan["examples"], plan["public_points"]) == (8, 8)
    shown = tacit("train", recipe, *CRT)
    assert shown.code == 0, shown.err
    certificate = Run.open(folder / "runs/first").certificate()
    assert certificate is not None
    assert certificate["words"] == plan["certificate"]
    assert certificate["words"] in shown.out
    done = tacit("train", recipe, *CRT, "output=runs/second", "--json").json()
    assert done["certificate"]["words"] == certificate["words"]
    published = (folder / "runs/first/certificate.json").read_text()
    assert json.loads(published)["private_part"] is None
    assert "Parcel" not in published + (folder / "runs/first/run.json").read_text()
    for command in (
        ("evaluate", "runs/first", "--corpus", "screened.jsonl"),
        ("generate", "runs/first"),
        ("generate", "runs/first", "--masks"),
    ):
        result = tacit(*command)
        assert result.code == 0, result.err
    # Beside the non-private baseline on the same file.
    plain = ("corpus={path: screened.jsonl}", "held_out=null", "output=runs/plain")
    assert tacit("train", recipe, *plain).code == 0
    for run in ("runs/first", "runs/plain"):
        assert tacit("audit", run, "--documents", "0", "--no-report").code == 0
    compared = tacit("compare", "runs/plain", "runs/first")
    assert compared.code == 0, compared.err
    assert "crt" in compared.out
    refused = tacit("generate", "--masks")
    assert refused.code == 2
    assert "this one has no <MASK>" in refused.err


def test_selective_training_is_planned_and_trained(tacit: Tacit, folder: Path, recipe: Path) -> None:
    create_lstm(
        folder / "lstm",
        shape=LSTMShape(layers=1, hidden_size=8, embedding_size=8),
        tokenizer=byte_level_tokenizer(),
        vocabulary="public",
        seed=1,
    )
    given = (
        "method=selective",
        *PRIVATE,
        "model.name=lstm",
        "corpus={path: raw.jsonl, user: user, text: text}",
        "adapter={kind: full, rank: 16, trunk_layers: 0}",
        "selective.screened=screened.jsonl",
    )
    planned = tacit("train", recipe, *given, "--dry-run", "--json")
    assert planned.code == 0, planned.err
    assert (planned.json()["sampling_rate"], planned.json()["private_steps"]) == (1.0, 1)
    done = tacit("train", recipe, *given, "--json")
    assert done.code == 0, done.err
    assert "without a finite epsilon" in done.json()["guarantee"]


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (("method=dpsgd",), "method 'dpsgd' needs a section 'privacy'"),
        ((*DPSGD, "privacy.delta=1"), "'privacy.delta'=1 cannot be used: expected a number below 1"),
        (
            ("method=dpsgd", "privacy={epsilon: 1e-5, delta: 1e-9}", "training.epochs=9999"),
            "no noise multiplier up to 1000 reaches it",
        ),
        ((*CRT, "corpus.path=dialogues.jsonl"), "is not a screened corpus, and method 'crt' needs one"),
        ((*CRT, "confidentiality={calibration: absent.json, gamma: null, delta2: null}"), "absent.json"),
    ],
)
@pytest.mark.parametrize("option", ["--dry-run", "--json"])
def test_mistakes_are_told_in_a_sentence(
    tacit: Tacit, folder: Path, recipe: Path, overrides: tuple[str, ...], sentence: str, option: str
) -> None:
    result = tacit("train", recipe, *overrides, option)
    assert result.code == 2
    assert sentence in " ".join(result.err.split())
    assert "Traceback" not in result.err
    assert not list(folder.glob("runs/*"))
