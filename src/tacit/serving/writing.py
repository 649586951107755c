"""One answer while it is written: from tokens to pieces of text, and when it ends.

All of it is post-processing of tokens that were drawn and paid for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from tacit.models.tokenizer import PublicTokenizer

Finish = Literal["stop", "length"]
_HALF_A_CHARACTER = "\ufffd"  # what bytes decode to that are not yet a whole character


@dataclass(frozen=True)
class Piece:
    """What one token adds to an answer; ``finish`` says why it was the last."""

    text: str
    finish: Finish | None = None


class Writing:
    """Tokens so far, and the text that may be shown of them.

    Text is held back while it may be the beginning of a stop string or half of a character.
    """

    def __init__(
        self,
        tokenizer: PublicTokenizer,
        *,
        most: int,
        stop: Sequence[str] = (),
        stop_tokens: frozenset[int] = frozenset(),
    ) -> None:
        self._tokenizer = tokenizer
        self._ends = tokenizer.stop_tokens | stop_tokens
        self._most = most
        self._stop = tuple(stop)
        self._shown = 0
        self.tokens: list[int] = []
        self.finish: Finish | None = None

    def add(self, token: int) -> Piece:
        """One more token."""
        self.tokens.append(token)
        ended = token in self._ends
        text = self._tokenizer.decode(self.tokens[:-1] if ended else self.tokens)
        found = [at for at in (text.find(end, max(0, self._shown)) for end in self._stop) if at >= 0]
        if found:
            text, self.finish = text[: min(found)], "stop"
        elif ended:
            self.finish = "stop"
        elif len(self.tokens) >= self._most:
            self.finish = "length"
        until = len(text) if self.finish else self._safe_length(text)
        piece = Piece(text[self._shown : until], self.finish)
        self._shown = max(self._shown, until)
        return piece

    def _safe_length(self, text: str) -> int:
        """How much of a text no later token can take back."""
        safe = len(text.rstrip(_HALF_A_CHARACTER))
        for end in self._stop:
            for length in range(min(len(end) - 1, safe), 0, -1):
                if text[:safe].endswith(end[:length]):
                    safe -= length
                    break
        return safe
