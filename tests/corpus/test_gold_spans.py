"""Gold spans beside a corpus: what is read, in which order, and what is refused."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from tacit.corpus import SimulationPlan, simulate, write_customersim
from tacit.corpus.gold_spans import may_have_spans, read_gold_spans
from tacit.errors import CorpusError
from tacit.recipes import CorpusSection


def section(path: Path, **changes: Any) -> CorpusSection:
    return CorpusSection(**({"path": str(path), "user": "user", "text": "text"} | changes))


def test_spans_of_a_simulation_are_read_as_they_were_written(tmp_path: Path) -> None:
    plan = SimulationPlan(users=3, dialogues_per_user=2, seed=1)
    write_customersim(plan, tmp_path / "d.jsonl")
    with (tmp_path / "d.jsonl").open("a") as file:
        file.write(json.dumps({"user": "canary-000", "text": "My ID is: 123456"}) + "\n")
    found = list(read_gold_spans(section(tmp_path / "d.jsonl"), "spans"))
    written = list(simulate(plan))
    assert [(one.user, one.text, one.spans) for one in found[:-1]] == [
        (one.user, one.text, one.spans) for one in written
    ]
    assert found[-1].spans == ()
    assert not any(one.spans for one in read_gold_spans(section(tmp_path / "d.jsonl"), "other"))


def test_csv_holds_them_as_json_and_in_any_order(tmp_path: Path) -> None:
    with (tmp_path / "d.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["user", "text", "marks"])
        writer.writerow(["a", "call Anna at 555", '[[13, 16, "PHONE"], [5, 9, "NAME"]]'])
        writer.writerow(["b", "nothing", ""])
    first, second = read_gold_spans(section(tmp_path / "d.csv"), "marks")
    assert [(first.text[span.start : span.end], span.label) for span in first.spans] == [
        ("Anna", "NAME"),
        ("555", "PHONE"),
    ]
    assert second.spans == ()


@pytest.mark.parametrize(
    "spans",
    [
        [[0, 0, "A"]],
        [[-1, 2, "A"]],
        [[0, 99, "A"]],
        [[0, 3, "A"], [2, 4, "B"]],
        [[0, 3]],
        [[0.0, 3, "A"]],
        [[True, 3, "A"]],
        [[0, 3, 7]],
        [{"start": 0, "label": "A"}],
        7,
        "{",
    ],
)
def test_spans_that_are_none_are_refused_without_the_text(tmp_path: Path, spans: Any) -> None:
    line = json.dumps({"user": "a", "text": "hunter2 hunter2", "spans": spans})
    (tmp_path / "d.jsonl").write_text(line + "\n")
    with pytest.raises(CorpusError, match="column 'spans'") as refusal:
        list(read_gold_spans(section(tmp_path / "d.jsonl"), "spans"))
    assert "line 1" in str(refusal.value)
    assert "hunter2" not in str(refusal.value)


def test_corpora_without_whole_rows_of_plain_text_have_none(tmp_path: Path) -> None:
    (tmp_path / "d.txt").write_text("text\n")
    text = CorpusSection(path=str(tmp_path / "d.txt"), user="file")
    assert not may_have_spans(text)
    with pytest.raises(CorpusError, match="JSONL and CSV"):
        list(read_gold_spans(text, "spans"))
    (tmp_path / "d.jsonl").write_text("{}\n")
    assert may_have_spans(section(tmp_path / "d.jsonl"))
    assert not may_have_spans(section(tmp_path / "d.jsonl", text=None, messages="messages"))
