"""How long work reports how far it is; the command line draws it, a library call stays silent."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Receives what long work has to tell."""

    def phase(self, name: str, total: int | None) -> None:
        """A new stretch of work begins; ``total`` units, or None where nobody knows."""

    def advance(self, units: int, note: str = "") -> None:
        """``units`` more are done; ``note`` is a short live remark such as a loss."""

    def remark(self, message: str) -> None:
        """Something the operator should read, once."""


class Silent:
    """Progress that nobody watches."""

    def phase(self, name: str, total: int | None) -> None:
        """Ignore."""

    def advance(self, units: int, note: str = "") -> None:
        """Ignore."""

    def remark(self, message: str) -> None:
        """Ignore."""
