"""Which token sequences after the prompt spell a code: the rule of the attack, in text and in tokens.

The rule. A generation is read as text: one optional space, then the first l characters, which must all be
ASCII digits; whatever follows is ignored. It is a hit if those digits are a secret code. The rule is about
text, so every segmentation counts: a model may write `` 12`` ``34`` where the training text had `` 1234``.
Control tokens, bytes that are not yet a character, and a second space end the reading.

The tree. From the tokens' own texts, every sequence that hits is found exactly, up to the number of tokens
that a generation has; the canonical one, as the tokenizer encodes the training text, is among them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import torch
from torch import Tensor

from tacit.attacks.codes import PROMPT, Codes
from tacit.errors import ModelError
from tacit.models.tokenizer import PublicTokenizer

_PIECE = re.compile(r" ?[0-9].*| ", re.DOTALL)
_DECODED_AT_ONCE: Final = 4096


@dataclass(frozen=True)
class Branches:
    """How a text can go on towards a secret code.

    open  token to the text after it, where the code is not complete yet
    hits  code to the tokens [n] that complete it
    """

    open: Mapping[int, str]
    hits: Mapping[str, Tensor]


class CodeTree:
    """The secret codes as one tokenizer spells them after the prompt."""

    def __init__(self, tokenizer: PublicTokenizer, codes: Codes) -> None:
        self.codes = codes
        self._tokenizer = tokenizer
        self._secret = frozenset(codes.values)
        self._code = re.compile(rf" ?([0-9]{{{codes.digits}}})")
        self._unfinished = re.compile(rf" ?[0-9]{{0,{codes.digits - 1}}}")
        self._written: dict[str, Branches] = {}
        prompt = tokenizer.encode([PROMPT])[0]
        self.prompt = (tokenizer.start_token, *prompt)
        # Over all codes, not over the secret ones: the length of a generation is public.
        everything = [f"{number:0{codes.digits}d}" for number in range(codes.space)]
        encoded = self._after_prompt(prompt, everything)
        self.tokens_per_generation = max(map(len, encoded))
        self.canonical = {code: encoded[int(code)] for code in codes.values}

    def _after_prompt(self, prompt: list[int], codes: list[str]) -> list[tuple[int, ...]]:
        encoded = self._tokenizer.encode([f"{PROMPT} {code}" for code in codes])
        # A code that changed the prompt's tokens could not be written after the prompt at all.
        if any(ids[: len(prompt)] != prompt for ids in encoded):
            raise ModelError(
                f"The tokenizer encodes '{PROMPT}' otherwise when a code follows, so that no generation can "
                "spell one as it was trained; use another model."
            )
        suffixes = [tuple(ids[len(prompt) :]) for ids in encoded]
        for code in self._secret:
            text = "".join(self._pieces.get(token, "?") for token in suffixes[int(code)])
            if self.read(text) != code:
                raise ModelError(
                    "The tokenizer cannot spell numbers (a code does not decode to itself); use a model "
                    "whose vocabulary has the digits."
                )
        return suffixes

    @cached_property
    def _pieces(self) -> dict[int, str]:
        """The text that each token adds, for tokens that can be a part of a code or complete one."""
        # Behind the prompt, because some tokenizers swallow a space at the beginning of a text.
        prompt = self._tokenizer.encode([PROMPT])[0]
        before = self._tokenizer.decode(prompt)
        control = set(self._tokenizer.tokenizer.all_special_ids) | self._tokenizer.stop_tokens
        pieces: dict[int, str] = {}
        for first in range(0, len(self._tokenizer), _DECODED_AT_ONCE):
            tokens = range(first, min(first + _DECODED_AT_ONCE, len(self._tokenizer)))
            texts = self._tokenizer.tokenizer.batch_decode(
                [[*prompt, token] for token in tokens],
                skip_special_tokens=True,
                clean_up_tokenization_spaces=False,
            )
            for token, text in zip(tokens, texts, strict=True):
                piece = text.removeprefix(before)
                if token not in control and text.startswith(before) and _PIECE.fullmatch(piece):
                    pieces[token] = piece
        return pieces

    def read(self, text: str) -> str | None:
        """The code at the beginning of a generated text, secret or not."""
        match = self._code.match(text)
        return None if match is None else match.group(1)

    def is_hit(self, text: str) -> bool:
        """Whether a generated text gives a secret away."""
        return self.read(text) in self._secret

    def after(self, text: str, token: int) -> str | None:
        """The text with one token more; None where it can no longer be a code."""
        piece = self._pieces.get(token)
        longer = None if piece is None else text + piece
        if longer is None or (self.read(longer) is None and not self._unfinished.fullmatch(longer)):
            return None
        return longer

    def leads_to_a_secret(self, text: str) -> bool:
        """Whether an unfinished text can still become a secret code."""
        digits = text.removeprefix(" ")
        return any(code.startswith(digits) for code in self._secret)

    def branches(self, text: str) -> Branches:
        """How an unfinished text can go on towards a secret code."""
        if text not in self._written:
            going: dict[int, str] = {}
            hits: dict[str, list[int]] = {}
            for token in self._pieces:
                longer = self.after(text, token)
                if longer is None:
                    continue
                code = self.read(longer)
                if code in self._secret:
                    hits.setdefault(str(code), []).append(token)
                elif code is None and self.leads_to_a_secret(longer):
                    going[token] = longer
            self._written[text] = Branches(
                going, {code: torch.tensor(tokens) for code, tokens in hits.items()}
            )
        return self._written[text]
