"""What other people's code may rely on."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import tacit
from tacit.experiments import EXPERIMENTS

ROOT = Path(__file__).parents[1]


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


def test_measurements_that_the_documentation_names_are_there() -> None:
    """A figure whose script is gone cannot be measured again."""
    pages = [ROOT / "README.md", ROOT / "Makefile", *sorted((ROOT / "docs").glob("*.md"))]
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages)
    (names,) = re.findall(r"for name in ([\w ]+); do", text)  # of `make bench`
    scripts = {*names.split(), *re.findall(r"benchmarks/(\w+)\.py", text)}
    assert {name for name in scripts if not (ROOT / "benchmarks" / f"{name}.py").is_file()} == set()
    named = set(re.findall(r"tacit experiment ([a-z]+-[a-z-]+)", text))
    assert "reg-overhead" in named
    assert named <= {one.name for one in EXPERIMENTS}
