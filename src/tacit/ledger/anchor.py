"""A note outside the database of how far it had come, so that an older copy cannot take its place.

Restoring a backup gives back what has been spent since. The anchor is a small file that remembers number and
hash of each domain's last entry; a ledger that does not reach it, or reaches it with another hash, is
refused, and so is a ledger whose anchor is missing. Keep it on another disk than the ledger, or the same
restore rolls both back. Copies of both on two machines spend twice, and no file prevents that.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from tacit.errors import LedgerUnavailable, RolledBack, TacitError, Tampered
from tacit.files import read_json, write_json


@dataclass(frozen=True)
class Position:
    """The last entry of a domain."""

    seq: int
    hash: bytes


class Anchor:
    """The file, rewritten before a charge when it is older than so many seconds."""

    def __init__(self, path: Path, ledger: str, *, every_seconds: float = 5.0) -> None:
        """``ledger`` is the id of the ledger whose anchor it is."""
        self.path = path
        self._ledger = ledger
        self._every = every_seconds
        self._written = 0.0

    def read(self) -> dict[str, Position] | None:
        """What it remembers; None where there is no file."""
        if not self.path.exists():
            return None
        content = read_json(self.path, "restore it, or see docs/ledger.md for what to check first")
        try:
            whose = content["ledger"]
            found = {
                str(domain): Position(int(position["seq"]), bytes.fromhex(position["hash"]))
                for domain, position in content["domains"].items()
            }
        except (AttributeError, KeyError, TypeError, ValueError):
            raise Tampered(f"{self.path} is damaged; restore it.") from None
        if whose != self._ledger:
            raise RolledBack(
                f"{self.path} is the anchor of another ledger; give this ledger's with --anchor."
            )
        return found

    def check(self, domain: str, remembered: Position, found: bytes | None) -> None:
        """Refuse a ledger whose entry at the remembered place is another one, or missing."""
        if found != remembered.hash:
            what = "ends before" if found is None else "has another history than"
            raise RolledBack(
                f"The ledger's domain {domain} {what} entry {remembered.seq}, which {self.path} remembers: "
                "an older copy would spend the same budget again. Restore the newest ledger."
            )

    def write(self, positions: dict[str, Position]) -> None:
        """Remember these."""
        content = {
            name: {"seq": position.seq, "hash": position.hash.hex()} for name, position in positions.items()
        }
        try:
            write_json(
                self.path,
                {"version": 1, "ledger": self._ledger, "domains": content},
                private=True,
                overwrite=True,
            )
        except (OSError, TacitError) as problem:
            raise LedgerUnavailable(
                f"The anchor {self.path} cannot be written ({problem}); no answer leaves until it can."
            ) from None
        self._written = time.monotonic()

    @property
    def due(self) -> bool:
        """Whether it is time to write again."""
        return time.monotonic() - self._written >= self._every

    @property
    def age(self) -> float | None:
        """Seconds since the file was written; None where there is none."""
        return max(0.0, time.time() - self.path.stat().st_mtime) if self.path.exists() else None
