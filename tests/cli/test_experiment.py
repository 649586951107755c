"""`tacit experiment`: the plan first, results in a folder, a page of them, bad input in a sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from tacit.experiments.pages import BEGIN, END
from tests.cli.conftest import Tacit

NAME = "crt-amplification"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    return tmp_path


def test_the_plan_comes_first_and_a_second_run_finds_everything(tacit: Tacit, place: Path) -> None:
    planned = tacit("experiment", NAME, "--scale", "tiny", "--dry-run")
    assert planned.code == 0
    assert "In all about" in planned.out
    assert not list(place.iterdir()), "a plan writes nothing"
    done = tacit("experiment", "run", NAME, "--scale", "tiny")
    assert done.code == 0
    assert "does not hold" in done.out
    assert (place / "experiments" / f"{NAME}-tiny" / "result.json").is_file()
    (stage,) = tacit("experiment", NAME, "--scale", "tiny", "--dry-run", "--json").json()["stages"]
    assert stage["done"] is True


def test_a_program_gets_one_json_object(tacit: Tacit, place: Path) -> None:
    result = tacit("experiment", NAME, "--scale", "tiny", "--json").json()
    assert result["experiment"] == NAME
    assert result["provenance"]["stages"]
    assert any(one["name"] == NAME for one in tacit("experiment", "list", "--json").json()["experiments"])


def test_a_page_is_made_of_results_and_of_nothing_else(tacit: Tacit, place: Path) -> None:
    assert tacit("experiment", NAME, "--scale", "tiny").code == 0
    results = place / "results"
    missing = tacit("experiment", "page", "results", "results.md")
    assert missing.code == 2
    assert "INTRODUCTION.md is missing" in missing.err
    add = ("--add", f"experiments/{NAME}-tiny")
    unopened = tacit("experiment", "page", "results", "results.md", *add)
    assert unopened.code == 2
    assert "INTRODUCTION.md is missing" in unopened.err
    assert not results.exists()
    results.mkdir()
    (results / "INTRODUCTION.md").write_text("# Results\n")
    empty = tacit("experiment", "page", "results", "results.md")
    assert empty.code == 2
    assert "holds no result" in empty.err
    assert tacit("experiment", "page", "results", "results.md", *add).code == 0
    assert sorted(path.name for path in (results / NAME).iterdir()) == ["epsilon-1.svg", "result.json"]
    first = (place / "results.md").read_bytes()
    assert b"0.111" in first
    assert tacit("experiment", "page", "results", "results.md").code == 0
    assert (place / "results.md").read_bytes() == first
    (place / "README.md").write_text(f"# A\n\n{BEGIN}\n{END}\n")
    assert tacit("experiment", "page", "results", "results.md", "--readme", "README.md").code == 0
    assert "of 3 claims, the papers' and ours, 2 were found to hold here" in (place / "README.md").read_text()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("nonsense",), "There is no experiment 'nonsense'"),
        ((NAME, "--scale", "huge"), "choose tiny, small or paper"),
    ],
)
def test_bad_input_is_one_sentence(tacit: Tacit, place: Path, arguments: tuple[str, ...], said: str) -> None:
    result = tacit("experiment", *arguments)
    assert result.code == 2
    assert said in result.err
    assert "Traceback" not in result.err
    assert not list(place.iterdir())
