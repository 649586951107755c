"""Audits of whole Runs: known answers, what is refused, and that no secret is in what is written."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

from tacit.attacks.exposure import ExposureSettings
from tacit.audit.auditing import audit_run
from tacit.audit.comparison import compare_runs
from tacit.audit.model_audit import ModelAudit
from tacit.audit.plans import AnswerPlan, AuditPlan
from tacit.audit.record import AuditRecord, read_audit
from tacit.audit.transcripts_run import PredictionPlan
from tacit.cli import console
from tacit.cli.audit_tables import show_audit
from tacit.errors import InputError
from tacit.mechanisms.choice import MechanismChoice
from tacit.prediction import Budget
from tacit.privacy import Guarantee
from tacit.report import render_comparison, render_report
from tacit.runs import Run
from tests.audit.runs import Audited, finetuned, planted_corpus

pytestmark = pytest.mark.slow


# Secrets that were memorised are ranked exactly within this; the others are ranked by a few draws.
QUICK = ExposureSettings(budget=1_000, samples=100, seed=0)


def audit(audited: Audited, **changes: Any) -> AuditRecord:
    plan = AuditPlan(manifest=audited.manifest, block_size=48, exposure=QUICK)
    return audit_run(audited.run, dataclasses.replace(plan, **changes), device="cpu")


def claiming(audited: Audited, epsilon: float) -> Audited:
    """The same Run with another guarantee: what it would be if somebody claimed it."""
    guarantee = Guarantee(kind="dp", unit="user", epsilon=epsilon, delta=1e-5)
    manifest = audited.run.manifest.model_copy(update={"guarantee": guarantee.to_json()})
    return dataclasses.replace(audited, run=Run(audited.run.folder, manifest))


def answers(name: Any = "certified", guard: float | None = None) -> AnswerPlan:
    budget = Budget(2.0, 40)
    plan = PredictionPlan(
        epsilon=2.0, repeats=40, transcripts=100, tokens=0, parts=2, blocks=1, block_size=32
    )
    return AnswerPlan(MechanismChoice(name, target=budget.target, guard=guard), budget, plan)


@pytest.fixture(scope="module")
def of_overfitted(overfitted: Audited, untouched: Audited) -> AuditRecord:
    return audit(overfitted, against=untouched.run)


@pytest.fixture(scope="module")
def of_untouched(untouched: Audited) -> AuditRecord:
    return audit(untouched)


def test_an_overfitted_model_is_caught(of_overfitted: AuditRecord) -> None:
    assert of_overfitted.verdict == "inconclusive"  # nothing is claimed that could be contradicted
    assert of_overfitted.leaks
    assert of_overfitted.line.startswith("No guarantee, and it leaks")
    (claim,) = of_overfitted.claims
    assert claim.claimed_epsilon is None
    assert claim.measured_epsilon is not None
    assert claim.measured_epsilon > 2
    exposure = of_overfitted.sections["exposure"]
    assert exposure["together"]["p_value"] < 1e-6
    # Those that stood there sixteen times are among the very first; nobody is beyond log2 |R|.
    often = [row for row in exposure["per_repetition"] if row["repetitions"] == 16]
    assert often[0]["mean"]["value"] > 11
    assert max(row["exposure"]["high"] for row in exposure["rows"]) <= math.log2(10_000)
    # The public model never saw them, and the others were never inserted.
    blank = [row["public"]["value"] for row in exposure["rows"]]
    out = [row["exposure"]["value"] for row in exposure["rows"] if not row["inserted"]]
    assert sum(blank) / len(blank) < 4
    assert sum(out) / len(out) < 4
    canaries = of_overfitted.sections["membership"]["sets"][0]
    assert canaries["name"] == "canaries"
    assert not canaries["flagged"]
    assert next(row for row in canaries["attacks"] if row["name"] == "loss")["auc"]["low"] > 0.5


def test_an_untouched_model_is_inconclusive(of_untouched: AuditRecord) -> None:
    assert of_untouched.verdict == "inconclusive"
    assert not of_untouched.leaks
    assert of_untouched.line == "No guarantee; these attacks found nothing. That shows no safety."
    (claim,) = of_untouched.claims
    assert claim.measured_epsilon == 0
    assert claim.detectable_epsilon is not None
    assert claim.detectable_epsilon > 2
    assert of_untouched.sections["exposure"]["together"]["p_value"] > 0.001
    disparity = of_untouched.sections["disparity"]
    assert (disparity["against"], disparity["baseline"]) == ("the public model", "public")
    assert disparity["mean"]["value"] == pytest.approx(0, abs=1e-2)


def test_a_claim_that_the_weights_break_is_contradicted(overfitted: Audited, untouched: Audited) -> None:
    broken = audit(claiming(overfitted, 1.0), documents=0)
    assert broken.verdict == "contradicted"
    assert broken.line.startswith("Contradicted")
    assert "more than the claimed 1" in broken.claims[0].reason
    # The same claim of a model that learned nothing stands, since the attack finds the overfitted one.
    claimed = audit(claiming(untouched, 1.0), documents=0, real="none", against=overfitted.run)
    assert claimed.verdict == "supported"
    (claim,) = claimed.claims
    assert claim.control_epsilon is not None
    assert claim.control_epsilon > 1.5
    assert "where nothing protects, the same attack shows at least" in claim.reason
    control = claimed.sections["exposure"]["control"]
    assert control["p_value"] < 1e-6
    assert control["largest"] > 11
    page = render_report(json.loads(json.dumps(claimed.to_json())), run_name="untouched")
    assert "without protection" in page


def test_sections_of_one_model(of_overfitted: AuditRecord, overfitted: Audited) -> None:
    sections = of_overfitted.sections
    utility = sections["utility"]
    assert utility["run"]["value"] < utility["public"]["value"]
    assert utility["unmitigated"]["value"] == pytest.approx(utility["public"]["value"], rel=1e-3)
    disparity = sections["disparity"]
    assert disparity["against"] == "untouched"
    assert disparity["mean"]["value"] < 0  # it predicts better than the untouched one
    assert len(disparity["points"]) == disparity["users"]
    assert disparity["baseline"] == "run"
    assert "none of it was trained on" in disparity["caveats"][-1]
    real = sections["extraction"]["tab_real"]
    assert real["source"] == "real, picked by an independent model"
    assert real["users"] + real["other_users"] == 40 + sum(
        canary.inserted for canary in overfitted.manifest.canaries if canary.user.startswith("canary")
    )
    assert real["p_value"] > 0.001  # these sayings are common ones
    tab = sections["extraction"]["tab"]
    assert 0 <= tab["accuracy"]["value"] <= tab["attainable"]
    codes = {row["name"]: row for row in sections["extraction"]["codes"]}
    never = codes["this model, secrets that were never inserted"]
    assert codes["this model"]["rate"]["value"] > 3 * never["rate"]["value"]
    assert codes["public model"]["verdict"] == never["verdict"] == "not judged"
    assert codes["this model"]["verdict"] in ("extracts", "none")
    tries = sections["extraction"]["tries"]["rows"]
    assert tries[0]["median_tries"] < tries[-1]["median_tries"]  # p = 0.1 takes fewer than p = 0.9
    documents = sections["membership"]["sets"][1]
    assert "/" not in of_overfitted.run["public_model"]  # a folder is the operator's
    assert documents["members"] + documents["non_members"] <= 40  # one document of each user at most
    assert sections["prediction"] is None
    assert of_overfitted.provenance["seconds"] > 0


def test_what_is_written_holds_no_secret(of_overfitted: AuditRecord, overfitted: Audited) -> None:
    of_overfitted.save(overfitted.run)
    path = overfitted.run.folder / "audit.json"
    assert path.stat().st_mode & 0o077 == 0
    content = path.read_text()
    for row in (told := read_audit(overfitted.run))["exposure"]["rows"]:
        del row["rank"], row["alone"]  # numbers from 1 to 10,000, which may be anybody's secret by chance
    quoted = json.dumps(told)
    page = render_report(read_audit(overfitted.run), run_name="overfitted")
    for canary in overfitted.manifest.canaries:
        for written in (content, page):
            assert canary.text not in written
            assert canary.twin_text not in written
            assert canary.user not in written
        assert f'"{canary.secret}"' not in quoted
    assert "it leaks" in page


def test_runs_are_compared_at_equal_perplexity(
    of_overfitted: AuditRecord, of_untouched: AuditRecord, overfitted: Audited, untouched: Audited
) -> None:
    of_overfitted.save(overfitted.run)
    of_untouched.save(untouched.run)
    rows = compare_runs([untouched.run, overfitted.run, untouched.run])
    assert [row.comparable for row in rows] == [True, False, True]
    assert "times the first Run's" in rows[1].why
    assert rows[1].exposure_max is not None
    assert rows[0].exposure_max is not None
    assert rows[1].exposure_max > rows[0].exposure_max
    assert all(row.comparable for row in compare_runs([overfitted.run, overfitted.run]))
    page = render_comparison([row.to_json() for row in rows])
    assert "overfitted" in page


def printed_for(found: AuditRecord) -> str:
    with console.out.capture() as captured:
        show_audit(found)
    return captured.get()


def test_utility_and_who_pays_are_printed(of_overfitted: AuditRecord) -> None:
    printed = printed_for(of_overfitted)
    assert re.search(rf"this Run +│ +{of_overfitted.sections['utility']['run']['value']:.3g} ", printed)
    assert "Who pays: change of perplexity against untouched" in printed
    assert re.search(rf"gap +│ +{of_overfitted.sections['disparity']['gap']['value']:.3g} ", printed)


def test_an_honest_ensemble_is_supported(audited: Audited) -> None:
    found = audit(audited, answers=answers("submix"))
    assert found.verdict == "supported"
    assert found.guarantee["kind"] == "rop"
    prediction = found.sections["prediction"]
    assert prediction["realised"]["excess"] == 0
    assert prediction["likelihood_ratio"]
    assert found.mechanism is not None
    assert found.mechanism["parts"] == 2
    (claim,) = found.claims
    assert claim.claimed_epsilon == 2.0  # nats of divergence for this corpus, and no epsilon at a delta
    assert claim.delta is None
    for row in prediction["likelihood_ratio"]:
        assert (row["measure"], row["delta"]) == ("divergence", None)
        assert row["epsilon_lower"] <= row["claimed_epsilon"] == 2.0
    assert claim.measured_epsilon == max(row["epsilon_lower"] for row in prediction["likelihood_ratio"])
    (row,) = found.sections["extraction"]["codes"]
    assert (row["name"], row["epsilon"], row["chance"]) == ("submix per_part", 2.0, 1e-4)
    assert 0 < row["rate"]["value"] < 1
    assert found.sections["exposure"]["queries"] > 0
    render_report(json.loads(json.dumps(found.to_json())), run_name="ensemble")
    printed = printed_for(found)
    assert "claimed nats" in printed
    assert "claimed epsilon" not in printed
    realised = prediction["detail"]["on_canaries"]
    assert re.search(rf"canaries +│ +{realised['queries']} +│ +0 +│", printed)
    assert "divergence at least" in printed


def altered(one: Audited, **recipe: Any) -> Audited:
    """The same Run as if its recipe had been another."""
    changed = one.run.manifest.model_copy(update={"recipe": {**one.run.manifest.recipe, **recipe}})
    return dataclasses.replace(one, run=Run(one.run.folder, changed))


@pytest.fixture
def other_split(untouched: Audited) -> Audited:
    return altered(untouched, held_out={"share": 0.2, "by": "user", "seed": 9})


@pytest.fixture
def other_tokenizer(untouched: Audited) -> Audited:
    record = untouched.run.manifest.public_model.model_copy(update={"tokenizer_fingerprint": "other"})
    manifest = untouched.run.manifest.model_copy(update={"public_model": record})
    return dataclasses.replace(untouched, run=Run(untouched.run.folder, manifest))


@pytest.fixture
def protected(untouched: Audited) -> Audited:
    return claiming(untouched, 1.0)


@pytest.fixture(scope="module")
def other_text(tmp_path_factory: pytest.TempPathFactory, tiny_transformer: Path) -> Audited:
    folder = tmp_path_factory.mktemp("other_text")
    manifest = planted_corpus(folder / "private.jsonl", users=2, seed=8)
    run = finetuned(tiny_transformer, folder / "private.jsonl", folder / "run", max_steps=1)
    return Audited(run, manifest)


def test_noise_at_every_answer_is_audited_by_its_charges(audited: Audited) -> None:
    found = audit(audited, answers=answers("gnmax"))
    assert found.verdict in ("supported", "inconclusive")
    assert found.sections["exposure"] is None
    assert found.sections["membership"] is None
    assert found.sections["prediction"]["realised"]["excess"] == 0
    assert any("Noise is drawn anew" in note for note in found.notes)
    render_report(json.loads(json.dumps(found.to_json())), run_name="noise")


@pytest.mark.parametrize(
    ("which", "changes", "message"),
    [
        ("audited", {}, "holds an ensemble"),
        ("overfitted", {"answers": "certified"}, "leave mechanism and"),
        ("overfitted", {"against": "audited"}, "holds an ensemble"),
        ("overfitted", {"against": "other_tokenizer"}, "another tokenizer"),
        ("audited", {"answers": "certified", "against": "untouched"}, "leave --against out"),
        ("overfitted", {"against": "other_text"}, "other text"),
        ("overfitted", {"against": "other_split"}, "held out other text"),
        ("overfitted", {"against": "protected"}, "is protected itself"),
        ("overfitted", {"real": "paper"}, "give a Run of it"),
    ],
)
def test_what_does_not_fit_is_refused(
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    which: str,
    changes: dict[str, str],
    message: str,
) -> None:
    given: dict[str, Any] = {}
    if "answers" in changes:
        given["answers"] = answers(changes["answers"])
    if "against" in changes:
        given["against"] = request.getfixturevalue(changes["against"]).run
    if "real" in changes:  # refused before anything is measured
        monkeypatch.setattr(ModelAudit, "record", None)
        given |= {"real": changes["real"]}
    with pytest.raises(InputError, match=message):
        audit(request.getfixturevalue(which), **given)


def test_a_run_that_was_not_audited_is_not_compared(untouched: Audited, audited: Audited) -> None:
    with pytest.raises(InputError, match="at least two"):
        compare_runs([untouched.run])
    with pytest.raises(InputError, match="different text"):
        compare_runs([untouched.run, audited.run])


@pytest.mark.parametrize("changes", [{"documents": -1}, {"delta": 1.0}, {"confidence": 0.4}, {"seed": -1}])
def test_plans_are_checked(changes: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="Expected"):
        AuditPlan(**changes)
