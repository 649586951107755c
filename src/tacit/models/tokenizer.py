"""Public tokenizers: text to token ids, where no text can ever become a control token.

Control tokens are those that the tokenizer marks as special, and every added token that its chat template
writes. What holds: `PublicTokenizer.encode` adds none, and a text that spells one out (``<|endoftext|>``) is
encoded as the characters it is; a tokenizer that cannot do this is refused when it is loaded. Who writes a
document cannot therefore end it, start another or open a chat turn in it. In a conversation the markers are
the template's and no message's; a tokenizer or template that cannot keep this is refused for chat.

What does not hold: markers that are ordinary text to the tokenizer (``[INST]`` in some models) can be written
by anybody, and the names of roles are taken to be the corpus's, not a person's.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import jinja2
from tokenizers import AddedToken
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from tacit.errors import InputError, ModelError
from tacit.models.description import Vocabulary, read_description
from tacit.models.gguf import read_gguf_tokenizer
from tacit.models.quiet import quiet
from tacit.models.safety import (
    foreign_files,
    read_json_object,
    refuse_remote_code,
    refuse_without_tokenizer,
)
from tacit.models.store import ModelSource, locate

MASK_TEXT: Final = "<MASK>"
"""How screened text writes what it hides. Only text that a screening wrote has it; elsewhere it is text."""
_USUAL_ROLES = ("system", "developer", "user", "assistant", "tool")


@dataclass(frozen=True)
class PublicTokenizer:
    """A tokenizer with the token that starts every text, and whether its vocabulary is public.

    ``mask_token`` stands for what a screening hid, where the tokenizer has such a token. It is a control
    token: only ``encode(masks=True)`` writes it, and no text that people wrote is encoded so.
    """

    tokenizer: PreTrainedTokenizerBase
    start_token: int
    vocabulary: Vocabulary
    fingerprint: str
    mask_token: int | None = None

    @classmethod
    def wrap(
        cls, tokenizer: PreTrainedTokenizerBase, *, start_token: int, vocabulary: Vocabulary
    ) -> PublicTokenizer:
        """Check a transformers tokenizer, settle its control tokens, and take its fingerprint."""
        if not 0 <= start_token < len(tokenizer):
            raise ModelError(
                f"The start token {start_token} is not one of the tokenizer's {len(tokenizer)} tokens; "
                "set model.start_token to one that is."
            )
        _settle_control_tokens(tokenizer)
        mask = next((n for n, t in tokenizer.added_tokens_decoder.items() if t.content == MASK_TEXT), None)
        wrapped = cls(tokenizer, start_token, vocabulary, fingerprint_of(tokenizer), mask)
        wrapped._refuse_control_tokens_from_text()
        return wrapped

    def with_mask(self) -> PublicTokenizer:
        """This tokenizer with a token for what a screening hid, whatever it had before.

        The fingerprint stays the same: no other text is encoded in another way.
        """
        if self.mask_token is not None:
            return self
        tokenizer = copy.deepcopy(self.tokenizer)
        tokenizer.add_tokens([AddedToken(MASK_TEXT, normalized=False, special=True)], special_tokens=True)
        wrapped = self.wrap(tokenizer, start_token=self.start_token, vocabulary=self.vocabulary)
        return replace(wrapped, fingerprint=self.fingerprint)

    def __len__(self) -> int:
        """Number of tokens, added ones included."""
        return len(self.tokenizer)

    @property
    def stop_tokens(self) -> frozenset[int]:
        """Tokens that end a text when a model writes them: the end token, and the start of another text."""
        end = self.tokenizer.eos_token_id
        return frozenset({self.start_token} if end is None else {self.start_token, end})

    def encode(
        self, texts: Sequence[str], *, control_tokens: bool = False, masks: bool = False
    ) -> list[list[int]]:
        """Token ids of each text, without start or end tokens.

        ``control_tokens`` is for what ``render_chat`` wrote: there the markers of turns are control
        tokens. ``masks`` is for what a screening wrote: there ``<MASK>`` is the mask token. Text that people
        wrote is never encoded so.
        """
        if masks:
            return self._encode_with_masks(texts)
        if not texts:
            return []
        try:
            encoded = self.tokenizer(
                list(texts),
                add_special_tokens=False,
                split_special_tokens=not control_tokens,
                return_attention_mask=False,
                return_token_type_ids=False,
                verbose=False,
            )
        except (TypeError, UnicodeEncodeError):
            if not any("\ud800" <= letter <= "\udfff" for text in texts for letter in text):
                raise
            raise InputError(
                "The text holds half a character (a lone surrogate), as bytes that are not UTF-8 become; "
                "convert it."
            ) from None
        ids: list[list[int]] = encoded["input_ids"]
        return ids

    def _encode_with_masks(self, texts: Sequence[str]) -> list[list[int]]:
        if self.mask_token is None:
            raise InputError(
                f"The text was screened and has {MASK_TEXT} in it, for which this model has no token; give "
                "a Run that was trained on screened text, or give the raw text."
            )
        pieces = [text.split(MASK_TEXT) for text in texts]
        encoded = iter(self.encode([piece for some in pieces for piece in some if piece]))
        result = []
        for some in pieces:
            ids: list[int] = []
            for number, piece in enumerate(some):
                ids += [self.mask_token] if number else []
                ids += next(encoded) if piece else []
            result.append(ids)
        return result

    def decode(self, ids: Sequence[int], *, masks: bool = False) -> str:
        """The text of some tokens; control tokens vanish, and ``masks`` are shown only where asked for."""
        if masks and self.mask_token is not None and self.mask_token in ids:
            place = list(ids).index(self.mask_token)
            return self.decode(ids[:place]) + MASK_TEXT + self.decode(ids[place + 1 :], masks=True)
        text: str = self.tokenizer.decode(
            list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return text

    @property
    def has_chat_template(self) -> bool:
        """Whether conversations can be rendered as the model expects them."""
        return bool(self.tokenizer.chat_template)

    def render_chat(self, messages: Sequence[Mapping[str, object]], *, to_answer: bool = False) -> str:
        """A conversation as the model's chat template writes it; encode it with ``control_tokens=True``.

        ``to_answer`` opens the assistant's next turn.

        A message that spells out a control token would become one. Such a spelling is broken by a space
        behind its first character: what a person writes can neither end a turn nor open one.
        """
        safe = [
            {key: self._without_control(str(value)) for key, value in message.items()} for message in messages
        ]
        rendered = self._apply_template(safe, to_answer=to_answer)
        # A template may mend what was broken, or end a spelling that a message began.
        harmless = [
            message | {"content": "x"} if message.get("content", "").strip() else message for message in safe
        ]
        expected = self._apply_template(harmless, to_answer=to_answer)
        if self._spelled.findall(rendered) != self._spelled.findall(expected):
            raise ModelError(
                "The tokenizer's chat template lets a message write one of its markers; render with 'plain' "
                "instead."
            )
        return rendered

    def _apply_template(self, messages: list[dict[str, str]], *, to_answer: bool) -> str:
        try:
            rendered = self.tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=to_answer
            )
        except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError):
            # A template's own complaint (jinja2.TemplateError) is about the messages and goes to the caller.
            rendered = None
        if not isinstance(rendered, str):
            raise ModelError("The tokenizer's chat template gave no text; render with 'plain' instead.")
        return rendered

    def _without_control(self, text: str) -> str:
        return _broken(self._spelled, text)

    @cached_property
    def _spelled(self) -> re.Pattern[str]:
        """Matches the first character of every control token that is spelled out; the group is the token.

        Every start is found, overlapping ones too, so that breaking them all leaves no spelling that was
        there; that it makes no other one, and that nothing looks like one to the tokenizer, is tried out.
        """
        control = self._control_tokens()
        known = [*control, *self.tokenizer.all_special_ids]  # the unknown token too: it costs nothing
        spellings = sorted(set(self.tokenizer.convert_ids_to_tokens(known)), key=len, reverse=True)
        either = "|".join(re.escape(spelling) for spelling in spellings) or "(?!)"
        spelled = re.compile(f"(?=({either})).", re.DOTALL)
        forged = [_broken(spelled, text) for spelling in spellings for text in _forgeries(spelling)]
        if any(control.intersection(ids) for ids in self.encode(forged, control_tokens=True)):
            raise ModelError(
                "The tokenizer lets a message write one of its chat template's markers; render with 'plain' "
                "instead."
            )
        return spelled

    def _control_tokens(self) -> set[int]:
        added = self.tokenizer.added_tokens_decoder.items()
        control = {number for number, token in added if token.special}.union(self.tokenizer.all_special_ids)
        # The unknown token is what a word-level tokenizer rightly gives for a word it does not know, unless
        # the same token starts or ends texts.
        ends = {self.start_token, self.tokenizer.bos_token_id, self.tokenizer.eos_token_id}
        return control - ({self.tokenizer.unk_token_id} - ends)

    def _refuse_control_tokens_from_text(self) -> None:
        control = self._control_tokens()
        for number in sorted(control):
            encoded = self.encode(_forgeries(self.tokenizer.convert_ids_to_tokens(number)))
            if any(control.intersection(ids) for ids in encoded):
                raise ModelError(
                    f"The tokenizer turns plain text into the control token {number}; use a model whose "
                    "tokenizer keeps text and control tokens apart (a tokenizer.json usually does)."
                )


def _settle_control_tokens(tokenizer: PreTrainedTokenizerBase) -> None:
    """Mark what the chat template writes as special, and have control tokens known by their exact spelling.

    Only then does `split_special_tokens` keep them out of text, and only then is there one spelling to break:
    a token that is compared after normalisation has many (full-width letters, another case).
    """
    written = _written_by_template(tokenizer)
    exact = [
        AddedToken(
            token.content,
            single_word=token.single_word,
            lstrip=token.lstrip,
            rstrip=token.rstrip,
            normalized=False,
            special=True,
        )
        for token in tokenizer.added_tokens_decoder.values()
        # Runs of blanks are often added tokens, and stand in every template without being markers.
        if token.special or (token.content.strip() and token.content in written)
    ]
    tokenizer.add_tokens(exact, special_tokens=True)


def _written_by_template(tokenizer: PreTrainedTokenizerBase) -> str:
    """All that a chat template can write of its own: its source, and what it makes of the usual roles."""
    template = tokenizer.chat_template
    if not template:
        return ""
    texts = [*template.values()] if isinstance(template, dict) else [template]
    for role in _USUAL_ROLES:
        # Markers may be put together, as in '<|' + role + '|>'. Templates refuse roles as they please.
        with contextlib.suppress(
            jinja2.TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError
        ):
            message = {"role": role, "content": "x"}
            texts.append(tokenizer.apply_chat_template([message], tokenize=False, add_generation_prompt=True))
    return "\n".join(texts)


def _forgeries(spelling: str) -> list[str]:
    """Texts that try to become a control token: its spelling, and forms that normalisers fold into it."""
    full_width = spelling.translate({code: code + 0xFEE0 for code in range(0x21, 0x7F)})
    return [f"a {form} b" for form in (spelling, full_width, spelling.upper(), spelling.lower())]


def _broken(spelled: re.Pattern[str], text: str) -> str:
    return spelled.sub(r"\g<0> ", text)


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
    if not len(tokenizer):
        raise ModelError(f"{source.name}: the tokenizer is empty; use the one that belongs to the model.")
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
    refuse_without_tokenizer(folder)
    if (folder / "tokenizer.json").is_file():
        read_json_object(folder / "tokenizer.json")
    if not trust_remote_code:
        refuse_remote_code(folder)
    with quiet(), foreign_files(f"The tokenizer in {folder}", "fetch the model again."):
        tokenizer = AutoTokenizer.from_pretrained(str(folder), trust_remote_code=trust_remote_code)
    if not isinstance(tokenizer.chat_template, str | dict | None):
        raise ModelError(f"The chat template in {folder} is not text; fetch the model again.")
    return tokenizer
