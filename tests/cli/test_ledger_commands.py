"""`tacit ledger` and `tacit keys`: an account for an ensemble's people, and who may ask."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tacit.ledger import Draw, Ledger, default_ledger
from tacit.privacy import DpSgdProcess, rdp_at
from tacit.runs import Run
from tests.cli.conftest import RECIPE, Tacit
from tests.cli.test_train_submix import SUBMIX


@pytest.fixture
def ensemble(tacit: Tacit, folder: Path) -> str:
    (folder / "recipe.yaml").write_text(SUBMIX)
    assert tacit("train", "recipe.yaml").code == 0
    return "runs/first"


def mark(run: str) -> str:
    return Run.open(Path(run)).manifest.weights_fingerprint


def test_an_account_from_its_opening_to_its_end(tacit: Tacit, ensemble: str) -> None:
    opened = tacit("ledger", "init", ensemble, "--epsilon", "0.5", "--json").json()
    assert (opened["domain"], opened["epsilon"], opened["mechanism"]) == ("first", 0.5, "certified")
    with Ledger.open(default_ledger()) as ledger:
        parts = ledger.domain("first").parts
        draws = [Draw("r", step, "acme", [0.2] * parts, 1, 2) for step in range(3)]
        answers = ledger.answer("first", draws, model=mark(ensemble), mechanism="certified", order=2.0)
    assert [answer.token for answer in answers] == [1, 1, 2]
    (row,) = tacit("ledger", "status", "--json").json()["domains"]
    assert (row["private_answers"], row["public_answers"], row["stopped"]) == (2, 1, True)
    assert row["worst_part_left"] == pytest.approx(0.1)
    said = tacit("ledger", "statement", "--json").json()
    assert (said["mechanism"], said["private_answers"]) == ("certified", 2)
    assert said["guarantee"]["kind"] == "rdp"
    assert (said["guarantee"]["order"], said["guarantee"]["epsilon"]) == (2.0, 0.5)
    shown = tacit("ledger", "statement").out
    assert "Renyi differential privacy (order 2, epsilon 0.5)" in shown
    assert "delta 1e-05" in shown
    (verified,) = tacit("ledger", "verify", "--json").json()["domains"]
    assert verified["entries"] == 7


def test_what_else_was_released_makes_it_a_statement_about_users(tacit: Tacit, ensemble: str) -> None:
    assert tacit("ledger", "init", ensemble, "--epsilon", "2", "--domain", "people").code == 0
    assert tacit("ledger", "book", "--epsilon", "0.5", "--note", "weights v1").code == 0
    said = tacit("ledger", "statement", "--json").json()
    assert said["training"][0]["epsilon"] == 0.5
    assert (said["guarantee"]["unit"], said["guarantee"]["epsilon"]) == ("user", 6.0)
    assert said["guarantee"]["order"] == pytest.approx(4 / 3)
    refused = tacit("ledger", "book", "--epsilon", "1.6", "--note", "weights v2")
    assert refused.code == 2
    assert "nothing was booked" in refused.err


def test_weights_by_dpsgd_are_booked_at_the_domains_order(tacit: Tacit, ensemble: str, folder: Path) -> None:
    (folder / "private.yaml").write_text(
        RECIPE + "method: dpsgd\nprivacy: {noise_multiplier: 9, delta: 1e-4}\n"
    )
    assert tacit("train", "private.yaml", "output=runs/examples").code == 0
    unseeded = ("privacy.unit=user", "training.seed=null")
    assert tacit("train", "private.yaml", "output=runs/users", *unseeded).code == 0
    assert tacit("train", "private.yaml", "output=runs/seeded", "privacy.unit=user").code == 0
    assert tacit("ledger", "init", ensemble, "--epsilon", "2", "--domain", "people").code == 0
    booked = tacit("ledger", "book", "--run", "runs/users", "--note", "weights by DP-SGD")
    assert booked.code == 0, booked.err
    assert "is your word; nothing checks it" in " ".join(booked.err.split())
    seeded = tacit("ledger", "book", "--run", "runs/seeded", "--note", "weights that anybody can make again")
    assert (seeded.code, "may not be released" in " ".join(seeded.err.split())) == (2, True)
    (charge,) = tacit("ledger", "statement", "--json").json()["training"]
    process = json.loads((folder / "runs/users/privacy.json").read_text())["dpsgd"]["process"]
    expected = rdp_at(DpSgdProcess.from_json(process), 2.0, "replace-one")
    assert 0 < expected <= charge["epsilon"] <= expected + 1e-8
    refused = tacit("ledger", "book", "--run", "runs/examples", "--note", "weights")
    assert "promises nothing per user, which a ledger's budget is for" in " ".join(refused.err.split())
    assert tacit("ledger", "book", "--note", "x").code == 2


def test_a_retrained_ensemble_composes(tacit: Tacit, ensemble: str) -> None:
    assert tacit("ledger", "init", ensemble, "--epsilon", "1").code == 0
    key = f"ensemble.key={ensemble}/private/partition/private/partition.key"
    assert tacit("train", "recipe.yaml", "output=runs/same", key).code == 0
    assert tacit("train", "recipe.yaml", "output=runs/other").code == 0
    assert tacit("ledger", "attach", "runs/same").code == 0
    refused = tacit("ledger", "attach", "runs/other")
    assert refused.code == 2
    assert "--repartition" in refused.err
    assert tacit("ledger", "attach", "runs/other", "--repartition").code == 0
    gone = tacit("ledger", "attach", "runs/same")
    assert gone.code == 2
    assert "partition of then" in gone.err
    again = tacit("ledger", "init", "runs/same", "--epsilon", "1", "--domain", "fresh")
    assert again.code == 2
    assert "budget is not given twice" in again.err
    assert tacit("ledger", "statement", "--json").json()["models"] == ["first", "same", "other"]
    assert tacit("ledger", "verify").code == 0


def test_the_same_people_get_no_second_budget(tacit: Tacit, folder: Path, ensemble: str) -> None:
    """Retrained with one more line of text, and without the key: another corpus, other parts, one budget."""
    opened = tacit("ledger", "init", ensemble, "--epsilon", "1", "--json").json()
    assert opened["people_unknown_against"] == []
    with (folder / "dialogues.jsonl").open("a") as corpus:
        corpus.write(json.dumps({"user": "u3", "text": "One more line by the river."}) + "\n")
    assert tacit("train", "recipe.yaml", "output=runs/again").code == 0
    refused = tacit("ledger", "init", "runs/again", "--epsilon", "1")
    shown = " ".join(refused.err.split())
    assert refused.code == 2
    assert "in domain first), and a budget is not given twice" in shown
    assert "tacit ledger attach --domain 'first'" in shown
    assert not any(f"u{number} " in shown for number in range(30)), "nobody is named"
    assert tacit("ledger", "attach", "runs/again", "--domain", "first", "--repartition").code == 0
    assert len(tacit("ledger", "status", "--json").json()["domains"]) == 1


def test_where_people_are_not_known_it_is_said(tacit: Tacit, folder: Path, ensemble: str) -> None:
    assert tacit("ledger", "init", ensemble, "--epsilon", "1").code == 0
    blocks = (folder / "recipe.yaml").read_text().replace("user: user,", "blocks: 16,")
    (folder / "blocks.yaml").write_text(blocks)
    trained = tacit("train", "blocks.yaml", "output=runs/blocks")
    assert trained.code == 0, trained.err
    opened = tacit("ledger", "init", "runs/blocks", "--epsilon", "1")
    assert opened.code == 0, opened.err
    assert "Nobody can say whether some of these people have a budget in first" in " ".join(
        opened.err.split()
    )


def test_terms_that_nothing_could_answer_from_are_refused(tacit: Tacit, ensemble: str) -> None:
    """They would be for good, and the people's only account."""
    assert tacit("train", "recipe.yaml", "output=runs/single", "ensemble.halves=false").code == 0
    for mechanism in ("gnmax", "subsample_aggregate"):
        refused = tacit("ledger", "init", ensemble, "--epsilon", "1", "--mechanism", mechanism)
        assert (refused.code, "tacit serve answers by certified" in refused.err) == (2, True)
    for mechanism in ("submix", "submix-guarded"):
        options = ("--epsilon", "1", "--mechanism", mechanism, "--ledger", "books/a.db")
        refused = tacit("ledger", "init", "runs/single", *options)
        assert refused.code == 2
        assert not Path("books").exists(), "a refusal leaves no ledger behind"
        assert "or open the domain by certified or individual mixing" in " ".join(refused.err.split())
    assert tacit("ledger", "init", ensemble, "--epsilon", "1", "--mechanism", "submix-guarded").code == 0
    refused = tacit("ledger", "attach", "runs/single", "--repartition")
    assert (refused.code, "one model per part" in " ".join(refused.err.split())) == (2, True)


def test_a_statement_claims_what_was_booked_and_no_more(tacit: Tacit, ensemble: str) -> None:
    asked = ("generate", ensemble, "--epsilon", "1", "--queries", "8", "--tokens", "2", "--json")
    assert "account" not in tacit(*asked).json()["guarantee"]
    opened = tacit("ledger", "init", ensemble, "--epsilon", "1", "--json").json()
    told = tacit(*asked).json()["guarantee"]
    assert f"(domain first in {opened['ledger']}), and this call was not booked there" in told
    public = tacit(*asked, "--mechanism", "public").json()["guarantee"]
    assert "booked" not in public, "nothing of theirs was revealed"
    said = tacit("ledger", "statement", "--json").json()
    assert said["private_answers"] == 0
    assert "Not: answers of tacit generate" in said["covers"]
    assert "Not: answers of tacit generate" in " ".join(tacit("ledger", "statement").err.split())


def test_a_run_that_cannot_be_written_still_gets_its_account(
    tacit: Tacit, ensemble: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_only(*_: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(Run, "record_private", read_only)
    opened = tacit("ledger", "init", ensemble, "--epsilon", "1")
    assert opened.code == 0, opened.err
    assert "tacit generate will not say" in " ".join(opened.err.split())


def test_a_rolled_back_or_altered_ledger_is_refused(tacit: Tacit, folder: Path, ensemble: str) -> None:
    assert tacit("ledger", "init", ensemble, "--epsilon", "1").code == 0
    assert tacit("ledger", "backup", "copy.db").code == 0
    assert tacit("ledger", "backup", "copy.db").code == 2, "nothing is overwritten"
    assert tacit("ledger", "book", "--epsilon", "0.5", "--note", "weights").code == 0
    refused = tacit("ledger", "status", "--ledger", "copy.db")
    assert refused.code == 4
    assert "copy.db.anchor is missing" in refused.err
    refused = tacit("ledger", "status", "--ledger", "copy.db", "--anchor", default_ledger() + ".anchor")
    assert refused.code == 4
    assert "an older copy" in refused.err
    Path(default_ledger() + ".anchor").unlink()
    assert tacit("ledger", "status").code == 4
    assert tacit("ledger", "new-anchor").code == 0
    assert tacit("ledger", "statement", "--json").json()["new_anchors"] == 1
    with Ledger.open(default_ledger()) as ledger:
        ledger.store.run("DROP TRIGGER nothing_is_given_back")
        ledger.store.run("UPDATE balance SET spent = 0")
    altered = tacit("ledger", "verify")
    assert altered.code == 4
    assert "not what its entries add up to" in altered.err


def test_keys(tacit: Tacit, ensemble: str) -> None:
    assert tacit("ledger", "init", ensemble, "--epsilon", "1").code == 0
    made = tacit("keys", "create", "acme", "--tokens", "100", "--json").json()
    (listed,) = tacit("keys", "list", "--json").json()["keys"]
    assert made["key"].startswith("tacit-")
    assert made["key"] not in str(listed)
    assert (listed["id"], listed["tokens_most"], listed["revoked"]) == (made["id"], 100, None)
    changed = tacit("keys", "quota", "acme", "--tokens", "250", "--json").json()
    assert changed == {"name": "acme", "tokens_most": 250, "tokens_used": 0}
    for neither_or_both in ((), ("--tokens", "5", "--unlimited")):
        refused = tacit("keys", "quota", "acme", *neither_or_both)
        assert (refused.code, "give one of them" in refused.err) == (2, True)
    assert tacit("keys", "list", "--json").json()["keys"][0]["tokens_most"] == 250
    assert tacit("keys", "quota", "acme", "--unlimited", "--json").json()["tokens_most"] is None
    unknown = tacit("keys", "quota", "nobody", "--tokens", "5")
    assert (unknown.code, "no tenant nobody" in unknown.err) == (2, True)
    assert tacit("keys", "revoke", made["id"]).code == 0
    (listed,) = tacit("keys", "list", "--json").json()["keys"]
    assert listed["revoked"]


def test_bad_input_is_a_sentence(tacit: Tacit, folder: Path, ensemble: str) -> None:
    cases = [
        (("ledger", "status"), 2, "tacit ledger init"),
        (
            ("ledger", "init", ensemble, "--epsilon", "1", "--mechanism", "nonprivate"),
            2,
            "tacit serve answers by",
        ),
        (("ledger", "status", "--ledger", "postgresql://[bad/db"), 2, "cannot be read"),
        (("ledger", "init", "nowhere", "--epsilon", "1"), 2, "is not a Run"),
        (("ledger", "init", ensemble, "--epsilon", "0"), 2, "from 1e-9 to"),
        (("ledger", "init", ensemble, "--epsilon", "nan"), 2, "from 1e-9 to"),
        (("ledger", "init", ensemble, "--epsilon", "1", "--order", "1"), 2, "above 1"),
        (("ledger", "status", "--ledger", "recipe.yaml"), 2, "not a ledger"),
        (("ledger", "status", "--ledger", "redis://x"), 2, "redis:// is no ledger"),
        (("ledger", "init", ensemble, "--epsilon", "1", "--ledger", "/proc/x/l.db"), 2, "Cannot create"),
    ]
    for arguments, code, words in cases:
        result = tacit(*arguments)
        assert result.code == code, (arguments, result.err)
        assert words in result.err, arguments
        assert "Traceback" not in result.err
    assert tacit("ledger", "init", ensemble, "--epsilon", "1").code == 0
    for arguments, words in [
        (("ledger", "statement", "--domain", "nobody"), "no domain nobody (it has: first)"),
        (("keys", "revoke", "nothing"), "no key nothing"),
        (("keys", "create", ""), "printable name"),
        (("keys", "create", "acme", "--tokens", "-1"), "at least 0"),
        (("keys", "create", "acme", "--tokens", str(10**20)), "below 2^62"),
        (("ledger", "book", "--epsilon", "1", "--note", ""), "needs a printable note"),
    ]:
        result = tacit(*arguments)
        assert result.code == 2, (arguments, result.err)
        assert words in result.err, arguments
