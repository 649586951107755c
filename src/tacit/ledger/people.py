"""Whose text an ensemble was trained on: known again by keyed hashes, so that nobody gets a second budget.

Ids are private. The ledger keeps an HMAC of each under a key of its own, cut to 16 bytes, and never an id.
Whoever has the whole ledger has that key too and can try ids out: it is for the operator alone.

People are known by their ids and by nothing else: somebody under a new id is somebody else here, and two who
share an id are one.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Iterator

from tacit.ledger.store import Store

_HASH_BYTES = 16  # enough that no two of any number of people are taken for one by chance


class People:
    """The people of every ensemble, as far as they are known."""

    def __init__(self, store: Store, key: bytes) -> None:
        self._store, self._key = store, key

    def hashes(self, ids: Iterable[str]) -> bytes:
        """Their hashes as they are kept: sorted, so that the order of the ids is not."""
        found = {
            hmac.digest(self._key, who.encode(errors="surrogatepass"), "sha256")[:_HASH_BYTES] for who in ids
        }
        return b"".join(sorted(found))

    def with_accounts_elsewhere(self, domain: str, hashes: bytes) -> dict[str, int]:
        """The other domains that some of these people are in, and how many they are there."""
        these = set(_each(hashes))
        found: dict[str, set[bytes]] = {}
        for other, model in self._store.run(
            "SELECT model.domain, model.fingerprint FROM model JOIN people ON people.model = fingerprint "
            "WHERE model.domain <> ? ORDER BY model.domain",
            (domain,),
        ):
            shared = these.intersection(_each(self._kept(model)))  # one ensemble at a time: they may be large
            if shared:
                found.setdefault(str(other), set()).update(shared)
        return {name: len(shared) for name, shared in found.items()}

    def are_known(self, model: str) -> bool:
        """Whether the ledger knows whom an ensemble was trained on."""
        return bool(self._store.run("SELECT 1 FROM people WHERE model = ?", (model,)))

    def keep(self, model: str, hashes: bytes) -> str:
        """Remember an ensemble's people for good; returns the digest that the chain is to hold."""
        self._store.run("INSERT INTO people (model, hashes) VALUES (?, ?)", (model, hashes))
        return _digest(hashes)

    def digests(self, domain: str) -> dict[str, str]:
        """What is kept of each of a domain's ensembles, to be compared with its chain."""
        models = self._store.run(
            "SELECT fingerprint FROM model JOIN people ON people.model = fingerprint WHERE domain = ?",
            (domain,),
        )
        return {str(model): _digest(self._kept(model)) for (model,) in models}

    def domains_with_unknown(self) -> set[str]:
        """Domains with an ensemble of which the ledger does not know whom it was trained on."""
        rows = self._store.run(
            "SELECT DISTINCT domain FROM model WHERE fingerprint NOT IN (SELECT model FROM people)"
        )
        return {str(row[0]) for row in rows}

    def _kept(self, model: str) -> bytes:
        return bytes(self._store.run("SELECT hashes FROM people WHERE model = ?", (model,))[0][0])


def _each(hashes: bytes) -> Iterator[bytes]:
    return (hashes[start : start + _HASH_BYTES] for start in range(0, len(hashes), _HASH_BYTES))


def _digest(hashes: bytes) -> str:
    return hashlib.sha256(hashes).hexdigest()
