"""Public tokenizers: text to token ids, where no text can ever become a control token.

What holds: `PublicTokenizer.encode` adds no special tokens, and a text that spells out one of them
(``<|endoftext|>``) is encoded as the characters it is; a tokenizer that cannot do this is refused when it
is loaded. Who writes a document cannot therefore end it, start another or open a chat turn in it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub.errors import StrictDataclassError
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from tacit.errors import ModelError
from tacit.models.description import Vocabulary, read_description
from tacit.models.gguf import read_gguf_tokenizer
from tacit.models.quiet import quiet
from tacit.models.safety import read_json_object, refuse_remote_code
from tacit.models.store import ModelSource, locate

_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "vocab.json",
    "vocab.txt",
    "spiece.model",
    "tekken.json",
)


@dataclass(frozen=True)
class PublicTokenizer:
    """A tokenizer with the token that starts every text, and whether its vocabulary is public."""

    tokenizer: PreTrainedTokenizerBase
    start_token: int
    vocabulary: Vocabulary
    fingerprint: str

    @classmethod
    def wrap(
        cls, tokenizer: PreTrainedTokenizerBase, *, start_token: int, vocabulary: Vocabulary
    ) -> PublicTokenizer:
        """Check a transformers tokenizer and take its fingerprint."""
        if not 0 <= start_token < len(tokenizer):
            raise ModelError(
                f"The start token {start_token} is not one of the tokenizer's {len(tokenizer)} tokens; "
                "set model.start_token to one that is."
            )
        wrapped = cls(tokenizer, start_token, vocabulary, fingerprint_of(tokenizer))
        wrapped._refuse_control_tokens_from_text()
        return wrapped

    def __len__(self) -> int:
        """Number of tokens, added ones included."""
        return len(self.tokenizer)

    @property
    def stop_tokens(self) -> frozenset[int]:
        """Tokens that end a text when a model writes them: the end token, and the start of another text."""
        end = self.tokenizer.eos_token_id
        return frozenset({self.start_token} if end is None else {self.start_token, end})

    def encode(self, texts: Sequence[str], *, control_tokens: bool = False) -> list[list[int]]:
        """Token ids of each text, without start or end tokens.

        ``control_tokens`` is for what ``render_chat`` wrote: there the markers of turns are control
        tokens. Text that people wrote is never encoded so.
        """
        if not texts:
            return []
        encoded = self.tokenizer(
            list(texts),
            add_special_tokens=False,
            split_special_tokens=not control_tokens,
            return_attention_mask=False,
            return_token_type_ids=False,
            verbose=False,
        )
        ids: list[list[int]] = encoded["input_ids"]
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """The text of some tokens; control tokens vanish."""
        text: str = self.tokenizer.decode(
            list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return text

    @property
    def has_chat_template(self) -> bool:
        """Whether conversations can be rendered as the model expects them."""
        return bool(self.tokenizer.chat_template)

    def render_chat(self, messages: Sequence[Mapping[str, object]]) -> str:
        """A conversation as the model's chat template writes it; encode it with ``control_tokens=True``.

        A message that spells out a control token would become one. Such a spelling is broken by a space
        behind its first character: what a person writes can neither end a turn nor open one.
        """
        safe = [
            {key: self._without_control(str(value)) for key, value in message.items()} for message in messages
        ]
        rendered = self.tokenizer.apply_chat_template(safe, tokenize=False)
        if not isinstance(rendered, str):
            raise ModelError("The tokenizer's chat template gave no text; render with 'plain' instead.")
        return rendered

    def _without_control(self, text: str) -> str:
        for token in self.tokenizer.convert_ids_to_tokens(sorted(self._control_tokens())):
            text = text.replace(token, f"{token[0]} {token[1:]}")
        return text

    def _control_tokens(self) -> set[int]:
        added = self.tokenizer.added_tokens_decoder.items()
        control = {number for number, token in added if token.special}.union(self.tokenizer.all_special_ids)
        # The unknown token is what a word-level tokenizer rightly gives for a word it does not know.
        return control - {self.tokenizer.unk_token_id}

    def _refuse_control_tokens_from_text(self) -> None:
        control = self._control_tokens()
        ordered = sorted(control)
        spelled = [f"a {self.tokenizer.convert_ids_to_tokens(number)} b" for number in ordered]
        for number, ids in zip(ordered, self.encode(spelled), strict=True):
            if control.intersection(ids):
                raise ModelError(
                    f"The tokenizer turns plain text into the control token {number}; use a model whose "
                    "tokenizer keeps text and control tokens apart (a tokenizer.json usually does)."
                )


def fingerprint_of(tokenizer: PreTrainedTokenizerBase) -> str:
    """SHA-256 of the tokenizer's canonical JSON; for one without, of its class and vocabulary."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    content: dict[str, Any]
    if backend is None:
        content = {"class": type(tokenizer).__name__, "vocabulary": tokenizer.get_vocab()}
    else:
        content = json.loads(backend.to_str())
        # What the last caller asked for, not what the tokenizer is.
        content["padding"] = content["truncation"] = None
    canonical = json.dumps(content, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def load_tokenizer(
    name_or_path: str,
    *,
    revision: str | None = None,
    trust_remote_code: bool = False,
    start_token: int | None = None,
) -> PublicTokenizer:
    """The tokenizer of a public model, without reading its weights."""
    source = locate(name_or_path, revision=revision, remote_code=trust_remote_code)
    return tokenizer_from(source, trust_remote_code=trust_remote_code, start_token=start_token)


def tokenizer_from(
    source: ModelSource, *, trust_remote_code: bool, start_token: int | None
) -> PublicTokenizer:
    """The tokenizer of a model that has been located."""
    if source.gguf is not None:
        tokenizer = read_gguf_tokenizer(source.gguf)
    else:
        tokenizer = _read_folder(source.folder, trust_remote_code=trust_remote_code)
    description = read_description(source.folder)
    recorded = None if description is None else description.start_token_id
    for candidate in (start_token, recorded, tokenizer.bos_token_id, tokenizer.eos_token_id):
        if candidate is not None:
            vocabulary: Vocabulary = "public" if description is None else description.vocabulary
            return PublicTokenizer.wrap(tokenizer, start_token=int(candidate), vocabulary=vocabulary)
    raise ModelError(
        f"{source.name} says neither how texts start nor how they end (no bos, no eos token); "
        "set model.start_token to a token id."
    )


def _read_folder(folder: Path, *, trust_remote_code: bool) -> PreTrainedTokenizerBase:
    if not any((folder / name).is_file() for name in _TOKENIZER_FILES) and not [*folder.glob("*.tiktoken")]:
        raise ModelError(
            f"{folder} has no tokenizer (no {_TOKENIZER_FILES[0]}); copy the tokenizer files of the model "
            "it was made from into it."
        )
    if (folder / "tokenizer.json").is_file():
        read_json_object(folder / "tokenizer.json")
    if not trust_remote_code:
        refuse_remote_code(folder)
    try:
        with quiet():
            return AutoTokenizer.from_pretrained(str(folder), trust_remote_code=trust_remote_code)
    except (OSError, ValueError, KeyError, ImportError, StrictDataclassError) as problem:
        raise ModelError(
            f"The tokenizer in {folder} cannot be loaded ({type(problem).__name__}); fetch the model again."
        ) from None
