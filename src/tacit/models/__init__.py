"""Public models, transformers and LSTMs alike: finding, checking, loading and sampling from them.

Names are imported when they are first used, so that ``import tacit.models`` does not wait for torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tacit.models.generation import generate
    from tacit.models.loading import PublicModel, best_device, best_dtype, load_public_model
    from tacit.models.lstm import LSTMConfig, LSTMForCausalLM, LSTMState
    from tacit.models.store import EMBEDDED, ModelEntry, cache_folder, list_models, path, pull
    from tacit.models.tokenizer import PublicTokenizer, load_tokenizer
    from tacit.models.vocabulary import PRESETS, LSTMShape, build_word_tokenizer, create_lstm

__all__ = [
    "EMBEDDED",
    "PRESETS",
    "LSTMConfig",
    "LSTMForCausalLM",
    "LSTMShape",
    "LSTMState",
    "ModelEntry",
    "PublicModel",
    "PublicTokenizer",
    "best_device",
    "best_dtype",
    "build_word_tokenizer",
    "cache_folder",
    "create_lstm",
    "generate",
    "list_models",
    "load_public_model",
    "load_tokenizer",
    "path",
    "pull",
]

_HOMES = {
    "generate": "generation",
    "PublicModel": "loading",
    "best_device": "loading",
    "best_dtype": "loading",
    "load_public_model": "loading",
    "LSTMConfig": "lstm",
    "LSTMForCausalLM": "lstm",
    "LSTMState": "lstm",
    "EMBEDDED": "store",
    "ModelEntry": "store",
    "cache_folder": "store",
    "list_models": "store",
    "path": "store",
    "pull": "store",
    "PublicTokenizer": "tokenizer",
    "load_tokenizer": "tokenizer",
    "PRESETS": "vocabulary",
    "LSTMShape": "vocabulary",
    "build_word_tokenizer": "vocabulary",
    "create_lstm": "vocabulary",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
