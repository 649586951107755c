"""Which rows are one example: one document's, or all of one user's; a mask alone is an example without any.

What holds: examples correspond one to one to documents (to users) in their order, whatever the text is. So
two corpora that differ in one document's text give examples that differ in one place and nowhere else, and
the number of examples is the same. Every row is one piece of one document: rows are never packed.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from tacit.errors import RecipeError
from tacit.recipes import PrivacySection
from tacit.training.encoding import Batch, IntArray, Rows
from tacit.training.private_steps import Examples

BoolArray = npt.NDArray[np.bool_]


def examples_of(
    rows: Rows,
    privacy: PrivacySection,
    make_batch: Callable[[IntArray], Batch],
    *,
    chosen: BoolArray | None = None,
) -> Examples:
    """The private examples; of documents, those where ``chosen`` is true, in order.

    Rows without a label teach nothing and are left out of their example, which stays.
    """
    if rows.packed:
        raise ValueError("Packed rows hold several records; lay them out with packing off.")
    pieces = np.array([pieces[0] for pieces in rows.pieces], dtype=np.int64)
    owners = rows.corpus.piece_user if privacy.unit == "user" else rows.corpus.piece_document
    number = len(rows.corpus.users) if privacy.unit == "user" else rows.corpus.documents
    taught = np.flatnonzero(rows.labels > 0)
    of_taught = owners[pieces[taught]]
    order = np.argsort(of_taught, kind="stable")
    ends = np.cumsum(np.bincount(of_taught, minlength=number))
    own_rows: list[IntArray] = np.split(taught[order], ends[:-1])
    if chosen is not None:
        own_rows = [own for own, is_chosen in zip(own_rows, chosen, strict=True) if is_chosen]
    return Examples(padded(own_rows, privacy), rows.lengths, make_batch)


def padded(own_rows: list[IntArray], privacy: PrivacySection) -> list[IntArray]:
    """As many examples as the recipe states, the missing ones empty; more than that are refused."""
    if privacy.examples is None:
        return own_rows
    missing = privacy.examples - len(own_rows)
    if missing < 0:
        raise RecipeError(
            f"privacy.examples={privacy.examples} is fewer than the corpus has; state one that is public and "
            "never too small."
        )
    return own_rows + [np.empty(0, dtype=np.int64)] * missing
