"""GGUF files: read through transformers, given back as ordinary fp32 models.

Quantised weights are dequantised on reading; the result no longer knows that it was quantised, so that it
can be trained and saved as safetensors.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from tacit.models.quiet import quiet, quiet_gguf
from tacit.models.safety import check_gguf, foreign_files, refuse_adapters

_REMEDY = "it is cut short, or of a kind that transformers does not know."


def read_gguf_model(path: Path, dtype: torch.dtype) -> PreTrainedModel:
    """The model in a GGUF file, with plain weights."""
    _check(path)
    with quiet_gguf(), foreign_files(f"The model in {path}", _REMEDY):
        model = AutoModelForCausalLM.from_pretrained(
            str(path.parent), gguf_file=path.name, dtype=dtype, local_files_only=True
        )
    _forget_quantisation(model)
    # It names the folder, which is no model: PEFT would look for a config.json there, and then on the hub.
    model.name_or_path = ""
    return model


def read_gguf_tokenizer(path: Path) -> PreTrainedTokenizerBase:
    """The tokenizer in a GGUF file."""
    _check(path)
    with quiet_gguf(), foreign_files(f"The tokenizer in {path}", _REMEDY):
        return AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name)


def _check(path: Path) -> None:
    check_gguf(path)
    refuse_adapters(path.parent)  # transformers would put it on the model, whatever the file holds


def convert_gguf(path: Path, folder: Path) -> int:
    """Write the model and tokenizer of a GGUF file as a Hugging Face folder; returns the parameter count."""
    model = read_gguf_model(path, torch.float32)
    tokenizer = read_gguf_tokenizer(path)
    with quiet():
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    return int(model.num_parameters())


def _forget_quantisation(model: Any) -> None:
    # The weights are plain tensors by now, but save_pretrained would refuse while these say otherwise.
    vars(model.config).pop("quantization_config", None)
    model.is_quantized = False
    model.hf_quantizer = None
    model.quantization_method = None
