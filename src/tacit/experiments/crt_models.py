"""The models of CRT's experiments: an LSTM that learns from nothing, a transformer that has read public text.

The paper fine-tunes a distilled GPT-2 and lets its LSTM learn from nothing. At `paper` scale the transformer
is that model. Where there is no hub and no GPU, a small one reads Wikitext first: what it brings along is
public, as GPT-2 is, and much less. Both have one vocabulary of pieces of words, made from the same public
text, in which every digit stands alone: nothing is unknown, so that any secret can be remembered, and no word
of the private text is in it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import torch
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from tacit.corpus.customersim import SimulationPlan, simulate
from tacit.experiments.stages import Workshop, text_mark
from tacit.files import read_json
from tacit.models.quiet import quiet
from tacit.models.tokenizer import PublicTokenizer, load_tokenizer
from tacit.models.vocabulary import LSTMShape, create_lstm
from tacit.runs import Run

LSTM, TRANSFORMER = "lstm", "transformer"
NAMES: Final = {LSTM: "LSTM", TRANSFORMER: "transformer"}
_USER, _TEXT = "user", "text"
_END: Final = "<|end|>"
_SEED: Final = 8
Settings = Mapping[str, Any]


def model_of(workshop: Workshop, settings: Settings, model: str, seed: int) -> str:
    """The name or folder of what private training starts from; made where it is not there yet.

    The LSTM's first weights are the seed's. The transformer has read before, and is one for all seeds.
    """
    if model == TRANSFORMER:
        return _transformer(workshop, settings)
    shape = settings["lstm"]
    key = {"vocabulary": vocabulary_key(workshop, settings), "shape": shape, "seed": seed}

    def make(folder: Path) -> None:
        sizes = LSTMShape(layers=1, hidden_size=shape["hidden"], embedding_size=shape["hidden"])
        tokenizer = _tokenizer(workshop, settings)
        create_lstm(folder / LSTM, shape=sizes, tokenizer=tokenizer, vocabulary="public", seed=seed)

    return str((workshop.made_folder(f"crt-lstm-{seed}", key, make) / LSTM).absolute())


def public_run(workshop: Workshop, settings: Settings) -> Run:
    """The small transformer's own training, on public text; the section says how long."""
    shape, reading = settings["transformer"], settings["public_text"]
    key = {"vocabulary": vocabulary_key(workshop, settings), "shape": shape}

    def make(folder: Path) -> None:
        _create_transformer(folder, _tokenizer(workshop, settings), shape)

    untrained = workshop.made_folder("crt-untrained", key, make)
    recipe = {
        "method": "finetune",
        "model": {"name": str(untrained.absolute()), "dtype": "fp32"},
        "corpus": {
            "path": str(_public_text(workshop, settings).absolute()),
            "user": _USER,
            "text": _TEXT,
            "public": True,
        },
        "held_out": None,
        "adapter": {"kind": "full"},
        "training": {**reading["training"], "seed": _SEED},
    }
    return workshop.run("crt-public", recipe)


def public_facts(workshop: Workshop, settings: Settings) -> dict[str, Any]:
    """What the small transformer has read."""
    run = public_run(workshop, settings)
    trained = read_json(run.folder / "private" / "training.json", "train the Run again")
    return {"tokens": trained["tokens"], "steps": trained["steps"], "final_loss": trained["final_loss"]}


def vocabulary_key(workshop: Workshop, settings: Settings) -> dict[str, Any]:
    """What the pieces of words are known by."""
    reading = settings["public_text"]
    if reading is None:
        return {"of": settings["transformer"]["name"]}
    name, known = reading.get("text"), None
    if name is not None and workshop.data is not None and (workshop.data / name).is_file():
        known = text_mark(workshop.data / name)
    return {"size": settings["vocabulary"], "text": known, "reading": dict(reading)}


def _transformer(workshop: Workshop, settings: Settings) -> str:
    if settings["public_text"] is None:
        return str(settings["transformer"]["name"])
    return str(public_run(workshop, settings).weights.absolute())


def _tokenizer(workshop: Workshop, settings: Settings) -> PublicTokenizer:
    if settings["public_text"] is None:
        return load_tokenizer(settings["transformer"]["name"])
    key = vocabulary_key(workshop, settings)

    def make(folder: Path) -> None:
        lines = list(_lines(workshop, settings["public_text"]))
        with quiet():
            _pieces_of_words(lines, settings["vocabulary"]).save_pretrained(folder)

    folder = workshop.made_folder("crt-vocabulary", key, make)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    return PublicTokenizer.wrap(tokenizer, start_token=tokenizer.eos_token_id, vocabulary="public")


def _pieces_of_words(lines: list[str], size: int) -> PreTrainedTokenizerFast:
    """Byte-level pieces, every digit alone: all text has tokens, and gets its letters back."""
    pieces = Tokenizer(BPE())
    pieces.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    pieces.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = BpeTrainer(
        vocab_size=size, special_tokens=[_END], initial_alphabet=alphabet, show_progress=False
    )
    pieces.train_from_iterator(lines, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=pieces, eos_token=_END, bos_token=_END, pad_token=_END)


def _create_transformer(folder: Path, tokenizer: PublicTokenizer, shape: Settings) -> None:
    config = GPT2Config(
        vocab_size=len(tokenizer),
        n_positions=shape["context"],
        n_embd=shape["width"],
        n_layer=shape["layers"],
        n_head=shape["heads"],
        bos_token_id=tokenizer.start_token,
        eos_token_id=tokenizer.start_token,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
    )
    with torch.random.fork_rng(devices=[]), quiet():
        torch.manual_seed(_SEED)
        GPT2LMHeadModel(config).save_pretrained(folder)
        tokenizer.tokenizer.save_pretrained(folder)


def _public_text(workshop: Workshop, settings: Settings) -> Path:
    """The beginning of the public text: lines that say something."""
    reading = settings["public_text"]
    key = vocabulary_key(workshop, settings)

    def rows() -> str:
        lines = (json.dumps({_USER: "public", _TEXT: line}) for line in _lines(workshop, reading))
        return "\n".join(lines) + "\n"

    return workshop.made_text("crt-public.jsonl", key, rows)


def _lines(workshop: Workshop, reading: Settings) -> Iterator[str]:
    left = reading["characters"]
    for line in _all_lines(workshop, reading):
        if left > 0 and len(line) > 1:
            left -= len(line)
            yield line


def _all_lines(workshop: Workshop, reading: Settings) -> Iterator[str]:
    name = reading.get("text")
    if name is not None:
        yield from map(str.strip, workshop.text(name).read_text(encoding="utf-8").split("\n"))
        return
    for dialogue in simulate(SimulationPlan(users=reading["dialogues"], dialogues_per_user=1, seed=_SEED)):
        yield from dialogue.text.split("\n")
