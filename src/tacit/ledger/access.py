"""Who may ask, how often, and which requests were answered before: keys, tenants, idempotency.

None of this is a function of private text: tokens are counted, not charges.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from dataclasses import dataclass

from tacit.errors import InputError, KeyReused
from tacit.ledger.decisions import now
from tacit.ledger.ledger import Ledger
from tacit.ledger.terms import check_name, is_name

OPERATOR = "operator"  # the tenant of the operator's own questions
_PREFIX = "tacit-"
_MOST_TOKENS = 2**62


@dataclass(frozen=True)
class Tenant:
    """Somebody who asks. ``tokens_most`` None is no limit."""

    name: str
    tokens_most: int | None
    tokens_used: int

    @property
    def tokens_left(self) -> int | None:
        """Tokens that may still be asked for; None: any number."""
        return None if self.tokens_most is None else max(0, self.tokens_most - self.tokens_used)


@dataclass(frozen=True)
class ApiKey:
    """What is known of a key: not the key."""

    id: str
    tenant: str
    created: str
    revoked: str | None


@dataclass(frozen=True)
class Request:
    """A request as the ledger knows it: the id that its answers are booked under, and when it first came."""

    id: str
    created: str


class Access:
    """The part of a ledger that the door needs."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._store = ledger.store

    def set_quota(self, tenant: str, tokens_most: int | None) -> None:
        """Make a tenant, or change how many tokens it may use in all."""
        check_name("A tenant", tenant)
        if tokens_most is not None and not 0 <= tokens_most < _MOST_TOKENS:
            raise InputError(f"tokens={tokens_most}: a quota is a number of at least 0 and below 2^62.")
        with self._ledger.writing():
            self._store.run(
                "INSERT INTO tenant (name, tokens_most) VALUES (?, ?) "
                "ON CONFLICT (name) DO UPDATE SET tokens_most = excluded.tokens_most",
                (tenant, tokens_most),
            )

    def change_quota(self, tenant: str, tokens_most: int | None) -> None:
        """The same for a tenant that is there."""
        self.tenant(tenant)
        self.set_quota(tenant, tokens_most)

    def ensure_tenant(self, tenant: str) -> None:
        """Make a tenant without a limit, unless it is there."""
        check_name("A tenant", tenant)
        if not self._store.run("SELECT 1 FROM tenant WHERE name = ?", (tenant,)):
            self.set_quota(tenant, None)

    def tenants(self) -> list[Tenant]:
        """Everybody, with what they have used."""
        rows = self._store.run("SELECT name, tokens_most, tokens_used FROM tenant ORDER BY name")
        return [Tenant(*row) for row in rows]

    def tenant(self, name: str) -> Tenant:
        """One of them."""
        check_name("A tenant", name)
        rows = self._store.run("SELECT name, tokens_most, tokens_used FROM tenant WHERE name = ?", (name,))
        if not rows:
            raise InputError(f"The ledger has no tenant {name}; see tacit keys list.")
        return Tenant(*rows[0])

    def create_key(self, tenant: str, *, tokens_most: int | None = None) -> tuple[str, ApiKey]:
        """A new key, which is shown this once, and what is kept of it; ``tokens_most`` sets the quota too."""
        if tenant == OPERATOR:
            raise InputError(f"{OPERATOR} is the operator's own name on the admin port; choose another.")
        if tokens_most is not None:
            self.set_quota(tenant, tokens_most)
        key = _PREFIX + secrets.token_urlsafe(32)
        made = ApiKey(secrets.token_hex(4), tenant, now(), None)
        self.ensure_tenant(tenant)
        with self._ledger.writing():
            self._store.run(
                "INSERT INTO api_key (id, hash, tenant, created) VALUES (?, ?, ?, ?)",
                (made.id, _hash(key), made.tenant, made.created),
            )
        return key, made

    def revoke_key(self, key_id: str) -> None:
        """From now on the key opens nothing."""
        if not is_name(key_id):
            raise InputError("A key's id has 8 hexadecimal digits; see tacit keys list, or GET /admin/keys.")
        with self._ledger.writing():
            found = self._store.run("SELECT revoked FROM api_key WHERE id = ?", (key_id,))
            if not found:
                raise InputError(f"There is no key {key_id}; see tacit keys list, or GET /admin/keys.")
            if found[0][0] is None:
                self._store.run("UPDATE api_key SET revoked = ? WHERE id = ?", (now(), key_id))

    def every_key(self) -> list[ApiKey]:
        """All keys ever made."""
        rows = self._store.run("SELECT id, tenant, created, revoked FROM api_key ORDER BY created, id")
        return [ApiKey(*row) for row in rows]

    def tenant_for(self, key: str) -> str | None:
        """Whose key this is; None if unknown or revoked. All keys are compared, each in constant time."""
        wanted, found = _hash(key), None
        for digest, tenant, revoked in self._store.run("SELECT hash, tenant, revoked FROM api_key"):
            if hmac.compare_digest(bytes(digest), wanted) and revoked is None:
                found = str(tenant)
        return found

    def request(self, tenant: str, key: str | None, body: bytes) -> Request:
        """A request by its Idempotency-Key: a new one, or the same as before.

        The same key with another body is refused: one of the two would get the other's answer. What the same
        request has been answered so far is in the ledger; it is given again, and then gone on with.
        """
        fresh = Request(secrets.token_hex(16), now())
        if key is None:
            return fresh
        secret = self._ledger.secret("idempotency")
        named, content = (hmac.digest(secret, part, "sha256") for part in (key.encode(), body))
        with self._ledger.writing():
            known = self._store.run(
                "SELECT body, id, created FROM request WHERE tenant = ? AND key = ?", (tenant, named)
            )
            if not known:
                self._store.run(
                    "INSERT INTO request (tenant, key, body, id, created) VALUES (?, ?, ?, ?, ?)",
                    (tenant, named, content, fresh.id, fresh.created),
                )
                return fresh
        if not hmac.compare_digest(bytes(known[0][0]), content):
            raise KeyReused("This Idempotency-Key was used with another request; use a new one.")
        return Request(str(known[0][1]), str(known[0][2]))

    def forget_requests(self, before: str) -> None:
        """Let Idempotency-Keys of older requests be used for new ones; what was paid stays on record."""
        with self._ledger.writing():
            self._store.run("DELETE FROM request WHERE created < ?", (before,))


def _hash(key: str) -> bytes:
    # A plain hash is enough for 256 random bits: there is nothing to guess.
    return hashlib.sha256(key.encode()).digest()
