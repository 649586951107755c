"""Canaries of digits, and tiny models that have read them too often."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from tacit.attacks.exposure.token_tree import FloatArray
from tacit.corpus.canaries import CanaryManifest, draw_canaries
from tacit.corpus.canary_plan import CanaryPlan
from tacit.models.loading import PublicModel, load_public_model
from tacit.models.trained import TrainedModel


def number_canaries(**changes: object) -> CanaryManifest:
    """A drawn manifest; three digits behind one shared prefix unless told otherwise."""
    settings: dict[str, Any] = {
        "template": "My number is: {secret}",
        "length": 3,
        "prefix": "shared",
        "users": 6,
        "owner": "new",
        "include": 0.5,
        "seed": 7,
    }
    words = changes.pop("words", None)
    plan = CanaryPlan(**(settings | changes))
    return draw_canaries(plan, [], documents=100, characters=4000, words=words)  # type: ignore[arg-type]


def memorising(folder: Path, manifest: CanaryManifest, *, steps: int, learning_rate: float) -> TrainedModel:
    """The model after many steps on the inserted canaries alone."""
    public, trained = (load_public_model(str(folder)) for _ in range(2))
    texts = [canary.text for canary in manifest.canaries if canary.inserted]
    ids = trained.tokenizer.encode(texts)
    width = max(map(len, ids))
    batch = torch.tensor([[public.start_token, *row, *[row[-1]] * (width - len(row))] for row in ids])
    model = trained.model.train().requires_grad_(True)
    optimizer = torch.optim.Adam(model.parameters(), lr=learning_rate)
    for _ in range(steps):
        optimizer.zero_grad()
        model(input_ids=batch, labels=batch).loss.backward()
        optimizer.step()
    return TrainedModel(public, model.eval().requires_grad_(False))


@torch.no_grad()
def digits_naively(model: Any, public: PublicModel, prefix: str, digits: int) -> FloatArray:
    """The log-probability of every number behind a prefix, each text in full, in double precision sums."""
    beginning = public.tokenizer.encode([prefix])[0]
    scores = np.empty(10**digits)
    texts = public.tokenizer.encode([f"{prefix} {number:0{digits}d}" for number in range(10**digits)])
    for number, ids in enumerate(texts):
        row = torch.tensor([[public.start_token, *ids]])
        log_probs = torch.log_softmax(model(input_ids=row).logits[0].float(), dim=-1)
        own = log_probs[len(beginning) : -1].gather(1, row[0, len(beginning) + 1 :, None])
        scores[number] = float(own.double().sum())
    return scores
