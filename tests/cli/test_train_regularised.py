"""`tacit train` with regularisers: planned, trained and audited like any Run, and never released."""

from __future__ import annotations

from pathlib import Path

import pytest

from tacit.runs import Run
from tests.cli.conftest import RECIPE, Tacit


@pytest.mark.parametrize("method", ["adversarial", "triplet"])
def test_a_regularised_run_says_what_it_is_wherever_it_is_shown(
    tacit: Tacit, folder: Path, method: str
) -> None:
    (folder / "recipe.yaml").write_text(RECIPE)
    settings = (
        *(f"method={method}", "training.max_steps=2", "regularisation.lambda=0.1"),
        "training.block_size=16",  # or an author's texts are one row, and triplets compare rows
    )
    plan = tacit("train", "recipe.yaml", *settings, "--dry-run", "--json")
    assert plan.code == 0, plan.err
    assert plan.json()["guarantee"].startswith("empirical, no formal guarantee")
    assert plan.json()["privacy_weight"] == 0.1
    parameters = plan.json()["discriminator_parameters"]
    expected = (64 + 1) * 1000 + (1000 + 1) * plan.json()["authors"]
    assert parameters == (expected if method == "adversarial" else None)
    table = " ".join(tacit("train", "recipe.yaml", *settings, "--dry-run").out.split())
    assert ("discriminator parameters" in table) == (method == "adversarial")
    shown = tacit("train", "recipe.yaml", *settings, "--json")
    assert shown.code == 0, shown.err
    assert shown.json()["guarantee"] == plan.json()["guarantee"]
    assert not Run.open(folder / "runs/first").manifest.may_be_released
    audited = tacit("audit", "runs/first", "--documents", "4")
    assert audited.code == 0, audited.err
    assert "only attacks can tell" in (folder / "runs/first/report.html").read_text()
    card = tacit("audit", "card", "runs/first")
    assert card.code == 0, card.err
    assert "Not for release" in (folder / "runs/first/README.md").read_text()


def test_a_batch_without_triplets_is_refused_before_anything_is_written(tacit: Tacit, folder: Path) -> None:
    (folder / "recipe.yaml").write_text(RECIPE)
    result = tacit("train", "recipe.yaml", "method=triplet", "training.batch_size=1")
    assert result.code != 0
    assert "set training.batch_size=2 or more" in " ".join(result.err.split())
    assert not (folder / "runs").exists()
