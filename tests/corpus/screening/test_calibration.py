"""What a policy misses, on samples of which every miss is known."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from scipy import stats

from tacit.corpus.screening import MASK, GoldSpans, LabelledSpan, Policy, SplitSettings
from tacit.corpus.screening.calibration import CalibrationSettings, Wanted, calibrate
from tacit.corpus.screening.labelled import LabelledDocument, read_labelled
from tacit.errors import CorpusError, InputError
from tests.corpus.screening.detectors import Expressions, WordScores

SETTINGS = CalibrationSettings(SplitSettings())


def labelled(text: str, *secrets: str, label: str = "NAME", half: int = 0) -> LabelledDocument:
    spans = tuple(
        LabelledSpan(text.index(secret), text.index(secret) + len(secret), label) for secret in secrets
    )
    return LabelledDocument(text, spans, half)


def measure(documents: list[LabelledDocument], policy: Policy, **settings: Any) -> dict[str, Any]:
    return calibrate(documents, policy, replace(SETTINGS, **settings))


def test_misses_are_counted_and_bounded_from_above() -> None:
    scores = {f"n{number}": 1.0 for number in range(95)} | {f"n{number}": 0.3 for number in range(95, 99)}
    documents = [labelled(f"I am n{number}.", f"n{number}") for number in range(100)]
    documents += [labelled(f"It rains {number}.") for number in range(50)]
    result = measure(documents, Policy((WordScores(scores),), 0.5, 0.2))
    assert (result["gamma"]["misses"], result["gamma"]["n"]) == (5, 100)
    assert (result["delta2"]["misses"], result["delta2"]["n"]) == (1, 100)
    # The exact bounds: under them, so few misses would have a probability of 5%.
    for name, misses in (("gamma", 5), ("delta2", 1)):
        assert stats.binom.cdf(misses, 100, result[name]["upper"]) == pytest.approx(0.05)
    assert result["public_share"]["hits"] == 51
    assert result["recall"]["ALL"]["hits"] == 95
    assert result["conservative_recall"]["NAME"]["hits"] == 99


def test_no_miss_among_two_hundred_shows_one_and_a_half_percent() -> None:
    """The figure of methods.md: 1 - 0.05^(1/200) = 1.487%."""
    scores = {f"n{number}": 1.0 for number in range(200)}
    documents = [labelled(f"I am n{number}.", f"n{number}") for number in range(200)]
    result = measure(documents, Policy((WordScores(scores),), 0.5, 0.5))
    assert result["delta2"]["upper"] == pytest.approx(1 - 0.05 ** (1 / 200))
    assert round(result["delta2"]["upper"], 4) == 0.0149


def test_a_secret_that_is_masked_but_not_alone_counts_as_missed() -> None:
    """ "dear Ann" is one mask where Ann is read, and "dear" stays where Ann is masked: the corpora differ."""
    detector = Expressions((r"(dear Ann)",))
    result = measure([labelled("Hi dear Ann.", "Ann")], Policy((detector,), 0.5, 0.5))
    assert result["not_fully_masked"]["misses"] == 0
    assert result["gamma"]["misses"] == 1


def test_every_secret_of_a_point_that_did_not_settle_counts_as_missed() -> None:
    """Without Ann nobody sees Bob; without Bob, Ann is seen all the same, but the point is not settled."""
    dependent = Expressions((r"\b(Ann)\b", r"Ann and (Bob)\b"))
    result = measure([labelled("Ann and Bob.", "Ann", "Bob")], Policy((dependent,), 0.5, 0.5))
    assert (result["gamma"]["misses"], result["not_fully_masked"]["misses"]) == (2, 0)
    assert result["unsettled_points"] == 1


def test_a_point_with_more_spans_than_are_compared_counts_as_missed() -> None:
    names = [f"n{number}" for number in range(65)]
    document = labelled(" and ".join(names) + ".", "n64")
    for many, misses in ((65, 1), (64, 0)):
        policy = Policy((WordScores(dict.fromkeys(names[-many:], 1.0), contextual=True),), 0.5, 0.5)
        assert measure([document], policy)["gamma"]["misses"] == misses


def test_a_secret_in_a_sentence_that_never_settles_counts_as_missed() -> None:
    chain = Expressions((r"\b(start)\b", rf"{MASK}=(\w)"))
    document = labelled("It is start=a=b=c=d.", "start")
    for rounds, misses in ((8, 0), (2, 1)):
        result = measure([document], Policy((chain,), 0.5, 0.5, max_rounds=rounds))
        assert (result["gamma"]["misses"], result["not_fully_masked"]["misses"]) == (misses, 0)


def test_a_secret_that_is_masked_in_part_is_missed() -> None:
    result = measure([labelled("I am Ann Lee.", "Ann Lee")], Policy((WordScores({"Ann": 1.0}),), 0.5, 0.5))
    assert result["not_fully_masked"]["misses"] == 1
    assert result["delta2"]["misses"] == 0  # its point is private all the same


def test_thresholds_are_chosen_on_one_half_and_measured_on_the_other() -> None:
    # On the first half a threshold of 0.4 gives a recall of 0.9; on the second the same gives 0.5.
    first = {f"a{number}": 0.4 + number / 100 for number in range(18)} | {"a18": 0.1, "a19": 0.1}
    second = {f"b{number}": 0.9 if number % 2 else 0.05 for number in range(20)}
    policy = Policy((WordScores(first | second),), 0.9)
    documents = [labelled(f"I am a{number}.", f"a{number}", half=0) for number in range(20)]
    documents += [labelled(f"I am b{number}.", f"b{number}", half=1) for number in range(20)]
    result = calibrate(documents, policy, SETTINGS, Wanted(0.9, 1.0))
    assert result["thresholds"] == {"redact": 0.4, "conservative": 0.1}
    assert result["chosen_on"]["secrets"] == 20
    assert (result["gamma"]["misses"], result["gamma"]["n"]) == (10, 20)
    assert (result["delta2"]["misses"], result["delta2"]["n"]) == (10, 20)


def test_a_recall_that_no_threshold_reaches_is_said() -> None:
    documents = [labelled("It is a.", "a", half=half) for half in (0, 1)]
    documents.append(labelled("It is b.", "b", half=0))
    result = calibrate(documents, Policy((WordScores({"a": 0.6}),), 0.5), SETTINGS, Wanted(0.9))
    assert result["thresholds"]["redact"] == 0.6
    assert "No threshold of pi reaches a recall of 0.9" in result["notes"][0]


def test_the_curve_trades_misses_for_public_text() -> None:
    scores = {"a": 0.95, "b": 0.5, "c": 0.1, "x": 0.06}
    documents = [labelled(f"It is {name}.", name) for name in "abc"] + [labelled("so x."), labelled("so.")]
    curve = measure(documents, Policy((WordScores(scores),), 0.5, 0.1))["curve"]
    rows = {row["threshold"]: row for row in curve}
    missed = {threshold: row["not_fully_masked"]["misses"] for threshold, row in rows.items()}
    assert [missed[threshold] for threshold in (0.05, 0.1, 0.2, 0.5, 0.6, 1.0)] == [0, 0, 1, 1, 2, 3]
    assert [rows[threshold]["public_share"] for threshold in (0.05, 0.1, 0.2, 1.0)] == [0.2, 0.4, 0.6, 1.0]
    exposed = [row["left_public"]["misses"] for row in curve]
    assert exposed == sorted(exposed)


def test_one_secret_of_each_document_may_be_counted() -> None:
    document = labelled("Ann met Bob and Cid.", "Ann", "Bob", "Cid")
    policy = Policy((WordScores({"Ann": 1.0}),), 0.5, 0.5)
    assert measure([document], policy)["gamma"]["n"] == 3
    assert measure([document] * 2, policy, one_per_document=True)["gamma"]["n"] == 2


def test_what_cannot_be_measured_is_refused(tmp_path: Path) -> None:
    document = labelled("I am Ann.", "Ann")
    with pytest.raises(InputError, match="leave the spans out"):
        measure([document], Policy((), 0.5, gold=GoldSpans()))
    with pytest.raises(CorpusError, match="half of the documents that measures"):
        calibrate([document], Policy((WordScores({}),), 0.5), SETTINGS, Wanted(0.9))
    with pytest.raises(InputError, match=r"recall=1\.5"):
        Wanted(1.5)
    path = tmp_path / "labelled.jsonl"
    for content, says in (
        ("nonsense\n", "line 1: is not JSON"),
        ('{"text": "Hi \\ud800 Ann", "spans": []}\n', "half a surrogate pair"),
        ('{"text": 3}\n', "has no text 'text'"),
        ('{"text": "abc"}\n', "no column 'spans'"),
        ('{"text": "abc", "spans": [{"start": 1, "end": 9, "label": "X"}]}\n', "does not match the text"),
        ('{"text": "abc", "spans": []}\n', "has no span"),
    ):
        path.write_text(content)
        with pytest.raises(CorpusError, match=says):
            read_labelled(path)
    with pytest.raises(CorpusError, match="cannot be read"):
        read_labelled(tmp_path / "none")


def test_labelled_files_are_read_by_label_and_split_by_text(tmp_path: Path) -> None:
    path = tmp_path / "labelled.jsonl"
    rows = [
        {"text": f"I am n{number % 20}.", "spans": [{"start": 5, "end": 7, "label": "AB"[number % 2]}]}
        for number in range(40)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows) + "\n")
    documents = read_labelled(path, labels=["A"])
    assert sum(len(document.spans) for document in documents) == 20
    halves = {document.text: document.half for document in documents}
    assert all(halves[document.text] == document.half for document in documents)
    assert set(halves.values()) == {0, 1}
