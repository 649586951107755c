"""Checkpoints: everything a killed run needs to end with the same weights, as safetensors and JSON.

Never pickle: a checkpoint is read back from disk, and reading it must not be able to run code.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from tacit.errors import InputError, Tampered
from tacit.files import new_folder, read_json, write_json
from tacit.models.safety import writing_weights

_STATE = "state.safetensors"
_STANDING = "standing.json"
_RANDOM_STATE = "random_state"


@dataclass(frozen=True)
class Standing:
    """How far a run is: steps taken, and what early stopping has seen on public text.

    ``private`` is the account of private steps, where there are any, and their engine: it is saved with the
    weights that they led to, in one piece, so that neither is ever there without the other.
    """

    step: int = 0
    best_loss: float | None = None
    checks_without_gain: int = 0
    private: Mapping[str, Any] | None = None
    seen: Mapping[str, Any] | None = None  # what these steps saw, for the operator alone


def trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that training changes, by name."""
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def save_checkpoint(
    folder: Path,
    standing: Standing,
    model: nn.Module,
    optimisers: Sequence[torch.optim.Optimizer],
    best: dict[str, Tensor] | None = None,
) -> None:
    """Write a checkpoint; the one before it is removed only when the new one is whole."""
    tensors: dict[str, Tensor] = {_RANDOM_STATE: torch.get_rng_state()}
    for name, parameter in trainable(model).items():
        tensors[f"parameter/{name}"] = parameter.detach().contiguous()
        for number, optimiser in enumerate(optimisers):
            for key, value in optimiser.state.get(parameter, {}).items():
                if value is not None:  # SGD without momentum keeps the place of one
                    tensors[f"optimiser-{number}/{key}/{name}"] = torch.as_tensor(value).contiguous()
        if best is not None:
            tensors[f"best/{name}"] = best[name]
    current = folder / f"step-{standing.step:08d}"
    if current.exists():  # damaged, or this step would not have been taken again
        shutil.rmtree(current)
    with new_folder(current, private=True) as partial:
        with writing_weights(current):
            save_file(tensors, partial / _STATE)
        write_json(partial / _STANDING, asdict(standing), private=True)
    for older in folder.iterdir():
        if older != current:
            shutil.rmtree(older)


def load_checkpoint(
    folder: Path, model: nn.Module, optimisers: Sequence[torch.optim.Optimizer]
) -> tuple[Standing, dict[str, Tensor] | None]:
    """Put the newest whole checkpoint back in place; a fresh standing where there is none."""
    for newest in sorted(folder.glob("step-*"), reverse=True):
        try:
            tensors = load_file(newest / _STATE)
            standing = Standing(**read_json(newest / _STANDING, "begin again"))
        except (SafetensorError, OSError, InputError, TypeError):
            continue  # a kill or a crash has cut it short; the steps since the one before are taken again
        return standing, _put_back(tensors, model, optimisers, newest)
    return Standing(), None


def _put_back(
    tensors: dict[str, Tensor], model: nn.Module, optimisers: Sequence[torch.optim.Optimizer], origin: Path
) -> dict[str, Tensor] | None:
    best: dict[str, Tensor] = {}
    try:
        for name, parameter in trainable(model).items():
            with torch.no_grad():
                parameter.copy_(tensors[f"parameter/{name}"])
            for number, optimiser in enumerate(optimisers):
                state = {
                    key.split("/")[1]: value.to(parameter.device)
                    for key, value in tensors.items()
                    if key.startswith(f"optimiser-{number}/") and key.split("/", 2)[2] == name
                }
                if state:
                    optimiser.state[parameter] = state
            if f"best/{name}" in tensors:
                best[name] = tensors[f"best/{name}"]
        torch.set_rng_state(tensors[_RANDOM_STATE])
    except (KeyError, RuntimeError):
        raise Tampered(
            f"{origin} is not a checkpoint of this model; remove the folder of the unfinished run and begin "
            "again."
        ) from None
    return best or None
