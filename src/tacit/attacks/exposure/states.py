"""What a model says after some tokens, with the state that lets it go on from there.

One small interface for transformers (keys and values), LSTMs (hidden and cell states) and, in ``ensembles``,
the mixture of a mechanism. Log-probabilities come in single precision and are summed in double. The same
text in another batch gives the same number only up to rounding: ``tolerance`` is how far sums may be apart.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import torch
from torch import Tensor

from tacit.errors import ModelError
from tacit.models.lstm import LSTMState

_STATE_BYTES: Final = 192 * 2**20  # of states and logits of one step; several steps are held at once
_MOST_ROWS: Final = 4096
_EXACT: Final = (torch.float32, torch.float64)


@dataclass(frozen=True, eq=False, repr=False)
class Scored:
    """Log-probabilities [rows, V] of the next token, on the CPU, and the state of each row."""

    log_probs: Tensor
    state: Any


@dataclass(frozen=True, eq=False, repr=False)
class Root:
    """What follows the prefix, one row, and the log-probability of the prefix behind its start token."""

    scored: Scored
    prefix_log_probability: float
    prefix_tokens: int


class Scorer(Protocol):
    """A model, or a mechanism, asked token by token."""

    @property
    def tolerance(self) -> float:
        """How far two sums of log-probabilities of one text may be apart by rounding, in nats."""

    def root(self, prefix: Sequence[int], *, whole: bool = False) -> Root:
        """Read the prefix, start token first; with ``whole`` its own log-probability is computed as well."""

    def step(self, state: Any, tokens: Tensor) -> Scored:
        """One more token [rows] for each row; the given state stays as it is."""

    def select(self, state: Any, rows: Tensor) -> Any:
        """The state of some rows, in the order given; a row may be taken several times."""

    def rows_at_once(self, root: Root, longest: int) -> int:
        """How many rows a step should have, for candidates of at most ``longest`` tokens."""


class ModelScorer:
    """One causal language model, transformer or LSTM, as it stands: in evaluation mode, without gradients."""

    def __init__(self, model: Any) -> None:
        """``model`` is a transformers model or a PEFT model around one."""
        self.model = model.eval()
        weight: Tensor = self.model.get_input_embeddings().weight
        self.device: torch.device = weight.device
        self.exact: bool = weight.dtype in _EXACT

    @property
    def tolerance(self) -> float:
        """Rounding of another batch shape moves a sum by some 1e-5 in single precision."""
        return 1e-4 if self.exact else 1e-2

    @torch.inference_mode()
    def root(self, prefix: Sequence[int], *, whole: bool = False) -> Root:
        """Read the prefix; a model's own log-probability of it costs nothing more."""
        ids = torch.tensor([list(prefix)], device=self.device)
        output = self.model(input_ids=ids, use_cache=True)
        log_probs_TV = log_probabilities(output.logits[0])
        own = log_probs_TV[:-1].gather(1, ids[0, 1:, None].cpu()).double().sum()
        if not (isinstance(output.past_key_values, LSTMState) or hasattr(output.past_key_values, "layers")):
            raise ModelError(
                f"{type(self.model).__name__} keeps no state that can be branched; exposure needs a "
                "transformer with a key-value cache or tacit's LSTM."
            )
        return Root(Scored(log_probs_TV[-1:], output.past_key_values), float(own), len(prefix) - 1)

    @torch.inference_mode()
    def step(self, state: Any, tokens: Tensor) -> Scored:
        """One position for each row."""
        output = self.model(
            input_ids=tokens[:, None].to(self.device), past_key_values=branch(state), use_cache=True
        )
        return Scored(log_probabilities(output.logits[:, -1]), output.past_key_values)

    @torch.inference_mode()
    def select(self, state: Any, rows: Tensor) -> Any:
        """Gather the rows of every layer."""
        rows = rows.to(self.device)
        if isinstance(state, LSTMState):
            return state.select(rows)
        chosen = branch(state)
        for layer in chosen.layers:
            layer.batch_select_indices(rows)
        return chosen

    def rows_at_once(self, root: Root, longest: int) -> int:
        """As many as their states and logits have room for."""
        per_row = 8 * root.scored.log_probs.shape[1]
        for layer in root.scored.state.layers:
            tensors = (
                (layer.hidden, layer.cell)
                if isinstance(root.scored.state, LSTMState)
                else (layer.keys, layer.values)
            )
            growth = (
                1.0
                if isinstance(root.scored.state, LSTMState)
                else 1 + longest / max(1, root.prefix_tokens + 1)
            )
            per_row += int(growth * sum(tensor[0].numel() * tensor.element_size() for tensor in tensors))
        return max(1, min(_MOST_ROWS, _STATE_BYTES // per_row))


def branch(state: Any) -> Any:
    """The same state once more: a model's next step extends its layers by new tensors and spares the old."""
    if isinstance(state, LSTMState):
        return state
    twin = copy.copy(state)
    twin.layers = [copy.copy(layer) for layer in state.layers]
    return twin


def log_probabilities(logits: Tensor) -> Tensor:
    """Log-softmax in at least single precision, on the CPU; damaged models are refused."""
    logits = logits if logits.dtype == torch.float64 else logits.float()
    found = torch.log_softmax(logits, dim=-1).cpu()
    # A sum is NaN wherever an entry was NaN or every entry minus infinity.
    if bool(torch.isnan(found.sum(-1)).any()):
        raise ModelError("The model's predictions are not finite numbers; it is damaged.")
    return found
