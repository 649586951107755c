"""The user's own regular expressions as a scorer."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

from tacit.corpus.screening.scores import ScoredToken
from tacit.errors import RecipeError


class RegexScorer:
    """Gives ``score`` to what the expressions match, or to their group ``secret`` where they have one."""

    contextual = True  # an expression may look at what is around

    def __init__(self, expressions: Mapping[str, str], score: float = 1.0) -> None:
        self._score = score
        self._expressions: list[tuple[str, re.Pattern[str]]] = []
        for label, expression in expressions.items():
            try:
                self._expressions.append((label, re.compile(expression)))
            except re.error as problem:
                raise RecipeError(
                    f"The expression of '{label}' is no regular expression ({problem}); correct it."
                ) from None
        self.name = f"regex {' '.join(expressions)}"

    @property
    def fingerprint(self) -> str:
        """The expressions themselves, quoted: what one says must not read like two."""
        expressions = json.dumps({label: e.pattern for label, e in self._expressions}, ensure_ascii=False)
        return f"regex {self._score!r} {expressions}"

    def score(self, texts: Sequence[str]) -> list[list[ScoredToken]]:
        """Every match that is not empty."""
        return [self._found(text) for text in texts]

    def _found(self, text: str) -> list[ScoredToken]:
        found = []
        for label, expression in self._expressions:
            group: int | str = "secret" if "secret" in expression.groupindex else 0
            for match in expression.finditer(text):
                start, end = match.span(group)
                if start < end:
                    found.append(ScoredToken(start, end, label, self._score))
        return found
