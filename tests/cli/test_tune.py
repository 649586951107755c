"""`tacit tune`: a frontier from end to end, taken up wherever it was left, and what is refused."""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from rich.progress import Progress

from tacit.audit.frontiers import MEASURES
from tacit.cli.console import TerminalProgress
from tacit.errors import TrainingDiverged
from tacit.runs import Run
from tacit.training import train_run
from tacit.tuning import tracing
from tests.cli.conftest import RECIPE, Tacit, write_corpus
from tests.cli.test_bad_input import assert_one_sentence, files_in

# A learning rate at which a few steps change the perplexity, so that the values of a key can be told apart.
QUICK = (
    "training.max_steps=3",
    "training.learning_rate=0.01",
    "adapter={kind: lora, rank: 4, trunk_layers: 0}",
)
OVER = ("--over", "regularisation.lambda=0,1")
FEW = ("--documents", "4")


@pytest.fixture
def recipe(folder: Path) -> Path:
    # Short rows, so that authors have several: triplets compare rows by default.
    (folder / "recipe.yaml").write_text(RECIPE.replace("block_size: 64", "block_size: 16"))
    return folder


def tuned(tacit: Tacit, *arguments: str, method: str = "triplet", output: str = "runs/tuned") -> Any:
    given = ("tune", "recipe.yaml", f"method={method}", *QUICK, "--output", output, *arguments)
    result = tacit(*given, *FEW)
    assert result.code == 0, result.err
    return result.json() if "--json" in arguments else result


def counted(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """The names of the Runs that are trained and audited from here on."""
    calls: dict[str, list[str]] = {"train_run": [], "audit_run": []}

    def count(name: str) -> None:
        plain = getattr(tracing, name)

        def called(what: Any, *arguments: Any, **options: Any) -> Any:
            folder = what.folder if isinstance(what, Run) else Path(what.output)
            calls[name].append(folder.name)
            return plain(what, *arguments, **options)

        monkeypatch.setattr(tracing, name, called)

    for name in calls:
        count(name)
    return calls


@pytest.mark.slow
def test_a_frontier_from_canaries_to_one_perplexity(tacit: Tacit, recipe: Path) -> None:
    common = ("--user", "user", "--text", "text", "--users", "24", "--length", "3")
    assert tacit("corpus", "plant", "dialogues.jsonl", "planted.jsonl", "canaries.json", *common).code == 0
    planted = ("corpus.path=planted.jsonl", "--canaries", "canaries.json")
    shown = tuned(tacit, *planted, "--over", "regularisation.lambda=0,3e-1,30", method="adversarial")
    assert "adversarial over regularisation.lambda" in shown.out
    assert "the choice adds no promise" in shown.out
    content = json.loads((recipe / "runs/tuned/tune.json").read_text())
    assert [entry["run"] for entry in content["runs"]] == ["lambda-0", "lambda-0.3", "lambda-30"]
    assert {entry["state"] for entry in content["runs"]} == {"audited"}
    rows = content["frontier"]["rows"]
    assert [row["value"] for row in rows] == [0, 0.3, 30]
    assert content["frontier"]["at"] is None
    for row, entry in zip(rows, content["runs"], strict=True):
        run = Run.open(recipe / "runs/tuned" / entry["run"])
        assert run.manifest.recipe["regularisation"]["lambda"] == row["value"]
        assert (run.folder / "report.html").is_file()
        audit = json.loads((run.folder / "audit.json").read_text())
        assert audit["utility"]["run"]["value"] == row["perplexity"]["value"]
        for measure in ("exposure_mean", "auc", "tab", "disparity_gap"):
            assert measure in MEASURES
            assert row[measure]["low"] <= row[measure]["value"] <= row[measure]["high"]
    for name in ("tune.json", "tune.html"):
        assert (recipe / "runs/tuned" / name).stat().st_mode & 0o077 == 0
    assert "lambda-0.3" in (recipe / "runs/tuned/tune.html").read_text()
    # Between two Runs, and what `tacit compare` says of the same folder.
    perplexities = sorted(row["perplexity"]["value"] for row in rows)
    assert perplexities[0] < perplexities[1] < perplexities[2]
    middle = (perplexities[0] + perplexities[1]) / 2
    asked = (*planted, "--over", "regularisation.lambda=0,0.3,30", "--perplexity", str(middle))
    at = tuned(tacit, *asked, "--json", method="adversarial")["frontier"]["at"]
    assert 0 < at["value"] < 30
    assert at["how"].startswith("between lambda-")
    compared = tacit("compare", "runs/tuned", "--perplexity", str(middle), "--json")
    assert compared.code == 0, compared.err
    (method,) = compared.json()["methods"]
    assert method == {name: part for name, part in at.items() if name != "value"}


def test_what_is_finished_is_not_made_again_and_values_are_added(
    tacit: Tacit, recipe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = tuned(tacit, *OVER, "--json")
    calls = counted(monkeypatch)
    assert tuned(tacit, *OVER, "--json") == before
    assert calls == {"train_run": [], "audit_run": []}
    # One more value; what was trained stays, asked for again or not.
    plan = tacit("tune", "recipe.yaml", "method=triplet", *QUICK, "--output", "runs/tuned", "--dry-run",
                 "--over", "regularisation.lambda=0.5", *FEW, "--json")  # fmt: skip
    assert plan.code == 0, plan.err
    states = {row["run"]: row["state"] for row in plan.json()["runs"]}
    assert states == {"lambda-0": "finished", "lambda-0.5": "new", "lambda-1": "finished"}
    assert [row["seconds"] > 0 for row in plan.json()["runs"]] == [False, True, False]
    added = tuned(tacit, "--over", "regularisation.lambda=0.5", "--json")
    assert calls == {"train_run": ["lambda-0.5"], "audit_run": ["lambda-0.5"]}
    rows = added["frontier"]["rows"]
    assert [row["value"] for row in rows] == [0, 0.5, 1]
    assert [rows[0], rows[2]] == before["frontier"]["rows"]
    # Speed decides nothing about a Run; a Run whose audit is gone is audited, and not trained.
    (recipe / "runs/tuned/lambda-1/audit.json").unlink()
    tuned(tacit, *OVER, "performance.checkpoint_every=7")
    assert calls == {"train_run": ["lambda-0.5"], "audit_run": ["lambda-0.5", "lambda-1"]}


@pytest.mark.slow
def test_audits_stay_alike(tacit: Tacit, recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tuned(tacit, *OVER)
    calls = counted(monkeypatch)
    given = ("tune", "recipe.yaml", "method=triplet", *QUICK, "--output", "runs/tuned", *OVER)
    other = (*given, "--documents", "2")
    result = tacit(*other)
    assert_one_sentence(result.code, result.err, 2, "audited with another 'documents'; .*--audit-again")
    assert calls["audit_run"] == []
    assert tacit(*other, "--audit-again").code == 0
    assert calls == {"train_run": [], "audit_run": ["lambda-0", "lambda-1"]}
    assert tacit(*other).code == 0
    assert len(calls["audit_run"]) == 2
    # Somebody audits one of the Runs otherwise: it is made like the others again, and said so.
    assert tacit("audit", "runs/tuned/lambda-1", "--documents", "3").code == 0
    result = tacit(*other)
    assert result.code == 0, result.err
    assert "lambda-1 was audited otherwise since; it is audited again like the others\n" in result.err
    assert calls["audit_run"] == ["lambda-0", "lambda-1", "lambda-1"]


@pytest.mark.slow
def test_methods_of_two_folders_are_compared_at_one_perplexity(tacit: Tacit, recipe: Path) -> None:
    for method in ("adversarial", "triplet"):
        tuned(tacit, *OVER, method=method, output=f"runs/{method}")
    tuned(tacit, "--over", "training.max_steps=1,6", method="finetune", output="runs/plain")
    result = tacit("compare", "runs/plain", "runs/adversarial", "runs/triplet", "--json")
    assert result.code == 0, result.err
    assert [row["name"] for row in result.json()["runs"]] == [
        "max_steps-1",
        "max_steps-6",
        *(f"{method}/lambda-{value}" for method in ("adversarial", "triplet") for value in (0, 1)),
    ]
    assert [row["method"] for row in result.json()["methods"]] == ["finetune", "adversarial", "triplet"]
    # Another configuration of a method is another frontier.
    for pairs in ("batch", "second"):
        over = (f"regularisation.pairs={pairs}", "--over", "training.max_steps=1,6")
        tuned(tacit, *over, output=f"runs/{pairs}")
    result = tacit("compare", "runs/batch", "runs/second", "--json")
    assert result.code == 0, result.err
    assert [(row["method"], len(row["runs"])) for row in result.json()["methods"]] == [
        ("triplet (pairs=batch)", 2),
        ("triplet (pairs=second)", 2),
    ]
    assert tacit("compare", "runs/triplet/lambda-0", "runs/plain", "--html", "page.html").code == 0


@pytest.mark.slow
def test_who_chooses_among_private_runs_is_told_what_that_is(tacit: Tacit, recipe: Path) -> None:
    private = ("privacy.delta=1e-4", "--over", "privacy.noise_multiplier=1,2")
    shown = tuned(tacit, *private, method="dpsgd")
    assert "outside of it" in " ".join(shown.out.split())
    assert "outside of it" in json.loads((recipe / "runs/tuned/tune.json").read_text())["caution"]


@pytest.mark.slow
def test_a_value_that_diverges_is_told_and_the_others_are_traced(
    tacit: Tacit, recipe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def diverges(recipe: Any, **options: Any) -> Run:
        if recipe.regularisation.weight >= least:
            raise TrainingDiverged("The loss is not finite; lower training.learning_rate.")
        return train_run(recipe, **options)

    monkeypatch.setattr(tracing, "train_run", diverges)
    least = 5.0
    three = ("--over", "regularisation.lambda=0,1,5")
    content = tuned(tacit, *three, "--json")
    assert [entry["state"] for entry in content["runs"]] == ["audited", "audited", "diverged"]
    assert [row["value"] for row in content["frontier"]["rows"]] == [0, 1]
    assert "lambda-5: The loss is not finite" in tuned(tacit, *three).out
    least = 1.0
    given = ("tune", "recipe.yaml", "method=triplet", *QUICK, *OVER, *FEW)
    result = tacit(*given)
    assert result.code == 1
    assert "diverged at all values but 1" in result.err


@pytest.mark.slow
@pytest.mark.parametrize("method", ["triplet", "dpsgd"])
def test_a_rate_at_which_training_really_diverges_is_left_out(
    tacit: Tacit, recipe: Path, tiny_lstm: Path, method: str
) -> None:
    """Its weights are finite, and their perplexity is not. Of a private method only the audit looks at it."""
    settings = {
        "triplet": ["regularisation.lambda=0.1", "training.clip=1000000"],
        "dpsgd": ["privacy={noise_multiplier: 5, clip: 100, delta: 1e-4}"],
    }[method]
    (recipe / "recipe.yaml").write_text(
        RECIPE.replace("{rank: 4, trunk_layers: 2}", "{kind: full}\nheld_out: {share: 0.4, by: within}")
    )
    # Triplets need authors with two texts in training.
    rows = [json.loads(line) for line in (recipe / "dialogues.jsonl").read_text().splitlines()]
    fewer = [row | {"user": f"u{int(row['user'][1:]) % 10}"} for row in rows]
    (recipe / "dialogues.jsonl").write_text("".join(json.dumps(row) + "\n" for row in fewer))
    given = ("tune", "recipe.yaml", f"method={method}", f"model.name={tiny_lstm}",
             "training.optimiser=sgd", *settings, "--documents", "8", "--lines", "0",
             "--output", "div", "--json")  # fmt: skip
    first = tacit(*given, "--over", "training.learning_rate=0.01,0.001,100")
    assert first.code == 0, first.err
    for result in (first, tacit(*given, "--over", "training.learning_rate=0.01,0.001")):
        assert result.code == 0, result.err
        content = result.json()
        assert [entry["state"] for entry in content["runs"][:2]] == ["audited", "audited"]
        assert [row["value"] for row in content["frontier"]["rows"]] == [0.001, 0.01]
    diverged = first.json()["runs"][2]
    assert (diverged["state"], diverged["run"]) == ("diverged", "learning_rate-100")
    assert re.search("perplexity .* is not finite.*lower training.learning_rate", diverged["why"])
    assert "learning_rate-100: The perplexity" in first.err
    # Before a Run is named; but what noise covers is not withheld for what only the text tells.
    assert (recipe / "div/learning_rate-100").exists() == (method == "dpsgd")


@pytest.mark.slow
def test_killed_in_the_second_run_it_ends_as_if_undisturbed(
    tacit: Tacit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_transformer: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    write_corpus(tmp_path / "dialogues.jsonl", users=20)
    content = RECIPE.replace("block_size: 64", "block_size: 16")
    (tmp_path / "recipe.yaml").write_text(content + f"model: {{name: {tiny_transformer}}}\n")
    longer = ("training.max_steps=30", "performance.checkpoint_every=2", *FEW)
    given = ("tune", "recipe.yaml", "method=triplet", *OVER, *longer, "--output")
    command = [sys.executable, "-m", "tacit", *given, "killed"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    checkpoints = tmp_path / "killed/lambda-1.partial/private/checkpoint"
    while process.poll() is None and not list(checkpoints.glob("step-*")):
        time.sleep(0.02)
    process.send_signal(signal.SIGSTOP)  # it would be done before we had looked
    held = tacit(*given, "killed")  # one process at a time
    assert_one_sentence(held.code, held.err, 2, "being tuned by another process")
    process.kill()
    assert process.wait() == -signal.SIGKILL
    states = [entry["state"] for entry in json.loads((tmp_path / "killed/tune.json").read_text())["runs"]]
    assert states == ["audited", "waiting"]
    first = (tmp_path / "killed/lambda-0/run.json").stat()
    calls = counted(monkeypatch)
    resumed = tacit(*given, "killed", "--json")
    assert resumed.code == 0, resumed.err
    assert "resumed at step" in resumed.err
    assert calls == {"train_run": ["lambda-1"], "audit_run": ["lambda-1"]}
    assert (tmp_path / "killed/lambda-0/run.json").stat().st_ino == first.st_ino
    undisturbed = tacit(*given, "undisturbed", "--json")
    assert resumed.json()["frontier"] == undisturbed.json()["frontier"]
    for name in ("lambda-0", "lambda-1"):
        one, other = (Run.open(tmp_path / folder / name) for folder in ("killed", "undisturbed"))
        assert one.weights_sha256() == other.weights_sha256()


def test_an_interrupt_says_how_to_go_on(tacit: Tacit, recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = ("tune", "recipe.yaml", "method=triplet", *QUICK, *OVER, *FEW)

    def interrupt(*_: object, **__: object) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr("tacit.training.loop._step", interrupt)
        result = tacit(*given)
    assert result.code == 130
    assert result.err.splitlines() == [
        "stopped; what is finished is kept, and the same command goes on from there",
        "tacit: interrupted.",
    ]
    assert [path.name for path in (recipe / "runs/first-over-lambda").iterdir()] == ["tune.json"]
    assert tacit(*given).code == 0


def test_the_bar_of_the_whole_work_stays_and_those_of_a_run_go() -> None:
    bars = Progress(console=Console(file=io.StringIO(), force_terminal=True))
    progress = TerminalProgress(bars)
    for place, name in enumerate(("lambda-0", "lambda-1")):
        progress.stage(name, place, 2)
        assert [(task.description, task.completed) for task in bars.tasks] == [(name, place)]
        progress.phase("reading", None)
        progress.advance(3)
        progress.phase("steps", 5)
        assert [(task.description, task.completed, task.total) for task in bars.tasks] == [
            (name, place, 2),
            ("reading", 3, 3),
            ("steps", 0, 5),
        ]
    TerminalProgress(None).stage("no terminal", 0, 1)


@pytest.mark.slow
def test_the_commands_of_the_guide_run(tacit: Tacit, folder: Path) -> None:
    """With fewer values, and what the tiny model can read."""
    root = Path(__file__).parents[2]
    guide = (root / "docs/regularisation.md").read_text()
    shutil.copytree(root / "examples", folder / "examples")
    (block,) = re.findall(r"```console\n(.*?)```", guide, re.DOTALL)
    smaller = {"=0,0.1,1": "=0,1", "=25,100": "=1,2", "--users 40": "--users 8"}
    smaller |= {"--users 50": "--users 12", "among=200": "among=48"}
    (folder / "dialogues.jsonl").unlink()
    for line in block.strip().splitlines():
        for large, small in smaller.items():
            line = line.replace(large, small)
        words = shlex.split(line)[1:]
        if words[0] == "tune":
            words += ["adapter.trunk_layers=2", "training.block_size=64", "training.epochs=1", *FEW]
        result = tacit(*words)
        assert result.code == 0, (line, result.err)
    assert "triplet-over-lambda/lambda-0" not in result.out  # no two Runs of that name
    assert "lambda-0" in (folder / "compared.html").read_text()
    # No copy of a canary was held out.
    planted = [one for one in json.loads(Path("canaries.json").read_text())["canaries"] if one["inserted"]]
    for path in folder.glob("*-over-*/*/audit.json"):
        audit = json.loads(path.read_text())
        assert sum(row["inserted"] for row in audit["exposure"]["rows"]) == len(planted)
        assert not [note for note in audit["notes"] if "held out" in note]


BAD_CALLS = [
    ("--over regularisation.lamda=0,1", 2, "unknown key 'regularisation.lamda'; did you mean 'lambda'"),
    ("--over regularisation.lambda=0,x", 2, "'regularisation.lambda'='x' cannot be used: expected a number"),
    ("--over regularisation.lambda=0,-1", 2, "expected a number of at least 0"),
    ("--over regularisation.lambda=0,", 2, r"Expected --over KEY=V1,V2,\.\.\."),
    ("--over regularisation.lambda", 2, r"Expected --over KEY=V1,V2,\.\.\."),
    ("--over regularisation.lambda=0.1,1e-1", 2, r"'0.1' and '1e-1', which are one Run \(lambda-0.1\)"),
    ("--over regularisation.lambda=1", 2, "needs two values of 'regularisation.lambda' or more"),
    ("--over corpus.path=a,b", 2, "cannot vary 'corpus.path': .*one text"),
    ("--over method=triplet,adversarial", 2, "tune each method by itself"),
    ("--over output=a,b", 2, "its own folder"),
    ("--over performance.threads=1,2", 2, "changes no result"),
    ("method=submix training.max_steps=2 --over training.seed=1,2 regularisation=null", 2, "An ensemble is"),
    ("held_out=null --over training.epochs=1,2", 2, "held_out.share=0.2"),
    ("method=finetune training.epochs=1", 2, "needs two values of 'training.epochs' or more"),
    ("--canaries absent.json", 2, "Cannot read the canary manifest absent.json"),
    ("--against absent", 2, "absent is not a Run"),
    ("--preset regularisation", 2, "compares with a model without mitigation"),
    ("--output dialogues.jsonl", 2, "exists and is no folder of tacit tune .*give another --output"),
    ("--output empty", 2, "exists and is no folder of tacit tune .*give another --output"),
    ("--output dialogues.jsonl/x", 2, "Cannot create the folder"),
    ("--output foreign", 2, "foreign/tune.json is damaged"),
    ("--perplexity 0", 2, "Expected a finite perplexity"),
    ("--perplexity 20 --over regularisation.batches=user,mixed", 2, "not all of these are numbers; leave it"),
]


@pytest.mark.parametrize(("call", "code", "sentence"), BAD_CALLS, ids=[call for call, _, _ in BAD_CALLS])
def test_bad_calls(tacit: Tacit, recipe: Path, call: str, code: int, sentence: str) -> None:
    (recipe / "empty").mkdir()
    (recipe / "foreign").mkdir()
    (recipe / "foreign/tune.json").write_text("{")
    before = files_in(recipe)
    result = tacit("tune", "recipe.yaml", "method=triplet", *call.split())
    assert_one_sentence(result.code, result.err, code, sentence)
    assert files_in(recipe) == before


def test_another_recipe_or_text_is_refused(tacit: Tacit, recipe: Path) -> None:
    tuned(tacit, *OVER)
    given = ("tune", "recipe.yaml", "method=triplet", *QUICK, "--output", "runs/tuned", *FEW)
    before = files_in(recipe)
    for change, sentence in (
        (("training.max_steps=4", *OVER), "was begun with another 'training'; restore the recipe, or give"),
        (("--over", "training.seed=1,2"), "is a frontier over 'regularisation.lambda', not 'training.seed'"),
    ):
        result = tacit(*given, *change)
        assert_one_sentence(result.code, result.err, 2, sentence)
    shutil.copytree(recipe / "runs/tuned/lambda-0", recipe / "runs/tuned/lambda-2")
    result = tacit(*given, "--over", "regularisation.lambda=0,2")
    assert_one_sentence(result.code, result.err, 2, "lambda-2 was trained with another 'regularisation'")
    shutil.rmtree(recipe / "runs/tuned/lambda-2")
    write_corpus(recipe / "dialogues.jsonl", users=29)
    result = tacit(*given, "--over", "regularisation.lambda=0,2")
    assert_one_sentence(result.code, result.err, 2, "The corpus has changed since")
    assert files_in(recipe) == before


@pytest.mark.parametrize(
    ("change", "sentence"),
    [("regularisation.label=nowhere", "nowhere"), ("corpus.path=one.jsonl", "leaves nothing for evaluation")],
)
def test_a_recipe_that_cannot_be_trained_leaves_nothing_behind(
    tacit: Tacit, recipe: Path, change: str, sentence: str
) -> None:
    """The folder had been begun, and then refused the corrected recipe."""
    write_corpus(recipe / "one.jsonl", users=1)
    before = files_in(recipe)
    call = ("tune", "recipe.yaml", "method=triplet", *QUICK, *OVER, "--output", "runs/tuned", *FEW)
    result = tacit(*call, change)
    assert_one_sentence(result.code, result.err, 2, sentence)
    assert files_in(recipe) == before


def test_what_audits_need_is_looked_at_before_training(tacit: Tacit, recipe: Path) -> None:
    tacit("train", "recipe.yaml", "method=triplet", *QUICK, "output=runs/protected")
    before = files_in(recipe)
    call = ("tune", "recipe.yaml", "method=triplet", *QUICK, *OVER, "--output", "runs/tuned", *FEW)
    result = tacit(*call, "--against", "runs/protected")
    assert_one_sentence(result.code, result.err, 2, "is protected itself")
    assert files_in(recipe) == before
