"""Adapters with weights that matter, and the plain PEFT models that ensembles are compared with."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from peft import PeftModel
from torch import Tensor

from tacit.models.adapters import attach, save_weights
from tacit.models.ensemble import Ensemble
from tacit.models.loading import load_public_model
from tacit.recipes import AdapterSection

FAMILIES = ["tiny_transformer", "tiny_llama", "tiny_lstm"]


def adapter_folder(
    model_folder: Path,
    folder: Path,
    seed: int,
    *,
    rank: int = 4,
    alpha: float = 8.0,
    targets: tuple[str, ...] | None = None,
    trunk_layers: int = 0,
    base: str | None = None,
) -> Path:
    """A LoRA adapter whose both matrices are random, saved as tacit saves them."""
    public = load_public_model(str(model_folder))
    section = AdapterSection(rank=rank, alpha=alpha, targets=targets, trunk_layers=trunk_layers)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        trained = attach(public.model, section)
        for name, parameter in trained.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(parameter, std=0.2)
    save_weights(trained, folder, public, holds_private_text=True)
    if base is not None:
        config = json.loads((folder / "adapter_config.json").read_text())
        (folder / "adapter_config.json").write_text(json.dumps(config | {"base_model_name_or_path": base}))
    return folder


def ensemble_of(
    model_folder: Path, folder: Path, *, parts: int, halves: int, trunk_layers: int = 0
) -> Ensemble:
    """An ensemble of random adapters."""
    members = tuple(
        adapter_folder(model_folder, folder / f"member-{m}", seed=m, trunk_layers=trunk_layers)
        for m in range(parts * halves)
    )
    return Ensemble(load_public_model(str(model_folder)), members, parts, halves)


@torch.no_grad()
def peft_logits(model_folder: Path, adapter: Path | None, ids: Tensor) -> Tensor:
    """Logits of one member by plain PEFT, of the public model without an adapter."""
    model = load_public_model(str(model_folder)).model
    if adapter is not None:
        model = PeftModel.from_pretrained(model, str(adapter), local_files_only=True).eval()
    logits: Tensor = model(input_ids=ids).logits
    return logits
