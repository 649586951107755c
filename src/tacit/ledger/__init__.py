"""The durable spending record: charge, commit, then release. SQLite or PostgreSQL, never torch."""

from tacit.ledger.access import Access, ApiKey, Tenant
from tacit.ledger.ledger import Answer, Balance, Domain, Draw, Ledger, default_anchor, default_ledger
from tacit.ledger.statement import Statement, only_domain, statement
from tacit.ledger.verification import Verified, verify

__all__ = [
    "Access",
    "Answer",
    "ApiKey",
    "Balance",
    "Domain",
    "Draw",
    "Ledger",
    "Statement",
    "Tenant",
    "Verified",
    "default_anchor",
    "default_ledger",
    "only_domain",
    "statement",
    "verify",
]
