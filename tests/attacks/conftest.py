"""Public models that know numbers, built once per run, and what the attack finds on them."""

from __future__ import annotations

import fcntl
from pathlib import Path

import pytest
import torch

from tacit.files import new_folder
from tests.attacks.number_models import build_number_model


def _built_once(shared_folder: Path, family: str) -> Path:
    folder = shared_folder / f"numbers_{family}"
    with (shared_folder / f"numbers_{family}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            with torch.random.fork_rng(devices=[]), new_folder(folder) as building:
                build_number_model(building, family, "single")
    return folder


@pytest.fixture(scope="session")
def number_transformer(shared_folder: Path) -> Path:
    """A GPT-2 shape that continues `My number is:` with uniform digits."""
    return _built_once(shared_folder, "transformer")


@pytest.fixture(scope="session")
def number_lstm(shared_folder: Path) -> Path:
    """The same as an LSTM."""
    return _built_once(shared_folder, "lstm")
