"""CSV after RFC 4180, record by record, with the line on which each record begins.

Written out rather than taken from the standard library because a bad record must be named by its line
and, if the caller wishes, stepped over: the standard reader takes a stray quote for text, reports only
the line it has come to, caps the size of a field by a setting of the whole process, and cannot go on
after a line that is not UTF-8.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from tacit.corpus.rows import UnusableRow, decoded

# Possessive quantifiers: a record of many megabytes that does not match fails in one pass.
_FIELD = re.compile(r'(?:"([^"]*+(?:""[^"]*+)*+)"|([^",]*+))(,|\Z)')
_OPENS_QUOTE = re.compile(rb'(?:(?:"[^"]*+(?:""[^"]*+)*+"|[^",]*+),)*+"[^"]*+(?:""[^"]*+)*+\Z')


class UnclosedQuote(Exception):
    """A quoted field that begins on ``line`` and never ends."""

    def __init__(self, line: int) -> None:
        super().__init__(line)
        self.line = line


class CsvRecord(NamedTuple):
    """The bytes of one record and the line, counted from 1, on which it begins."""

    line: int
    content: bytes


def csv_records(lines: Iterable[bytes]) -> Iterator[CsvRecord]:
    """Join the physical lines of each record; lines without any character are passed over."""
    pending: list[bytes] = []
    begin = 0
    for number, line in enumerate(lines, 1):
        closes_or_opens = line.count(b'"') % 2 == 1
        if pending:
            pending.append(line)
            if closes_or_opens:
                yield CsvRecord(begin, b"".join(pending))
                pending.clear()
        elif closes_or_opens and _OPENS_QUOTE.match(line):
            pending.append(line)
            begin = number
        elif line.rstrip(b"\r\n"):
            # An odd quote that opens no field is this line's fault alone and must not swallow the next ones.
            yield CsvRecord(number, line)
    if pending:
        raise UnclosedQuote(begin)


def split_fields(record: bytes) -> list[str]:
    """The fields of one record, quotes resolved, every other character as it stands in the file."""
    text = decoded(record).removesuffix("\n").removesuffix("\r")
    if '"' not in text:
        return text.split(",")
    fields: list[str] = []
    position = 0
    while True:
        match = _FIELD.match(text, position)
        if match is None:
            raise UnusableRow("broken quoting", f"field {len(fields) + 1} has a quote in the wrong place")
        quoted, plain, delimiter = match.groups()
        fields.append(plain if quoted is None else quoted.replace('""', '"'))
        if not delimiter:
            return fields
        position = match.end()
