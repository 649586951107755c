"""Small models and rows for the tests of private steps, and a plain oracle of per-example gradients."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from tacit.models.likelihood import NO_LABEL
from tacit.models.lstm import LSTMConfig, LSTMForCausalLM
from tacit.training.encoding import Batch, IntArray
from tacit.training.private_steps import Examples, StepPrivacy

VOCABULARY = 40


def gpt2(*, tied: bool = True) -> GPT2LMHeadModel:
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=16,
        n_embd=16,
        n_layer=2,
        n_head=2,
        bos_token_id=0,
        eos_token_id=0,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        tie_word_embeddings=tied,
    )
    return _lively(GPT2LMHeadModel(config))


def llama(*, tied: bool = False) -> LlamaForCausalLM:
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=16,
        bos_token_id=0,
        eos_token_id=0,
        tie_word_embeddings=tied,
    )
    return _lively(LlamaForCausalLM(config))


def lstm(*, layers: int = 1, tied: bool = False) -> LSTMForCausalLM:
    torch.manual_seed(2)
    config = LSTMConfig(
        vocab_size=VOCABULARY,
        embedding_size=12 if tied else 10,
        hidden_size=12,
        num_hidden_layers=layers,
        tie_word_embeddings=tied,
        bos_token_id=0,
        eos_token_id=0,
    )
    return _lively(LSTMForCausalLM(config))


M = TypeVar("M", bound=nn.Module)


def _lively(model: M) -> M:
    """Away from initial values such as zero biases, where wrong gradients could agree by chance."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    return model.train()


class Text:
    """Random rows of unequal lengths, as the engines take them."""

    def __init__(self, lengths: Sequence[int], seed: int = 0, *, positions: bool = True) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.ids = [torch.randint(VOCABULARY, (length + 1,), generator=generator) for length in lengths]
        self.lengths: IntArray = np.array(lengths, dtype=np.int64)
        self._positions = positions

    def __len__(self) -> int:
        return len(self.ids)

    def make_batch(self, rows: IntArray) -> Batch:
        width = int(self.lengths[rows].max())
        inputs = torch.zeros(len(rows), width, dtype=torch.int64)
        labels = torch.full((len(rows), width), NO_LABEL)
        for line, row in enumerate(rows):
            length = int(self.lengths[row])
            inputs[line, :length] = self.ids[row][:-1]
            labels[line, :length] = self.ids[row][1:]
        pieces = torch.where(labels == NO_LABEL, -1, torch.from_numpy(rows)[:, None])
        arguments: dict[str, object] = {"input_ids": inputs, "use_cache": False}
        if self._positions:
            arguments["position_ids"] = torch.arange(width).expand(len(rows), width)
        return Batch(arguments, labels, pieces, rows)

    def examples(self, owners: Sequence[int] | None = None) -> Examples:
        """Every row an example, or all rows of an owner."""
        own = np.arange(len(self)) if owners is None else np.array(owners)
        rows = [np.flatnonzero(own == owner) for owner in range(int(own.max()) + 1)]
        return Examples(rows, self.lengths, self.make_batch)


def privacy(population: int, **changes: object) -> StepPrivacy:
    settings: dict[str, object] = {
        "clip": 1.0,
        "noise_multiplier": 0.0,
        "sampling_rate": 1.0,
        "population": population,
    }
    return StepPrivacy(**(settings | changes))  # type: ignore[arg-type]


def trained(model: nn.Module) -> dict[str, nn.Parameter]:
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def oracle_gradients(
    model: nn.Module, text: Text, rows: Sequence[int], loss: str = "mean"
) -> dict[str, Tensor]:
    """Gradient of one example by the model's own logits, torch's cross-entropy and nothing else.

    In float64: in single precision the oracle itself was off by more than what it is to judge.
    """
    model = copy.deepcopy(model).double()
    model.zero_grad(set_to_none=True)
    losses: list[Tensor] = []
    for row in rows:
        batch = text.make_batch(np.array([row]))
        logits = model(**batch.inputs).logits[0]
        losses.append(nn.functional.cross_entropy(logits, batch.labels[0], reduction="none"))
    every = torch.cat(losses)
    (every.mean() if loss == "mean" else every.sum()).backward()  # type: ignore[no-untyped-call]
    return {
        name: torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        for name, parameter in trained(model).items()
    }


def norm(gradients: dict[str, Tensor]) -> float:
    return float(torch.stack([gradient.double().norm() for gradient in gradients.values()]).norm())


def clipped_sum(
    gradients: Sequence[dict[str, Tensor]], clip: float, factor: Callable[[float, float], float] | None = None
) -> dict[str, Tensor]:
    """What a private step should add up, from per-example gradients."""
    scale = factor or (lambda size, bound: min(1.0, bound / size))
    total = {name: torch.zeros_like(value) for name, value in gradients[0].items()}
    for own in gradients:
        for name, value in own.items():
            total[name] += scale(norm(own), clip) * value
    return total


class Capture(torch.optim.Optimizer):
    """An optimiser that keeps what it is given and changes nothing."""

    def __init__(self, model: nn.Module) -> None:
        self._named = trained(model)
        self.gradients: dict[str, Tensor] = {}
        super().__init__(list(self._named.values()), {})

    def step(self, closure: object = None) -> None:  # type: ignore[override]
        self.gradients = {
            name: parameter.grad.clone()
            for name, parameter in self._named.items()
            if parameter.grad is not None
        }


def assert_close(ours: dict[str, Tensor], theirs: dict[str, Tensor], tolerance: float = 1e-5) -> None:
    """Equal to a tolerance relative to the whole gradient and, parameter by parameter, to its own size."""
    assert ours.keys() == theirs.keys()
    whole = norm(theirs)
    for name in ours:
        error = float((ours[name].double() - theirs[name].double()).norm())
        size = float(theirs[name].double().norm())
        assert error <= tolerance * max(size, 1e-2 * whole), (name, error / max(size, 1e-30))
