"""Documents with the gold spans of their secrets, from a column that the caller names.

A span is ``{"start", "end", "label"}`` or ``[start, end, label]``, counted in characters of the text as it
was read; a CSV field holds the list as JSON. Rows without the column, such as planted canaries, have none.
Read from JSONL and CSV, whose rows come whole.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from tacit.corpus.customersim import Dialogue, Span
from tacit.corpus.reading import source_of
from tacit.corpus.rows import BadRowCount, refuse_bad
from tacit.corpus.sources import format_of, iter_rows
from tacit.errors import CorpusError
from tacit.recipes import CorpusSection

_WHOLE_ROWS = ("jsonl", "csv")


def may_have_spans(section: CorpusSection) -> bool:
    """Whether a corpus is of a kind whose rows can carry spans of their text."""
    plain = section.text is not None and section.blocks is None
    return plain and format_of(source_of(section)) in _WHOLE_ROWS


def read_gold_spans(section: CorpusSection, column: str) -> Iterator[Dialogue]:
    """Every document in the corpus's order, so that the n-th is the n-th of ``read_corpus``.

    Whoever wants to know whether the column was there at all sees it by the spans: none anywhere.
    """
    if not may_have_spans(section):
        raise CorpusError(
            f"{section.path}: gold spans are read beside plain text from JSONL and CSV; write the corpus so."
        )
    on_bad = BadRowCount() if section.skip_bad else refuse_bad
    for number, row in enumerate(iter_rows(source_of(section), on_bad=on_bad)):
        given = None if row.record is None else row.record.get(column)
        yield Dialogue(row.user, f"{number}", row.text, _spans(given, len(row.text), row.where, column))


def _spans(given: Any, length: int, where: str, column: str) -> tuple[Span, ...]:
    if given is None or given == "":
        return ()
    try:
        spans = tuple(map(_span, json.loads(given) if isinstance(given, str) else given))
    except (json.JSONDecodeError, RecursionError, TypeError, ValueError, KeyError):
        raise CorpusError(
            f"{where}: column '{column}' holds no list of spans; expected start, end and label of each."
        ) from None
    spans = tuple(sorted(spans, key=lambda span: span.start))
    ends = [0, *(span.end for span in spans)]
    for span, before in zip(spans, ends, strict=False):
        if not before <= span.start < span.end <= length:
            raise CorpusError(
                f"{where}: column '{column}' has a span from {span.start} to {span.end} that is empty, "
                f"overlaps another or ends beyond the text's {length} characters; correct it."
            )
    return spans


def _span(given: Any) -> Span:
    start, end, label = (
        (given["start"], given["end"], given["label"]) if isinstance(given, dict) else tuple(given)
    )
    if any(isinstance(one, bool) or not isinstance(one, int) for one in (start, end)):
        raise TypeError("a place is a whole number")
    if not isinstance(label, str):
        raise TypeError("a label is text")
    return Span(start, end, label)
