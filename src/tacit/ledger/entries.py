"""What a ledger is made of: entries in a chain, each with the hash of everything before it.

Charges are sensitive: functions of private text, with no form in which they could be sent to a client.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from tacit.errors import Tampered

Kind = Literal["terms", "model", "people", "token", "public", "stop", "training", "repartition", "anchor"]
GENESIS = bytes(32)

# terms        the first entry of a domain: order, parts, partition, mechanism, unit, budget
# model        an ensemble that may answer from here on
# people       whom an ensemble was trained on, by the digest of their keyed hashes
# token        an answer from the private mixture, with its charge
# public       an answer from the public model: nothing charged
# stop         from here on every answer is public
# training     a charge for releasing something else about the same people, such as DP-SGD weights
# repartition  the same people in other parts: every part takes over the most that any part had spent
# anchor       somebody began a new anchor by hand


@dataclass(frozen=True)
class Entry:
    """One line of a ledger."""

    domain: str
    seq: int
    kind: Kind
    made: str
    charges: tuple[int, ...]  # billionths of a nat per part
    request: str | None = None
    step: int | None = None
    tenant: str | None = None
    token: int | None = None
    note: str = ""

    def hash_after(self, previous: bytes) -> bytes:
        """SHA-256 over the hash before and every field with its length: no two entries look alike."""
        digest = hashlib.sha256(previous)
        for field in (
            self.domain,
            str(self.seq),
            self.kind,
            self.made,
            self.request,
            None if self.step is None else str(self.step),
            self.tenant,
            None if self.token is None else str(self.token),
            self.note,
        ):
            content = b"" if field is None else field.encode()
            length = 0 if field is None else len(content) + 1
            digest.update(length.to_bytes(8, "little") + content)
        digest.update(packed(self.charges))
        return digest.digest()


def packed(charges: Sequence[int]) -> bytes:
    """Charges as they are stored: little-endian int64."""
    return struct.pack(f"<{len(charges)}q", *charges)


def unpacked(content: bytes) -> tuple[int, ...]:
    """Stored charges as numbers."""
    if len(content) % 8:
        raise Tampered("An entry's charges are damaged; restore the ledger.")
    return struct.unpack(f"<{len(content) // 8}q", content)
