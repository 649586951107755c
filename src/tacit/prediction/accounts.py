"""What a ledger must know of a Run: which people it is about, and in which parts."""

from __future__ import annotations

import hashlib

from tacit.corpus.partition import Partition
from tacit.errors import InputError
from tacit.ledger import Model
from tacit.ledger.terms import Unit
from tacit.recipes import parse_recipe
from tacit.runs import Run


def model_of(run: Run) -> Model:
    """An ensemble as a ledger knows it."""
    ensemble = run.manifest.ensemble
    if ensemble is None:
        raise InputError(f"{run.folder} is no ensemble; only answers of ensembles are charged one by one.")
    recipe = parse_recipe(run.manifest.recipe, origin=str(run.folder))
    unit: Unit = "user" if recipe.corpus.blocks is None else "block"
    corpus = run.corpus_fingerprint()
    partition = Partition.load(run.folder / "private" / "partition").fingerprint
    if unit == "block":
        # A block is named by its place: the same name is other text in another corpus.
        partition = hashlib.sha256(f"{partition}:{corpus}".encode()).hexdigest()
    outside = tuple(run.manifest.guarantee.get("outside", ()))
    name = run.folder.resolve().name
    return Model(run.manifest.weights_fingerprint, name, ensemble.parts, partition, corpus, unit, outside)
