"""What a ledger's entries tell of the past. Sensitive: charges and stops are functions of private text."""

from __future__ import annotations

from dataclasses import dataclass

from tacit.ledger.decisions import Charged
from tacit.ledger.entries import unpacked
from tacit.ledger.store import Store


def latest_charges(store: Store, domain: str, most: int) -> list[Charged]:
    """What the latest answers cost, oldest first."""
    rows = store.run(
        "SELECT made, charges FROM entry WHERE domain = ? AND kind IN ('token', 'public') "
        "ORDER BY seq DESC LIMIT ?",
        (domain, most),
    )
    return [Charged(str(made), unpacked(bytes(charges))) for made, charges in reversed(rows)]


@dataclass(frozen=True)
class Event:
    """An entry that is no answer; ``charges`` as they are stored."""

    seq: int
    kind: str
    made: str
    charges: bytes
    note: str


def events(store: Store, domain: str) -> list[Event]:
    """Every entry of a domain that is no answer, in order: few, and found without reading the answers."""
    # SQLite would read every answer rather than the index that has none of them.
    index = " INDEXED BY entry_event" if store.dialect == "sqlite" else ""
    rows = store.run(
        f"SELECT seq, kind, made, charges, note FROM entry{index} WHERE domain = ? "  # noqa: S608
        "AND kind NOT IN ('token', 'public') ORDER BY seq",
        (domain,),
    )
    return [Event(int(row[0]), str(row[1]), str(row[2]), bytes(row[3]), str(row[4])) for row in rows]
