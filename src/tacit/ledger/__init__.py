"""The durable spending record: charge, commit, then release. SQLite or PostgreSQL, never torch."""

from tacit.ledger.access import OPERATOR, Access, ApiKey, Request, Tenant
from tacit.ledger.book import default_ledger
from tacit.ledger.decisions import Answer, Balance, Charged, Decided, Draw
from tacit.ledger.ledger import Ledger
from tacit.ledger.session import Session
from tacit.ledger.statement import COVERS, Statement, only_domain, statement
from tacit.ledger.store import place_of
from tacit.ledger.terms import RULES, Domain, Model, Rule
from tacit.ledger.verification import Verified, verify

__all__ = [
    "COVERS",
    "OPERATOR",
    "RULES",
    "Access",
    "Answer",
    "ApiKey",
    "Balance",
    "Charged",
    "Decided",
    "Domain",
    "Draw",
    "Ledger",
    "Model",
    "Request",
    "Rule",
    "Session",
    "Statement",
    "Tenant",
    "Verified",
    "default_ledger",
    "only_domain",
    "place_of",
    "statement",
    "verify",
]
