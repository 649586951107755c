"""From a record with named columns to a row, where the caller named the columns.

Nothing is guessed. A column that was not named, or that the file does not have, is refused with the list
of those that it has: reading the wrong one as the user would void every later guarantee in silence.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from tacit.corpus.chat import MessagesProblem, Renderer, checked_messages
from tacit.corpus.rows import NOT_UTF8, BadRow, OnBad, Row, UnusableRow, checked_text, checked_user
from tacit.errors import CorpusError

NOBODY = ""
"""The user of every row of a source without users; no real user can have this id."""

_A_NAME = re.compile(r"[\w.:/-]{1,60}")
_COLUMNS_SHOWN = 20


class ColumnReader:
    """Turns the records of one place into rows, and the bad ones into reports.

    ``user`` is None where the rows belong to nobody. Of ``text`` and ``messages`` one names a column.
    """

    def __init__(
        self,
        place: str,
        *,
        user: str | None,
        text: str | None,
        messages: str | None,
        render: Renderer,
        on_bad: OnBad,
        without_users: bool,
    ) -> None:
        self.place = place
        self._user = user
        self._content = messages or text or ""
        self._is_chat = messages is not None
        self._render = render
        self._on_bad = on_bad
        self._without_users = without_users

    def wanted(self, columns: Sequence[str]) -> list[str]:
        """The columns to read; where one was not named, the refusal lists the ``columns`` that exist."""
        if self._user is None and not self._without_users:
            raise CorpusError(
                f"{self.place}: no column was named for the user; name one of {listed(columns)}, "
                "or cut the corpus in blocks."
            )
        if not self._content:
            raise CorpusError(
                f"{self.place}: no column was named for the text or the messages; "
                f"name one of {listed(columns)}."
            )
        return [self._content] if self._user is None else [self._user, self._content]

    def present(self, columns: Sequence[str]) -> list[str]:
        """The columns to read, each of which must occur exactly once among ``columns``."""
        wanted = self.wanted(columns)
        for name in wanted:
            if columns.count(name) != 1:
                how = "no column" if name not in columns else "more than one column"
                raise CorpusError(f"{self.place} has {how} '{name}'; its columns are {listed(columns)}.")
        return wanted

    def row(self, record: Mapping[str, object], where: str) -> Row:
        """One row with its record, or UnusableRow."""
        user = NOBODY if self._user is None else checked_user(_value(record, self._user))
        content = _value(record, self._content)
        text = checked_text(self._rendered(content, where) if self._is_chat else content)
        return Row(user, text, where, record)

    def _rendered(self, messages: object, where: str) -> str:
        if messages is NOT_UTF8:
            raise UnusableRow("not UTF-8", "the messages are not UTF-8")
        try:
            return self._render(checked_messages(messages))
        except MessagesProblem as problem:
            raise UnusableRow("bad messages", str(problem)) from None
        except CorpusError as problem:  # the template's fault, which this row has shown
            raise CorpusError(f"{where}: {problem}") from None

    def report(self, where: str, problem: UnusableRow) -> None:
        """Tell the caller of one bad row; the caller may raise."""
        self._on_bad(BadRow(where, problem.reason, problem.detail))

    def report_unknown_column(self, where: str, problem: UnusableRow) -> None:
        """Tell of a row without a column that no row has had yet: its name may well be wrong."""
        self._on_bad(BadRow(where, problem.reason, problem.detail, "name a column that it has"))


def listed(names: Sequence[str]) -> str:
    """Names for a message, quoted, cut where there are too many to read.

    A table without a header has text where the names should be, and text must not get into a message.
    """
    if not all(_A_NAME.fullmatch(name) for name in names):
        return "not names (does the first line hold text instead of a header?)"
    shown = ", ".join(f"'{name[:60]}'" for name in names[:_COLUMNS_SHOWN])
    return shown if len(names) <= _COLUMNS_SHOWN else f"{shown} and {len(names) - _COLUMNS_SHOWN} more"


def _value(record: Mapping[str, object], column: str) -> object:
    try:
        return record[column]
    except KeyError:
        detail = f"column '{column}' is missing (the row has {listed(list(record)) or 'no columns'})"
        raise UnusableRow("missing column", detail) from None
