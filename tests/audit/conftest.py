"""Runs to audit, trained once for each worker of the tests."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from tacit.corpus.canaries import CanaryManifest
from tacit.training.ensemble import train_ensemble
from tests.audit.runs import HELD_OUT, Audited, finetuned, planted_corpus
from tests.training.ensembles import ensemble_recipe


@pytest.fixture(scope="session")
def audited(tmp_path_factory: pytest.TempPathFactory, tiny_transformer: Path) -> Audited:
    """Two parts of two halves, some of whose users carry a canary that is repeated often."""
    folder = tmp_path_factory.mktemp("audited")
    manifest = planted_corpus(folder / "private.jsonl", users=6)
    training = {"max_steps": 15, "block_size": 48, "batch_size": 8, "learning_rate": 2e-2, "seed": 1}
    recipe = ensemble_recipe(
        tiny_transformer, folder / "private.jsonl", folder / "run", held_out=HELD_OUT, training=training
    )
    return Audited(train_ensemble(recipe), manifest)


@dataclass(frozen=True)
class Planted:
    corpus: Path
    manifest: CanaryManifest


@pytest.fixture(scope="session")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Planted:
    """A corpus of forty people with 24 canaries."""
    corpus = tmp_path_factory.mktemp("planted") / "private.jsonl"
    return Planted(corpus, planted_corpus(corpus, users=12, said=40, ladder=(2, 16)))


@pytest.fixture(scope="session")
def overfitted(planted: Planted, tiny_transformer: Path) -> Audited:
    """A model that knows its canaries by heart."""
    output = planted.corpus.with_name("overfitted")
    run = finetuned(tiny_transformer, planted.corpus, output, epochs=6, learning_rate=3e-3)
    return Audited(run, planted.manifest)


@pytest.fixture(scope="session")
def untouched(planted: Planted, tiny_transformer: Path) -> Audited:
    """A model whose only step was too small to change anything."""
    output = planted.corpus.with_name("untouched")
    run = finetuned(tiny_transformer, planted.corpus, output, max_steps=1, learning_rate=1e-9)
    return Audited(run, planted.manifest)
