"""`tacit corpus screen`, `calibrate` and `convert` as a person meets them."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from tacit.corpus import SimulationPlan, write_customersim
from tacit.corpus.screening import MASK, read_screened
from tacit.corpus.screening.policy_file import _KINDS, _PRESETS, load_policy
from tests.cli.conftest import Tacit

COLUMNS = ("--user", "user", "--text", "text")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_customersim(SimulationPlan(users=8, dialogues_per_user=2), tmp_path / "sim.jsonl")
    return tmp_path


def test_screen_tells_what_it_did(tacit: Tacit, place: Path) -> None:
    result = tacit("corpus", "screen", "sim.jsonl", "s.jsonl", *COLUMNS, "--policy", "patterns")
    assert result.code == 0
    assert "private, without bare masks" in result.out
    assert "bare masks" in result.err
    as_json = tacit(
        "corpus", "screen", "sim.jsonl", "t.jsonl", *COLUMNS, "--policy", "patterns", "--json"
    ).json()
    assert as_json["counts"] == json.loads((place / "s.jsonl.report.json").read_text())["counts"]
    again = tacit("corpus", "screen", "sim.jsonl", "s.jsonl", *COLUMNS, "--policy", "patterns")
    assert (again.code, again.err) == (
        2,
        "tacit: s.jsonl exists already; choose another name or remove it first.\n",
    )


def test_screen_takes_a_policy_file_and_changes_of_it(tacit: Tacit, place: Path) -> None:
    (place / "names.txt").write_text("Please\n")
    (place / "policy.yaml").write_text(
        "redact: 0.5\nscorers: [{kind: gazetteer, files: [names.txt], label: POLITE}]\n"
    )
    screen = ("corpus", "screen", "sim.jsonl")
    assert tacit(*screen, "a.jsonl", *COLUMNS, "--policy", "policy.yaml").code == 0
    points = list(read_screened(place / "a.jsonl"))
    assert all(point.private for point in points)
    assert not any("Please" in point.text for point in points)
    given = ("--policy", "policy.yaml", "--conservative", "0.5", "--placeholders", "--json")
    report = tacit(*screen, "b.jsonl", *COLUMNS, *given).json()
    assert report["counts"]["public"] > 0
    assert report["outside_the_proof"] == ["placeholders"]
    assert any("<POLITE>" in point.text for point in read_screened(place / "b.jsonl"))


def test_screen_with_a_dialled_miss_rate_and_a_group_of_secrets(tacit: Tacit, place: Path) -> None:
    rows = [json.loads(line) for line in (place / "sim.jsonl").read_text().splitlines()]
    names = {row["text"][s["start"] : s["end"]] for row in rows for s in row["spans"] if s["label"] == "NAME"}
    (place / "names.txt").write_text("\n".join(sorted(names)))
    counts = []
    for rate in ("0", "1"):
        given = ("--policy", "spans", "--miss-rate", rate, "--secrets", "names.txt", "--json")
        report = tacit("corpus", "screen", "sim.jsonl", f"{rate}.jsonl", *COLUMNS, *given).json()
        counts.append((report["counts"]["masks"], report["group"]["differing_points"]))
    assert counts[0][0] > 0 == counts[1][0]
    assert counts[1][1] > counts[0][1]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (("--policy", "nothing"), "There is no policy file or preset 'nothing'"),
        (("--policy", "paper"), "needs a tagger"),
        (("--policy", "patterns", "--redact", "2"), "'redact'=2.0 cannot be used"),
        (("--policy", "patterns", "--conservative", "low"), "--conservative 'low'"),
        (("--policy", "patterns", "--conservative", "0.9"), "conservative=0.9 in (0, redact=0.5]"),
        (("--policy", "patterns", "--sentences", "0"), "sentences=0"),
        (("--policy", "patterns", "--similarity", "1"), "similarity=1.0"),
        (("--policy", "patterns", "--spans", "labels"), "no column 'labels'"),
        (("--policy", "patterns", "--secrets", "none.txt"), "none.txt: cannot be read"),
        (("--policy", "patterns", "--partition", "none"), "give the folder of a partition"),
        (("--policy", "sim.jsonl"), "sim.jsonl"),
    ],
)
def test_screen_refuses_in_a_sentence(tacit: Tacit, place: Path, given: tuple[str, ...], says: str) -> None:
    result = tacit("corpus", "screen", "sim.jsonl", "s.jsonl", *COLUMNS, *given)
    assert result.code == 2, result.err
    assert says in result.err
    assert result.err.startswith("tacit: ")
    assert result.err.count("\n") == 1
    assert sorted(path.name for path in place.iterdir()) == ["sim.jsonl"]


def test_calibrate_prints_and_writes_the_bounds(tacit: Tacit, place: Path) -> None:
    given = ("--labelled", "sim.jsonl", "--policy", "patterns", "--labels", "PHONE,NAME")
    result = tacit("corpus", "calibrate", "c.json", *given)
    assert result.code == 0
    assert "gamma" in result.out
    assert "NAME" in result.out
    written = json.loads((place / "c.json").read_text())
    assert (place / "c.json").stat().st_mode & 0o777 == 0o600
    assert written["recall"]["PHONE"]["value"] == 1.0
    assert written["recall"]["NAME"]["value"] == 0.0
    assert written["gamma"]["misses"] == written["recall"]["NAME"]["n"]
    assert written["gamma"]["upper"] > written["gamma"]["value"]
    printed = tacit("corpus", "calibrate", "d.json", *given, "--json").json()
    assert printed == written


def test_screen_takes_the_thresholds_of_a_calibration(tacit: Tacit, place: Path) -> None:
    given = ("--labelled", "sim.jsonl", "--recall", "0.9", "--conservative-recall", "0.99", "--json")
    measured = tacit("corpus", "calibrate", "c.json", *given).json()
    screen = ("corpus", "screen", "sim.jsonl")
    report = tacit(*screen, "s.jsonl", *COLUMNS, "--calibration", "c.json", "--json").json()
    assert report["policy"] == measured["policy"]
    assert (report["policy"]["redact"], report["policy"]["conservative"]) == tuple(
        measured["thresholds"].values()
    )
    (place / "other.json").write_text("{}")
    refused = tacit(*screen, "t.jsonl", *COLUMNS, "--calibration", "other.json")
    assert (refused.code, refused.err) == (
        2,
        "tacit: other.json: has no thresholds; give a file that 'tacit corpus calibrate' wrote.\n",
    )


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (("--labelled", "none.jsonl"), "none.jsonl: cannot be read"),
        (("--labelled", "bad.jsonl"), "line 1: span 1 (0 to 9) does not match the text"),
        (("--labelled", "other.jsonl"), "line 1: span 1 (0 to 3) does not match the text: its 'text' is"),
        (("--labelled", "sim.jsonl", "--conservative-recall", "0.9"), "give --recall too"),
        (("--labelled", "sim.jsonl", "--recall", "1.5"), "recall=1.5"),
        (("--labelled", "sim.jsonl", "--confidence", "1"), "confidence=1.0"),
        (("--labelled", "sim.jsonl", "--labels", "FAX"), "has no span with the labels FAX"),
    ],
)
def test_calibrate_refuses_in_a_sentence(
    tacit: Tacit, place: Path, given: tuple[str, ...], says: str
) -> None:
    row = {"text": "abc", "spans": [{"start": 0, "end": 9, "label": "X"}]}
    (place / "bad.jsonl").write_text(json.dumps(row) + "\n")
    row = {"text": "abc", "spans": [{"start": 0, "end": 3, "label": "X", "text": "abd"}]}
    (place / "other.jsonl").write_text(json.dumps(row) + "\n")
    result = tacit("corpus", "calibrate", "c.json", "--policy", "patterns", *given)
    assert result.code == 2, result.err
    assert says in result.err
    assert result.err.count("\n") == 1
    assert not (place / "c.json").exists()


def test_convert_gives_a_corpus_that_screen_reads(tacit: Tacit, place: Path) -> None:
    spans = [{"slot": "Ref", "start": 6, "end": 14, "value": "AB12CD34"}]
    turns = [{"speaker": "SYSTEM", "text": "It is AB12CD34.", "spans": spans}]
    (place / "m.jsonl").write_text(json.dumps({"dialogue_id": "MUL1", "turns": turns}) + "\n")
    converted = tacit("corpus", "convert", "multiwoz", "m.jsonl", "out.jsonl", "--json").json()
    assert converted["secrets"] == {"Ref": 1}
    assert tacit("corpus", "screen", "out.jsonl", "s.jsonl", *COLUMNS, "--policy", "spans").code == 0
    assert next(read_screened(place / "s.jsonl")).text == f"SYSTEM: It is {MASK}."
    refused = tacit("corpus", "convert", "multiwoz", "m.jsonl", "x.jsonl", "--secrets", " ,")
    assert (refused.code, "names no slot" in refused.err) == (2, True)


GUIDE = (Path(__file__).parents[2] / "docs" / "screening.md").read_text()


def test_the_guide_runs(tacit: Tacit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```(console|python|yaml)\n(.*?)```", GUIDE, re.DOTALL)
    assert {kind for kind, _ in blocks} == {"console", "python", "yaml"}
    for kind, block in blocks:
        if kind == "python":
            exec(block, {})  # noqa: S102 - the guide's own code
        elif kind == "yaml":
            Path("staff.txt").write_text("Ann Lee\n")
            Path("policy.yaml").write_text(block)
            assert load_policy(Path("policy.yaml")).redact == 0.5
        else:
            for line in block.splitlines():
                if line.startswith("tacit "):
                    result = tacit(*shlex.split(line)[1:])
                    assert result.code == 0, result.err
                else:
                    subprocess.run(line, shell=True, check=True)  # noqa: S602 - the guide's own line


def test_the_guide_names_every_kind_and_preset() -> None:
    for name in (*_KINDS, *_PRESETS):
        assert f"`{name}`" in GUIDE
