"""Policies in YAML: what they build, and one sentence for everything that cannot be meant."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tacit.corpus.screening import MASK, Screening, ScreenSettings
from tacit.corpus.screening.policy_file import chosen_policy, load_policy, parse_policy
from tacit.errors import InputError, ModelError, RecipeError
from tests.corpus.screening.detectors import documents


def test_a_policy_file_unites_its_scorers(tmp_path: Path) -> None:
    (tmp_path / "staff.txt").write_text("Ann Lee\n")
    path = tmp_path / "policy.yaml"
    path.write_text(
        """
        redact: 0.5
        conservative: 0.2
        scorers:
          - patterns
          - {kind: gazetteer, files: [staff.txt], label: NAME, ignore_case: true}
          - {kind: regex, expressions: {CASE: 'case (?P<secret>\\w+)'}, score: 0.3}
        """
    )
    docs = documents("ann lee called 01223355013.", "It is case blue.", "Nothing else.")
    points = list(Screening(ScreenSettings(load_policy(path))).screen(docs))
    assert [(point.text, point.private) for point in points] == [
        (f"{MASK} called {MASK}.", True),
        ("It is case blue.", True),
        ("Nothing else.", False),
    ]
    masked = load_policy(path, {"redact": 0.3})
    assert list(Screening(ScreenSettings(masked)).screen(docs))[1].text == f"It is case {MASK}."


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ({"scorers": ["patterns"]}, "the policy has no threshold; add 'redact'"),
        ({"redact": 0.5}, "'scorers' is required; add it to the policy"),
        ({"redact": 0.5, "scorers": []}, "expected a list that is not empty"),
        ({"redact": 0, "scorers": ["patterns"]}, "a number above 0"),
        ({"redact": True, "scorers": ["patterns"]}, "expected a number"),
        ({"redact": 0.5, "conservativ": 0.1, "scorers": ["patterns"]}, "did you mean 'conservative'"),
        ({"redact": 0.5, "conservative": 0.9, "scorers": ["patterns"]}, r"conservative=0\.9 in"),
        (
            {"redact": 0.5, "scorers": ["pattern"]},
            "scorer 1: unknown kind 'pattern'; did you mean 'patterns'",
        ),
        ({"redact": 0.5, "scorers": [3]}, "scorer 1: expected a name or a section"),
        ({"redact": 0.5, "scorers": ["gazetteer"]}, "scorer 1: 'files' is required; add it to the scorer"),
        ({"redact": 0.5, "scorers": [{"kind": "patterns", "entitys": ["IP"]}]}, "did you mean 'entities'"),
        ({"redact": 0.5, "scorers": [{"kind": "patterns", "entities": ["FAX"]}]}, "FAX"),
        ({"redact": 0.5, "scorers": ["spans", "spans"]}, "2 scorers of kind 'spans'"),
        (
            {"redact": 0.5, "scorers": [{"kind": "presidio", "model": "a", "configuration": "b"}]},
            "not both",
        ),
    ],
)
def test_what_cannot_be_meant_is_one_sentence(content: dict[str, Any], says: str) -> None:
    with pytest.raises(RecipeError, match=says) as caught:
        parse_policy(content, origin="p.yaml")
    assert str(caught.value).startswith("p.yaml")


def test_presets_have_names_and_the_papers_needs_a_tagger() -> None:
    assert chosen_policy("patterns").conservative == 0.5
    assert chosen_policy("patterns", changes={"conservative": None}).conservative is None
    for name, says in (("unknown", "presets are default"), ("paper", "needs a tagger")):
        with pytest.raises(RecipeError, match=says):
            chosen_policy(name)
    with pytest.raises(RecipeError, match="has no place for a tagger"):
        chosen_policy("patterns", tagger="x")
    with pytest.raises(ModelError, match=r"no folder with a spaCy model"):
        parse_policy({"redact": 0.5, "scorers": [{"kind": "presidio", "model": "en_core_web_sm"}]})


def test_the_preset_of_spans_takes_a_miss_rate() -> None:
    spans = [{"kind": "spans", "column": "gold", "miss_rate": 0.25, "seed": 4}]
    policy = chosen_policy("spans", spans=spans)
    assert policy.gold is not None
    assert (policy.gold.column, policy.gold.miss_rate, policy.scorers) == ("gold", 0.25, ())
    both = chosen_policy("patterns", spans=spans)
    assert both.gold == policy.gold
    assert [scorer.name for scorer in both.scorers] == ["patterns"]
    with pytest.raises(InputError, match="miss_rate"):
        chosen_policy("spans", spans=[{"kind": "spans", "miss_rate": 2}])


def test_files_that_cannot_be_read_are_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="cannot be read"):
        chosen_policy(str(tmp_path / "none.yaml"))
    (tmp_path / "list.yaml").write_text("- a\n")
    with pytest.raises(RecipeError, match="expected a mapping of policy keys, such as 'redact:'"):
        chosen_policy(str(tmp_path / "list.yaml"))
    (tmp_path / "fine.yaml").write_text("redact: 0.5\nscorers: [patterns]\n")
    with pytest.raises(RecipeError, match="belongs to the preset 'paper'"):
        chosen_policy(str(tmp_path / "fine.yaml"), tagger="x")


def test_the_fingerprint_tells_policies_apart() -> None:
    base: dict[str, Any] = {"redact": 0.5, "conservative": 0.1, "scorers": ["patterns"]}
    changes: list[dict[str, Any]] = [
        {},
        {"redact": 0.6},
        {"conservative": 0.2},
        {"conservative": None},
        {"placeholders": True},
        {"max_rounds": 3},
        {"scorers": [{"kind": "patterns", "entities": ["IP"]}]},
        {"scorers": ["patterns", "spans"]},
        {"scorers": ["patterns", {"kind": "spans", "miss_rate": 0.1}]},
        {"scorers": ["patterns", {"kind": "spans", "miss_rate": 0.1, "seed": 1}]},
        {"scorers": ["patterns", {"kind": "regex", "expressions": {"A": "b"}}]},
    ]
    assert len({parse_policy(base | change).fingerprint for change in changes}) == len(changes)
    assert parse_policy(base).fingerprint == parse_policy(base).fingerprint
