"""The optimisers that a recipe may name."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from tacit.recipes import TrainingSection


def optimiser_for(parameters: Sequence[nn.Parameter], settings: TrainingSection) -> torch.optim.Optimizer:
    """A new optimiser of the recipe's kind; its rate is set before every step."""
    kind = torch.optim.AdamW if settings.optimiser == "adamw" else torch.optim.SGD
    return kind(parameters, lr=settings.learning_rate, weight_decay=settings.weight_decay, fused=True)


def set_rate(optimiser: torch.optim.Optimizer, rate: float) -> None:
    """The learning rate of the next step."""
    for group in optimiser.param_groups:
        group["lr"] = rate
