"""Putting drawn canaries into a corpus, which otherwise stays as it is."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tacit.corpus.canaries import CanaryManifest
from tacit.corpus.reading import source_of
from tacit.corpus.rows import BadRowCount, refuse_bad
from tacit.corpus.sources import iter_rows
from tacit.errors import CorpusError, InputError
from tacit.files import new_file
from tacit.recipes import CorpusSection


def write_planted(path: Path, section: CorpusSection, manifest: CanaryManifest) -> None:
    """Read a corpus again and write it with its canaries, as JSON lines for their owner alone.

    Rows of JSONL and CSV keep all their columns. Of other formats, user and text are kept; text files, which
    have no columns, get "file" and "text".
    """
    user_column, text_column = section.user or "user", section.text or "text"
    on_bad = BadRowCount() if section.skip_bad else refuse_bad
    rows = (
        {user_column: row.user, text_column: row.text} if row.record is None else row.record
        for row in iter_rows(source_of(section), on_bad=on_bad)
    )
    with new_file(path, private=True) as handle:  # it holds every inserted secret
        for row in plant(rows, manifest, user_column=user_column, text_column=text_column):
            handle.write(_json_line(row))


def plant(
    rows: Iterable[Mapping[str, Any]], manifest: CanaryManifest, *, user_column: str, text_column: str
) -> Iterator[dict[str, Any]]:
    """Yield the rows as they are, then the canary documents.

    A canary has these two columns, and of its owner's others those that are the same in all of the owner's
    rows: a label of people is theirs too. Only text and whole numbers are taken over; a list, as of gold
    spans, is about its own row's text. A canary of a new user has no other column.

    A canary's user id has the type that the corpus gives it (a number stays a number). The canaries stand at
    the end, repetitions together, where ``Canary.documents`` says: training has to shuffle. Refuses a corpus
    that the canaries were not drawn for, so write through ``tacit.files.new_file``, which leaves nothing
    behind then.
    """
    if user_column == text_column:
        raise InputError(
            f"Expected two columns, and both are {user_column!r}; name the user's and the text's."
        )
    owners = {canary.user for canary in manifest.canaries}
    met: dict[str, dict[str, Any]] = {}
    number = 0
    for number, row in enumerate(rows, start=1):
        for column in (user_column, text_column):
            if column not in row:
                raise CorpusError(f"Row {number} has no column {column!r}; name the corpus's own columns.")
        if not isinstance(row[text_column], str):
            raise CorpusError(
                f"Row {number}: column {text_column!r} holds no plain text, and canaries are plain text; "
                "render chat messages to a text column first."
            )
        if (owner := str(row[user_column])) in owners:
            met[owner] = _in_all(met.get(owner), row)
        if met and manifest.plan.owner == "new":
            raise CorpusError(
                f"Row {number} belongs to a user named like a canary's new user; rename that user."
            )
        yield dict(row)
    if manifest.plan.owner == "existing" and len(met) < len(owners):
        raise CorpusError(
            f"{len(owners) - len(met)} of the {len(owners)} users who carry canaries are not in this corpus; "
            "plant into the corpus that the canaries were drawn for."
        )
    if number != manifest.cost.corpus_documents:
        raise CorpusError(
            f"The corpus has {number} documents, and the canaries were drawn for "
            f"{manifest.cost.corpus_documents}; draw them again."
        )
    for user, text in manifest.insertions():
        of_owner = {user_column: user} | met.get(user, {})
        yield of_owner | {text_column: text}


def _in_all(before: Mapping[str, Any] | None, row: Mapping[str, Any]) -> dict[str, Any]:
    """The plain values of a row that an owner's rows before it had too; None: there was none."""
    return {
        column: value
        for column, value in row.items()
        if (before is None and _is_plain(value)) or (before is not None and before.get(column) == value)
    }


def _is_plain(value: Any) -> bool:
    """Whether a value could be a label; CSV spells lists and objects as JSON."""
    if isinstance(value, str):
        return bool(value.strip()) and not value.lstrip().startswith(("[", "{"))
    return isinstance(value, int) and not isinstance(value, bool)


def _json_line(row: Mapping[str, Any]) -> bytes:
    try:
        return json.dumps(row, ensure_ascii=False).encode() + b"\n"
    except UnicodeEncodeError:
        # Another column has half of a surrogate pair, which JSON can spell and UTF-8 cannot.
        return json.dumps(row).encode() + b"\n"
    except RecursionError:
        raise CorpusError("A row is nested too deeply to be written; flatten its columns.") from None
