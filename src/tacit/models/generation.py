"""Plain sampling from a model, transformer or LSTM, one token at a time with its cached state.

For looking at what a model has learned. Nothing here is private: what it prints may be training text.
"""

from __future__ import annotations

import math
import secrets
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from tacit.errors import InputError, ModelError
from tacit.models.loading import context_length
from tacit.models.tokenizer import PublicTokenizer


def generator_from(seed: int | None) -> torch.Generator:
    """A generator for sampling; without a seed it starts from the operating system's randomness."""
    if seed is None:
        seed = secrets.randbits(63)
    if not 0 <= seed < 2**63:
        raise InputError(f"Expected a seed from 0 to 2**63 - 1, not {seed}.")
    return torch.Generator().manual_seed(seed)


@torch.inference_mode()
def generate(
    model: PreTrainedModel,
    tokenizer: PublicTokenizer,
    prompt: str,
    *,
    max_new_tokens: int = 64,
    temperature: float = 1.0,
    generator: torch.Generator | None = None,
    stop_at_eos: bool = True,
    masks: bool = False,
) -> str:
    """Continue ``prompt``; temperature 0 is greedy, and without a generator the seed is the system's.

    A model of screened text never writes a mask, unless ``masks`` asks for it.
    """
    if not 0 <= temperature < math.inf:
        raise InputError(
            f"Expected a finite temperature >= 0, not {temperature}; 0 takes the likeliest token."
        )
    ids = [tokenizer.start_token, *tokenizer.encode([prompt])[0]]
    room = context_length(model) - len(ids)
    if room < 0:
        raise InputError(
            f"The prompt has {len(ids)} tokens, more than the model's {context_length(model)}; shorten it."
        )
    generator = generator or generator_from(None)
    stop = tokenizer.stop_tokens if stop_at_eos else frozenset()
    was_training = model.training
    model.eval()
    written: list[int] = []
    past: Any = None
    reading = ids
    try:
        while len(written) < min(max_new_tokens, room):
            output = model(
                input_ids=torch.tensor([reading], device=model.device), past_key_values=past, use_cache=True
            )
            past = output.past_key_values
            logits = output.logits[0, -1].clone()
            if tokenizer.mask_token is not None and not masks:
                logits[tokenizer.mask_token] = -math.inf
            token = _choose(logits, temperature, generator)
            if token in stop:
                break
            written.append(token)
            reading = [token]
    finally:
        model.train(was_training)
    return tokenizer.decode(written, masks=masks)


def _choose(logits: Tensor, temperature: float, generator: torch.Generator) -> int:
    # On the CPU and in float64, so that a generator gives the same text on every device.
    logits = logits.detach().cpu().double()
    largest = logits.max()
    if not bool(largest.isfinite()):
        raise ModelError(
            "The model's predictions are not finite numbers; it is damaged, or its training failed."
        )
    if temperature == 0:
        return int(logits.argmax())
    # The likeliest token is at 0: a tiny temperature sends the others to minus infinity, and never this one.
    scaled = (logits - largest) / temperature
    return int(torch.multinomial(scaled.softmax(dim=-1), 1, generator=generator))
