"""A public model that is made on the spot, for scale `tiny`: it shows that an experiment works, nothing more.

A transformer of two layers that has read simulated dialogues and lines with numbers: so it has something to
say about both, and much left to learn. It never stands in for a result.
"""

from __future__ import annotations

import random
from typing import Final

import torch
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from tacit.corpus.customersim import SimulationPlan, simulate
from tacit.experiments.stages import Workshop, mark_of
from tacit.files import new_folder
from tacit.models.quiet import quiet
from tacit.models.vocabulary import build_word_tokenizer

NAME: Final = "tiny"
_SEED: Final = 8
_STEPS, _ROWS, _LENGTH = 100, 12, 24
_WIDTH, _LAYERS, _CONTEXT, _VOCABULARY = 48, 2, 160, 900


def tiny_public_model(workshop: Workshop) -> str:
    """Its folder; it is fitted once for each work folder."""
    key = {"seed": _SEED, "steps": _STEPS, "width": _WIDTH, "layers": _LAYERS, "vocabulary": _VOCABULARY}
    folder = workshop.folder / "models" / f"{NAME}-{mark_of(NAME, key)}"
    if not folder.is_dir():
        texts = _texts()
        tokenizer = build_word_tokenizer(texts, _VOCABULARY)
        with torch.random.fork_rng(devices=[]), new_folder(folder) as building:
            torch.manual_seed(_SEED)
            model = _fitted(tokenizer, texts)
            with quiet():
                model.save_pretrained(building)
                tokenizer.save_pretrained(building)
    return str(folder.absolute())


def _texts() -> list[str]:
    draw = random.Random(_SEED)
    numbers = [f"My number is: {draw.randrange(10**length):0{length}d}" for length in (2, 3) * 150]
    dialogues = [one.text for one in simulate(SimulationPlan(users=25, dialogues_per_user=2, seed=_SEED))]
    return [*numbers, *dialogues]


def _fitted(tokenizer: PreTrainedTokenizerFast, texts: list[str]) -> GPT2LMHeadModel:
    start = tokenizer.eos_token_id
    config = GPT2Config(
        vocab_size=len(tokenizer),
        n_positions=_CONTEXT,
        n_embd=_WIDTH,
        n_layer=_LAYERS,
        n_head=4,
        bos_token_id=start,
        eos_token_id=start,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
    )
    model = GPT2LMHeadModel(config)
    encoded = tokenizer(texts, add_special_tokens=False)["input_ids"]
    stream = torch.tensor([token for ids in encoded for token in (start, *ids)])
    optimiser = torch.optim.Adam(model.parameters(), lr=5e-3)
    draw = torch.Generator().manual_seed(_SEED)
    model.train()
    for _ in range(_STEPS):
        places = torch.randint(len(stream) - _LENGTH, (_ROWS, 1), generator=draw)
        batch = stream[places + torch.arange(_LENGTH)]
        optimiser.zero_grad()
        model(input_ids=batch, labels=batch).loss.backward()
        optimiser.step()
    return model.eval()
