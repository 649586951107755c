"""Where a corpus comes from: files, folders and datasets, as rows of (user, text).

Columns are named by the caller and never guessed. A bad row is named by file and line (or row number).
Nothing is held in memory but the row at hand: a batch of rows for Parquet and datasets, one file for text
files that are one document each.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from tacit.corpus.arrow_formats import dataset_rows, parquet_rows
from tacit.corpus.chat import Renderer, render_plainly
from tacit.corpus.columns import ColumnReader, listed
from tacit.corpus.line_formats import Advance, TextUnit, csv_rows, existing_file, jsonl_rows, text_rows
from tacit.corpus.rows import OnBad, Row, refuse_bad
from tacit.errors import CorpusError

Format = Literal["auto", "jsonl", "csv", "parquet", "text", "datasets"]

_FORMAT_OF_SUFFIX: Mapping[str, Format] = {
    ".jsonl": "jsonl",
    ".jsonl.gz": "jsonl",
    ".csv": "csv",
    ".csv.gz": "csv",
    ".parquet": "parquet",
    ".txt": "text",
}
_MARKS_OF_A_SAVED_DATASET = ("dataset_info.json", "state.json", "dataset_dict.json")


@dataclass(frozen=True)
class CorpusSource:
    """Where documents are, and which column holds what.

    ``path`` is a file; a folder of text files (with its subfolders, in the order of their names, hidden files
    left out); a folder written by ``save_to_disk``; or, with ``format="datasets"``, an ``owner/name`` of the
    Hugging Face hub, to which ``revision`` and ``config`` belong. ``split`` is needed where a dataset has
    several. Exactly one of ``text`` and ``messages`` names a column.

    Text files have no columns: ``user="file"`` makes each file a user, and ``document`` says what one
    document is. Paragraphs and lines come without their line end; blank lines are no documents.
    """

    path: str
    format: Format = "auto"
    user: str | None = None
    text: str | None = None
    messages: str | None = None
    document: TextUnit = "file"
    split: str | None = None
    revision: str | None = None
    config: str | None = None

    def __post_init__(self) -> None:
        for name, value, allowed in (
            ("format", self.format, get_args(Format)),
            ("document", self.document, get_args(TextUnit)),
        ):
            if value not in allowed:
                raise CorpusError(f"{self.path}: unknown {name} '{value}'; use one of {listed(allowed)}.")
        if self.text is not None and self.messages is not None:
            raise CorpusError(f"{self.path}: name a text column or a messages column, not both.")
        if self.user is not None and self.user in (self.text, self.messages):
            raise CorpusError(
                f"{self.path}: '{self.user}' cannot name both the user and the text; name two columns."
            )


def format_of(source: CorpusSource) -> Format:
    """The source's format; ``auto`` is settled by suffix, or by what a folder holds."""
    if source.format != "auto":
        return source.format
    path = Path(source.path)
    if path.is_dir():
        saved = any((path / mark).is_file() for mark in _MARKS_OF_A_SAVED_DATASET)
        return "datasets" if saved else "text"
    if not path.exists():
        raise CorpusError(
            f"{path} does not exist; give an existing file, or format 'datasets' for a Hugging Face id."
        )
    for suffix, format_ in _FORMAT_OF_SUFFIX.items():
        if path.name.lower().endswith(suffix):
            return format_
    raise CorpusError(f"{path} has a suffix that names no format; use one of {listed(get_args(Format)[1:])}.")


def iter_rows(
    source: CorpusSource,
    render: Renderer | None = None,
    on_bad: OnBad = refuse_bad,
    *,
    without_users: bool = False,
    advance: Advance | None = None,
) -> Iterator[Row]:
    """Read every row; ``on_bad`` hears of each bad one, and raises or lets the reading go on.

    Messages are rendered plainly unless ``render`` is given. ``without_users`` reads a source that names no
    user. ``advance`` is called with increments of progress: bytes (uncompressed) of JSONL, CSV and text, rows
    of Parquet and datasets.
    """
    advance = advance or _no_progress
    format_ = format_of(source)
    if without_users and source.user is not None:
        raise CorpusError(
            f"{source.path}: the user '{source.user}' is named but would not be read; leave it out."
        )
    _refuse_what_does_not_apply(source, format_)
    if format_ == "text":
        _check_text_source(source, without_users=without_users)
        root = Path(source.path)
        yield from text_rows(root, source.document, on_bad, advance, without_users=without_users)
        return
    reader = ColumnReader(
        source.path,
        user=source.user,
        text=source.text,
        messages=source.messages,
        render=render or render_plainly,
        on_bad=on_bad,
        without_users=without_users,
    )
    if format_ == "datasets":
        where = {"split": source.split, "revision": source.revision, "config": source.config}
        yield from dataset_rows(source.path, reader, advance, **where)
    elif format_ == "csv" and source.messages is not None:
        raise CorpusError(f"{source.path}: a CSV field cannot hold messages; use JSONL or Parquet for them.")
    else:
        rows_of = {"jsonl": jsonl_rows, "csv": csv_rows, "parquet": parquet_rows}[format_]
        yield from rows_of(existing_file(Path(source.path)), reader, advance)


def _refuse_what_does_not_apply(source: CorpusSource, format_: Format) -> None:
    for name in ("split", "config", "revision"):
        if getattr(source, name) is not None and format_ != "datasets":
            raise CorpusError(
                f"{source.path}: a {name} belongs to Hugging Face datasets, and this is {format_}; "
                "leave it out, or give format 'datasets'."
            )
    if source.document != "file" and format_ != "text":
        raise CorpusError(
            f"{source.path}: document '{source.document}' is for text files, and this is {format_}; "
            "leave it out."
        )


def _check_text_source(source: CorpusSource, *, without_users: bool) -> None:
    if source.text is not None or source.messages is not None:
        raise CorpusError(f"{source.path}: text files have no columns; name neither text nor messages.")
    if not without_users and source.user != "file":
        raise CorpusError(
            f"{source.path}: text files have no user column; say user 'file' to make each file a user, "
            "or cut the corpus in blocks."
        )


def _no_progress(_increment: int) -> None:
    """Nobody is watching."""
