"""A service's audit beside a Run's: what is kept, what it changes, and what a control says of silence."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from tacit.audit.black_box_verdict import BlackBoxAudit, CanaryAnswers, Meter, judged_answers
from tacit.audit.record import AuditRecord, ClaimRecord, read_audit
from tacit.audit.service_record import ServiceRecord, rates_of_control, read_service, with_service
from tacit.audit.verdicts import Verdict
from tacit.cli.audit import _into_the_report
from tacit.errors import InputError
from tacit.privacy import Guarantee
from tacit.report import render_report
from tacit.runs import Run
from tests.audit.runs import Audited
from tests.report.samples import sample_audit

CERTIFIED = Guarantee.certified(order=2.0, epsilon=2.0)


def came_back(hits: int, **options: Any) -> BlackBoxAudit:
    answers = [CanaryAnswers(f"c{i}", i < 8, generations=100, secret=hits * (i < 8)) for i in range(16)]
    given: dict[str, Any] = {
        "meter": Meter(1600, 9000, 9000, (0.1,)),
        "ended": "complete",
        "guarantee": CERTIFIED,
        "candidates": 10**6,
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
    sections = dict.fromkeys(("utility", "exposure", "membership", "extraction", "disparity"))
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
    ServiceRecord.of(found, url="http://x/v1", manifest=untouched.manifest).save(run)
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
    # Asked again, the new answers take the place of the old.
    ServiceRecord.of(came_back(0), url="http://x/v1", manifest=untouched.manifest).save(run)
    _into_the_report(run)
    again = read_audit(run)
    assert len(again["claims"]) == 2
    assert again["verdict"]["word"] == inside
    (attempt,) = again["verdict"]["attacks"]
    assert not attempt["leaks"]


def test_a_service_with_other_canaries_is_left_out_and_told(run: Run, untouched: Audited) -> None:
    other = dataclasses.replace(untouched.manifest, commitment="0" * 64)
    ServiceRecord.of(came_back(90), url="http://x/v1", manifest=other).save(run)
    record = with_service(audit_of("supported", untouched.manifest.commitment), run)
    assert record.verdict == "supported"
    assert "about other canaries" in record.notes[-1]
    assert _into_the_report(run) == []  # not audited yet: nothing to put it into
    (run.folder / "service_audit.json").write_text('{"format": 99}')
    with pytest.raises(InputError, match="another version"):
        read_service(run)


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
