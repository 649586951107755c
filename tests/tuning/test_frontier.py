"""What came out of a sweep: all Runs are on the frontier, and values between them are told as such."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tacit.errors import InputError
from tacit.runs import Run
from tacit.tuning import Frontier, TuneRecord, distinct_names, runs_in, varied_in
from tacit.tuning.record import Entry
from tests.audit.test_comparison import sample
from tests.report.samples import measured
from tests.report.test_model_card import manifest

LAMBDA = "regularisation.lambda"
MakeRuns = Callable[..., list[Run]]


@pytest.fixture
def runs_at(tmp_path: Path) -> MakeRuns:
    """Audited Runs of these perplexities; nothing else differs."""

    def make(perplexities: Sequence[float], **changes: Any) -> list[Run]:
        made = []
        for place, perplexity in enumerate(perplexities):
            folder = tmp_path / f"lambda-{place}"
            (folder / "private").mkdir(parents=True)
            (folder / "private/data.json").write_text(json.dumps({"corpus_fingerprint": "same"}))
            audit = sample(utility__run=measured(perplexity, perplexity - 1, perplexity + 1), **changes)
            (folder / "audit.json").write_text(json.dumps(audit))
            run = Run(folder, manifest())
            (folder / "run.json").write_text(run.manifest.model_dump_json())
            made.append(run)
        return made

    return make


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ((0.1, 1.0), math.sqrt(0.1)),  # between positive numbers half way is half way of their logarithms
        ((0.0, 1.0), 0.5),
        ((4, 1), 2.0),  # as where a longer training has the lower perplexity
    ],
)
def test_the_value_for_a_perplexity_is_interpolated_as_leakage_is(
    runs_at: MakeRuns, values: tuple[Any, Any], expected: float
) -> None:
    found = Frontier.of(LAMBDA, values, runs_at([10, 40]), perplexity=20)
    assert found.value_at == pytest.approx(expected)
    assert found.at is not None
    assert found.at.how == "between lambda-0 and lambda-1"
    assert found.at.auc is not None
    assert found.at.auc.value == 0.78


@pytest.mark.parametrize("values", [("linear", "constant"), (False, True), (None, 3)])
def test_nothing_lies_between_values_that_are_no_numbers(runs_at: MakeRuns, values: tuple[Any, Any]) -> None:
    found = Frontier.of(LAMBDA, values, runs_at([10, 40]), perplexity=20)
    assert found.at is None
    assert found.value_at is None
    assert [row["value"] for row in found.cells()] == list(values)


def test_beyond_its_runs_nothing_is_told(runs_at: MakeRuns) -> None:
    found = Frontier.of(LAMBDA, (1, 2), runs_at([10, 40]), perplexity=80)
    assert found.value_at is None
    assert found.at is not None
    assert (found.at.how, found.at.auc) == ("", None)
    assert "more or less protection" in found.at.why


def test_another_perplexity_is_no_reason_to_set_a_run_apart(runs_at: MakeRuns) -> None:
    found = Frontier.of(LAMBDA, (0, 1, 2), runs_at([10, 20, 40]))
    assert [row.comparable for row in found.rows] == [True] * 3
    assert [row["value"] for row in found.cells()] == [0, 1, 2]
    assert not {"run", "method", "equal"} & found.cells()[0].keys()
    assert found.to_json()["at"] is None
    assert "lambda-2" in found.page()


def test_a_folder_stands_for_its_audited_runs(runs_at: MakeRuns, tmp_path: Path) -> None:
    runs = runs_at([10, 20])
    entries = [Entry(0, "lambda-0", "audited"), Entry(1, "lambda-1", "diverged"), Entry(2, "lambda-2")]
    TuneRecord("triplet", "regularisation.lambda", {}, {}, tuple(entries)).save(tmp_path)
    found = runs_in([tmp_path, runs[1].folder])
    assert [run.folder.name for run in found] == ["lambda-0", "lambda-1"]
    assert distinct_names([*found, found[0]]) == [
        f"{tmp_path.name}/lambda-0",
        "lambda-1",
        f"{tmp_path.name}/lambda-0",
    ]
    assert varied_in([tmp_path, runs[1].folder]) == [LAMBDA, None]
    several = (Entry("batch", "lambda-0", "audited"), Entry("second", "lambda-1", "audited"))
    TuneRecord("triplet", "regularisation.pairs", {}, {}, several).save(tmp_path)
    assert varied_in([tmp_path]) == [None, None]  # two configurations
    TuneRecord("triplet", "regularisation.lambda", {}, {}, tuple(entries[1:])).save(tmp_path)
    with pytest.raises(InputError, match=r"No Run in .* is finished; go on with the tacit tune"):
        runs_in([tmp_path])


def test_a_record_of_another_version_or_a_damaged_one_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tune.json").write_text(json.dumps({"format": 99}))
    with pytest.raises(InputError, match="another version"):
        TuneRecord.load(tmp_path)
    (tmp_path / "tune.json").write_text(json.dumps({"format": 1, "method": "triplet"}))
    with pytest.raises(InputError, match="damaged"):
        TuneRecord.load(tmp_path)
