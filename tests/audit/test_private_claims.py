"""Audits of privately trained Runs: which claim is judged, and for which neighbours."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from tacit.attacks.exposure import ExposureSettings
from tacit.audit.audited import split_texts
from tacit.audit.auditing import audit_run
from tacit.audit.claimed import JudgedClaim, claim_to_judge
from tacit.audit.plans import AuditPlan
from tacit.audit.record import AuditRecord
from tacit.corpus import read_corpus
from tacit.corpus.canaries import CanaryManifest
from tacit.corpus.screening.binding import report_path
from tacit.errors import InputError
from tacit.evaluation.report import recipe_of
from tacit.privacy import DpSgdProcess, Guarantee, dpsgd_curve
from tacit.progress import Silent
from tacit.report import render_report
from tacit.report.guarantee_words import in_words
from tacit.runs import Run
from tacit.training import train_confidentially, train_privately
from tacit.training.preparation import split
from tests.audit.runs import Audited, planted_corpus
from tests.training.private_runs import forge, private_recipe, screened

QUICK = ExposureSettings(budget=1_000, samples=100, seed=0)


def rewritten(raw: Path, path: Path) -> Path:
    """Documents with the columns that private recipes name."""
    rows = [json.loads(line) for line in raw.read_text().splitlines()]
    path.write_text("".join(json.dumps({"user": r["who"], "text": r["said"]}) + "\n" for r in rows))
    return path


def audited(run: Run, manifest: CanaryManifest, **changes: Any) -> AuditRecord:
    plan = AuditPlan(manifest=manifest, block_size=32, exposure=QUICK, documents=10)
    return audit_run(run, dataclasses.replace(plan, **changes), device="cpu")


def judged(run: Run, manifest: CanaryManifest, guarantee: Guarantee | None = None) -> JudgedClaim:
    with split_texts(run, Silent()) as texts:
        claimed = guarantee or Guarantee.from_json(run.manifest.guarantee)
        return claim_to_judge(run, claimed, manifest, texts, delta=1e-5)


def claiming(run: Run, guarantee: Guarantee) -> Run:
    return Run(run.folder, run.manifest.model_copy(update={"guarantee": guarantee.to_json()}))


@pytest.mark.slow
def test_examples_users_and_replacements_are_judged_as_what_they_are(
    tiny_transformer: Path, tmp_path: Path
) -> None:
    manifest = planted_corpus(tmp_path / "raw.jsonl", users=16, ladder=(3,))
    corpus = rewritten(tmp_path / "raw.jsonl", tmp_path / "corpus.jsonl")
    changes: dict[str, Any] = {
        "held_out": {"share": 0.2, "seed": 0},
        "training": {"seed": None},
        "privacy": {"adjacency": "replace-one"},
    }
    run = train_privately(private_recipe(tiny_transformer, corpus, tmp_path / "run", **changes))
    example = judged(run, manifest)
    # Three repetitions are three examples; coins decide about all three at once and say nothing of one.
    assert (example.unit, example.neighbours, example.insertions, example.coins) == (
        "example",
        "add/remove",
        3,
        False,
    )
    process = DpSgdProcess.from_json(
        json.loads((run.folder / "privacy.json").read_text())["dpsgd"]["process"]
    )
    assert example.claim.epsilon == dpsgd_curve(process, "add-remove").epsilon_at(1e-4)
    assert any("judged by the same steps for add-remove" in note for note in example.notes)
    stated = Guarantee.from_json(run.manifest.guarantee)
    user = judged(run, manifest, dataclasses.replace(stated, unit="user", assumptions=()))
    assert (user.unit, user.insertions, user.coins) == ("user", 1, True)
    record = audited(run, manifest)
    claim, whole = record.claims
    assert claim.claimed_epsilon == example.claim.epsilon
    assert whole.p_claim is not None
    assert whole.p_claim > 0.05
    assert whole.verdict != "contradicted"
    assert record.promises
    assert render_report(json.loads(json.dumps(record.to_json())), run_name="private")


@pytest.mark.slow
def test_repetitions_are_a_group_of_examples_and_not_one(overfitted: Audited) -> None:
    """Canaries stood there up to sixteen times: what refutes a user's epsilon may not refute an example's."""
    claims = {
        unit: Guarantee.dp_sgd(epsilon=1.0, delta=1e-5, adjacency="add-remove", unit=unit)
        for unit in ("user", "example")
    }
    records = {
        unit: audited(claiming(overfitted.run, claim), overfitted.manifest, documents=0, real="none")
        for unit, claim in claims.items()
    }
    assert records["user"].verdict == "contradicted"
    assert records["example"].verdict == "inconclusive"
    measured = {unit: record.claims[0].measured_epsilon or 0.0 for unit, record in records.items()}
    assert 0 < measured["example"] <= measured["user"] / 8
    tiny = Guarantee.dp_sgd(epsilon=0.9 * measured["example"], delta=1e-5, adjacency="add-remove")
    broken = audited(claiming(overfitted.run, tiny), overfitted.manifest, documents=0, real="none")
    assert broken.verdict == "contradicted"


@pytest.mark.slow
def test_confidentiality_is_judged_by_secrets_that_were_missed(
    tiny_transformer: Path, tmp_path: Path
) -> None:
    manifest = planted_corpus(tmp_path / "raw.jsonl", users=6, ladder=(1, 2))
    said = [
        (row["who"], row["said"])
        for row in map(json.loads, (tmp_path / "raw.jsonl").read_text().splitlines())
    ]
    changes: dict[str, Any] = {"held_out": {"share": 0.2, "seed": 0}, "training": {"seed": None}}
    caught = screened(tmp_path / "caught.jsonl", said)
    run = train_confidentially(
        private_recipe(
            tiny_transformer,
            caught,
            tmp_path / "run",
            "crt",
            confidentiality={"gamma": 0.1, "delta2": 1e-5},
            **changes,
        )
    )
    claimed = judged(run, manifest)
    assert (claimed.unit, claimed.neighbours, claimed.insertions, claimed.coins) == (
        "secret",
        "mask",
        1,
        False,
    )
    certificate = run.certificate()
    assert certificate is not None
    assert claimed.claim.epsilon == certificate["missed"]["epsilon"] > run.manifest.guarantee["epsilon"]
    inserted = sum(one.inserted for one in manifest.canaries)
    assert f"Of {inserted} inserted canaries the screening masked {inserted}" in claimed.notes[0]
    record = audited(run, manifest)
    assert record.promises
    assert record.verdict != "contradicted"
    assert record.claims[0].claimed_epsilon == certificate["missed"]["epsilon"]
    assert record.claims[1].p_claim is not None
    assert record.claims[1].p_claim > 0.05
    shown = json.loads(json.dumps(record.to_json()))
    assert shown["certificate"]["paragraphs"][0]["heading"] == "Neighbours"
    assert AuditRecord.from_json(shown).to_json()["certificate"] == shown["certificate"]
    assert "Any other secret in a private data point: epsilon" in render_report(shown, run_name="crt")
    path = run.folder / "private" / "certificate.json"
    kept = path.read_text()
    path.write_text(json.dumps({"format": 1}))
    with pytest.raises(InputError, match=r"certificate\.json.*restore it or train again"):
        audited(run, manifest)
    path.write_text(kept)
    # Canaries that stand in public text are promised nothing.
    lines = [json.loads(line) for line in caught.read_text().splitlines()]
    secret = next(one for one in manifest.canaries if one.inserted and one.user in {r["user"] for r in lines})
    for line in lines:
        if line["user"] == secret.user:
            line |= {"text": secret.text, "private": False, "masked": []}
    public = tmp_path / "public.jsonl"
    public.write_text("".join(json.dumps(line) + "\n" for line in lines))
    recipe = run.manifest.recipe | {"corpus": run.manifest.recipe["corpus"] | {"path": str(public)}}
    changed = Run(run.folder, run.manifest.model_copy(update={"recipe": recipe}))
    parsed = recipe_of(changed)
    whole = read_corpus(parsed.corpus, None, Silent())
    found = claim_to_judge(
        changed,
        Guarantee.from_json(run.manifest.guarantee),
        manifest,
        split(whole, parsed.held_out),
        delta=1e-5,
    )
    assert found.claim.epsilon is None
    assert "nothing is promised for such secrets" in found.claim.incomparable


@pytest.mark.slow
def test_repetitions_are_one_data_point_only_where_they_were_deduplicated(
    tiny_transformer: Path, tmp_path: Path
) -> None:
    manifest = planted_corpus(tmp_path / "raw.jsonl", users=6, ladder=(5,))
    rows = map(json.loads, (tmp_path / "raw.jsonl").read_text().splitlines())
    corpus = screened(tmp_path / "corpus.jsonl", [(row["who"], row["said"]) for row in rows])
    recipe = private_recipe(
        tiny_transformer, corpus, tmp_path / "run", "crt", held_out={"share": 0.2, "seed": 0}
    )
    run = train_confidentially(recipe)
    assert judged(run, manifest).insertions == 1
    forge(corpus, dedup={"kind": "off"})
    left = judged(run, manifest)
    assert left.insertions == 5
    assert any("up to 5 data points" in note for note in left.notes)
    # What is promised of a secret in two data points is three steps of five.
    told = run.certificate()
    assert told is not None
    (run.folder / "private" / "certificate.json").write_text(json.dumps(told | {"secret_points": 2}))
    assert judged(run, manifest).insertions == 3
    (run.folder / "private" / "certificate.json").write_text(json.dumps(told))
    report_path(corpus).unlink()
    assert judged(run, manifest).insertions == 5


@pytest.mark.parametrize(
    ("guarantee", "words"),
    [
        (
            Guarantee.confidentiality(epsilon=0.3, delta=1e-5, about="each secret"),
            "as likely as a mask in its place",
        ),
        (
            Guarantee.dp_sgd(epsilon=2.0, delta=1e-5, adjacency="add-remove"),
            "one example's text makes any outcome at most e^2 times as likely as without it, but for",
        ),
        (
            Guarantee.dp_sgd(epsilon=2.0, delta=1e-5, adjacency="replace-one", unit="user"),
            "one user's text makes any outcome at most e^2 times as likely as another in its place, but for",
        ),
        (
            Guarantee.confidentiality(epsilon=0.3, delta=1e-5, about="a random secret"),
            "one that both screening policies miss is not protected",
        ),
        (
            Guarantee.selective(epsilon=1.0, delta=1e-5, perfect_policy=True),
            "as likely as another secret in its place",
        ),
        (
            Guarantee.selective(epsilon=1.0, delta=1e-5, perfect_policy=False),
            "Nothing is promised after all. No finite epsilon",
        ),
    ],
)
def test_guarantees_of_private_training_in_words(guarantee: Guarantee, words: str) -> None:
    assert words in " ".join(in_words(guarantee.to_json()))
