"""Whose each sequence is: by user, or by a label column that the recipe names.

The label is what regularised training shall not be able to tell from a text. It is read from the same rows as
the text, in a second pass over the source, and must be there on every row that is used. Labels are private
text: they are counted and numbered here, and never named in a message.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NoReturn

import numpy as np
import numpy.typing as npt

from tacit.corpus import UserCorpus, iter_rows
from tacit.corpus.reading import source_of
from tacit.corpus.rows import BadRow
from tacit.corpus.screened_corpus import is_screened
from tacit.corpus.sources import format_of
from tacit.errors import CorpusError
from tacit.recipes import CorpusSection
from tacit.training.encoding import EncodedCorpus, IntArray, Rows, lay_out


@dataclass(frozen=True)
class Authors:
    """Authors of the training side, numbered in the order of first appearance.

    A piece without a token to predict (a mask alone) has an author and enters no loss.
    """

    of_piece: IntArray
    of_document: IntArray
    teaches: npt.NDArray[np.bool_]  # of each piece, whether it has a token to predict

    @cached_property
    def count(self) -> int:
        """How many there are."""
        return int(self.of_document.max()) + 1

    @cached_property
    def fingerprint(self) -> str:
        """Tells two labellings of one text apart."""
        return hashlib.sha256(self.of_document.tobytes()).hexdigest()


def authors_of(corpus: UserCorpus, encoded: EncodedCorpus, labels: Sequence[str] | None = None) -> Authors:
    """The authors of a training side; ``labels`` of each of its documents stand in for users.

    One author alone is refused: there is nobody to be taken for.
    """
    named = labels if labels is not None else [corpus.users[code] for code in corpus.user_codes()]
    numbers: dict[str, int] = {}
    of_document = np.array([numbers.setdefault(one, len(numbers)) for one in named], dtype=np.int64)
    if len(numbers) < 2:
        column = "a column" if labels is None else "another column"
        raise CorpusError(
            "The training text has one author, and hiding one takes another; give text of two or more "
            f"authors, name {column} with regularisation.label, or set method=finetune."
        )
    return Authors(of_document[encoded.piece_document], of_document, encoded.labels > 0)


def read_labels(
    section: CorpusSection,
    label: str,
    corpus: UserCorpus,
    *,
    named: str | None = None,
    unlabelled: Collection[str] = (),
) -> list[str]:
    """The label of each document of ``corpus``, which was read from the section's rows or is some of them.

    ``named`` is how the column was named, for messages. Texts of ``unlabelled`` (without spaces around them)
    need no label, and have an empty one then.
    """
    named = named or f"regularisation.label='{label}'"
    if is_screened(section):
        section = section.model_copy(update={"text": section.text or "text", "format": "jsonl"})
    if label in (section.text, section.messages):
        raise CorpusError(
            f"{section.path}: {named} names the text itself; name a column that says whose a text is."
        )
    # The label in the user's place: every format can read it.
    source = replace(source_of(section), user=label)
    if format_of(source) == "text":
        raise CorpusError(
            f"{section.path}: text files have no columns, so that {named} cannot be read; remove it, and "
            "each file is an author."
        )
    if section.skip_bad:
        raise CorpusError(
            f"{section.path}: {named} is read beside the text, row by row; correct bad rows and train "
            "without corpus.skip_bad."
        )
    labels: list[str] = []
    without: dict[int, BadRow] = {}

    def pass_over(row: BadRow) -> None:
        without[len(labels)] = row
        labels.append("")

    for row in iter_rows(source, on_bad=pass_over):
        labels.append(row.user)
    rows = corpus.row_numbers()
    if len(rows) and rows.max() >= len(labels):
        raise CorpusError(f"{section.path} has changed while it was read; begin again.")
    if without:
        for document, number in zip(corpus.documents(), rows, strict=True):
            if int(number) in without and document.text.strip() not in unlabelled:
                _refuse(without[int(number)], named)
    return [labels[row] for row in rows]


def _refuse(row: BadRow, named: str) -> NoReturn:
    reason = row.reason.replace("user", "label")  # what is read in the user's place is no user
    raise CorpusError(
        f"{row.where}: has no usable value of {named} ({reason}); name a column of text or whole numbers "
        "that every row has. Planted canaries have it where all rows of their owner have the same one."
    )


def rows_by_author(encoded: EncodedCorpus, authors: Authors, *, block_size: int, packing: bool) -> Rows:
    """Pieces laid out so that every row is of one author; rows of an author follow one another."""
    order = np.argsort(authors.of_piece, kind="stable")
    if not packing:
        return lay_out(encoded, block_size=block_size, packing=False, pieces=order)
    ends = np.cumsum(np.bincount(authors.of_piece, minlength=authors.count))[:-1]
    own = [
        lay_out(encoded, block_size=block_size, packing=True, pieces=pieces)
        for pieces in np.split(order, ends)
        if len(pieces)
    ]
    pieces = [row for rows in own for row in rows.pieces]
    return Rows(encoded, pieces, np.concatenate([rows.lengths for rows in own]), packed=True)
