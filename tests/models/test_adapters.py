"""What is saved of an adapter."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SAVE = """
import sys
from pathlib import Path
import torch
from tacit.models import load_public_model
from tacit.models.adapters import attach, save_weights
from tacit.recipes import AdapterSection
public = load_public_model(sys.argv[1])
torch.manual_seed(0)
trained = attach(public.model, AdapterSection())
save_weights(trained, Path(sys.argv[2]), public, holds_private_text=True)
"""


@pytest.mark.slow
def test_equal_adapters_are_equal_bytes_whatever_the_hash_seed(
    tmp_path: Path, tiny_transformer: Path
) -> None:
    saved = []
    for seed in ("1", "2", "3"):
        folder = tmp_path / seed
        subprocess.run(
            [sys.executable, "-c", SAVE, str(tiny_transformer), str(folder)],
            check=True,
            env={"PYTHONHASHSEED": seed, "PATH": ""},
        )
        saved.append({file.name: file.read_bytes() for file in folder.iterdir()})
    assert set(saved[0]) == {"adapter_config.json", "adapter_model.safetensors"}
    assert saved[0] == saved[1] == saved[2]
