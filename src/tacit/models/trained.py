"""Loading what a Run trained, on top of the public model it started from."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from torch import nn
from transformers import PreTrainedModel

from tacit.errors import InputError, ModelError, Tampered
from tacit.models.loading import PublicModel, best_device, load_public_model
from tacit.models.masks import with_mask
from tacit.models.quiet import quiet
from tacit.models.safety import foreign_files, read_json_object
from tacit.models.store import is_here
from tacit.runs import Run


@dataclass(frozen=True)
class TrainedModel:
    """A Run's model, and the public model it came from."""

    public: PublicModel
    model: nn.Module


def load_trained(
    run: Run,
    *,
    dtype: torch.dtype = torch.float32,
    device: str | torch.device = "auto",
    trust_remote_code: bool = False,
) -> TrainedModel:
    """Load a Run's weights after checking them against its manifest.

    The returned ``public`` is a model of its own: an adapter changes a second copy, so that the two can
    be compared side by side. Trust in remote code comes from the caller, never from the Run's own files:
    a Run is something one is handed.
    """
    place = best_device(device)
    if run.manifest.weights == "members":
        raise InputError(
            f"{run.folder} holds an ensemble, not one model; its answers need a mechanism and a budget, e.g. "
            "--mechanism certified --epsilon 2 --queries 100."
        )
    run.verify_weights()
    record = run.manifest.public_model
    public = load_public_of(run, dtype=dtype, device=place, trust_remote_code=trust_remote_code)
    if run.manifest.weights == "model":
        trained = load_public_model(
            str(run.weights),
            dtype=dtype,
            device=place,
            trust_remote_code=trust_remote_code,
            start_token=record.start_token,
        )
        return TrainedModel(public, trained.model)
    base = _load_recorded(run, dtype, torch.device("cpu"), trust_remote_code=trust_remote_code).model
    model = _with_adapter(base, run.weights)
    return TrainedModel(public, model.to(place).eval().requires_grad_(False))


def load_public_of(
    run: Run, *, dtype: torch.dtype, device: torch.device, trust_remote_code: bool = False
) -> PublicModel:
    """The public model that a Run started from; another one under the same name is refused."""
    record = run.manifest.public_model
    public = _load_recorded(run, dtype, device, trust_remote_code=trust_remote_code)
    if (
        public.fingerprint != record.fingerprint
        or public.tokenizer_fingerprint != record.tokenizer_fingerprint
    ):
        raise Tampered(
            f"The public model {record.name} is not the one that {run.folder} was trained from; "
            "restore that version or train again."
        )
    return public


def _load_recorded(
    run: Run, dtype: torch.dtype, device: torch.device, *, trust_remote_code: bool
) -> PublicModel:
    record = run.manifest.public_model
    # What came from the hub has a revision. Of anything else the hub may have another under the same name.
    if record.revision is None and not is_here(record.name):
        raise ModelError(
            f"The public model {record.name} of {run.folder} was a folder or in tacit's cache, and is not "
            "there; restore it, or go to the folder in which the Run was trained."
        )
    public = load_public_model(
        record.name,
        dtype=dtype,
        device=device,
        revision=record.revision,
        trust_remote_code=trust_remote_code,
        start_token=record.start_token,
    )
    return public if record.mask_token is None else with_mask(public)


def _with_adapter(base: PreTrainedModel, folder: Path) -> nn.Module:
    config, weights = read_json_object(folder / "adapter_config.json"), folder / "adapter_model.safetensors"
    # PEFT would read pickles, and imports a module that the file names where there is a megatron_config.
    if config.get("peft_type") != "LORA" or config.get("megatron_config") or not weights.is_file():
        raise ModelError(
            f"{folder} does not hold plain LoRA weights as safetensors, which is all that tacit writes; "
            "restore it or train again."
        )
    from peft import PeftModel, get_peft_model_state_dict  # a second's import, needed only here

    with quiet(), foreign_files(f"The adapter in {folder}", "restore it or train again."):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PEFT warns of weights that are missing; they are counted below
            model = PeftModel.from_pretrained(base, str(folder), local_files_only=True, torch_device="cpu")
        needed = set(get_peft_model_state_dict(model, save_embedding_layers=False))
        with safe_open(weights, "pt") as opened:
            found = set(opened.keys())
    if needed != found:
        raise ModelError(
            f"{weights} does not hold exactly the {len(needed)} weights that adapter_config.json describes; "
            "restore it or train again."
        )
    adapted: nn.Module = model
    return adapted
