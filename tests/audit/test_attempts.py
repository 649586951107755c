"""Whether anything leaks: false alarms over all that is tried, and leaks that only one attack sees."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from scipy import stats

from tacit.attacks.look_alikes import MembershipSet
from tacit.audit.attempts import Attempt, judged_together, leaking, with_adjusted
from tacit.audit.audit_file import parse_audit
from tacit.audit.completion_chance import completion_p_value
from tacit.audit.membership_findings import MembershipFinding
from tacit.audit.nulls import memorisation
from tacit.audit.record import AuditRecord
from tacit.privacy import Guarantee
from tacit.report import model_card, render_report
from tacit.statistics import Estimate
from tests.report.samples import sample_audit
from tests.report.test_model_card import released

LEVEL = 0.05
SCORES = ("reference", "loss", "zlib", "min_k", "ez")
HALF = Estimate(0.5, 0.4, 0.6, 0.95, "m")


def attempt(name: str, p_value: float, *, named: bool = True) -> Attempt:
    return Attempt(name, HALF, 0.5, p_value, named)


def texts(many: int) -> MembershipSet:
    labels = np.arange(many) < many // 2
    words = tuple(f"text {number}" for number in range(many))
    return MembershipSet(words, labels, words, words, "documents")


def record(attempts: list[Attempt], **sections: Any) -> AuditRecord:
    sample = sample_audit()
    empty = dict.fromkeys(("utility", "exposure", "membership", "extraction", "prediction", "disparity"))
    judged = judged_together(attempts)
    return AuditRecord(
        created=sample["created"],
        run=sample["run"],
        guarantee=Guarantee.unprotected("user").to_json(),
        mechanism=None,
        claims=(),
        attempts=judged,
        confidence=1 - LEVEL,
        sections=with_adjusted(empty | sections, judged, LEVEL),
        not_covered=(),
        notes=(),
        provenance={},
    )


def test_half_of_the_level_is_for_what_was_named_and_half_for_the_others() -> None:
    """By hand: named 0.01, 0.02 have Holm 0.02, 0.02; others 0.001, 0.5, 0.04 have 0.003, 0.5, 0.08."""
    found = judged_together(
        [
            attempt("a", 0.01),
            attempt("b", 0.001, named=False),
            attempt("c", 0.02),
            attempt("d", 0.5, named=False),
            attempt("e", 0.04, named=False),
        ]
    )
    assert [one.adjusted for one in found] == pytest.approx([0.04, 0.006, 0.04, 1.0, 0.16])
    assert [one.attack for one in leaking(found, LEVEL)] == ["a", "c", "b"]
    assert [one.adjusted for one in judged_together([attempt("a", 0.04)])] == [0.04]
    assert judged_together([]) == ()
    with pytest.raises(ValueError, match="one name"):
        judged_together([attempt("a", 0.1), attempt("a", 0.2)])


def test_where_nothing_leaks_the_headline_alarms_at_most_as_often_as_its_level() -> None:
    """Ranks, scores that hang together, completions and users' texts of a model that saw nothing."""
    rng, runs, alarms, uncorrected = np.random.default_rng(5), 600, 0, 0
    candidates, canaries, found = 100, 8, texts(48)
    for _ in range(runs):
        ranks = rng.integers(1, candidates + 1, canaries)
        tried = [
            attempt("largest", memorisation(ranks, candidates=candidates).largest),
            attempt("together", memorisation(ranks, candidates=candidates).fisher, named=False),
            attempt(
                "tab",
                completion_p_value(int((ranks == 1).sum()), canaries, candidates=candidates, distinct=True),
            ),
        ]
        for name in ("canaries", "documents"):
            common = rng.standard_normal(len(found))
            scores = {score: common + rng.standard_normal(len(found)) for score in SCORES}
            finding = MembershipFinding(name, "", found, scores, None, None, "", "reference", 0.95, seed=0)
            tried += finding.attempts()
        hits = rng.random((2, 20)) < 0.3
        table = [[int(side.sum()), int((~side).sum())] for side in hits]
        tried.append(attempt("users", float(stats.fisher_exact(table, alternative="greater").pvalue)))
        judged = judged_together(tried)
        alarms += bool(leaking(judged, LEVEL))
        uncorrected += any(one.p_value <= LEVEL for one in tried)
    assert alarms <= stats.binom.ppf(0.999, runs, LEVEL)
    assert uncorrected > 0.2 * runs  # what the correction is for


@pytest.mark.parametrize("seen_by", SCORES)
def test_what_only_one_attack_sees_is_a_leak_in_every_place(seen_by: str) -> None:
    rng, found = np.random.default_rng(6), texts(60)
    scores = {name: rng.standard_normal(len(found)) for name in SCORES}
    scores[seen_by] = scores[seen_by] + 2.5 * found.is_member
    finding = MembershipFinding("documents", "", found, scores, None, None, "", "reference", 0.95, seed=0)
    told = record(finding.attempts(), membership={"sets": [finding.to_json()]})
    assert [leak.attack for leak in told.leaks] == [f"membership of documents ({seen_by}), AUC"]
    assert told.line.startswith(f"No guarantee, and it leaks: membership of documents ({seen_by})")
    content = json.loads(json.dumps(told.to_json()))
    assert content["verdict"]["leaks"] is True
    rows = content["membership"]["sets"][0]["attacks"]
    assert [row["name"] for row in rows if row["adjusted"] <= LEVEL] == [seen_by]
    assert [one["adjusted"] for one in content["verdict"]["attacks"]] == [row["adjusted"] for row in rows]
    page = render_report(content, run_name="x")
    assert f"Of 5 attacks, 1 ({seen_by}) is better than guessing at 5%" in page
    assert 'class="hero contradicted"' in page
    assert "The audit found a leak" in model_card(released(), content)
    again = AuditRecord.from_json(content)
    assert again.leaks == told.leaks


def test_no_table_shows_a_leak_that_the_headline_denies() -> None:
    """Eight p-values just above what the rule allows: alone each would be called a leak."""
    rng, found = np.random.default_rng(3), texts(60)
    scores = {name: rng.standard_normal(60) for name in SCORES}
    finding = MembershipFinding("documents", "", found, scores, None, None, "", "reference", 0.95, seed=0)
    tried = [
        Attempt(one.attack, one.measured, one.chance, 0.03 if one.named else 0.02, one.named)
        for one in finding.attempts()
    ]
    told = record(tried, membership={"sets": [finding.to_json()]})
    content = json.loads(json.dumps(told.to_json()))
    assert told.line == "No guarantee; these attacks found nothing. That shows no safety."
    assert content["verdict"]["leaks"] is False
    (one,) = parse_audit(content).membership.sets  # type: ignore[union-attr]
    assert one.above_chance(LEVEL) == []
    assert "Of 5 attacks, 0 are better than guessing at 5%" in render_report(content, run_name="x")
    assert "The audit found no leak" in model_card(released(), content)


def test_codes_are_judged_by_the_corrected_p_value() -> None:
    """The file had said "extracts" where the report, by the corrected one, said none."""
    row = {"attempt": "codes", "p_value": 0.025, "adjusted": None, "verdict": "extracts"}
    found = judged_together([attempt("codes", 0.025, named=False), attempt("other", 0.5)])
    shown = with_adjusted({"codes": [row]}, found, LEVEL)["codes"][0]
    assert (shown["adjusted"], shown["verdict"]) == (pytest.approx(0.05), "extracts")
    assert with_adjusted({"codes": [row]}, found, 0.04)["codes"][0]["verdict"] == "none"
