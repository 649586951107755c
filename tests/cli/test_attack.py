"""`tacit attack extraction` trains, attacks, prints, goes on, and refuses in a sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Tacit

SMALL = ("attack", "extraction", "--digits", "2", "--codes", "2", "--generations", "10", "--steps", "3")


def test_table_and_json_of_one_folder(tacit: Tacit, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "140")
    result = tacit(*SMALL, "--folder", "attack", "--epsilon", "1", "--seed", "1", "--json")
    assert result.code == 0, result.err
    report = result.json()
    assert report["chance"] == 0.02
    assert [row["name"] for row in report["rows"]] == [
        "public",
        "member",
        "nonprivate",
        "submix",
        "certified",
        "individual",
    ]
    assert {row["verdict"] for row in report["rows"]} == {"inconclusive"}  # three steps memorise nothing
    assert any(note.startswith("The unprotected models do not extract") for note in report["notes"])
    assert not any("disagree" in note for note in report["notes"])
    certified = report["rows"][4]
    assert certified["guarantee"]["kind"] == "rdp"
    assert certified["analytic"]["value"] <= certified["at_most"]
    assert (folder / "attack").stat().st_mode & 0o077 == 0

    shown = tacit(*SMALL, "--folder", "attack", "--epsilon", "1", "--seed", "1")
    assert shown.code == 0
    for words in (
        "chance",
        "certified",
        "inconclusive",
        "Renyi differential privacy",
        "delta 1e-05",
        "optional space",
    ):
        assert words in shown.out.replace("\n", " ")

    attacked = tacit("attack", "extraction", "--run", "attack/ensemble", "--generations", "5", "--json")
    assert attacked.code == 0
    assert attacked.json()["generations"] == 5


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("--digits 6", "digits=6"),
        ("--codes 3", "even"),
        ("--digits 2 --codes 80", "codes=80"),
        ("--generations 0", "generations=0"),
        ("--mechanism magic", "cannot be attacked"),
        ("--epsilon 0", "epsilon=0"),
        ("--epsilon 1e300", "epsilon=1e+300"),
        ("--epsilon 1e-10", "epsilon=1e-10"),
        ("--order 1", "order=1"),
        ("--adapter dora", "adapter='dora'"),
        ("--steps 0", "max_steps"),
        ("--model nowhere/at-all", "nowhere/at-all"),
        ("--run nowhere", "nowhere"),
        ("--run nowhere --digits 3", "--digits"),
        ("--folder .", "other files"),
    ],
)
def test_bad_input_is_one_sentence(tacit: Tacit, folder: Path, arguments: str, words: str) -> None:
    result = tacit("attack", "extraction", *arguments.split())
    assert result.code in (2, 3)
    assert words in result.err
    assert "Traceback" not in result.err
