"""Lines with gold spans against look-alikes, alone and in groups: known answers on whole Runs."""

from __future__ import annotations

import json
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
from tests.audit.runs import finetuned
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
    return with_codes(tmp_path_factory.mktemp("codes") / "private.jsonl", 60)


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
    # Held-out users' codes stand in, one for each; about a fifth of the users was held out.
    assert 5 <= found["secrets"] <= 15
    assert found["members"] == found["non_members"]
    loss = by_name(found["attacks"], "reference")
    assert loss["auc"]["low"] > 0.5
    assert loss["p_value"] < 0.01
    assert of_learned.leaks[0].attack.startswith("membership of lines (reference)")


@pytest.mark.slow
def test_groups_and_donors_of_another_file(
    untouched_run: Run, tmp_path: Path, of_learned: AuditRecord
) -> None:
    donors = with_codes(tmp_path / "donors.jsonl", 90, seed=1)
    learned = Run.open(untouched_run.folder.with_name("learned"))
    plan = AuditPlan(**{**vars(PLAN), "donors": str(donors)})
    caught = audit_run(learned, plan, device="cpu")
    groups = lines_of(caught)["groups"]
    assert (groups["groups"], groups["size"]) == (60, 10)
    assert groups["secrets"][0] == groups["secrets"][1] == lines_of(caught)["secrets"] > 35
    paper, mean = (by_name(groups["attacks"], name) for name in ("perplexity_sum", "mean_reference"))
    assert paper["auc"]["low"] > 0.5
    assert paper["auc"]["value"] > by_name(lines_of(caught)["attacks"], "perplexity")["auc"]["value"] + 0.1
    assert mean["p_value"] == 0.001
    assert paper["accuracy_at_median"]["value"] > 0.6
    assert {leak.attack.split(",")[0] for leak in caught.leaks if leak.named} == {
        "membership of lines (reference)",
        "membership of groups of 10 lines (mean_reference)",
    }
    page = render_report(json.loads(json.dumps(caught.to_json())), run_name="learned")
    assert "groups of 10" in page
    # Nothing was learned: nothing is found, and that is told.
    blank = audit_run(untouched_run, plan, device="cpu")
    assert not blank.leaks
    assert by_name(lines_of(blank)["groups"]["attacks"], "mean_reference")["p_value"] > 0.001
    content = json.dumps(caught.to_json()) + page
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
    assert any("--donors" in note for note in told.notes)


def test_every_score_is_tried_and_one_of_each_kind_was_named() -> None:
    found = pairs(np.repeat(np.arange(20), 2).tolist())
    values = secrets_that_differ(found, np.random.default_rng(0))
    scores = {"reference": values, "loss": values, "perplexity": -np.exp(-values)}
    options: dict[str, Any] = {"groups": GroupPlan(groups=20, size=10)}
    finding = MembershipFinding.of("lines", "", found, scores, **options)
    assert finding.groups is not None
    named = [one for one in finding.attempts() if one.named]
    assert [one.p_value for one in named] == [
        finding.p_values["reference"],
        finding.groups.p_values["mean_reference"],
    ]
    assert len(finding.attempts()) == 3 + len(finding.groups.areas)
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
