"""The ledger as a service holds it: opened at the start, and again after it has failed."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from pathlib import Path

from tacit.errors import InputError, LedgerUnavailable, TacitError
from tacit.ledger import Access, Balance, Decided, Domain, Draw, Ledger, Model, Session, Statement, statement
from tacit.serving.settings import Settings


class Books:
    """One ensemble's account. While it is closed, every use raises `LedgerUnavailable`.

    A failed write closes the ledger: what the database holds is only known after opening it anew, with all
    the checks of a first start. In between nothing is answered.
    """

    def __init__(self, url: str, anchor: Path | None, model: Model, settings: Settings) -> None:
        self._url, self._anchor, self._model = url, anchor, model
        self._lock = threading.Lock()
        self._ledger: Ledger | None = None
        self._session: Session | None = None
        self._open()
        try:
            self.account: Domain = self.session.account
            self.choice = settings.choice(self.account)
        except BaseException:
            self.close()
            raise

    @property
    def ledger(self) -> Ledger:
        """The open ledger."""
        ledger = self._ledger
        if ledger is None:
            raise LedgerUnavailable(
                "The ledger is closed after a failure; nothing is released until it opens."
            )
        return ledger

    @property
    def session(self) -> Session:
        """The hold on the account."""
        session = self._session
        if session is None:
            raise LedgerUnavailable(
                "The ledger is closed after a failure; nothing is released until it opens."
            )
        return session

    @property
    def access(self) -> Access:
        """Keys, quotas and repeated requests."""
        return Access(self.ledger)

    @property
    def is_open(self) -> bool:
        """Whether answers can be paid for."""
        return self._session is not None

    @property
    def balance(self) -> Balance:
        """What has been decided so far. Sensitive."""
        return self.session.balance

    def statement(self) -> Statement:
        """The account, added up. Sensitive but for its terms and guarantee."""
        return statement(self.ledger, self.account.id)

    def decide(self, draws: Sequence[Draw]) -> Decided:
        """Who answers each draw of a step; nothing may leave before `book`."""
        return self.session.decide(draws)

    def book(self, decided: Decided) -> None:
        """Make a step durable. Whatever goes wrong, the ledger is closed and nothing may leave."""
        try:
            self.session.book(decided)
        except BaseException as problem:
            self.shut()
            if isinstance(problem, TacitError) and not isinstance(problem, LedgerUnavailable):
                raise LedgerUnavailable("The ledger refused a step; nothing was released.") from problem
            raise

    def shut(self) -> None:
        """Close after a failure, whatever state the ledger is in."""
        with self._lock:
            ledger, self._ledger, self._session = self._ledger, None, None
        if ledger is not None:
            with contextlib.suppress(TacitError, OSError):
                ledger.store.close()  # not ledger.close(): a ledger that failed must not move its anchor

    def reopen(self) -> bool:
        """Try to open again; False where it still cannot be."""
        if self.is_open:
            return True
        try:
            self._open()
        except (TacitError, OSError):
            return False
        return True

    def close(self) -> None:
        """Let go in good order."""
        with self._lock:
            ledger, self._ledger, self._session = self._ledger, None, None
        if ledger is not None:
            ledger.close()

    def _open(self) -> None:
        ledger = Ledger.open(self._url, anchor=self._anchor)
        try:
            name = ledger.domain_of(self._model.fingerprint)
            if name is None:
                raise InputError(
                    f"The ledger {ledger.store.name} has no budget for {self._model.name}; open an account "
                    "with tacit ledger init RUN --epsilon 2, or attach it to that of the same people."
                )
            account = ledger.domain(name)
            session = Session(
                ledger,
                name,
                model=self._model.fingerprint,
                mechanism=account.mechanism,
                order=account.order,
            )
        except BaseException:
            ledger.close()
            raise
        with self._lock:
            self._ledger, self._session = ledger, session
