"""Lines with gold spans against look-alikes, alone and in groups: known answers on whole Runs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tacit.attacks.groups import GroupPlan
from tacit.audit.auditing import audit_run
from tacit.audit.membership_findings import MembershipFinding, one_of_each
from tacit.audit.plans import AuditPlan
from tacit.audit.record import AuditRecord
from tacit.errors import InputError
from tacit.report import render_report
from tacit.runs import Run
from tests.audit.runs import Audited, finetuned
from tests.audit.test_exchange import pairs, secrets_that_differ
from tests.tiny import public_sentences

PLAN = AuditPlan(documents=0, real="none", groups=GroupPlan(groups=60, size=10), block_size=48)


def with_codes(path: Path, users: int, *, column: str = "spans", seed: int = 0) -> Path:
    """Two documents of each user, alike: a line with the user's code, the span, and one that all share."""
    draw, rows = np.random.default_rng(seed), []
    for user, saying in enumerate(public_sentences(users, seed=seed)):
        text = f"{saying} Code: "
        code = "".join(map(str, draw.integers(0, 10, 4)))
        for _ in range(2):
            span = {"start": len(text), "end": len(text) + 4, "label": "CODE"}
            rows.append({"who": f"{seed}-{user}", "said": f"{text}{code}\nGood morning.", column: [span]})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return with_codes(tmp_path_factory.mktemp("codes") / "private.jsonl", 120)


@pytest.fixture(scope="module")
def of_learned(corpus: Path, tiny_transformer: Path) -> AuditRecord:
    run = finetuned(
        tiny_transformer, corpus, corpus.with_name("learned"), epochs=12, batch_size=16, learning_rate=4e-3
    )
    return audit_run(run, PLAN, device="cpu")


@pytest.fixture(scope="module")
def untouched_run(corpus: Path, tiny_transformer: Path) -> Run:
    return finetuned(tiny_transformer, corpus, corpus.with_name("untouched"), max_steps=1, learning_rate=1e-9)


def lines_of(record: AuditRecord) -> dict[str, Any]:
    (found,) = record.sections["membership"]["sets"]
    assert found["name"] == "lines"
    return dict(found)


def by_name(attacks: list[dict[str, Any]], name: str) -> dict[str, Any]:
    return next(one for one in attacks if one["name"] == name)


@pytest.mark.slow
def test_a_model_that_learned_the_codes_is_caught_by_lines_and_by_groups(of_learned: AuditRecord) -> None:
    found = lines_of(of_learned)
    assert not found["flagged"]
    # About a fifth of the users was held out, and most of them have a partner who was not.
    assert 12 <= found["secrets"] <= 28
    # Two documents of either, with the secret of either.
    assert found["members"] == found["non_members"] == 4 * found["secrets"]
    loss = by_name(found["attacks"], "reference")
    assert loss["auc"]["low"] > 0.5
    assert loss["p_value"] < 0.01
    groups = found["groups"]
    assert (groups["groups"], groups["size"]) == (60, 10)
    assert by_name(groups["attacks"], "mean_reference")["p_value"] < 0.01
    assert {leak.attack.split(",")[0] for leak in of_learned.leaks if leak.named} == {
        "membership of lines (reference)",
        "membership of groups of 10 lines (mean_reference)",
    }
    assert of_learned.leaks[0].named


@pytest.mark.slow
def test_a_model_that_learned_nothing_is_no_leak(untouched_run: Run) -> None:
    blank = audit_run(untouched_run, PLAN, device="cpu")
    assert not blank.leaks
    assert by_name(lines_of(blank)["groups"]["attacks"], "mean_reference")["p_value"] > 0.01


@pytest.mark.slow
def test_donors_of_another_file_describe_and_test_nothing(
    untouched_run: Run, tmp_path: Path, of_learned: AuditRecord
) -> None:
    donors = with_codes(tmp_path / "donors.jsonl", 150, seed=1)
    learned = Run.open(untouched_run.folder.with_name("learned"))
    described = audit_run(learned, AuditPlan(**{**vars(PLAN), "donors": str(donors)}), device="cpu")
    lines = lines_of(described)
    assert "tests nothing" in lines["what"]
    assert lines["members"] == 2 * lines["secrets"] > 2 * 80  # both documents of every training user
    groups = lines["groups"]
    assert groups["secrets"] == [lines["secrets"]] * 2
    paper = by_name(groups["attacks"], "perplexity_sum")
    assert paper["auc"]["low"] > 0.5
    assert paper["auc"]["value"] > by_name(lines["attacks"], "perplexity")["auc"]["value"] + 0.1
    assert paper["accuracy_at_median"]["value"] > 0.6
    # No coin, no test: neither a p-value nor a part of the headline.
    for attack in (*lines["attacks"], *groups["attacks"]):
        assert attack["p_value"] is attack["adjusted"] is None
    assert not described.attempts
    assert not described.leaks
    page = render_report(json.loads(json.dumps(described.to_json())), run_name="learned")
    assert "groups of 10" in page
    assert "tests nothing" in page
    assert "better than guessing at" not in page
    content = json.dumps(described.to_json()) + page
    for line in donors.read_text().splitlines()[:40]:
        assert json.loads(line)["said"][-26:-14] not in content


@pytest.mark.slow
def test_what_is_missing_is_told(untouched_run: Run, tmp_path: Path) -> None:
    record = audit_run(untouched_run, AuditPlan(**{**vars(PLAN), "lines": 3}), device="cpu")
    few = lines_of(record)
    assert few["members"] == 3
    assert few["groups"] is None
    assert "groups of 10 need 20 texts of either kind, and there are 3" in few["groups_why"]
    with pytest.raises(InputError, match="spans in column 'marks'"):
        audit_run(untouched_run, AuditPlan(**{**vars(PLAN), "spans": "marks"}), device="cpu")
    none = audit_run(untouched_run, AuditPlan(**{**vars(PLAN), "lines": 0}), device="cpu")
    assert none.sections["membership"] is None
    empty = with_codes(tmp_path / "donors.jsonl", 3, column="other")
    told = audit_run(untouched_run, AuditPlan(**{**vars(PLAN), "donors": str(empty)}), device="cpu")
    assert any("donors" in note for note in told.notes)


@pytest.mark.slow
def test_what_is_named_and_missing_is_told_before_anything_is_loaded(
    untouched_run: Run, untouched: Audited, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Refused where it cannot be, and told where it has no use."""
    donors = with_codes(tmp_path / "donors.jsonl", 3)
    told = audit_run(untouched.run, AuditPlan(**{**vars(PLAN), "donors": str(donors)}), device="cpu")
    assert any("donors not used: the corpus has no column 'spans'" in note for note in told.notes)
    monkeypatch.setattr("tacit.audit.model_audit.load_trained", lambda *_, **__: pytest.fail("loaded"))
    for run in (untouched_run, untouched.run):  # with spans, and without
        with pytest.raises(InputError, match=r"no file .*nope\.jsonl"):
            audit_run(run, AuditPlan(**{**vars(PLAN), "donors": "nope.jsonl"}), device="cpu")
    with pytest.raises(InputError, match="spans in column 'nope'"):
        audit_run(untouched_run, AuditPlan(**{**vars(PLAN), "spans": "nope"}), device="cpu")


def test_every_score_is_tried_and_one_of_each_kind_was_named() -> None:
    found = pairs(np.repeat(np.arange(20), 2).tolist())
    values = secrets_that_differ(found, np.random.default_rng(0))
    scores = {"reference": values + found.is_member, "loss": values, "perplexity": -np.exp(-values)}
    options: dict[str, Any] = {"groups": GroupPlan(groups=20, size=10)}
    finding = MembershipFinding.of("lines", "", found, scores, **options)
    assert finding.groups is not None
    named = [one for one in finding.attempts() if one.named]
    assert [one.p_value for one in named] == [
        finding.p_values["reference"],
        finding.groups.p_values["mean_reference"],
    ]
    # Loss and perplexity put texts in one order: one test, which both rows show.
    assert [one.attack for one in finding.attempts() if "groups" not in one.attack] == [
        "membership of lines (reference), AUC",
        "membership of lines (loss), AUC",
    ]
    assert len(finding.attempts()) == 2 + len(finding.groups.areas)
    rows = {row["name"]: row["attempt"] for row in finding.to_json()["attacks"]}
    assert rows["perplexity"] == rows["loss"] == "membership of lines (loss), AUC"
    by_paper = MembershipFinding.of("lines", "", found, scores, primary="perplexity", **options)
    assert [one.attack for one in by_paper.attempts() if one.named] == [
        "membership of lines (perplexity), AUC",
        "membership of groups of 10 lines (perplexity_sum), AUC",
    ]


def test_one_text_of_each_secret_and_its_look_alike() -> None:
    found = pairs([0, 0, 0, 1, 2, 2])
    chosen = one_of_each(found, seed=3)
    assert len(chosen) == 6
    assert sorted(found.secrets[text] for text in chosen) == ["s0", "s0", "s1", "s1", "s2", "s2"]
    assert found.partners is not None
    assert set(found.partners[chosen]) == set(chosen)


def test_a_set_whose_look_alikes_look_different_is_flagged_and_tried_no_more() -> None:
    """The blind attacker gets whole pairs, each with one text of its cluster."""
    found = pairs(np.repeat(np.arange(40), 2).tolist())
    names = {True: ("Anna", "Hanna", "Joanna"), False: ("Otto", "Lotto", "Rotto")}
    texts = [
        f"{public_sentences(1, seed=place // 4)[0]} I am {names[bool(member)][place // 4 % 3]}."
        for place, member in enumerate(found.is_member)
    ]
    finding = MembershipFinding.of(
        "lines", "", replace(found, texts=tuple(texts)), {"loss": np.arange(160.0)}
    )
    assert finding.flagged
    assert finding.attempts() == []
