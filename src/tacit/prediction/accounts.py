"""A Run and its account: what a ledger must know of the Run, and what the Run remembers of the ledger."""

from __future__ import annotations

import contextlib
import hashlib
from dataclasses import asdict, dataclass

from tacit.corpus.partition import Partition
from tacit.errors import InputError, TacitError
from tacit.files import read_json
from tacit.ledger import Model
from tacit.ledger.terms import Unit
from tacit.recipes import parse_recipe
from tacit.runs import Run

_ACCOUNT = "account.json"


@dataclass(frozen=True)
class Account:
    """Where answers of a Run are booked: a domain, and the place of its ledger without a password."""

    domain: str
    ledger: str


def remember_account(run: Run, account: Account) -> bool:
    """Write into the Run's private folder where its answers are booked; False where nothing can be written.

    So that whoever answers without the ledger can say so, without opening it: a service may hold it.
    """
    try:
        run.record_private(_ACCOUNT, asdict(account))
    except (TacitError, OSError):
        return False
    return True


def remembered_account(run: Run) -> Account | None:
    """Where the Run's answers were booked last, as far as it remembers."""
    with contextlib.suppress(TacitError, OSError, KeyError):
        found = read_json(run.folder / "private" / _ACCOUNT, "attach the Run again")
        return Account(str(found["domain"]), str(found["ledger"]))
    return None


def model_of(run: Run) -> Model:
    """An ensemble as a ledger knows it."""
    ensemble = run.manifest.ensemble
    if ensemble is None:
        raise InputError(f"{run.folder} is no ensemble; only answers of ensembles are charged one by one.")
    recipe = parse_recipe(run.manifest.recipe, origin=str(run.folder))
    unit: Unit = "user" if recipe.corpus.blocks is None else "block"
    corpus = run.corpus_fingerprint()
    placed = Partition.load(run.folder / "private" / "partition")
    partition = placed.fingerprint
    people: tuple[str, ...] | None = placed.users
    if unit == "block":
        # A block is named by its place: the same name is other text in another corpus.
        partition, people = hashlib.sha256(f"{partition}:{corpus}".encode()).hexdigest(), None
    outside = tuple(run.manifest.guarantee.get("outside", ()))
    name = run.folder.resolve().name
    return Model(
        run.manifest.weights_fingerprint,
        name,
        ensemble.parts,
        partition,
        corpus,
        unit,
        outside,
        people,
        ensemble.halves,
    )
