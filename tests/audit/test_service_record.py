"""A service's audit beside a Run's: what is kept, what it changes, and what a control says of silence."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from tacit.audit.auditing import audit_run
from tacit.audit.black_box_verdict import BlackBoxAudit, CanaryAnswers, Meter, Terms, judged_answers
from tacit.audit.plans import AuditPlan
from tacit.audit.record import SECTIONS, AuditRecord, ClaimRecord, read_audit, read_record
from tacit.audit.service_record import (
    ServiceRecord,
    left_out,
    rates_of_control,
    read_services,
    with_service,
)
from tacit.audit.verdicts import Verdict
from tacit.cli.audit import _into_the_report
from tacit.cli.audit import service as service_command
from tacit.errors import InputError
from tacit.privacy import Guarantee
from tacit.report import render_report
from tacit.runs import Run
from tests.audit.runs import Audited
from tests.report.samples import sample_audit

CERTIFIED = Guarantee.certified(order=2.0, epsilon=2.0)
TERMS = Terms("certified", 2.0, 2.0, 1024)  # those of the sample


def came_back(hits: int, **options: Any) -> BlackBoxAudit:
    answers = [CanaryAnswers(f"c{i}", i < 8, generations=100, secret=hits * (i < 8)) for i in range(16)]
    given: dict[str, Any] = {
        "meter": Meter(1600, 9000, 9000, (0.1,)),
        "ended": "complete",
        "guarantee": CERTIFIED,
        "candidates": 10**6,
        "terms": TERMS,
    }
    return judged_answers(tuple(answers), **(given | options))


def test_the_control_says_whether_silence_means_anything() -> None:
    """800 answers: 44 secrets would contradict a chance of e/1000 each."""
    assert came_back(0).needed_hits == 44
    assert came_back(0, control_hits=43.9).verdict == "inconclusive"
    supported = came_back(0, control_hits=44.0)
    assert supported.verdict == "supported"
    assert "gives at least 44.0 in as many answers" in supported.reason
    assert "is not known" in came_back(0).reason
    assert came_back(0, extractable=True).verdict == "supported"
    assert came_back(90, control_hits=1.0).verdict == "contradicted"


def audit_of(verdict: Verdict, commitment: str) -> AuditRecord:
    claim = ClaimRecord("answers", verdict, "r", 8.0, 1.0, None, 1e-5, 0.95, "m")
    sample = sample_audit()
    others = [name for name in SECTIONS if name != "prediction"]
    sections: dict[str, Any] = dict.fromkeys(others)
    return AuditRecord(
        created=sample["created"],
        run=sample["run"],
        guarantee=CERTIFIED.to_json(),
        mechanism=sample["mechanism"],
        claims=(claim,),
        attempts=(),
        confidence=0.95,
        sections={**sections, "prediction": {**sample["prediction"], "black_box": None}},
        not_covered=("everything else",),
        notes=(),
        provenance={**sample["provenance"], "manifest_commitment": commitment},
    )


@pytest.fixture
def run(untouched: Audited, tmp_path: Path) -> Run:
    """A Run that may be written to."""
    return Run(tmp_path, untouched.run.manifest)


def test_a_record_is_read_as_it_was_written(untouched: Audited) -> None:
    record = audit_of("supported", untouched.manifest.commitment)
    service = ServiceRecord.of(came_back(90), url="http://x/v1", manifest=untouched.manifest)
    for one in (record, service.into(record)):
        written = json.dumps(one.to_json(), sort_keys=True)
        assert json.dumps(AuditRecord.from_json(json.loads(written)).to_json(), sort_keys=True) == written


@pytest.mark.parametrize(
    ("inside", "hits", "overall"),
    [
        ("supported", 0, "supported"),  # silence from outside takes nothing away
        ("supported", 90, "contradicted"),
        ("inconclusive", 0, "inconclusive"),
        ("inconclusive", 90, "contradicted"),
    ],
)
def test_a_service_can_contradict_and_not_replace(
    run: Run, untouched: Audited, inside: Verdict, hits: int, overall: Verdict
) -> None:
    audit_of(inside, untouched.manifest.commitment).save(run)
    found = came_back(hits)
    service = ServiceRecord.of(found, url="http://x/v1", manifest=untouched.manifest)
    service.save(run)
    assert read_services(run) == [service]
    assert (run.folder / "service_audit.json").stat().st_mode & 0o077 == 0
    written = _into_the_report(run)
    content = read_audit(run)
    assert content["verdict"]["word"] == overall
    assert content["verdict"]["leaks"] == (hits > 0)
    assert content["prediction"]["black_box"]["hits_inserted"] == 8 * hits
    assert content["prediction"]["realised"]  # what was there stays
    assert [claim["tier"] for claim in content["claims"]] == ["main", "service"]
    page = written[1].read_text()
    assert "From outside, 800 generations held" in page
    assert f'class="hero {"contradicted" if hits else inside}"' in page


def test_a_contradiction_stands_when_the_service_is_asked_again(run: Run, untouched: Audited) -> None:
    """Answers are drawn afresh: silence later takes nothing back. Only a hand removes what was found."""
    audit_of("supported", untouched.manifest.commitment).save(run)

    def ask(hits: int, day: int, **options: Any) -> dict[str, Any]:
        found = came_back(hits, **options)
        made = ServiceRecord.of(found, url="http://x/v1", manifest=untouched.manifest)
        created = f"2026-03-{day:02}T10:00:00+00:00"
        section = {**made.section, "created": created}
        dataclasses.replace(made, created=created, section=section).save(run)
        _into_the_report(run)
        return read_audit(run)

    assert ask(0, 1)["verdict"]["word"] == "supported"
    assert ask(90, 2)["verdict"]["word"] == "contradicted"
    for again in (ask(0, 3), ask(0, 4)):
        assert again["verdict"]["word"] == "contradicted"
        assert [claim["tier"] for claim in again["claims"]] == ["main", "service"]
        assert again["prediction"]["black_box"]["created"].startswith("2026-03-02")
        assert again["verdict"]["attacks"][0]["leaks"]
        (note,) = again["notes"]
        assert "service_audit-20260302100000.json" in note
    assert "contradicted 1 of 4 times" in note
    names = [f"service_audit-2026030{day}100000.json" for day in (1, 2, 3)]
    assert sorted(path.name for path in run.folder.glob("service_audit-*.json")) == names
    assert (run.folder / names[0]).stat().st_mode & 0o077 == 0
    assert with_service(audit_of("supported", untouched.manifest.commitment), read_services(run)).verdict == (
        "contradicted"
    )
    # Another budget is another claim: what was found of this one is still part of this audit.
    assert ask(0, 5, terms=Terms("certified", 2.0, 8.0, 1024))["verdict"]["word"] == "contradicted"
    (run.folder / names[1]).unlink()
    removed = ask(0, 6)
    assert removed["verdict"]["word"] == "supported"
    assert removed["notes"] == []


def test_a_service_with_other_canaries_is_left_out_and_told(run: Run, untouched: Audited) -> None:
    other = dataclasses.replace(untouched.manifest, commitment="0" * 64)
    service = ServiceRecord.of(came_back(90), url="http://x/v1", manifest=other)
    record = with_service(audit_of("supported", untouched.manifest.commitment), [service])
    assert record.verdict == "supported"
    assert "about other canaries" in record.notes[-1]
    assert _into_the_report(run) == []  # not audited yet: nothing to put it into


@pytest.mark.parametrize(
    ("terms", "told"),
    [
        (Terms("individual", 2.0, 2.0, 1024), "mechanism individual and not certified"),
        (Terms("certified", 4.0, 2.0, 1024), "order 4 and not 2"),
        (Terms("certified", 2.0, 8.0, 1024), "epsilon 8 and not 2"),
        (Terms("certified", 2.0, 2.0, 64), "number of queries 64 and not 1024"),
        (Terms(), "mechanism unknown and not certified"),
    ],
)
def test_a_service_of_another_mechanism_or_budget_is_left_out_and_told(
    run: Run, untouched: Audited, terms: Terms, told: str
) -> None:
    """Its answers contradict what that service claims, and nothing that was audited here."""
    service = ServiceRecord.of(came_back(90, terms=terms), url="http://x/v1", manifest=untouched.manifest)
    audit_of("supported", untouched.manifest.commitment).save(run)
    service.save(run)
    _into_the_report(run)
    _into_the_report(run)
    record = read_record(run)
    assert record is not None
    assert record.verdict == "supported"
    assert told in left_out(record)
    assert len(record.notes) == 1  # told once
    matching = ServiceRecord.of(came_back(90), url="http://x/v1", manifest=untouched.manifest)
    assert left_out(with_service(record, [matching])) == ""


def test_the_headline_says_what_had_power(untouched: Audited) -> None:
    """Where no transcript came near the claim, only the check of the charges speaks for it."""
    record = audit_of("supported", untouched.manifest.commitment)
    assert record.line == "Supported: attacks that could have refuted the claim did not."
    prediction = json.loads(json.dumps(record.sections["prediction"]))
    for row in prediction["likelihood_ratio"]:
        row["verdict"] = "inconclusive"
    charges = dataclasses.replace(record, sections={**record.sections, "prediction": prediction})
    assert charges.line == "Supported: no charge is below its loss, recomputed from the definition."


def damaged(service: ServiceRecord, **changes: Any) -> str:
    content = json.loads(json.dumps({"format": 2, **dataclasses.asdict(service)}))
    return json.dumps(content | changes)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"format": 99}, "another version"),
        ({"attempt": {}}, "'attempt.attack' is missing; remove the file and audit the service again"),
        ({"claim": {"claim": "x"}}, "'claim.verdict' is missing"),
        ({"section": []}, "'section' cannot be used"),
        ({"terms": {}}, "'terms.mechanism' is missing"),
    ],
)
def test_a_damaged_service_audit_is_refused_before_anything_is_computed(
    run: Run, untouched: Audited, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], told: str
) -> None:
    service = ServiceRecord.of(came_back(90), url="http://x/v1", manifest=untouched.manifest)
    monkeypatch.setattr("tacit.audit.auditing.split_texts", lambda *_: pytest.fail("text was read"))
    for content in (damaged(service, **changes), '{"format": 2}', "[]", "{"):
        (run.folder / "service_audit.json").write_text(content)
        with pytest.raises(InputError, match=r"service_audit.json.*(audit the service again)") as caught:
            audit_run(run, AuditPlan())
        if content.endswith("}") and len(content) > 20:
            assert told in str(caught.value)


@pytest.mark.parametrize(
    "damage", [{"verdict": None}, {"claims": [{"claim": "x"}]}, {"guarantee": {"kind": "none"}}]
)
def test_a_damaged_audit_is_refused_before_a_service_is_asked(
    run: Run, untouched: Audited, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, damage: dict[str, Any]
) -> None:
    content = audit_of("supported", untouched.manifest.commitment).to_json() | damage
    (run.folder / "audit.json").write_text(json.dumps(content))
    untouched.manifest.save(tmp_path / "canaries.json")
    monkeypatch.setenv("TACIT_API_KEY", "sk-any")
    monkeypatch.setattr("tacit.runs.Run.open", lambda folder: run)
    monkeypatch.setattr("tacit.audit.black_box.audit_service", lambda *_, **__: pytest.fail("it was asked"))
    with pytest.raises(InputError, match=r"audit.json: '.*audit again"):
        service_command("http://x/v1", canaries=tmp_path / "canaries.json", run_folder=run.folder)


@pytest.mark.slow
def test_a_control_gives_what_it_knows(overfitted: Audited, untouched: Audited) -> None:
    knows = rates_of_control(overfitted.run, overfitted.manifest, served=untouched.run, device="cpu")
    assert set(knows) == {canary.id for canary in overfitted.manifest.canaries if canary.inserted}
    nothing = rates_of_control(untouched.run, untouched.manifest, device="cpu")
    assert sum(knows.values()) > 20 * sum(nothing.values())
    assert 0 < max(nothing.values()) < max(knows.values()) < 1
    guarantee = Guarantee(kind="dp", unit="user", epsilon=1.0, delta=1e-5).to_json()
    protected = Run(untouched.run.folder, untouched.run.manifest.model_copy(update={"guarantee": guarantee}))
    with pytest.raises(InputError, match="is protected itself"):
        rates_of_control(protected, untouched.manifest)
    page = render_report(sample_audit(), run_name="x")
    assert "What a client got out of the running service" in page
