"""MultiWOZ and Schema-Guided Dialogue: every layout gives documents with their secrets in place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tacit.corpus.dialogue_corpora import ConversionCounts, DialogueLayout, convert_dialogues, write_dialogues
from tacit.corpus.screening.gold_spans import read_spans
from tacit.errors import CorpusError

ASK = "I need a   hotel ."
ANSWER = "It is booked .\n Reference number is : AB12CD34 , phone 01223000111 ."


def secrets_of(
    layout: DialogueLayout, source: Path, **settings: Any
) -> list[tuple[str, str, list[tuple[str, str]]]]:
    found = []
    for dialogue in convert_dialogues(layout, source, ConversionCounts(), **settings):
        row = json.loads(dialogue.to_line())
        spans = read_spans(row, "spans", row["text"], "here")
        found.append(
            (row["user"], row["text"], [(span.label, row["text"][span.start : span.end]) for span in spans])
        )
    return found


EXPECTED = (
    "MUL1",
    f"USER: {ASK}\nSYSTEM: {ANSWER}".replace(".\n ", ".  "),
    [("Ref", "AB12CD34"), ("Phone", "01223000111")],
)


def test_multiwoz_2_1_as_one_file_of_logs(tmp_path: Path) -> None:
    tokens = ANSWER.split()
    span_info = [
        ["Booking-Book", "Ref", "AB12CD34", tokens.index("AB12CD34"), tokens.index("AB12CD34")],
        ["Hotel-Inform", "Phone", "01223000111", tokens.index("01223000111"), tokens.index("01223000111")],
        ["Hotel-Inform", "Stay", "x", 0, 0],
        ["Hotel-Inform", "Ref", "x", 90, 91],
    ]
    log = [{"text": ASK, "span_info": [], "metadata": {}}, {"text": ANSWER, "span_info": span_info}]
    path = tmp_path / "data.json"
    path.write_text(json.dumps({"MUL1.json": {"log": log, "goal": {}}}))
    assert secrets_of("multiwoz", path) == [EXPECTED]
    counts = write_dialogues("multiwoz", path, tmp_path / "out.jsonl")
    assert (counts.dialogues, counts.turns, counts.outside, counts.secrets["Ref"]) == (1, 2, 1, 1)


def test_multiwoz_2_1_as_json_lines(tmp_path: Path) -> None:
    start = ANSWER.index("AB12")
    phone = ANSWER.index("01223")
    spans = [
        {"act": "Booking-Book", "slot": "Ref", "start": start, "end": start + 8, "value": "AB12CD34"},
        {"act": "Booking-Inform", "slot": "Ref", "start": start, "end": start + 8, "value": "other"},
        {"act": "Hotel-Inform", "slot": "Phone", "start": phone, "end": phone + 11, "value": "01223000111"},
    ]
    turns = [
        {"speaker": "USER", "text": ASK, "spans": []},
        {"speaker": "SYSTEM", "text": ANSWER, "spans": spans},
    ]
    path = tmp_path / "test.jsonl"
    path.write_text(json.dumps({"dialogue_id": "MUL1", "turns": turns}) + "\n")
    assert secrets_of("multiwoz", path) == [EXPECTED]
    assert secrets_of("multiwoz", path, secrets=["Ref"])[0][2] == [("Ref", "AB12CD34")]
    counts = write_dialogues("multiwoz", path, tmp_path / "out.jsonl")
    assert counts.synonyms == 1


def test_multiwoz_2_2_as_frames_with_acts_above_them(tmp_path: Path) -> None:
    (tmp_path / "train").mkdir()
    phone = ANSWER.index("01223")
    start = ANSWER.index("AB12")
    slots = [
        {"slot": "hotel-phone", "start": phone, "exclusive_end": phone + 11, "value": "01223000111"},
        {"slot": "hotel-postcode", "copy_from": "hotel-name", "value": ["x"]},
    ]
    turns = [
        {"turn_id": "0", "speaker": "USER", "utterance": ASK, "frames": []},
        {
            "turn_id": "1",
            "speaker": "SYSTEM",
            "utterance": ANSWER,
            "frames": [{"service": "hotel", "slots": slots}],
        },
    ]
    dialogue = {"dialogue_id": "MUL1.json", "services": ["hotel"], "turns": turns}
    (tmp_path / "train" / "dialogues_001.json").write_text(json.dumps([dialogue]))
    span_info = [["Booking-Book", "ref", "AB12CD34", start, start + 8]]
    acts = {"MUL1.json": {"1": {"dialog_act": {}, "span_info": span_info}}}
    (tmp_path / "dialog_acts.json").write_text(json.dumps(acts))
    assert secrets_of("multiwoz", tmp_path) == [EXPECTED]


def test_schema_guided_dialogue(tmp_path: Path) -> None:
    said = "Call 415-555-0101, it is at 1 Main Street."
    slots = [
        {"slot": "phone_number", "start": 5, "exclusive_end": 17},
        {"slot": "street_address", "start": 28, "exclusive_end": 41},
        {"slot": "city", "start": 0, "exclusive_end": 4},
    ]
    turns = [{"speaker": "SYSTEM", "utterance": said, "frames": [{"service": "Hotels_1", "slots": slots}]}]
    path = tmp_path / "dialogues_001.json"
    path.write_text(json.dumps([{"dialogue_id": "1_00000", "services": ["Hotels_1"], "turns": turns}]))
    expected = [("phone_number", "415-555-0101"), ("street_address", "1 Main Street")]
    assert secrets_of("sgd", path) == [("1_00000", f"SYSTEM: {said}", expected)]


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("data.json", "{", "is not JSON"),
        ("data.json", '{"a": {"turns": []}}', "is not laid out as a multiwoz corpus"),
        ("data.json", "[3]", "is not laid out"),
        ("data.jsonl", "{}", "is not laid out"),
        ("data.json", "[]", "holds no dialogue"),
    ],
)
def test_other_files_are_refused_in_a_sentence(tmp_path: Path, name: str, content: str, says: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(CorpusError, match=says):
        secrets_of("multiwoz", tmp_path / name)
    assert not (tmp_path / "out.jsonl").exists()


def test_missing_sources_are_refused_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match="does not exist"):
        secrets_of("sgd", tmp_path / "none")
    with pytest.raises(CorpusError, match=r"holds no dialogues_\*\.json"):
        secrets_of("sgd", tmp_path)
