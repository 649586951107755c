"""The members of an ensemble on disk: PEFT adapter folders, read into a stack and written out of it.

Only JSON and safetensors are opened. Members that could not share one batch (another rank, other layers,
another base, a variant of LoRA) are refused before any weight is touched.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from tacit.errors import ModelError
from tacit.models.adapters import settle_order
from tacit.models.safety import read_json_object, writing_weights
from tacit.models.stacked_lora import PEFT_PREFIX, AdapterStack, layer_number, stack_paths
from tacit.models.trunk import layer_list

CONFIG_FILE: Final = "adapter_config.json"
WEIGHTS_FILE: Final = "adapter_model.safetensors"
# Whatever makes an adapter more than one pair of matrices of one rank per layer.
_BEYOND_PLAIN_LORA: Final = (
    "alpha_pattern",
    "alora_invocation_tokens",
    "layer_replication",
    "lora_bias",
    "megatron_config",
    "modules_to_save",
    "rank_pattern",
    "target_parameters",
    "trainable_token_indices",
    "use_dora",
    "use_qalora",
)


@dataclass(frozen=True)
class AdapterLayout:
    """What the members of one ensemble have in common."""

    rank: int
    alpha: float
    scaling: float
    base: str | None
    paths: tuple[str, ...]


def read_adapter(folder: Path) -> tuple[AdapterLayout, dict[str, Tensor]]:
    """The layout and the matrices of a PEFT adapter folder that holds plain LoRA."""
    config_file = folder / CONFIG_FILE
    config = read_json_object(config_file)
    if config.get("peft_type") != "LORA":
        raise ModelError(f"{config_file} is not of type LORA; ensembles take LoRA adapters.")
    if odd := [key for key in _BEYOND_PLAIN_LORA if config.get(key)]:
        raise ModelError(f"{config_file} sets {odd[0]}; ensembles take plain LoRA only, so train without it.")
    if config.get("bias", "none") != "none":
        raise ModelError(f"{config_file} trains biases; ensembles take plain LoRA only, so set bias to none.")
    rank, alpha = config.get("r"), config.get("lora_alpha")
    if not (isinstance(rank, int) and rank >= 1 and isinstance(alpha, int | float) and math.isfinite(alpha)):
        raise ModelError(f"{config_file}: r and lora_alpha must be positive numbers; train the member again.")
    state = _read_tensors(folder / WEIGHTS_FILE)
    paths = [name.removeprefix(PEFT_PREFIX).removesuffix(".lora_A.weight") for name in state]
    layout = AdapterLayout(
        rank=rank,
        alpha=float(alpha),
        scaling=alpha / math.sqrt(rank) if config.get("use_rslora") else alpha / rank,
        base=config.get("base_model_name_or_path"),
        paths=tuple(path for path in paths if not path.endswith(".lora_B.weight")),
    )
    return layout, state


def _read_tensors(path: Path) -> dict[str, Tensor]:
    try:
        state = load_file(path)
    except FileNotFoundError:
        raise ModelError(
            f"{path} is missing; give an adapter folder written by save_pretrained, in safetensors."
        ) from None
    except (SafetensorError, OSError):
        raise ModelError(
            f"{path} is no readable safetensors file; fetch or train the member again."
        ) from None
    for name in state:
        if not name.startswith(PEFT_PREFIX) or not name.endswith((".lora_A.weight", ".lora_B.weight")):
            raise ModelError(f"{path} holds {name}, which is no plain LoRA matrix; train without it.")
    return state


def load_adapters(
    model: nn.Module,
    folders: Sequence[Path | None],
    *,
    public_groups: int = 0,
    dtype: torch.dtype | None = None,
    trainable: bool = False,
) -> AdapterStack:
    """Stack the adapters of all members into the model, in place; None is a member that changes nothing.

    A member that is None (a half that holds nobody) does the same work as any other. Where every member is
    None, the top layer carries matrices of zeros.
    """
    adapters = [None if folder is None else read_adapter(folder) for folder in folders]
    layout = _common_layout(model, folders, [None if found is None else found[0] for found in adapters])
    stack = stack_paths(
        model,
        len(folders),
        layout.paths,
        rank=layout.rank,
        alpha=layout.alpha,
        scaling=layout.scaling,
        public_groups=public_groups,
        dtype=dtype,
        trainable=trainable,
    )
    for member, found in enumerate(adapters):
        if found is not None:
            stack.load_member(member, found[1])
    return stack


def _common_layout(
    model: nn.Module, folders: Sequence[Path | None], layouts: Sequence[AdapterLayout | None]
) -> AdapterLayout:
    present = [
        (folder, layout) for folder, layout in zip(folders, layouts, strict=True) if layout is not None
    ]
    if not present:
        return AdapterLayout(rank=1, alpha=1.0, scaling=1.0, base=None, paths=_top_linear_layers(model))
    first_folder, first = present[0]
    for folder, layout in present[1:]:
        if layout.rank != first.rank:
            raise ModelError(
                f"{folder} has rank {layout.rank} but {first_folder} has {first.rank}; "
                "the members of an ensemble have one rank."
            )
        if (layout.alpha, layout.scaling) != (first.alpha, first.scaling):
            raise ModelError(
                f"{folder} has another alpha than {first_folder}; an ensemble's members have one scaling."
            )
        if layout.base != first.base:
            raise ModelError(
                f"{folder} was trained from another base model than {first_folder}; the members of an "
                "ensemble share one public model."
            )
        if set(layout.paths) != set(first.paths):
            raise ModelError(
                f"{folder} adapts other layers than {first_folder}; an ensemble's members adapt the same."
            )
    return first


def _top_linear_layers(model: nn.Module) -> tuple[str, ...]:
    _, _, blocks = layer_list(model)
    prefix = next(path for path, module in model.named_modules() if module is blocks[-1])
    linear = (name for name, module in blocks[-1].named_modules() if isinstance(module, nn.Linear | Conv1D))
    return tuple(f"{prefix}.{name}" for name in linear)


def save_member(
    stack: AdapterStack, model: nn.Module, member: int, folder: Path, *, base_name: str | None
) -> None:
    """Write one member as an adapter folder that plain PEFT loads onto the public model."""
    from peft import LoraConfig  # a second's import, needed only here

    _, list_name, blocks = layer_list(model)
    numbers = sorted({layer_number(model, path) for path in stack.layers})
    config = LoraConfig(
        task_type="CAUSAL_LM",
        r=stack.rank,
        lora_alpha=stack.alpha,
        target_modules=sorted({path.rpartition(".")[2] for path in stack.layers}),
        layers_to_transform=None if len(numbers) == len(blocks) else numbers,
        layers_pattern=None if len(numbers) == len(blocks) else list_name,
        fan_in_fan_out=any(isinstance(layer.base, Conv1D) for layer in stack.layers.values()),
        base_model_name_or_path=base_name,
        inference_mode=True,
        use_rslora=stack.scaling != stack.alpha / stack.rank,
    )
    folder.mkdir(parents=True, exist_ok=True)
    with writing_weights(folder):
        save_file(stack.member_state(member), folder / WEIGHTS_FILE, metadata={"format": "pt"})
    config.save_pretrained(str(folder))
    settle_order(folder / CONFIG_FILE)
