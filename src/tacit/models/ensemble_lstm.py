"""LSTM layers whose gates carry the stacked adapters of many members.

The fused kernel takes one weight for all rows, but here every member's rows have a weight of their own. So
the input's share of the gates is computed for all positions at once, and the recurrence goes position by
position: one shared product for the state of all members' rows, batched ones for the members' deltas. What
holds is what holds of `LSTMLayer`: the same outputs, states and treatment of padding on the right.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tacit.models.lstm import LayerState, LSTMLayer


class StackedLSTMLayer(nn.Module):
    """Drop-in for an `LSTMLayer` one or both of whose gates are stacked linear layers."""

    def __init__(self, layer: LSTMLayer) -> None:
        super().__init__()
        self.hidden_size = layer.hidden_size
        self.input_gates: nn.Module = layer.input_gates
        self.recurrent_gates: nn.Module = layer.recurrent_gates

    def forward(
        self, hidden_states: Tensor, state: LayerState | None = None, lengths: Tensor | None = None
    ) -> tuple[Tensor, LayerState]:
        """Run over [rows, time, input size]; ``lengths`` makes the new state that of each row's real end."""
        if state is None:
            zeros = hidden_states.new_zeros(len(hidden_states), self.hidden_size)
            state = LayerState(zeros, zeros)
        from_inputs = self.input_gates(hidden_states)
        outputs: list[Tensor] = []
        for position in range(hidden_states.shape[1]):
            gates = from_inputs[:, position] + self.recurrent_gates(state.hidden)
            new = _advance(gates, state.cell)
            if lengths is None:
                outputs.append(new.hidden)
                state = new
                continue
            real = (position < lengths.to(gates.device)).unsqueeze(1)
            outputs.append(torch.where(real, new.hidden, torch.zeros_like(new.hidden)))
            state = LayerState(
                torch.where(real, new.hidden, state.hidden), torch.where(real, new.cell, state.cell)
            )
        return torch.stack(outputs, dim=1), state


def _advance(gates: Tensor, cell: Tensor) -> LayerState:
    # Blocks in torch's order, as in LSTMLayer: input, forget, cell, output.
    enter, forget, candidate, leave = gates.chunk(4, dim=1)
    cell = torch.sigmoid(forget) * cell + torch.sigmoid(enter) * torch.tanh(candidate)
    return LayerState(torch.sigmoid(leave) * torch.tanh(cell), cell)
