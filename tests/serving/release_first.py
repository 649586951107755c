"""`tacit serve` with the one mistake that must never be made: pieces leave, and are booked afterwards.

The tests of kills and of system calls run against this too: what cannot see this mistake proves nothing.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

from tacit.cli import main
from tacit.ledger import Decided
from tacit.prediction import Drawn
from tacit.serving.engine import Engine, Text
from tacit.serving.writing import Piece

_BETWEEN_SECONDS = 0.1  # so that a kill between the two is no rare event; the order alone is the mistake
_book = Engine._book_and_release


def _release_and_book(
    engine: Engine, decided: Decided, pieces: Sequence[tuple[Text, Piece]], drawn: Sequence[Drawn]
) -> None:
    for text, piece in pieces:
        text.deliver(piece)
    time.sleep(_BETWEEN_SECONDS)
    _book(engine, decided, [], drawn)


if __name__ == "__main__":
    Engine._book_and_release = _release_and_book  # type: ignore[method-assign, assignment]
    sys.argv.insert(1, "serve")
    main()
