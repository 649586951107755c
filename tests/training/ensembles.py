"""Small ensembles for the tests: a corpus, a fixed partition key, and what members weigh."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import Tensor

from tacit.progress import Silent
from tacit.recipes import Recipe, parse_recipe
from tacit.runs import Run
from tests.tiny import public_sentences

KEY = bytes(range(7, 39))
Saying = tuple[str, str]


def sayings(users: int = 40, texts: int = 3) -> list[Saying]:
    """What everybody says, in no particular order of users."""
    said = [
        (f"user-{user}", f"Parcel {user % 5} waits by the mill. {public_sentences(1, 7 * user + turn)[0]}")
        for turn in range(texts)
        for user in range(users)
    ]
    return [*said, ("user-3", " ".join(public_sentences(9, seed=5)))]  # longer than a row


def write_sayings(path: Path, said: Iterable[Saying]) -> Path:
    path.write_text("".join(json.dumps({"who": who, "said": text}) + "\n" for who, text in said))
    return path


def write_key(path: Path, key: bytes = KEY) -> Path:
    path.write_text(f"tacit partition key 1 {key.hex()}\n")
    return path


def ensemble_recipe(model: Path, private: Path, output: Path, /, **changes: Any) -> Recipe:
    """Two parts of two halves by a fixed key, five steps; ``changes`` are merged section by section."""
    content: dict[str, Any] = {
        "method": "submix",
        "output": str(output),
        "model": {"name": str(model), "dtype": "fp32"},
        "corpus": {"path": str(private), "user": "who", "text": "said"},
        "held_out": None,
        "adapter": {"rank": 4, "alpha": 8, "trunk_layers": 1},
        "training": {"max_steps": 5, "block_size": 48, "batch_size": 2, "learning_rate": 5e-3, "seed": 1},
        "ensemble": {"parts": 2, "key": str(write_key(private.with_name("partition.key")))},
        "performance": {"checkpoint_every": 2},
    }
    if changes.get("adapter", {}).get("kind", "lora") != "lora":
        content["adapter"] = {"trunk_layers": 1}
    for key, value in changes.items():
        content[key] = (content.get(key) or {}) | value if isinstance(value, dict) else value
    return parse_recipe(content)


def weights_of(run: Run) -> dict[str, dict[str, Tensor]]:
    """Every member's tensors, by the member's name."""
    return {
        folder.name: load_file(next(folder.glob("*.safetensors"))) for folder in sorted(run.weights.iterdir())
    }


class Killed(BaseException):
    """Stands for SIGKILL: nothing in the code under test may catch it."""


class KillAt(Silent):
    """Kills at a step of training, counted over all groups."""

    def __init__(self, step: int) -> None:
        self._left = step
        self._training = False

    def phase(self, name: str, total: int | None) -> None:
        self._training = name == "training"

    def advance(self, units: int, note: str = "") -> None:
        if self._training:
            self._left -= units
            if self._left <= 0:
                raise Killed
