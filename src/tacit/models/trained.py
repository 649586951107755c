"""Loading what a Run trained, on top of the public model it started from."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from tacit.errors import Tampered
from tacit.models.loading import PublicModel, load_public_model
from tacit.models.quiet import quiet
from tacit.runs import Run


@dataclass(frozen=True)
class TrainedModel:
    """A Run's model, and the public model it came from."""

    public: PublicModel
    model: nn.Module


def load_trained(
    run: Run, *, dtype: torch.dtype = torch.float32, trust_remote_code: bool = False
) -> TrainedModel:
    """Load a Run's weights after checking them against its manifest.

    The returned ``public`` is a model of its own: an adapter changes a second copy, so that the two can
    be compared side by side. Trust in remote code comes from the caller, never from the Run's own files:
    a Run is something one is handed.
    """
    run.verify_weights()
    record = run.manifest.public_model
    public = _load_recorded(run, dtype, trust_remote_code=trust_remote_code)
    if (
        public.fingerprint != record.fingerprint
        or public.tokenizer_fingerprint != record.tokenizer_fingerprint
    ):
        raise Tampered(
            f"The public model {record.name} is not the one that {run.folder} was trained from; "
            "restore that version or train again."
        )
    if run.manifest.weights == "model":
        trained = load_public_model(str(run.weights), dtype=dtype, start_token=record.start_token)
        return TrainedModel(public, trained.model)
    from peft import PeftModel  # a second's import, needed only here

    with quiet():
        base = _load_recorded(run, dtype, trust_remote_code=trust_remote_code).model
        model = PeftModel.from_pretrained(base, str(run.weights), local_files_only=True)
    return TrainedModel(public, model.eval().requires_grad_(False))


def _load_recorded(run: Run, dtype: torch.dtype, *, trust_remote_code: bool) -> PublicModel:
    recipe = run.manifest.recipe["model"]
    return load_public_model(
        recipe["name"],
        dtype=dtype,
        revision=run.manifest.public_model.revision,
        trust_remote_code=trust_remote_code,
        start_token=run.manifest.public_model.start_token,
    )
