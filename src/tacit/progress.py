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


class Stages(Progress, Protocol):
    """Progress of work that has parts, each with stretches of its own."""

    def stage(self, name: str, done: int, total: int) -> None:
        """The part ``name`` begins; ``done`` of ``total`` parts are behind us."""


class Silent:
    """Progress that nobody watches."""

    def stage(self, name: str, done: int, total: int) -> None:
        """Ignore."""

    def phase(self, name: str, total: int | None) -> None:
        """Ignore."""

    def advance(self, units: int, note: str = "") -> None:
        """Ignore."""

    def remark(self, message: str) -> None:
        """Ignore."""
