"""What is checked of every domain when a ledger is opened: the tables beside the chain, by its few events.

Not every hash and every sum, for which all entries must be read: that is `tacit.ledger.verification`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tacit.errors import Tampered
from tacit.ledger.anchor import Position
from tacit.ledger.history import events
from tacit.ledger.store import Row, Store


def check_tables(store: Store, positions: Mapping[str, Position]) -> None:
    """Refuse heads that are not the ends of their chains, and terms, stops and parts that they do not say."""
    domains = {str(row[0]): row[1:] for row in store.run(f"SELECT id, {', '.join(_COLUMNS)} FROM domain")}  # noqa: S608
    for domain in sorted(domains.keys() | positions.keys()):
        last = store.run("SELECT seq, hash FROM entry WHERE domain = ? ORDER BY seq DESC LIMIT 1", (domain,))
        end = Position(int(last[0][0]), bytes(last[0][1])) if last else None
        if end is None or positions.get(domain) != end or domain not in domains:
            raise Tampered(f"{store.name}: the chain of domain {domain} does not end at its head.")
        _check_domain(store, domain, domains[domain])


# Columns of a domain and what its entries call them.
_COLUMNS = {
    "renyi_order": "order",
    "parts": "parts",
    "partitioning": "partition",
    "mechanism": "mechanism",
    "unit": "unit",
}


def _check_domain(store: Store, domain: str, row: Row) -> None:
    terms, stopped = _said(store, domain)
    if any(terms.get(name) != value for name, value in zip(_COLUMNS.values(), row, strict=True)):
        raise Tampered(f"{store.name}: the terms of domain {domain} are not those of its entries.")
    if store.run("SELECT stopped FROM head WHERE domain = ?", (domain,))[0][0] != stopped:
        raise Tampered(f"{store.name}: the stop of domain {domain} is not that of its entries.")
    ((count, first, last, least, most, leased),) = store.run(
        "SELECT COUNT(*), MIN(part), MAX(part), MIN(budget), MAX(budget), MAX(leased) "
        "FROM balance WHERE domain = ?",
        (domain,),
    )
    parts, budget = terms["parts"], terms.get("budget")
    if (count, first, last, least, most, leased) != (parts, 0, parts - 1, budget, budget, 0):
        raise Tampered(
            f"{store.name}: the balances of domain {domain} are not those of its terms; restore it."
        )


def _said(store: Store, domain: str) -> tuple[dict[str, Any], int | None]:
    """The terms that a chain's events add up to, and the entry that stopped it."""
    terms: dict[str, Any] = {}
    stopped: int | None = None
    for event in events(store, domain):
        if event.kind in ("terms", "repartition"):
            try:
                terms |= dict(json.loads(event.note))
            except (TypeError, ValueError):
                raise Tampered(f"{store.name}: the terms of domain {domain} cannot be read.") from None
        elif event.kind == "stop" and stopped is None:
            stopped = event.seq
    return terms, stopped
