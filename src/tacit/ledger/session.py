"""A service's hold on a domain: it decides in memory and books in order, one durable transaction per step.

Nobody else writes to the ledger meanwhile (the store keeps others out), so that what was decided last is what
the database will say. Should it ever say something else, nothing is booked and the session is over.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from tacit.ledger.decisions import Balance, Decided, Draw, decide
from tacit.ledger.ledger import Ledger


class Session:
    """Answers of one ensemble from one domain.

    The order is the guarantee: :meth:`decide`, then :meth:`book`, and only when that has returned may an
    answer leave. Steps are booked in the order in which they were decided. What was decided and could not be
    booked never leaves; after such a failure the ledger must be opened anew.
    """

    def __init__(self, ledger: Ledger, domain: str, *, model: str, mechanism: str, order: float) -> None:
        """Refused unless this ensemble, mechanism and order are the domain's."""
        self._ledger = ledger
        self.account = ledger.may_answer(domain, model, mechanism, order)
        self._balance = self._booked = ledger.balance(domain)
        self._lock = threading.Lock()

    @property
    def balance(self) -> Balance:
        """As it was decided last: at least what is durable. Sensitive."""
        return self._balance

    @property
    def booked(self) -> Balance:
        """As it is durable. Sensitive."""
        return self._booked

    def decide(self, draws: Sequence[Draw]) -> Decided:
        """Who answers each draw. Nothing of it may leave yet."""
        with self._lock:
            decided = decide(self.account, self._balance, draws)
            self._balance = decided.after
        return decided

    def book(self, decided: Decided) -> None:
        """Make a step durable. On return its answers are paid for."""
        self._ledger.book(decided)
        self._booked = decided.after
