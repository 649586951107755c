"""How models come to memorise codes: the recipes of the models under attack."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, get_args

from tacit.errors import InputError
from tacit.recipes import DEFAULT_MODEL, Recipe, parse_recipe

Adapter = Literal["lora", "full"]
_DEEP: Final = 8  # layers from which on it pays to leave the lower ones alone


@dataclass(frozen=True)
class MemorisingPlan:
    """What decides the models under attack: how many codes, of what length, and how they are memorised."""

    digits: int = 4
    codes: int = 8
    model: str = DEFAULT_MODEL
    steps: int = 60
    learning_rate: float = 1e-2
    adapter: Adapter = "lora"
    rank: int = 8
    trunk_layers: int | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        if self.codes < 2 or self.codes % 2:
            raise InputError(
                f"Expected codes={self.codes} to be even and at least 2: each half of a part has one."
            )

        if self.adapter not in get_args(Adapter):
            raise InputError(f"Expected adapter='{self.adapter}' to be 'lora' or 'full'.")

    @property
    def parts(self) -> int:
        """k = m/2, so that every half-model memorises one code."""
        return self.codes // 2

    def recipe(self, folder: Path, method: Literal["submix", "finetune"], layers: int) -> Recipe:
        """How to train on the folder's codes; the upper quarter of a deep model is adapted by default."""
        trunk = self.trunk_layers
        if trunk is None:
            trunk = layers * 3 // 4 if self.adapter == "lora" and layers >= _DEEP else 0
        alone = method == "submix"
        # A document is a dozen tokens; one row of them is all that a member has.
        training = {
            "max_steps": self.steps if alone else 2 * self.steps,
            "batch_size": 1 if alone else self.codes,
            "block_size": 32,
            "learning_rate": self.learning_rate,
            "seed": self.seed,
        }
        if not alone:
            training["epochs"] = 2 * self.steps
        low_rank = {"rank": self.rank, "alpha": 2.0 * self.rank} if self.adapter == "lora" else {}
        content: dict[str, Any] = {
            "method": method,
            "output": str(folder / ("ensemble" if alone else "finetuned")),
            "model": {"name": self.model},
            "corpus": {"path": str(folder / "codes.jsonl"), "user": "user", "text": "text"},
            "held_out": None,
            "adapter": {"kind": self.adapter, "trunk_layers": trunk} | low_rank,
            "training": training,
        }
        if alone:
            content["ensemble"] = {"parts": self.parts, "assign": "balanced"}
        return parse_recipe(content, origin="the attack's recipe")
