"""What a ledger's entries tell of the past. Sensitive: charges and stops are functions of private text."""

from __future__ import annotations

from tacit.ledger.decisions import Charged
from tacit.ledger.entries import unpacked
from tacit.ledger.ledger import Ledger
from tacit.ledger.store import Row


def latest_charges(ledger: Ledger, domain: str, most: int) -> list[Charged]:
    """What the latest answers cost, oldest first."""
    rows = ledger.store.run(
        "SELECT made, charges FROM entry WHERE domain = ? AND kind IN ('token', 'public') "
        "ORDER BY seq DESC LIMIT ?",
        (domain, most),
    )
    return [Charged(str(made), unpacked(bytes(charges))) for made, charges in reversed(rows)]


def events(ledger: Ledger, domain: str) -> list[Row]:
    """Kind, time, charges and note of every entry that is no answer, in order."""
    # SQLite would read every answer rather than the index that has none of them.
    index = " INDEXED BY entry_event" if ledger.store.dialect == "sqlite" else ""
    return ledger.store.run(
        f"SELECT kind, made, charges, note FROM entry{index} WHERE domain = ? "  # noqa: S608
        "AND kind NOT IN ('token', 'public') ORDER BY seq",
        (domain,),
    )
