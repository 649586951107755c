"""What other people's code may rely on."""

from __future__ import annotations

import subprocess
import sys

import pytest

import tacit


def test_exports() -> None:
    assert tacit.__all__ == [
        "UserCorpus",
        "Partition",
        "PublicModel",
        "load_public_model",
        "Recipe",
        "load_recipe",
        "finetune",
        "train_ensemble",
        "Run",
        "SubMix",
        "Certified",
        "load_ensemble",
        "PrivatePredictor",
        "Guarantee",
        "measure_losses",
        "Estimate",
    ]
    assert all(getattr(tacit, name) is not None for name in tacit.__all__)
    with pytest.raises(AttributeError, match="nonsense"):
        _ = tacit.nonsense


@pytest.mark.parametrize(
    "module", ["tacit", "tacit.corpus", "tacit.privacy", "tacit.runs", "tacit.recipes", "tacit.cli"]
)
def test_what_must_stay_light_does_not_import_torch(module: str) -> None:
    code = f"import sys, {module}; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
