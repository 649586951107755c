"""One forward pass of selective DP-SGD (Shi et al. 2021) through an LSTM of one layer.

A position reads one token and predicts the next. It is *sensitive* if either of the two is. What may depend
on a sensitive token:

- the loss of sensitive positions, whose gradient (also through earlier states) belongs to the noisy part;
- the state behind a sensitive stretch. Before another position reads it, hidden and cell state together are
  clipped and noised, and no gradient flows back: what follows is a function of the noisy state.

So the loss of all other positions, and its gradient, depends on a sensitive stretch through one noisy state
only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from tacit.errors import ModelError
from tacit.models.likelihood import NO_LABEL
from tacit.models.lstm import LSTMForCausalLM, LSTMLayer
from tacit.training.private_steps.noise import NoiseSource
from tacit.training.sensitive_tokens import MarkedPiece


@dataclass(frozen=True)
class StateNoise:
    """How a state is protected before others read it: its largest norm, and noise in units of that."""

    clip: float
    multiplier: float
    source: NoiseSource


@dataclass(frozen=True)
class MarkedRows:
    """Pieces side by side, padded on the right."""

    inputs: Tensor
    labels: Tensor
    sensitive: Tensor  # positions that read or predict a sensitive token

    @classmethod
    def of(cls, pieces: Sequence[MarkedPiece], start_token: int) -> MarkedRows:
        """Every token predicted once, from those before it."""
        width = max(len(piece.tokens) for piece in pieces)
        inputs = np.full((len(pieces), width), start_token, dtype=np.int64)
        labels = np.full((len(pieces), width), NO_LABEL, dtype=np.int64)
        sensitive = np.zeros((len(pieces), width), dtype=np.bool_)
        for row, piece in enumerate(pieces):
            size = len(piece.tokens)
            inputs[row, 1:size] = piece.tokens[:-1]
            labels[row, :size] = piece.tokens
            sensitive[row, :size] = piece.sensitive
            sensitive[row, 1:size] |= piece.sensitive[:-1]
        return cls(torch.from_numpy(inputs), torch.from_numpy(labels), torch.from_numpy(sensitive))


def one_layer(model: nn.Module) -> LSTMForCausalLM:
    """The model, refused where states of several layers, or of no recurrence, would have to be protected."""
    if not isinstance(model, LSTMForCausalLM) or len(model.layers) != 1:
        raise ModelError(
            "Selective DP-SGD protects the state of an LSTM with one layer, and this model is another; give "
            "one, e.g. of tacit models create --preset lstm-1x200."
        )
    return model


def position_losses(model: LSTMForCausalLM, rows: MarkedRows, noise: StateNoise) -> Tensor:
    """The loss of every position [rows, time], 0 where there is no label."""
    layer = model.layers[0]
    assert isinstance(layer, LSTMLayer)  # noqa: S101
    gates_RTG = layer.input_gates(model.dropout(model.embed_tokens(rows.inputs)))
    hidden = gates_RTG.new_zeros(len(rows.inputs), layer.hidden_size)
    cell, outputs = hidden, []
    for time in range(rows.inputs.shape[1]):
        if time:
            leaves = rows.sensitive[:, time - 1] & ~rows.sensitive[:, time]
            hidden, cell = _protected(hidden, cell, leaves, noise)
        entry, forget, new, output = (gates_RTG[:, time] + layer.recurrent_gates(hidden)).chunk(4, dim=-1)
        cell = forget.sigmoid() * cell + entry.sigmoid() * new.tanh()
        hidden = output.sigmoid() * cell.tanh()
        outputs.append(hidden)
    logits = model.lm_head(model.dropout(torch.stack(outputs, dim=1)))
    losses: Tensor = nn.functional.cross_entropy(
        logits.flatten(0, 1), rows.labels.flatten(), ignore_index=NO_LABEL, reduction="none"
    ).view(rows.labels.shape)
    return losses


def _protected(hidden: Tensor, cell: Tensor, leaves: Tensor, noise: StateNoise) -> tuple[Tensor, Tensor]:
    """Clip and noise the state of rows that leave a sensitive stretch, and cut its gradient."""
    if not bool(leaves.any()):
        return hidden, cell
    state = torch.cat([hidden, cell], dim=-1).detach()[leaves]
    norms = torch.linalg.vector_norm(state, dim=-1, keepdim=True)
    state = state * (noise.clip / norms.clamp(min=1e-30)).clamp(max=1.0)
    drawn = torch.empty(state.numel())
    noise.source.fill(drawn, noise.multiplier * noise.clip)
    state = state + drawn.view(state.shape).to(state)
    whole = torch.cat([hidden, cell], dim=-1).masked_scatter(
        leaves[:, None].expand(-1, 2 * hidden.shape[-1]), state
    )
    new_hidden, new_cell = whole.chunk(2, dim=-1)
    return new_hidden, new_cell
