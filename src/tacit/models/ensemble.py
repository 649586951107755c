"""An ensemble of a Run: one public model, and members that were trained apart from each other."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from tacit.errors import InputError
from tacit.models.ensemble_files import CONFIG_FILE
from tacit.models.executor import EnsembleExecutor
from tacit.models.executor_lazy import LazyExecutor
from tacit.models.loading import PublicModel, best_device
from tacit.models.trained import load_public_of
from tacit.runs import Run


@dataclass(frozen=True)
class Ensemble:
    """Members in order of part and half; each is a folder, or None where it holds nobody.

    Executors put the public model in row 0 and member m in row m + 1; :meth:`members_of` undoes that.
    """

    public: PublicModel
    members: tuple[Path | None, ...]
    parts: int
    halves: int

    def __post_init__(self) -> None:
        if self.halves not in (1, 2) or len(self.members) != self.parts * self.halves or self.parts < 1:
            raise InputError(
                f"{len(self.members)} members do not make {self.parts} parts of {self.halves}; an ensemble "
                "has one or two models for each part."
            )

    @property
    def has_adapters(self) -> bool:
        """Whether members are low-rank adapters, not whole models."""
        return all((folder / CONFIG_FILE).is_file() for folder in self.members if folder is not None)

    def executor(self, *, slots: int, context: int, dtype: torch.dtype | None = None) -> EnsembleExecutor:
        """All models in one forward pass; None computes in what the public model was loaded in."""
        dtype = dtype or self.public.model.dtype
        return EnsembleExecutor(self.public, self.members, slots=slots, context=context, dtype=dtype)

    def lazy_executor(self, *, slots: int, context: int, dtype: torch.dtype | None = None) -> LazyExecutor:
        """The public model and one part per token; needs one model per part."""
        dtype = dtype or self.public.model.dtype
        if self.halves != 1:
            raise InputError("The lazy path needs one model per part; train with ensemble.halves: false.")
        return LazyExecutor(self.public, self.members, slots=slots, context=context, dtype=dtype)

    def members_of(self, rows: Tensor) -> Tensor:
        """From rows [1 + members, ...] to [parts, halves, ...]; the public row is left out."""
        return rows[1:].reshape(self.parts, self.halves, *rows.shape[1:])


def load_ensemble(
    run: Run,
    *,
    dtype: torch.dtype = torch.float32,
    device: str | torch.device = "auto",
    trust_remote_code: bool = False,
) -> Ensemble:
    """An ensemble's public model and member folders, checked against the Run's manifest."""
    shape = run.manifest.ensemble
    if run.manifest.weights != "members" or shape is None:
        raise InputError(
            f"{run.folder} holds one model, not an ensemble; train with method: submix to answer privately."
        )
    run.verify_weights()
    public = load_public_of(run, dtype=dtype, device=best_device(device), trust_remote_code=trust_remote_code)
    public.require_public()
    folders = tuple(run.weights / name for name in shape.names)
    missing = [folder.name for folder in folders if not folder.is_dir()]
    if missing:
        raise InputError(f"{run.weights}: member {missing[0]} is missing; restore it or train again.")
    return Ensemble(public, folders, shape.parts, 2 if shape.halves else 1)
