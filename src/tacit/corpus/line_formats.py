"""JSONL, CSV and plain text: formats read as bytes, line by line, and decoded strictly.

Lines end at a line feed and nowhere else, so that a U+2028 or a form feed inside a text stays in it, and the
line number in a message is the one that an editor shows. A byte order mark at the beginning is dropped.
"""

from __future__ import annotations

import codecs
import contextlib
import gzip
import json
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

from tacit.corpus.columns import NOBODY, ColumnReader
from tacit.corpus.csv_records import UnclosedQuote, csv_records, split_fields
from tacit.corpus.rows import BadRow, OnBad, Row, UnusableRow, checked_text, checked_user, decoded
from tacit.errors import CorpusError

Advance = Callable[[int], None]
TextUnit = Literal["file", "paragraph", "line"]

_ADVANCE_EVERY = 1 << 20


def jsonl_rows(path: Path, reader: ColumnReader, advance: Advance) -> Iterator[Row]:
    """One JSON object per line; lines of white space are passed over."""
    incomplete: set[str] = set()
    complete = False
    with _lines_of(path, advance) as lines:
        for number, line in enumerate(lines, 1):
            if line.isspace():
                continue
            where = f"{path}, line {number}"
            try:
                record = _json_object(line)
                if not complete:
                    complete = all(name in record for name in reader.wanted(list(record)))
                    incomplete.update(record)
                row = reader.row(record, where)
            except UnusableRow as problem:
                unknown = problem.reason == "missing column" and not complete
                (reader.report_unknown_column if unknown else reader.report)(where, problem)
                continue
            yield row
    if incomplete and not complete:
        # Every row was skipped for want of a column: it is the name that is wrong, not the rows.
        reader.present(sorted(incomplete))


def _json_object(line: bytes) -> dict[str, Any]:
    # Without its end: to JSON a line feed inside a cut-off value is a second line, whose columns nobody sees.
    text = decoded(_without_line_end(line))
    try:
        value = json.loads(text)
    except json.JSONDecodeError as problem:
        raise UnusableRow("broken JSON", f"broken JSON at column {problem.colno} ({problem.msg})") from None
    except (ValueError, RecursionError):
        raise UnusableRow("broken JSON", "JSON with a number or a nesting too large to read") from None
    if not isinstance(value, dict):
        raise UnusableRow("not an object", "the line is JSON but not an object")
    return value


def csv_rows(path: Path, reader: ColumnReader, advance: Advance) -> Iterator[Row]:
    """RFC 4180 with a header; a quote that never closes is refused even where bad rows are skipped."""
    with _lines_of(path, advance) as lines:
        records = csv_records(lines)
        try:
            columns = _csv_header(path, next(records, None))
            reader.present(columns)
            for number, content in records:
                try:
                    fields = split_fields(content)
                    if len(fields) != len(columns):
                        detail = f"{len(fields)} fields where the header has {len(columns)}"
                        raise UnusableRow("wrong number of fields", detail)
                    row = reader.row(dict(zip(columns, fields, strict=True)), f"{path}, line {number}")
                except UnusableRow as problem:
                    reader.report(f"{path}, line {number + problem.lines_below}", problem)
                    continue
                yield row
        except UnclosedQuote as quote:
            # Every row after it would be lost, which is not one bad row to skip.
            raise CorpusError(
                f"{path}, line {quote.line}: a quote opens and never closes; close it."
            ) from None


def _csv_header(path: Path, record: tuple[int, bytes] | None) -> list[str]:
    if record is None:
        raise CorpusError(f"{path} has no header; its first line must name the columns.")
    number, content = record
    try:
        return split_fields(content)
    except UnusableRow as problem:
        raise CorpusError(
            f"{path}, line {number}: the header is unusable, {problem.detail}; correct it."
        ) from None


def text_rows(
    root: Path, unit: TextUnit, on_bad: OnBad, advance: Advance, *, without_users: bool
) -> Iterator[Row]:
    """A text file, or every file of a folder; each file is a user, named by its path within the folder."""
    for path in _text_files(root):
        user = path.relative_to(root).as_posix() if root.is_dir() else path.name
        with _lines_of(path, advance) as lines:
            for begin, content in _pieces(lines, unit):
                try:
                    owner = NOBODY if without_users else checked_user(user)
                    text = checked_text(decoded(content))
                except UnusableRow as problem:
                    where = f"{path}, line {begin + problem.lines_below}"
                    on_bad(BadRow(where, problem.reason, problem.detail))
                    continue
                yield Row(owner, text, f"{path}, line {begin}")


class _Piece(NamedTuple):
    begin: int
    content: bytes


def _pieces(lines: Iterable[bytes], unit: TextUnit) -> Iterator[_Piece]:
    """The documents of one file; a file without any gives one empty piece, so that it is reported."""
    if unit == "file":
        yield _Piece(1, b"".join(lines))
        return
    pending: list[bytes] = []
    begin = 1
    empty = True
    for number, line in enumerate(lines, 1):
        blank = line.isspace()
        if not blank:
            begin = begin if pending else number
            pending.append(line)
        if pending and (blank or unit == "line"):
            yield _Piece(begin, _without_line_end(b"".join(pending)))
            pending.clear()
            empty = False
    if pending or empty:
        yield _Piece(begin, _without_line_end(b"".join(pending)))


def _without_line_end(content: bytes) -> bytes:
    return content.removesuffix(b"\n").removesuffix(b"\r")


def _text_files(root: Path) -> list[Path]:
    if not root.is_dir():
        return [existing_file(root)]
    # Every visible file, not only *.txt: leaving some out in silence would be a guess.
    files = sorted(
        path
        for path in root.rglob("*")
        if path.is_file() and not any(part.startswith(".") for part in path.relative_to(root).parts)
    )
    if not files:
        raise CorpusError(f"{root} holds no files; give a folder of text files.")
    return files


def existing_file(path: Path) -> Path:
    """Refuse what is not a file with something in it."""
    if path.is_dir():
        raise CorpusError(f"{path} is a folder where a file is needed; give the file.")
    if not path.exists():
        raise CorpusError(f"{path} does not exist; give an existing file.")
    if path.stat().st_size == 0:
        raise CorpusError(f"{path} is empty; give a file with documents.")
    return path


@contextlib.contextmanager
def _lines_of(path: Path, advance: Advance) -> Iterator[Iterator[bytes]]:
    """The physical lines of a file, decompressed where its name ends in .gz."""
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as handle:
            yield _counted(handle, advance)
    except (OSError, EOFError, zlib.error) as problem:
        reason = getattr(problem, "strerror", None) or "it is damaged or not gzip"
        raise CorpusError(f"{path} cannot be read ({reason}); check the file and its permissions.") from None


def _counted(handle: Iterable[bytes], advance: Advance) -> Iterator[bytes]:
    unreported = 0
    at_beginning = True
    for line in handle:
        unreported += len(line)
        if unreported >= _ADVANCE_EVERY:
            advance(unreported)
            unreported = 0
        if at_beginning:
            at_beginning = False
            if without_mark := line.removeprefix(codecs.BOM_UTF8):
                yield without_mark
        else:
            yield line
    advance(unreported)
