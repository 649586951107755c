"""`method: dpsgd` end to end: what is sampled, what is promised, and that a kill changes neither."""

from __future__ import annotations

import json
import math
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from tacit.corpus import UserCorpus
from tacit.errors import InputError, RecipeError
from tacit.evaluation import measure_losses
from tacit.models.trained import load_trained
from tacit.privacy import DpSgdProcess, Guarantee, PrivacyCurve, dpsgd_curve, gaussian_dp_mu
from tacit.progress import Silent
from tacit.recipes import TrainingSection
from tacit.runs import Run
from tacit.training import train_privately
from tacit.training.dpsgd import prepare_unpacked, privacy_of
from tacit.training.finetune import task_for
from tacit.training.phases import Phases, Place
from tacit.training.privacy_plan import PrivacyPlan, steps_until
from tacit.training.records import examples_of
from tests.training.private_runs import KillAt, Killed, odd_documents, private_recipe, write_documents

ODD = UserCorpus.from_pairs([(f"n{i}", "Parcel 3 waits behind the mill before lunch.") for i in range(4)])


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    return write_documents(tmp_path / "private.jsonl", odd_documents())


def improvement(run: Run) -> float:
    """How many nats per token of odd text the Run needs less than the public model."""
    trained = load_trained(run)
    public, after = (measure_losses(trained.public, ODD, model=m) for m in (None, trained.model))
    return float((public.nats.sum() - after.nats.sum()) / public.tokens.sum())


def test_little_noise_learns_and_much_noise_learns_nothing(
    tiny_model: Path, corpus: Path, tmp_path: Path
) -> None:
    settings: dict[str, Any] = {"training": {"epochs": 5, "batch_size": 8, "learning_rate": 2e-2}}
    quiet = private_recipe(
        tiny_model, corpus, tmp_path / "quiet", privacy={"noise_multiplier": 0.05}, **settings
    )
    loud = private_recipe(
        tiny_model, corpus, tmp_path / "loud", privacy={"noise_multiplier": 900}, **settings
    )
    learnt = improvement(train_privately(quiet))
    assert learnt > 0.3
    assert improvement(train_privately(loud)) < 0.15 * learnt  # a random walk may go either way a little


@pytest.mark.parametrize("unit", ["example", "user"])
def test_the_run_says_what_it_promises(tiny_transformer: Path, tmp_path: Path, unit: str) -> None:
    documents = [(f"user-{i % 10}", f"Parcel {i} waits at home.") for i in range(30)]
    corpus = write_documents(tmp_path / "c.jsonl", documents)
    recipe = private_recipe(
        tiny_transformer,
        corpus,
        tmp_path / "run",
        training={"seed": None, "batch_size": 2, "accumulate": 2},
        privacy={"unit": unit, "noise_multiplier": None, "epsilon": 6.0},
    )
    run = train_privately(recipe)
    examples = 10 if unit == "user" else 30
    privacy = json.loads((run.folder / "privacy.json").read_text())
    process = DpSgdProcess.from_json(privacy["dpsgd"]["process"])
    assert process.sampling_rate == 4 / examples
    assert process.steps == math.ceil(2 * examples / 4)
    guarantee = Guarantee.from_json(privacy)
    assert guarantee == Guarantee.from_json(run.manifest.guarantee)
    assert (guarantee.kind, guarantee.unit, guarantee.delta) == ("dp", unit, 1e-4)
    assert guarantee.epsilon is not None
    assert 5.9 < guarantee.epsilon <= 6.0
    assert guarantee.epsilon == dpsgd_curve(process, "add-remove").epsilon_at(1e-4)
    assert "add-remove" in str(guarantee)
    assert "the number of examples, which was counted and is taken as public" in str(guarantee)
    curves = [PrivacyCurve.from_json(one) for one in privacy["dpsgd"]["curves"]]
    limit = privacy["dpsgd"]["gaussian_dp"]
    assert limit == {"mu": gaussian_dp_mu(process).mu, "label": limit["label"]}
    assert "never a bound" in limit["label"]
    assert [curve.adjacency for curve in curves] == ["add-remove", "replace-one"]
    assert curves[1].epsilon_at(1e-4) > curves[0].epsilon_at(1e-4) == guarantee.epsilon
    # Such weights may be released, and so may their hashes; counts of what was clipped may not.
    assert run.manifest.weights_sha256 is not None
    told = run.folder / "private" / "training.json"
    assert stat.S_IMODE(told.stat().st_mode) == 0o600
    assert json.loads(told.read_text())["private_steps"] == process.steps
    assert "clipped" not in (run.folder / "run.json").read_text() + (run.folder / "privacy.json").read_text()


def test_a_seeded_run_is_an_experiment(tiny_transformer: Path, corpus: Path, tmp_path: Path) -> None:
    run = train_privately(private_recipe(tiny_transformer, corpus, tmp_path / "run"))
    assert run.manifest.seeded
    assert "whoever knows training.seed can take away again" in run.manifest.guarantee["statement"]
    assert run.manifest.weights_sha256 is None


def test_no_noise_promises_nothing(tiny_transformer: Path, corpus: Path, tmp_path: Path) -> None:
    recipe = private_recipe(
        tiny_transformer, corpus, tmp_path / "run", privacy={"noise_multiplier": 0.0}, training={"seed": None}
    )
    run = train_privately(recipe)
    assert run.manifest.guarantee["epsilon"] == "inf"
    assert run.manifest.weights_sha256 is None


@pytest.mark.parametrize("step", [1, 4, 7])
def test_a_killed_run_resumes_with_its_account(
    tiny_transformer: Path, corpus: Path, tmp_path: Path, step: int
) -> None:
    whole = train_privately(private_recipe(tiny_transformer, corpus, tmp_path / "whole"))
    recipe = private_recipe(tiny_transformer, corpus, tmp_path / "killed")
    with pytest.raises(Killed):
        train_privately(recipe, progress=KillAt(step))
    torch.manual_seed(999)
    resumed = train_privately(recipe, resume=True)
    assert resumed.weights_sha256() == whole.weights_sha256()
    accounts = [json.loads((run.folder / "privacy.json").read_text())["dpsgd"] for run in (whole, resumed)]
    assert accounts[0] == accounts[1]
    told = json.loads((resumed.folder / "private" / "training.json").read_text())
    assert told["private_steps"] == accounts[0]["process"]["steps"] == 8


def test_an_unseeded_resume_draws_new_noise(
    tiny_transformer: Path, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a lost step drew must not come back: over another batch it would cancel."""
    drawn: list[bytes] = []
    from tacit.training.private_steps.noise import CipherNoise

    fill = CipherNoise.fill

    def noting(self: CipherNoise, room: torch.Tensor, deviation: float) -> None:
        fill(self, room, deviation)
        if len(room) > 100:
            drawn.append(room.numpy().tobytes())

    monkeypatch.setattr(CipherNoise, "fill", noting)
    changes: dict[str, Any] = {"training": {"seed": None}, "performance": {"engine": "auto"}}
    recipe = private_recipe(tiny_transformer, corpus, tmp_path / "run", **changes)
    with pytest.raises(Killed):
        train_privately(recipe, progress=KillAt(5))
    lost = len(drawn)
    checkpoint = next((tmp_path / "run.partial" / "private" / "checkpoint").iterdir())
    standing = json.loads((checkpoint / "standing.json").read_text())
    # Measured anew, the engine might be another: the one that was chosen is saved, and taken up below.
    saved = standing["private"]["engine"]
    other = {"book-keeping": "loop", "loop": "book-keeping"}[saved["engine"]]
    standing["private"]["engine"] = saved | {"engine": other}
    (checkpoint / "standing.json").write_text(json.dumps(standing))
    assert (standing["step"], standing["private"]["account"]["steps"]) == (3, 3)
    assert not any(
        "noise" in name or "generator" in name for name in load_file(checkpoint / "state.safetensors")
    )
    run = train_privately(recipe, resume=True)
    assert len(set(drawn)) == len(drawn) > lost
    # Steps 4 and 5 were lost with their noise, neither kept nor released: 8 steps led to these weights.
    told = json.loads((run.folder / "private" / "training.json").read_text())
    assert (told["private_steps"], told["engine"]) == (8, other)
    assert told["examples"] == 24 < told["sampled"]


def test_a_checkpoint_without_its_account_is_refused(
    tiny_transformer: Path, corpus: Path, tmp_path: Path
) -> None:
    recipe = private_recipe(tiny_transformer, corpus, tmp_path / "run")
    with pytest.raises(Killed):
        train_privately(recipe, progress=KillAt(4))
    standing = next((tmp_path / "run.partial" / "private" / "checkpoint").iterdir()) / "standing.json"
    content = json.loads(standing.read_text())
    standing.write_text(json.dumps(content | {"private": None}))
    with pytest.raises(InputError, match="account of private steps is damaged"):
        train_privately(recipe, resume=True)


def test_examples_are_documents_or_users_whatever_they_hold(tiny_transformer: Path, tmp_path: Path) -> None:
    long = " ".join(f"the baker finds {i} lamps at home." for i in range(12))
    documents = [("a", "the baker"), ("b", long), ("a", "at home"), ("c", "by the river"), ("b", "at night")]
    corpus = write_documents(tmp_path / "c.jsonl", documents)

    def rows_of(**privacy: Any) -> tuple[list[list[int]], Any]:
        recipe = private_recipe(tiny_transformer, corpus, tmp_path / "run", privacy=privacy)
        prepared = prepare_unpacked(recipe, tmp_path, Silent())
        examples = examples_of(prepared.rows, privacy_of(recipe), task_for(prepared, fused=False).make_batch)
        return [own.tolist() for own in examples.rows], prepared

    by_document, prepared = rows_of()
    assert len(by_document) == 5
    assert len(by_document[1]) > 1  # several rows, one example
    assert sorted(row for own in by_document for row in own) == list(range(len(prepared.rows)))
    assert not prepared.rows.packed
    for number, own in enumerate(by_document):
        assert {int(prepared.rows.corpus.piece_document[row]) for row in own} == {number}
    by_user, _ = rows_of(unit="user")
    assert by_user == [by_document[0] + by_document[2], by_document[1] + by_document[4], by_document[3]]
    stated, _ = rows_of(examples=8)
    assert stated == [*by_document, [], [], []]
    with pytest.raises(
        RecipeError, match="examples=4 is fewer than the corpus has; state one that is public"
    ):
        rows_of(examples=4)


def test_the_rate_and_the_steps_follow_from_a_stated_number(
    tiny_transformer: Path, corpus: Path, tmp_path: Path
) -> None:
    recipe = private_recipe(tiny_transformer, corpus, tmp_path / "run", privacy={"examples": 60})
    run = train_privately(recipe)
    process = json.loads((run.folder / "privacy.json").read_text())["dpsgd"]["process"]
    assert process == {"sampling_rate": 0.1, "noise_multiplier": 1.0, "steps": 20}
    assert "number of examples" not in run.manifest.guarantee["statement"]


@pytest.mark.parametrize(("population", "batch"), [(10, 4), (7, 7), (3, 8), (1, 1), (1000, 7), (0, 4)])
def test_epochs_see_every_example_once_in_expectation(population: int, batch: int) -> None:
    training = TrainingSection(batch_size=batch, epochs=5)
    for epoch in range(6):
        expected = epoch * population / min(batch, population or 1)
        assert 0 <= steps_until(training, population, epoch) - expected < 1
    section = private_recipe(Path("m"), Path("c"), Path("o")).privacy
    assert section is not None
    plan = PrivacyPlan.of(section, training, population)
    assert plan.steps == steps_until(training, population, 5)
    assert plan.sampling_rate == (min(1.0, batch / population) if population else 0)
    phases = Phases.alternating(training, plan, 3)
    assert phases.total("private") == plan.steps
    assert phases.total("public") == 15
    places = [phases.at(step) for step in range(phases.steps)]
    assert [p.number for p in places if p.kind == "private"] == list(range(plan.steps))
    assert [p.number for p in places if p.kind == "public"] == list(range(15))
    assert places[0] == Place("public", 0)


def test_a_target_that_no_noise_reaches_is_refused(
    tiny_transformer: Path, corpus: Path, tmp_path: Path
) -> None:
    recipe = private_recipe(
        tiny_transformer,
        corpus,
        tmp_path / "run",
        privacy={"noise_multiplier": None, "epsilon": 1e-4, "delta": 1e-9},
        training={"epochs": 100_000},
    )
    with pytest.raises(
        RecipeError, match=r"privacy.epsilon=0.0001: no noise multiplier up to 1000 reaches it"
    ):
        train_privately(recipe)
    assert not (tmp_path / "run").exists()
    assert not (tmp_path / "run.partial").exists()


def test_a_group_shares_one_clipped_mean_and_pays_with_twice_the_noise(
    tiny_transformer: Path, corpus: Path, tmp_path: Path
) -> None:
    recipe = private_recipe(tiny_transformer, corpus, tmp_path / "run", privacy={"group": 3})
    section = privacy_of(recipe)
    plan = PrivacyPlan.of(section, recipe.training, 24)
    assert plan.step_privacy.noise_deviation == 2 * section.clip
    run = train_privately(recipe)
    assert json.loads((run.folder / "privacy.json").read_text())["dpsgd"]["group"] == 3
    assert np.isfinite(improvement(run))


@pytest.mark.parametrize(
    "adapter", [{"kind": "full"}, {"kind": "top", "trunk_layers": 1}, {"trunk_layers": 1}]
)
def test_all_adapters_train_with_both_engines(
    tiny_model: Path, corpus: Path, tmp_path: Path, adapter: dict[str, Any]
) -> None:
    weights = []
    for engine in ("loop", "bookkeeping"):
        recipe = private_recipe(
            tiny_model,
            corpus,
            tmp_path / engine,
            adapter=adapter,
            performance={"engine": engine, "microbatch": 4},
            training={"epochs": 1, "optimiser": "sgd"},
        )
        run = train_privately(recipe)
        (file,) = run.weights.glob("*.safetensors")
        weights.append(load_file(file))
    for name, tensor in weights[0].items():
        torch.testing.assert_close(tensor, weights[1][name], rtol=1e-4, atol=1e-5)
