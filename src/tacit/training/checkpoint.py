"""Checkpoints: everything a killed run needs to end with the same weights, as safetensors and JSON.

Never pickle: a checkpoint is read back from disk, and reading it must not be able to run code.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from tacit.files import new_folder, write_json

_RANDOM_STATE = "random_state"


@dataclass(frozen=True)
class Standing:
    """How far a run is: steps taken, and what early stopping has seen on public text."""

    step: int = 0
    best_loss: float | None = None
    checks_without_gain: int = 0


def trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that training changes, by name."""
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def save_checkpoint(
    folder: Path,
    standing: Standing,
    model: nn.Module,
    optimiser: torch.optim.Optimizer,
    best: dict[str, Tensor] | None,
) -> None:
    """Write a checkpoint; the one before it is removed only when the new one is whole."""
    tensors: dict[str, Tensor] = {_RANDOM_STATE: torch.get_rng_state()}
    for name, parameter in trainable(model).items():
        tensors[f"parameter/{name}"] = parameter.detach().contiguous()
        for key, value in optimiser.state[parameter].items():
            tensors[f"optimiser/{key}/{name}"] = torch.as_tensor(value).contiguous()
        if best is not None:
            tensors[f"best/{name}"] = best[name]
    current = folder / f"step-{standing.step:08d}"
    if current.exists():
        return
    with new_folder(current, private=True) as partial:
        save_file(tensors, partial / "state.safetensors")
        write_json(partial / "standing.json", asdict(standing), private=True)
    for older in folder.iterdir():
        if older != current:
            shutil.rmtree(older)


def load_checkpoint(
    folder: Path, model: nn.Module, optimiser: torch.optim.Optimizer
) -> tuple[Standing, dict[str, Tensor] | None]:
    """Put the newest checkpoint back in place; a fresh standing where there is none."""
    found = sorted(folder.glob("step-*")) if folder.is_dir() else []
    if not found:
        return Standing(), None
    tensors = load_file(found[-1] / "state.safetensors")
    best: dict[str, Tensor] = {}
    for name, parameter in trainable(model).items():
        with torch.no_grad():
            parameter.copy_(tensors[f"parameter/{name}"])
        state = {
            key.split("/")[1]: value
            for key, value in tensors.items()
            if key.startswith("optimiser/") and key.split("/", 2)[2] == name
        }
        if state:
            optimiser.state[parameter] = state
        if f"best/{name}" in tensors:
            best[name] = tensors[f"best/{name}"]
    torch.set_rng_state(tensors[_RANDOM_STATE])
    standing = Standing(**json.loads((found[-1] / "standing.json").read_text(encoding="utf-8")))
    return standing, best or None
