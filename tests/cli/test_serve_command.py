"""`tacit serve`: what it refuses to start with, in one sentence. What it does is in tests/serving."""

from __future__ import annotations

import socket
from dataclasses import replace
from pathlib import Path

import pytest

from tacit.ledger import Domain, Ledger, default_ledger
from tacit.prediction.accounts import model_of, remembered_account
from tacit.runs import Run
from tests.cli.conftest import RECIPE, Tacit
from tests.cli.test_train_submix import SUBMIX

ANYWHERE = ("--port", "0", "--admin-port", "0")


@pytest.fixture
def ensemble(tacit: Tacit, folder: Path) -> str:
    (folder / "recipe.yaml").write_text(SUBMIX)
    assert tacit("train", "recipe.yaml").code == 0
    return "runs/first"


def test_what_is_missing_is_said_with_its_remedy(tacit: Tacit, folder: Path, ensemble: str) -> None:
    none = tacit("serve", ensemble, *ANYWHERE)
    assert (none.code, none.out) == (2, "")
    assert "make one with tacit ledger init" in none.err
    (folder / "other.yaml").write_text(SUBMIX)
    assert tacit("train", "other.yaml", "output=runs/other").code == 0
    assert tacit("ledger", "init", "runs/other", "--epsilon", "2").code == 0
    unknown = tacit("serve", ensemble, *ANYWHERE)
    assert unknown.code == 2
    assert "has no budget for first" in unknown.err
    (folder / "plain.yaml").write_text(RECIPE.replace("runs/first", "runs/plain"))
    assert tacit("train", "plain.yaml").code == 0
    plain = tacit("serve", "runs/plain", *ANYWHERE)
    assert plain.code == 2
    assert "is no ensemble" in plain.err


def test_an_older_ledgers_account_without_halves_is_refused_with_a_remedy_that_exists(
    tacit: Tacit, folder: Path
) -> None:
    (folder / "recipe.yaml").write_text(SUBMIX)
    assert tacit("train", "recipe.yaml", "ensemble.halves=false").code == 0
    model = replace(model_of(Run.open(Path("runs/first"))), halves=True)  # nobody looked
    with Ledger.open(default_ledger(), create=True) as book:
        book.create(Domain("old", 2.0, model.parts, model.partition, 2.0, "submix-guarded"), model)
    refused = tacit("serve", "runs/first", *ANYWHERE)
    shown = " ".join(refused.err.split())
    assert refused.code == 2
    assert "train it again with ensemble.halves: true, with the same ensemble.key, and attach that" in shown
    key = "ensemble.key=runs/first/private/partition/private/partition.key"
    assert tacit("train", "recipe.yaml", "output=runs/halves", key).code == 0
    assert tacit("ledger", "attach", "runs/halves", "--domain", "old").code == 0


def test_settings_that_cannot_be_are_refused(tacit: Tacit, folder: Path, ensemble: str) -> None:
    assert tacit("ledger", "init", ensemble, "--epsilon", "2", "--mechanism", "submix-guarded").code == 0
    account = remembered_account(Run.open(Path(ensemble)))
    (folder / ensemble / "private" / "account.json").unlink()  # as of a Run whose account was opened before
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        cases = [
            (("--on-exhausted", "error"), 2, "depends on private text"),
            (("--queries", "0"), 2, "queries=0"),
            (("--queries", "9999999999"), 2, "does not pay for 9,999,999,999 answers"),
            (("--target", "-1"), 2, "target=-1"),
            (("--target", "3"), 2, "target=3.0: no answer may cost more than the whole budget"),
            (("--guard", "0"), 2, "guard=0"),
            (("--guard", "3"), 2, "guard=3.0: no answer may cost more than the whole budget"),
            (("--slots", "0"), 2, "slots=0"),
            (("--dtype", "fp8"), 2, "dtype is 'fp8'"),
            (("--name", ""), 2, "A model needs a printable name"),
            (("--name", "a" * 201), 2, "at most 200 characters"),  # or no request could name it
            (("--most-tokens", "8"), 2, "default_tokens=64"),
            (("--admin-host", "0.0.0.0"), 2, "TACIT_ADMIN_PASSWORD"),  # noqa: S104
            (("--port", port), 3, f"Port {port} on 127.0.0.1 cannot be used"),
            (("--port", "99999"), 3, "Port 99999"),
            (("--host", "no.such.host.invalid"), 3, "cannot be used"),
        ]
        for options, code, words in cases:
            result = tacit("serve", ensemble, *ANYWHERE, *options)
            assert (result.code, result.out) == (code, ""), (options, result.err)
            assert words in result.err, options
            assert "Traceback" not in result.err
    assert remembered_account(Run.open(Path(ensemble))) == account, "so that tacit generate can say so"
    # None of them kept the ledger.
    assert tacit("ledger", "verify").code == 0
