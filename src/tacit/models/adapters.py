"""Which weights may change: low-rank adapters, the top layers, or all of them.

Low-rank adapters are PEFT's own, so that what tacit saves is what `peft` loads. Everything else stays
frozen: only frozen public weights may ever be shared between members of an ensemble.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from tacit.errors import RecipeError
from tacit.files import write_json
from tacit.models.description import PRIVATE_MARK, ModelDescription, weight_hashes, write_description
from tacit.models.loading import PublicModel
from tacit.models.quiet import quiet
from tacit.models.safety import read_json_object, writing_weights
from tacit.models.trunk import layer_list
from tacit.recipes import AdapterSection

WeightsLayout = Literal["adapter", "model"]


def attach(model: PreTrainedModel, adapter: AdapterSection) -> nn.Module:
    """Make the weights that the recipe names trainable, and return the model to train.

    ``lora`` wraps the model by PEFT; ``top`` and ``full`` return it unchanged but for ``requires_grad``.
    """
    _, _, layers = layer_list(model)
    if adapter.trunk_layers >= len(layers):
        raise RecipeError(
            f"adapter.trunk_layers={adapter.trunk_layers} leaves nothing to train: the model has "
            f"{len(layers)} layers; choose at most {len(layers) - 1}."
        )
    model.requires_grad_(False)
    if adapter.kind == "lora":
        return _with_lora(model, adapter)
    for parameter in _upper_parameters(model, adapter.trunk_layers):
        parameter.requires_grad_(True)
    trained: nn.Module = model
    return trained


def layout_of(adapter: AdapterSection) -> WeightsLayout:
    """In which layout the trained weights are saved."""
    return "adapter" if adapter.kind == "lora" else "model"


def save_weights(trained: nn.Module, folder: Path, public: PublicModel, *, holds_private_text: bool) -> None:
    """Write weights as safetensors: an adapter in PEFT layout, or a whole model with its tokenizer.

    An adapter has its tokenizer beside it where that has a mask. The mask's row is no part of it: it is a
    function of the public rows (`models.masks`), and without it the adapter fits the public model as it is.
    """
    is_adapter = hasattr(trained, "peft_config")
    # PEFT would add both embeddings to an adapter, because they have one row more than the public model's.
    options = {"save_embedding_layers": False} if is_adapter else {}
    with quiet(), writing_weights(folder):
        trained.save_pretrained(str(folder), **options)  # type: ignore[operator]
    if is_adapter:
        if public.tokenizer.mask_token is not None:
            public.tokenizer.tokenizer.save_pretrained(str(folder))
        # PEFT leaves an empty model-card template there; the Run's own files say what the weights are.
        (folder / "README.md").unlink(missing_ok=True)
        settle_order(folder / "adapter_config.json")
        return
    public.tokenizer.tokenizer.save_pretrained(str(folder))
    if holds_private_text:
        # In the description too, but that is tacit's own file, and copies of a model may come without it.
        config = read_json_object(folder / "config.json")
        write_json(folder / "config.json", config | {PRIVATE_MARK: True}, overwrite=True)
    description = ModelDescription(
        name=public.name,
        source="fine-tuned by tacit; the Run around it says how",
        licence=None,
        parameters=sum(parameter.numel() for parameter in trained.parameters()),
        start_token_id=public.start_token,
        vocabulary=public.vocabulary,
        holds_private_text=holds_private_text,
        weights_sha256=weight_hashes(folder),
    )
    write_description(folder, description)


def settle_order(config_file: Path) -> None:
    """Sort PEFT's sets of names, whose order follows the process's hash seed: equal runs give equal bytes."""
    config = json.loads(config_file.read_text(encoding="utf-8"))
    if isinstance(config["target_modules"], list):
        config["target_modules"].sort()
    config_file.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _with_lora(model: PreTrainedModel, adapter: AdapterSection) -> nn.Module:
    from peft import LoraConfig, get_peft_model  # a second's import, needed only here

    _, list_name, layers = layer_list(model)
    linear = {
        name: module for name, module in layers.named_modules() if isinstance(module, nn.Linear | Conv1D)
    }
    targets = adapter.targets or tuple(sorted({name.rpartition(".")[2] for name in linear}))
    for target in targets:
        if not any(name.rpartition(".")[2] == target for name in linear):
            known = ", ".join(sorted({name.rpartition(".")[2] for name in linear}))
            raise RecipeError(f"adapter.targets: '{target}' is no linear layer of the model; it has {known}.")
    config = LoraConfig(
        task_type="CAUSAL_LM",
        r=adapter.rank,
        lora_alpha=adapter.alpha,
        lora_dropout=adapter.dropout,
        target_modules=list(targets),
        layers_to_transform=list(range(adapter.trunk_layers, len(layers))),
        layers_pattern=list_name,
        fan_in_fan_out=any(isinstance(module, Conv1D) for module in linear.values()),
    )
    wrapped: nn.Module = get_peft_model(model, config)
    return wrapped


def _upper_parameters(model: PreTrainedModel, trunk_layers: int) -> Iterator[nn.Parameter]:
    """All parameters, or those above the trunk: its layers and the final norm, but no embedding and no head.

    Embedding and head stay public with a trunk because they are often one matrix, and a trained
    embedding would change what the trunk sees.
    """
    if trunk_layers == 0:
        yield from model.parameters()
        return
    _, _, layers = layer_list(model)
    frozen = [*layers[:trunk_layers], model.get_output_embeddings()]
    frozen += [module for module in model.modules() if isinstance(module, nn.Embedding)]
    excluded = {id(parameter) for module in frozen for parameter in module.parameters()}
    yield from (parameter for parameter in model.parameters() if id(parameter) not in excluded)
