"""`tacit evaluate` of ensembles, on Runs that were trained for it."""

from __future__ import annotations

import json
import random
import shutil
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tacit.recipes import parse_recipe
from tacit.runs import Run
from tacit.training.ensemble import train_ensemble
from tacit.training.finetune import finetune
from tests.cli.conftest import Tacit
from tests.tiny import public_sentences

QUICK = ("--block-size", "16", "--queries", "32", "--max-blocks", "8")


@dataclass(frozen=True)
class Runs:
    """An ensemble of private text, one of public text, a fine-tuned model, and one ensemble like no other."""

    folder: Path
    private: Path
    public: Path
    plain: Path
    odd: Path


def write_text(path: Path, seed: int) -> None:
    """Sentences that the public model does not know well: words of its sentences in another order."""
    draw = random.Random(seed)
    rows = []
    for user in range(40):
        for sentence in public_sentences(2, seed=seed * 1000 + user):
            words = sorted(sentence.rstrip(".").split(), reverse=True)
            rows.append({"user": f"u{user}", "text": " ".join([*words, *words[: draw.randint(6, 9)]])})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, tiny_transformer: Path) -> Runs:
    folder = tmp_path_factory.mktemp("runs")
    for name, seed in (("private", 1), ("public", 2)):
        write_text(folder / f"{name}.jsonl", seed)

    def recipe(output: str, corpus: str, **more: Any) -> Any:
        content = {
            "output": str(folder / output),
            "model": {"name": str(tiny_transformer)},
            "corpus": {"path": str(folder / f"{corpus}.jsonl"), "user": "user", "text": "text"},
            "held_out": {"share": 0.4},
            "adapter": {"rank": 4, "trunk_layers": 2},
            "training": {
                "max_steps": 20,
                "block_size": 32,
                "batch_size": 4,
                "learning_rate": 5e-3,
                "seed": 1,
            },
        } | more
        if corpus == "public":
            content["corpus"]["public"] = True
        return parse_recipe(content)

    two = {"method": "submix", "ensemble": {"parts": 2}}
    return Runs(
        folder,
        private=train_ensemble(recipe("private", "private", **two)).folder,
        public=train_ensemble(recipe("surrogate", "public", **two)).folder,
        plain=finetune(recipe("plain", "private")).folder,
        odd=train_ensemble(
            recipe("odd", "public", method="submix", ensemble={"parts": 3, "halves": False})
        ).folder,
    )


def test_one_mechanism_beside_its_references(tacit: Tacit, runs: Runs) -> None:
    result = tacit(
        "evaluate", runs.private, "--mechanism", "certified", *QUICK, "--nonprivate", runs.plain, "--json"
    )
    assert result.code == 0, result.err
    report = result.json()
    assert [reference["name"] for reference in report["references"]] == [
        "public",
        "single member, not private",
        "ensemble, not private",
        "fine-tuned, not private",
    ]
    (row,) = report["mechanisms"]
    public, _, ensemble, nonprivate = (one["perplexity"]["value"] for one in report["references"])
    assert max(ensemble, nonprivate) < public
    assert ensemble < row["perplexity"]["value"] < public
    assert 0 < row["share_of_ensemble"]["low"] <= row["share_of_ensemble"]["value"] < 1
    assert 0 < row["share_of_nonprivate"]["value"] < 1
    assert row["target"] == 2 / 32
    assert row["target_source"] == "epsilon / queries"
    assert row["dp_epsilon"] == pytest.approx(12.13, abs=0.01)
    assert row["answered"]["value"] == row["queries_per_stretch"] <= 32
    assert any("where 20 are wanted" in caveat for caveat in report["caveats"])
    assert any("Measured on private text" in caveat for caveat in report["caveats"])
    metrics = runs.private / "metrics.json"
    assert json.loads(metrics.read_text())["mechanisms"] == report
    assert stat.S_IMODE(metrics.stat().st_mode) == 0o600


def test_an_ensemble_alone_is_measured_by_every_mechanism(
    tacit: Tacit, runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = tacit("evaluate", runs.private, "--block-size", "16", "--json")
    assert result.code == 0, result.err
    report = result.json()
    assert [(row["mechanism"], row["mixing"]) for row in report["mechanisms"]] == [
        ("submix", "per_part"),
        ("submix", "averaged"),
        ("certified", None),
        ("individual", None),
        ("subsample_aggregate", None),
        ("gnmax", None),
    ]
    (queries,) = {row["queries"] for row in report["mechanisms"]}
    assert queries < 1024
    assert any("short for 1,024" in caveat for caveat in report["caveats"])
    assert report["mechanisms"][0]["dp_epsilon"] is None
    assert "instance-specific, not DP" in report["mechanisms"][0]["labels"]
    monkeypatch.setenv("COLUMNS", "140")
    table = tacit("evaluate", runs.private, *QUICK)
    assert table.code == 0
    for words in (
        "individual",
        "ensemble, not private",
        "submix averaged",
        "instance-specific",
        "(12.13, 1e-05)",
    ):
        assert words in table.out


def test_options_that_repeat_are_swept(tacit: Tacit, runs: Runs) -> None:
    sweep = (
        "--epsilon",
        "1",
        "--epsilon",
        "4",
        "--parts",
        "1",
        "--parts",
        "2",
        "--order",
        "2",
        "--cap",
        "0.5",
    )
    report = tacit("evaluate", runs.private, "--mechanism", "certified", *sweep, *QUICK, "--json").json()
    assert [(row["parts"], row["epsilon"], row["cap"]) for row in report["mechanisms"]] == [
        (1, 1.0, 0.5),
        (1, 4.0, 0.5),
        (2, 1.0, 0.5),
        (2, 4.0, 0.5),
    ]
    assert [reference["parts"] for reference in report["references"]] == [None, 1, 1, 2, 2]


def test_targets_are_calibrated_on_public_text_or_labelled(tacit: Tacit, runs: Runs) -> None:
    common = (runs.private, "--mechanism", "submix", *QUICK, "--json")
    calibrated = tacit("evaluate", *common, "--calibrate", runs.public)
    assert calibrated.code == 0, calibrated.err
    (row,) = calibrated.json()["mechanisms"]
    assert row["target_source"] == "calibrated on a public surrogate"
    assert row["surrogate_perplexity"]["value"] > 1
    assert row["guarantee"]["outside"] == []
    (tuned,) = tacit("evaluate", *common, "--oracle-target").json()["mechanisms"]
    assert "oracle-tuned, outside the guarantee" in tuned["labels"]
    assert tuned["guarantee"]["outside"]
    assert tuned["perplexity"]["value"] <= row["perplexity"]["value"]
    (given,) = tacit("evaluate", *common, "--target", "0.01").json()["mechanisms"]
    assert (given["target"], given["target_source"]) == (0.01, "given")


def test_the_algorithm_as_printed_is_a_row_of_its_own(tacit: Tacit, runs: Runs) -> None:
    ways = ("--mixing", "per_part", "--mixing", "averaged", "--weights", "symmetric", "--weights", "paper")
    report = tacit("evaluate", runs.private, "--mechanism", "submix", *ways, *QUICK, "--json").json()
    rows = {(row["mixing"], row["weights"]): row["perplexity"]["value"] for row in report["mechanisms"]}
    assert list(rows) == [
        ("per_part", "symmetric"),
        ("per_part", "paper"),
        ("averaged", "symmetric"),
        ("averaged", "paper"),
    ]
    shown = tacit("evaluate", runs.private, "--mechanism", "submix", *ways, *QUICK).out
    assert shown.count("paper weights") == 2


def test_other_text_is_recorded_beside_the_held_out_result(tacit: Tacit, runs: Runs) -> None:
    one = (runs.private, "--mechanism", "certified", *QUICK, "--json")
    own = tacit("evaluate", *one).json()
    other_corpus = ("--corpus", runs.folder / "public.jsonl", "--user", "user", "--text", "text")
    other = tacit("evaluate", *one, *other_corpus, "--trust-remote-code").json()
    assert own["text"]["held_out"]
    assert other["text"] == {"corpus": str(runs.folder / "public.jsonl"), "held_out": False}
    metrics = json.loads((runs.private / "metrics.json").read_text())
    assert (metrics["mechanisms"], metrics["mechanisms_other_text"]) == (own, other)


def test_one_model_per_part_has_no_submix(tacit: Tacit, runs: Runs) -> None:
    report = tacit("evaluate", runs.odd, *QUICK, "--json").json()
    assert [row["mechanism"] for row in report["mechanisms"]][:2] == ["certified", "individual"]
    refused = tacit("evaluate", runs.odd, "--mechanism", "submix", *QUICK)
    assert refused.code == 2
    assert "two halves" in refused.err


def test_what_is_refused(tacit: Tacit, runs: Runs, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(runs.private, copy)
    manifest = json.loads((copy / "run.json").read_text())
    manifest["guarantee"]["kind"] = "public"
    (copy / "run.json").write_text(json.dumps(manifest))
    assert Run.open(copy).manifest.guarantee["kind"] == "public"
    cases: list[tuple[tuple[str | Path, ...], str]] = [
        ((runs.private, "--calibrate", runs.private), "voids the charges"),
        ((runs.private, "--calibrate", runs.odd), "same shape"),
        ((runs.private, "--calibrate", copy), "private text of"),
        ((runs.private, "--calibrate", runs.public, "--oracle-target"), "not both"),
        ((runs.private, "--calibrate", runs.public, "--target", "1"), "nothing is left to choose"),
        ((runs.private, "--nonprivate", runs.public), "an ensemble too"),
        ((runs.public, "--nonprivate", runs.plain), "trained on other text"),
        ((runs.private, "--mechanism", "magic"), "'magic' is unknown"),
        ((runs.private, "--mixing", "magic"), "mixing='magic'"),
        ((runs.private, "--weights", "magic"), "weights='magic'"),
        ((runs.private, "--mechanism", "certified", "--weights", "paper"), "--weights belongs to"),
        ((runs.private, "--mechanism", "certified", "--guard", "1"), "--guard belongs to"),
        ((runs.private, "--mechanism", "gnmax", "--cap", "0.5"), "--cap means nothing"),
        ((runs.private, "--mixing", "averaged", "--guard", "1"), "--guard bounds nothing"),
        ((runs.private, "--target", "low"), "expected 'heuristic' or a finite number"),
        ((runs.private, "--parts", "9"), "parts=9"),
        ((runs.private, "--order", "1"), "order=1"),
        ((runs.private, "--epsilon", "0"), "epsilon=0"),
        ((runs.private, "--epsilon", "1e300"), "from 1e-9 to 4.61e+09"),
        ((runs.private, "--queries", "1000000"), "less than one stretch"),
        ((runs.private, "--queries", "4"), "less than a block"),
        ((runs.private, "--no-public"), "goes with one model"),
        ((runs.plain, "--mechanism", "submix"), "goes with an ensemble"),
        ((runs.plain, "--queries", "5"), "goes with an ensemble"),
    ]
    for arguments, says in cases:
        result = tacit("evaluate", *arguments)
        assert result.code == 2, (arguments, result.err)
        assert says in " ".join(result.err.split()), (arguments, result.err)
        assert result.err.count("\n") <= 2, result.err
