"""Which audits compare: like with like, as useful, and nothing that is damaged."""

from __future__ import annotations

import copy
import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tacit.audit.comparison import compare_runs
from tacit.audit.frontiers import methods_at
from tacit.audit.record import AuditRecord, read_audit
from tacit.errors import InputError
from tacit.privacy import AsymptoticMu, Guarantee
from tacit.recipes import parse_recipe
from tacit.report import render_comparison, render_report
from tacit.runs import Run
from tests.report.samples import measured, sample_audit
from tests.report.test_model_card import manifest

MakeRun = Callable[..., Run]


@pytest.fixture
def audited_run(tmp_path: Path) -> MakeRun:
    def make(name: str, *, tokenizer: str = "t", audit: dict[str, Any] | None = None) -> Run:
        folder = tmp_path / name
        (folder / "private").mkdir(parents=True)
        (folder / "private" / "data.json").write_text(json.dumps({"corpus_fingerprint": "same"}))
        content = sample() if audit is None else audit
        (folder / "audit.json").write_text(json.dumps(content))
        public = manifest().public_model.model_copy(update={"tokenizer_fingerprint": tokenizer})
        return Run(folder, manifest(public_model=public))

    return make


def test_the_verdict_tells_whether_it_leaks(audited_run: MakeRun) -> None:
    nothing = Guarantee.unprotected("user").to_json()
    found = sample()["verdict"]
    vain = [{**found["attacks"][1], "adjusted": 0.23}]
    runs = [
        audited_run("leaks", audit=sample(guarantee=nothing, verdict__leaks=True)),
        audited_run(
            "silent", audit=sample(guarantee=nothing, verdict={**found, "leaks": False, "attacks": vain})
        ),
        audited_run("within", audit=sample(verdict__word="supported", verdict__leaks=True)),
        audited_run("broken", audit=sample(verdict__word="contradicted", verdict__leaks=True)),
    ]
    rows = compare_runs(runs)
    told = [
        "no guarantee, it leaks",
        "no guarantee, these attacks found nothing",
        "supported, attacks beat chance",
        "contradicted",
    ]
    assert [row.cells()["verdict"] for row in rows] == told
    page = render_comparison([row.to_json() for row in rows])
    assert all(one in page for one in told)


def test_runs_of_two_public_models_are_two_methods(audited_run: MakeRun) -> None:
    """A transformer and an LSTM may read with one tokenizer and be trained alike: their frontiers differ."""
    first, same, other = audited_run("one"), audited_run("two"), audited_run("three")
    record = other.manifest.public_model.model_copy(update={"fingerprint": "f" * 64, "family": "lstm"})
    lstm = Run(other.folder, other.manifest.model_copy(update={"public_model": record}))
    one, two, three = compare_runs([first, same, lstm])
    assert one.method == two.method != three.method
    assert "(lstm, ffffffff)" in three.method
    assert len(methods_at([one, two, three])) == 2
    assert {row.method for row in compare_runs([first, same])} == {"submix, certified"}


def test_mu_stands_beside_epsilon_and_is_called_no_bound(audited_run: MakeRun) -> None:
    mu = AsymptoticMu(0.3661)
    dp = Guarantee("dp", "user", epsilon=3.0, delta=1e-5).to_json()
    rows = compare_runs(
        [
            audited_run("plain"),
            audited_run("private", audit=sample(guarantee=dp, run__gaussian_dp=mu.to_json())),
            audited_run("noiseless", audit=sample(run__gaussian_dp=AsymptoticMu(math.inf).to_json())),
        ]
    )
    told = f"Gaussian mu 0.366 (add-remove), {mu.label}"
    assert "never a bound" in told
    assert [row.gaussian_mu for row in rows] == [None, told, told.replace("0.366", "inf")]
    page = render_comparison([row.to_json() for row in rows])
    assert told in page
    assert told in render_report(sample(run__gaussian_dp=mu.to_json()), run_name="private")
    with pytest.raises(InputError, match=r"gaussian_dp"):
        compare_runs([audited_run("one"), audited_run("two", audit=sample(run__gaussian_dp={"mu": "much"}))])


def test_runs_of_two_configurations_are_on_two_frontiers(audited_run: MakeRun) -> None:
    """Between triplets with pairs in the batch and with a second batch there is nothing to interpolate."""
    runs = []
    for place, (pairs, perplexity) in enumerate(
        [("batch", 10.0), ("second", 10.0), ("batch", 40.0), ("second", 40.0)]
    ):
        bits = 0.9 if pairs == "batch" else 0.6
        run = audited_run(
            f"run-{place}",
            audit=sample(
                run__method="triplet",
                mechanism=None,
                membership__sets=one_attack(bits),
                utility__run=measured(perplexity, perplexity - 1, perplexity + 1),
            ),
        )
        recipe = parse_recipe(
            {
                "method": "triplet",
                "output": "runs/triplet",
                "corpus": {"path": "mail.jsonl", "user": "sender", "text": "body"},
                "training": {"max_steps": int(perplexity)},
                "regularisation": {"pairs": pairs},
            }
        ).to_json()
        runs.append(Run(run.folder, run.manifest.model_copy(update={"method": "triplet", "recipe": recipe})))
    batch, second = methods_at(compare_runs(runs), perplexity=20)
    assert (batch.method, batch.how) == ("triplet (pairs=batch)", "between run-0 and run-2")
    assert (second.method, second.how) == ("triplet (pairs=second)", "between run-1 and run-3")
    assert batch.auc is not None
    assert second.auc is not None
    assert (batch.auc.value, second.auc.value) == pytest.approx((0.9, 0.6))
    assert [row.method for row in compare_runs(runs, along=["regularisation.pairs"] * 4)] == [
        *["triplet (max_steps=10)", "triplet (max_steps=10)"],
        *["triplet (max_steps=40)", "triplet (max_steps=40)"],
    ]


def one_attack(auc: float) -> list[dict[str, Any]]:
    (first, *_) = copy.deepcopy(sample_audit())["membership"]["sets"]
    for attack in first["attacks"]:
        attack["auc"] = measured(auc, auc - 0.02, auc + 0.02)
    return [first]


def test_mean_exposure_has_the_audits_confidence(audited_run: MakeRun) -> None:
    surer = sample(verdict__confidence=0.99)
    rows = compare_runs([audited_run("one"), audited_run("two", audit=surer)])
    means = [row.exposure_mean for row in rows]
    assert [one.confidence for one in means if one is not None] == [0.95, 0.99]


def sample(**changes: Any) -> dict[str, Any]:
    audit = copy.deepcopy(sample_audit())
    audit["verdict"]["word"] = "inconclusive"
    audit["provenance"]["settings"] = {"delta": 1e-5, "confidence": 0.95}
    for path, value in changes.items():
        *parents, last = path.split("__")
        part = audit
        for parent in parents:
            part = part[parent]
        part[last] = value
    return audit


@pytest.mark.parametrize(
    ("held_out", "why"),
    [
        ({"share": 0.5, "seed": 8_675_309}, "it held out other text (another held_out.share)"),
        ({"seed": 1}, "it held out other text (another held_out.seed)"),
        (
            {"seed": 8_675_309, "by": "within", "among": 9},
            "it held out other text (another held_out.by, held_out.among)",
        ),
        (None, "it held out other text (one of the two held out nothing)"),
    ],
)
def test_another_split_is_another_training_text(
    audited_run: MakeRun, held_out: dict[str, Any] | None, why: str
) -> None:
    first, other = audited_run("one"), audited_run("two")
    recipe = {**other.manifest.recipe, "held_out": held_out}
    split = Run(other.folder, other.manifest.model_copy(update={"recipe": recipe}))
    _, row = compare_runs([first, split])
    assert row.why == why
    assert not row.comparable
    assert not row.alike


def test_other_canaries_of_one_manifest_are_not_compared(audited_run: MakeRun) -> None:
    """A canary whose owner was held out is no longer among those that were trained on."""
    fewer = sample()
    row = next(row for row in fewer["exposure"]["rows"] if row["inserted"])
    row["inserted"] = False
    _, other = compare_runs([audited_run("one"), audited_run("two", audit=fewer)])
    assert other.why == "other canaries were in its training text"
    assert not other.alike


def test_audits_alike_are_compared(audited_run: MakeRun) -> None:
    rows = compare_runs([audited_run("one"), audited_run("two")])
    assert [row.why for row in rows] == ["", ""]
    assert [row.comparable for row in rows] == [True, True]
    assert rows[0].auc is not None
    assert rows[0].auc.value == 0.78  # of the attack that was chosen beforehand
    assert rows[0].disparity_gap is not None


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"exposure__score": "perplexity"}, r"score of exposure differs \(perplexity and logprob\)"),
        ({"exposure__candidates": "100000000"}, "number of candidates"),
        ({"provenance__manifest_commitment": "other"}, "audited with other canaries"),
        ({"provenance__settings": {"delta": 0.0, "confidence": 0.95}}, "delta differs"),
        ({"provenance__settings": {"delta": 1e-5, "confidence": 0.99}}, "confidence differs"),
        ({"utility__run": measured(30.0, 29.0, 31.0)}, "1.34 times"),
        ({"utility": None}, "was not measured"),
    ],
)
def test_what_was_audited_otherwise_is_marked(
    audited_run: MakeRun, changes: dict[str, Any], why: str
) -> None:
    first, other = compare_runs([audited_run("one"), audited_run("two", audit=sample(**changes))])
    assert first.comparable
    assert not other.comparable
    assert re.search(why, other.why)
    assert other.why in render_comparison([first.to_json(), other.to_json()]).replace("&#39;", "'")


def test_an_attack_that_was_not_chosen_alike_is_marked(audited_run: MakeRun) -> None:
    audit = sample()
    audit["membership"]["sets"][0]["roc"]["attack"] = "loss"
    _, other = compare_runs([audited_run("one"), audited_run("two", audit=audit)])
    assert "canaries and twins: loss and canaries and twins: reference" in other.why


def test_across_tokenizers_bits_per_byte_are_compared(audited_run: MakeRun) -> None:
    def bits(value: float, perplexity: float) -> dict[str, Any]:
        return sample(
            utility__bits_per_byte=measured(value, value, value),
            utility__run=measured(perplexity, perplexity, perplexity),
        )

    first = audited_run("one", audit=bits(1.0, 20.0))
    equal = audited_run("two", tokenizer="u", audit=bits(1.01, 300.0))
    worse = audited_run("three", tokenizer="u", audit=bits(1.5, 20.0))
    silent = audited_run("four", tokenizer="u", audit=sample(utility__run=measured(20.0, 20.0, 20.0)))
    rows = compare_runs([first, equal, worse, silent])
    assert [row.comparable for row in rows] == [True, True, False, False]
    assert "bits per byte is 1.50 times" in rows[2].why
    assert "tokenizers differ" in rows[3].why


def test_who_pays_is_told_against_one_run_alone(audited_run: MakeRun) -> None:
    audit = sample(disparity__against="another Run")
    _, other = compare_runs([audited_run("one"), audited_run("two", audit=audit)])
    assert other.comparable
    assert other.disparity_gap is None


@pytest.mark.parametrize(
    "damage",
    [
        {"format": 2},
        {"format": 2, "run": {}, "guarantee": {}, "verdict": {}},
        sample(membership__sets=[{"flagged": False}]),
        sample(exposure__rows=[{"inserted": True}]),
        sample(utility__run={"value": 1}),
        sample(utility__run=measured(0.0, 0.0, 0.0)),
        sample(claims=[{"claim": "x", "verdict": "fine", "reason": ""}]),
        sample(verdict__attacks=["nonsense"]),
        sample(utility__run={**measured(9.0, 9.0, 9.0), "value": 10**400, "high": None}),
        sample(utility__run=measured(True, True, True)),
        sample(utility__run={**measured(9.0, 9.0, 9.0), "value": float("inf"), "high": None}),
        sample(verdict__confidence=1.0),
    ],
)
def test_a_damaged_audit_is_named(audited_run: MakeRun, damage: dict[str, Any]) -> None:
    good, bad = audited_run("good"), audited_run("bad", audit=damage)
    for runs in ([good, bad], [bad, good]):
        with pytest.raises(InputError, match=r"bad/audit.json(: '| lacks what a comparison needs)"):
            compare_runs(runs)


def test_a_headline_that_its_p_values_do_not_bear_out_is_refused(audited_run: MakeRun) -> None:
    """Cards and comparisons repeat it: "found no leak" beside p-values that show one had been believed."""
    first, second = sample()["verdict"]["attacks"]
    edits: tuple[dict[str, Any], ...] = (
        {"verdict__leaks": False},
        {"verdict__attacks": [{**first, "adjusted": 0.0}, second]},
        {"verdict__attacks": [{**first, "leaks": False}, second]},
        {"verdict__attacks": [first, first]},
        {"verdict__attacks": []},
    )
    for number, changes in enumerate(edits):
        run = audited_run(f"edited-{number}", audit=sample(**changes))
        with pytest.raises(InputError, match="not what its p-values say"):
            read_audit(run)


def test_an_audit_that_cannot_be_read_is_kept_aside(audited_run: MakeRun) -> None:
    run = audited_run("old")
    damaged = '{"format": 1, "found": "by another version"'
    (run.folder / "audit.json").write_text(damaged)
    kept = AuditRecord.from_json(sample()).save(run)
    assert kept is not None
    assert kept.read_text() == damaged
    read_audit(run)


@pytest.mark.parametrize(
    "changes",
    [
        {"provenance__manifest_commitment": None},
        {"provenance__seeds": {"audit": 1}},
        {"provenance__settings": {"delta": 1e-5, "confidence": 0.95, "documents": 0}},
    ],
)
def test_an_audit_that_asked_something_else_does_not_replace_one(
    audited_run: MakeRun, changes: dict[str, Any]
) -> None:
    """Without canaries, or by another seed, nothing may be found where an earlier audit found a leak."""
    run = audited_run("one")
    for again in ("", "-2"):
        AuditRecord.from_json(sample()).save(run)
        kept = AuditRecord.from_json(sample(**changes)).save(run)
        assert kept is not None
        assert kept.name == f"audit-20261118093000{again}.json"
        (run.folder / "audit.json").unlink()
    AuditRecord.from_json(sample(**changes)).save(run)
    assert AuditRecord.from_json(sample(**changes)).save(run) is None  # the same again


def test_an_audit_of_another_mechanism_is_kept(audited_run: MakeRun) -> None:
    run = audited_run("one", audit=sample())
    same = AuditRecord.from_json(
        sample(verdict={"line": "", "leaks": None, "attacks": [], "confidence": 0.95})
    )
    assert same.save(run) is None
    other = AuditRecord.from_json(
        sample(
            verdict={"line": "", "leaks": None, "attacks": [], "confidence": 0.95},
            mechanism={"name": "submix", "epsilon": 2.0},
        )
    )
    kept = other.save(run)
    assert kept is not None
    assert kept.name == "audit-20261118093000.json"
    assert json.loads(kept.read_text())["mechanism"]["name"] == "certified"
    assert read_audit(run)["mechanism"]["name"] == "submix"
    assert kept.stat().st_mode & 0o077 == 0
