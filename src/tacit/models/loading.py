"""Loading a public model: the one place where weights come in.

Every model, transformer or LSTM, arrives the same way: from safetensors or GGUF, frozen, in evaluation
mode, complete (a model with missing weights is refused, never filled with random ones), and with a
fingerprint of exactly the files that were read.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from tacit.errors import EnvironmentProblem, InputError, ModelError
from tacit.files import sha256_of
from tacit.models.description import (
    PRIVATE_MARK,
    Vocabulary,
    read_description,
    verify_weights,
    weight_hashes,
)
from tacit.models.gguf import read_gguf_model
from tacit.models.lstm import MODEL_TYPE as LSTM_MODEL_TYPE
from tacit.models.quiet import quiet
from tacit.models.safety import foreign_files, read_json_object, refuse_adapters, refuse_remote_code
from tacit.models.store import ModelSource, locate
from tacit.models.tokenizer import PublicTokenizer, tokenizer_from
from tacit.models.trunk import layer_list

NOMINAL_CONTEXT: Final = 2048  # for models that set no limit, such as those with ALiBi positions
_CAUSAL_ENDINGS = ("ForCausalLM", "LMHeadModel")


@dataclass(frozen=True)
class PublicModel:
    """A frozen public model with its tokenizer."""

    name: str
    model: PreTrainedModel
    tokenizer: PublicTokenizer
    fingerprint: str
    revision: str | None
    holds_private_text: bool = False  # true of a Run's own weights, used as a base again

    @property
    def start_token(self) -> int:
        """The token that starts every text."""
        return self.tokenizer.start_token

    @property
    def vocabulary(self) -> Vocabulary:
        """Whether the vocabulary is public, or was built from private text (outside every guarantee)."""
        return self.tokenizer.vocabulary

    @property
    def tokenizer_fingerprint(self) -> str:
        """SHA-256 of the tokenizer's canonical JSON."""
        return self.tokenizer.fingerprint

    @property
    def statement(self) -> str:
        """What may be said of the model's answers."""
        if self.holds_private_text:
            return "no guarantee: these weights were trained on private text and may repeat it word for word"
        apart = ", apart from its vocabulary, which was built from private text"
        return "public model: it never saw the private text" + (apart if self.vocabulary == "private" else "")

    def require_public(self) -> None:
        """Refuse weights that have read private text where a guarantee rests on their being public."""
        if self.holds_private_text:
            raise InputError(
                f"{self.name} was trained on private text, so that answers mixed with it would have no "
                "guarantee; use the public model that it was made from."
            )

    @property
    def family(self) -> Literal["transformer", "lstm"]:
        """Which of the two families the model belongs to."""
        return "lstm" if self.model.config.model_type == LSTM_MODEL_TYPE else "transformer"

    @property
    def layers(self) -> nn.ModuleList:
        """The decoder blocks or LSTM layers, from the bottom up."""
        return layer_list(self.model)[2]

    @property
    def n_layers(self) -> int:
        """Number of decoder blocks or LSTM layers."""
        return len(self.layers)

    @property
    def context_length(self) -> int:
        """Longest text the model takes, start token included; nominal where the model sets no limit."""
        return context_length(self.model)


def context_length(model: PreTrainedModel) -> int:
    """Longest text a model takes, start token included."""
    return int(getattr(model.config, "max_position_embeddings", None) or NOMINAL_CONTEXT)


def best_device(device: str | torch.device = "auto") -> torch.device:
    """The device that the caller chose; ``auto`` is the GPU where torch can use one, else the processor."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(device)
    except RuntimeError:
        raise InputError(f"There is no device {device!r}; choose auto, cpu, cuda or cuda:N.") from None
    if chosen.type == "cuda":
        if not torch.cuda.is_available():
            raise EnvironmentProblem(
                f"{device} needs a GPU, and there is no GPU that torch can use; choose cpu."
            )
        if (chosen.index or 0) >= torch.cuda.device_count():
            raise EnvironmentProblem(
                f"{device} is not there: the machine has {torch.cuda.device_count()} GPU(s), counted from 0."
            )
    return chosen


def best_dtype(device: str | torch.device = "auto") -> torch.dtype:
    """bf16 where the device computes in it, fp32 where bf16 would only be emulated."""
    if best_device(device).type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float32
    able = torch.cpu.get_capabilities()
    native = any(able.get(feature) for feature in ("avx512_bf16", "amx_bf16", "sve_bf16"))
    return torch.bfloat16 if native else torch.float32


def dtype_named(name: str, device: str | torch.device = "auto") -> torch.dtype:
    """What ``fp32``, ``bf16`` and ``auto`` (bf16 only where the device computes in it) stand for."""
    named = {"fp32": torch.float32, "bf16": torch.bfloat16}
    if name == "auto":
        return best_dtype(device)
    if name not in named:
        raise InputError(f"dtype is {name!r} and must be one of auto, fp32, bf16.")
    return named[name]


def load_public_model(
    name_or_path: str,
    *,
    dtype: torch.dtype = torch.float32,
    device: str | torch.device = "auto",
    revision: str | None = None,
    trust_remote_code: bool = False,
    start_token: int | None = None,
) -> PublicModel:
    """Load the embedded model, a Hugging Face id, a model folder or a GGUF file."""
    place = best_device(device)
    source = locate(name_or_path, revision=revision, remote_code=trust_remote_code)
    if source.gguf is None:
        _refuse_what_is_no_causal_model(source.folder, trust_remote_code=trust_remote_code)
    # The tokenizer first: it is small, and much that is wrong with a folder shows there.
    tokenizer = tokenizer_from(source, trust_remote_code=trust_remote_code, start_token=start_token)
    fingerprint = _fingerprint(source)
    if source.gguf is None:
        model = _read_folder(source.folder, dtype, trust_remote_code=trust_remote_code)
    else:
        model = read_gguf_model(source.gguf, dtype)
    rows = len(model.get_input_embeddings().weight)
    if len(tokenizer) > rows:
        raise ModelError(
            f"{source.name}: the tokenizer has {len(tokenizer)} tokens but the model embeds only {rows}; "
            "use the tokenizer that belongs to the model."
        )
    model.to(place).eval().requires_grad_(False)
    description = read_description(source.folder)
    private = description is not None and description.holds_private_text
    private = private or bool(getattr(model.config, PRIVATE_MARK, False))
    return PublicModel(source.name, model, tokenizer, fingerprint, source.revision, private)


def _refuse_what_is_no_causal_model(folder: Path, *, trust_remote_code: bool) -> None:
    refuse_adapters(folder)
    architectures = read_json_object(folder / "config.json").get("architectures") or []
    if not isinstance(architectures, list) or not all(isinstance(name, str) for name in architectures):
        raise ModelError(
            f"{folder / 'config.json'}: architectures is not a list of names; fetch the model again."
        )
    if architectures and not any(name.endswith(_CAUSAL_ENDINGS) for name in architectures):
        raise ModelError(
            f"{folder} is a {architectures[0]}, not a causal language model; "
            "give one that predicts the next token, such as a GPT-2, a Llama or an LSTM."
        )
    if not trust_remote_code:
        refuse_remote_code(folder)


def _fingerprint(source: ModelSource) -> str:
    if source.gguf is not None:
        hashes = {source.gguf.name: sha256_of(source.gguf)}
    else:
        hashes = weight_hashes(source.folder)
        verify_weights(source.folder, hashes)
        hashes["config.json"] = _config_hash(source.folder / "config.json")
    return hashlib.sha256(json.dumps(hashes, sort_keys=True).encode()).hexdigest()


def _config_hash(path: Path) -> str:
    config = read_json_object(path)
    # Says who wrote the file, not what the model is: the same model pulled twice must look the same.
    config.pop("transformers_version", None)
    return hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()


def _read_folder(folder: Path, dtype: torch.dtype, *, trust_remote_code: bool) -> PreTrainedModel:
    options: dict[str, Any] = {"local_files_only": True, "trust_remote_code": trust_remote_code}
    remedy = (
        "its config.json and weights do not fit together, are cut short, or are of a kind that transformers "
        "does not know."
    )
    with quiet(), foreign_files(f"The model in {folder}", remedy):
        config = AutoConfig.from_pretrained(str(folder), **options)
        model, report = AutoModelForCausalLM.from_pretrained(
            str(folder), config=config, dtype=dtype, use_safetensors=True, output_loading_info=True, **options
        )
    if missing := sorted(report["missing_keys"]):
        raise ModelError(
            f"{folder} lacks {len(missing)} of the model's weights ({missing[0]} first); fetch it again."
        )
    return model
