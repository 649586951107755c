"""What a row must be to enter a corpus, and what becomes of one that is not.

Whose text is whose is decided here, so nothing is coerced on a guess: a user is a non-empty string or an
integer, a text is a non-blank string that UTF-8 can hold. Everything else is a bad row, which the caller
either refuses or counts by reason; it is never dropped in silence, and its content is never quoted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, NoReturn

from tacit.errors import CorpusError

BadReason = Literal[
    "not UTF-8",
    "broken JSON",
    "broken quoting",
    "wrong number of fields",
    "not an object",
    "missing column",
    "null user",
    "empty user",
    "user of a wrong type",
    "text of a wrong type",
    "empty document",
    "bad messages",
]

_MOST_INTEGER: Final = 10**1000  # Python itself refuses to spell the longest ones

NOT_UTF8: Final = object()
"""Stands for a value whose bytes could not be decoded where the column reader, not we, decodes."""


class Row(NamedTuple):
    """One document as a source gives it.

    ``record`` is the whole row with all its columns, where the format reads whole rows anyway.
    """

    user: str
    text: str
    where: str
    record: Mapping[str, object] | None = None


class UnusableRow(Exception):
    """A row that cannot enter a corpus; the fault is ``lines_below`` the line on which the row begins."""

    def __init__(self, reason: BadReason, detail: str, lines_below: int = 0) -> None:
        super().__init__(reason)
        self.reason = reason
        self.detail = detail
        self.lines_below = lines_below


@dataclass(frozen=True)
class BadRow:
    """Where a row cannot be used, and why."""

    where: str
    reason: BadReason
    detail: str
    remedy: str = (
        "correct it, or leave such rows out and count them with --skip-bad (skip_bad: true in a recipe)"
    )

    def error(self, remedy: str = "correct it") -> CorpusError:
        """The sentence for a caller who wants every row."""
        return CorpusError(f"{self.where}: {self.detail}; {remedy}.")


OnBad = Callable[[BadRow], None]


def refuse_bad(row: BadRow) -> NoReturn:
    """Stop at the first bad row."""
    raise row.error(row.remedy)


class BadRowCount:
    """Go on after a bad row, and remember in ``by_reason`` how many there were."""

    def __init__(self) -> None:
        self.by_reason: Counter[str] = Counter()

    def __call__(self, row: BadRow) -> None:
        """Count one bad row."""
        self.by_reason[row.reason] += 1


def decoded(content: bytes) -> str:
    """Strict UTF-8; says which byte is not and how far below the beginning it is."""
    try:
        return content.decode()
    except UnicodeDecodeError as problem:
        detail = f"byte 0x{content[problem.start]:02x} is not UTF-8"
        raise UnusableRow("not UTF-8", detail, content.count(b"\n", 0, problem.start)) from None


def checked_user(value: object) -> str:
    """The user's id; an integer becomes its decimal string."""
    if isinstance(value, str):
        if not value or value.isspace():
            raise UnusableRow("empty user", "the user is empty")
        return _encodable(value, "user")
    if value is None:
        raise UnusableRow("null user", "the user is null")
    if value is NOT_UTF8:
        raise UnusableRow("not UTF-8", "the user is not UTF-8")
    # bool is an int in Python, but True is nobody's id; 1.0 and 1 would be two spellings of one person.
    if isinstance(value, int) and not isinstance(value, bool):
        if abs(value) >= _MOST_INTEGER:
            raise UnusableRow("user of a wrong type", "the user is an integer of more than 1,000 digits")
        return str(value)
    raise UnusableRow(
        "user of a wrong type", f"the user is of type {type(value).__name__}, not a string or an integer"
    )


def checked_text(value: object) -> str:
    """The document's text, exactly as given."""
    if isinstance(value, str):
        if not value or value.isspace():
            raise UnusableRow("empty document", "the document is empty")
        return _encodable(value, "text")
    if value is None:
        raise UnusableRow("text of a wrong type", "the text is null")
    if value is NOT_UTF8:
        raise UnusableRow("not UTF-8", "the text is not UTF-8")
    raise UnusableRow("text of a wrong type", f"the text is of type {type(value).__name__}, not a string")


def _encodable(value: str, name: str) -> str:
    if not is_utf8(value):
        raise UnusableRow("not UTF-8", f"the {name} has half of a surrogate pair")
    return value


def is_utf8(text: str) -> bool:
    """Whether UTF-8 can hold a text: JSON can spell half of a surrogate pair ("\\ud800"), UTF-8 cannot."""
    if not text.isascii():  # which is known at once, and true of most texts
        try:
            text.encode()
        except UnicodeEncodeError:
            return False
    return True
