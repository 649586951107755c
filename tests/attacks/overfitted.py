"""A tiny model that learned some texts by heart, beside the public one that never saw them."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from tacit.models.adapters import attach
from tacit.models.loading import PublicModel, load_public_model
from tacit.models.trained import TrainedModel
from tacit.recipes import AdapterSection


def overfit(
    folder: Path, texts: list[str], *, lora: bool = False, steps: int = 60, learning_rate: float = 1e-2
) -> TrainedModel:
    """Train a copy of a model on the texts until it knows them."""
    public, copy = load_public_model(str(folder)), load_public_model(str(folder))
    model: nn.Module = copy.model
    if lora:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = attach(copy.model, AdapterSection(rank=8, alpha=16.0))
    else:
        model.requires_grad_(True)
    rows = [[copy.start_token, *ids] for ids in copy.tokenizer.encode(texts)]
    width = max(map(len, rows))
    ids = torch.tensor([row + [copy.start_token] * (width - len(row)) for row in rows])
    labels = torch.tensor([row + [-100] * (width - len(row)) for row in rows])
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=learning_rate)
    model.train()
    for _ in range(steps):
        optimizer.zero_grad()
        model(input_ids=ids, labels=labels).loss.backward()
        optimizer.step()
    return TrainedModel(public, model.eval().requires_grad_(False))


def as_public(model: TrainedModel) -> PublicModel:
    """The trained weights in the form of a model of their own."""
    public = model.public
    return PublicModel(public.name, model.model, public.tokenizer, "", None, holds_private_text=True)


@torch.no_grad()
def naive_log_probabilities(model: nn.Module, start: int, ids: list[int]) -> torch.Tensor:
    """[tokens, V] in float64 for one text alone, without padding."""
    logits = model(input_ids=torch.tensor([[start, *ids[:-1]]])).logits[0]
    log_p: torch.Tensor = logits.double().log_softmax(-1)
    return log_p
