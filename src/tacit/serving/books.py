"""The ledger as a service holds it: opened at the start, and again after it has failed."""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from tacit.errors import InputError, IntegrityError, LedgerUnavailable, TacitError
from tacit.ledger import Balance, Decided, Domain, Draw, Ledger, Model, Session, statement
from tacit.privacy import Guarantee
from tacit.privacy.filter import NANO, nano
from tacit.serving.settings import Settings, price_of

PATIENCE_SECONDS = 10.0  # no step takes so long with a ledger that works
_LOOK_SECONDS = 0.2
_log = logging.getLogger("tacit.serving")
_CLOSED = "The ledger is closed after a failure; nothing is released until it opens."


class _Wait:
    """Since when somebody waits for the ledger."""

    def __init__(self) -> None:
        self.since = time.monotonic()

    def answered(self) -> None:
        """Not any more: from now on for the next answer."""
        self.since = time.monotonic()


class Books:
    """One ensemble's account. While it is closed, every use raises `LedgerUnavailable`.

    A failure closes the ledger: what the database holds is only known after opening it anew, with all the
    checks of a first start. In between nothing is answered. ``when_shut`` is called then, by any thread. Why
    it failed is logged here, once: others may meet the closed ledger before whoever made it fail is heard.
    """

    def __init__(self, url: str, anchor: Path | None, model: Model, settings: Settings) -> None:
        self._url, self._anchor = url, anchor
        self._model = replace(model, people=None)  # nothing here needs their ids
        self._lock = threading.Lock()
        self._held: tuple[Ledger, Session] | None = None
        self._account: Domain | None = None
        self._guarantee: Guarantee | None = None
        self._waits: set[_Wait] = set()  # of those who wait for the ledger now
        self._hung = False  # as the log has it
        self.when_shut: Callable[[], None] = lambda: None
        self._open()
        try:
            self.choice = settings.choice(self.account)
            self._refuse_an_early_end()
        except BaseException:
            self.close()
            raise

    @property
    def account(self) -> Domain:
        """The domain's terms, which are public."""
        if self._account is None:
            raise LedgerUnavailable(_CLOSED)
        return self._account

    @property
    def guarantee(self) -> Guarantee | None:
        """What holds for everything that was and will be answered from this account: a public statement."""
        return self._guarantee

    @property
    def is_open(self) -> bool:
        """Whether answers can be paid for."""
        return self._held is not None

    @property
    def hangs(self) -> bool:
        """Whether somebody has waited for the ledger for so long that nobody else should.

        The log says when that begins, as seen by whoever looks first, and when it ends.
        """
        longest = min((wait.since for wait in list(self._waits)), default=math.inf)
        hangs = time.monotonic() - longest > PATIENCE_SECONDS
        with self._lock:
            changed, self._hung = hangs != self._hung, hangs
        if changed and hangs:
            detail = f"The ledger has not answered for {PATIENCE_SECONDS:g} seconds; nothing is released."
            _log.error("ledger", extra={"event": "ledger_hangs", "detail": detail})
        elif changed:
            _log.warning("ledger", extra={"event": "ledger_answers"})
        return hangs

    def unanswered(self) -> LedgerUnavailable:
        """What a service says that ends without its ledger."""
        return LedgerUnavailable(
            f"The ledger has not answered for {PATIENCE_SECONDS:g} seconds; the service ends without it. "
            "What was being booked was not released; tacit ledger status shows whether it is there."
        )

    @contextlib.contextmanager
    def _waiting(self) -> Iterator[_Wait]:
        wait = _Wait()
        self._waits.add(wait)
        try:
            yield wait
        finally:
            self._waits.discard(wait)
            if self._hung:
                _ = self.hangs  # for the log

    @property
    def balance(self) -> Balance:
        """As it was decided last. Sensitive."""
        return self._now()[1].balance

    @property
    def booked(self) -> Balance:
        """As it is durable. Sensitive."""
        return self._now()[1].booked

    @contextlib.contextmanager
    def using(self) -> Iterator[Ledger]:
        """The open ledger; where it fails, it is closed, to be opened anew."""
        with self.using_at_length() as (ledger, _):
            yield ledger

    @contextlib.contextmanager
    def using_at_length(self) -> Iterator[tuple[Ledger, Callable[[], None]]]:
        """The same for work of minutes, which says with each call that the ledger has answered by then."""
        held = self._now()
        try:
            with self._waiting() as wait:
                yield held[0], wait.answered
        except LedgerUnavailable as problem:
            self._shut(held, problem)
            raise

    def decide(self, draws: Sequence[Draw]) -> Decided:
        """Who answers each draw of a step; nothing may leave before `book`."""
        return self._now()[1].decide(draws)

    def book(self, decided: Decided) -> None:
        """Make a step durable. Whatever goes wrong, the ledger is closed and nothing may leave."""
        held = self._now()
        try:
            with self._waiting():
                held[1].book(decided)
        except BaseException as problem:
            if isinstance(problem, TacitError) and not isinstance(problem, LedgerUnavailable):
                refused = LedgerUnavailable("The ledger refused a step; nothing was released.")
                self._shut(held, refused)
                raise refused from problem
            self._shut(held, problem)
            raise

    def check_place(self) -> None:
        """Close where the ledger's files have gone, although nobody has asked for anything."""
        with contextlib.suppress(LedgerUnavailable), self.using() as ledger:
            ledger.check_place()

    def shut(self) -> None:
        """Close after somebody else's fault, whatever state the ledger is in."""
        held = self._held
        if held is not None:
            self._shut(held, None)

    def reopen(self) -> str | None:
        """Try to open again: None where it is open, or why it cannot be."""
        if not self.is_open:
            try:
                with self._waiting():
                    self._open()
            except Exception as problem:  # noqa: BLE001 - whatever it is, nothing leaves until it is mended
                return _for_the_log(problem)
        return None

    def close(self) -> None:
        """Let go in good order; `LedgerUnavailable` where it does not answer, and is left as it is."""
        with self._lock:
            held, self._held = self._held, None
        if held is None:
            return
        ledger, failed = held[0], list[BaseException]()

        def let_go() -> None:
            try:
                with self._waiting():
                    ledger.close()
            except BaseException as problem:  # noqa: BLE001 - raised below, by whoever closes
                failed.append(problem)

        closing = threading.Thread(target=let_go, name="tacit-close", daemon=True)
        closing.start()
        while closing.is_alive():
            closing.join(_LOOK_SECONDS)
            if self.hangs and closing.is_alive():
                raise self.unanswered()
        if failed:
            raise failed[0]

    def _now(self) -> tuple[Ledger, Session]:
        held = self._held
        if held is None:
            raise LedgerUnavailable(_CLOSED)
        return held

    def _shut(self, failed: tuple[Ledger, Session], cause: BaseException | None) -> None:
        with self._lock:
            if self._held is not failed:
                return  # somebody was faster, or it is open again
            self._held = None
        if cause is not None:
            _log.error("ledger", extra={"event": "ledger_failed", "detail": _for_the_log(cause)})
        with contextlib.suppress(TacitError, OSError):
            failed[0].store.close()  # not ledger.close(): a ledger that failed must not move its anchor
        self.when_shut()

    def _refuse_an_early_end(self) -> None:
        """Refuse a price that would stop a counted domain at once, while the last price still could be paid.

        Only at the start, and only where the budget is counted: there all of this is public, and elsewhere
        nobody may learn it. What is left by the last price alone is the end of most budgets, and no mistake.
        """
        if self.account.rule.spending != "counted" or self.booked.stopped:
            return
        left = min(self.booked.left)
        if left >= nano(self.choice.target):
            return
        with self.using() as ledger:
            payable = ledger.last_charge(self.account.id)
        if left < (payable or 1):
            return
        raise InputError(
            f"Domain {self.account.id} has {left / NANO} nats left, and the first question at the price of "
            f"target={self.choice.target} (epsilon/queries, where none is given) would stop it for good; "
            f"give a price that it pays for, e.g. --target {price_of(payable or left)}."
        )

    def _open(self) -> None:
        ledger = Ledger.open(self._url, anchor=self._anchor)
        try:
            name = ledger.domain_of(self._model.fingerprint)
            if name is None:
                raise InputError(
                    f"The ledger {ledger.store.name} has no budget for {self._model.name}; attach it where "
                    "its people have an account (tacit ledger attach), or open one for people who have none "
                    "(tacit ledger init RUN --epsilon 2)."
                )
            account = ledger.domain(name)
            if self._account not in (None, account):
                raise InputError(f"{ledger.store.name} has other terms than at the start; start again.")
            # Of an older ledger, which let such an ensemble in. Its people have this one account for good.
            account.check_halves(self._model, instead=", with the same ensemble.key, and attach that")
            session = Session(
                ledger,
                name,
                model=self._model.fingerprint,
                mechanism=account.mechanism,
                order=account.order,
            )
            guarantee = statement(ledger, name).guarantee
        except BaseException:
            ledger.close()
            raise
        with self._lock:
            self._held, self._account, self._guarantee = (ledger, session), account, guarantee


def _for_the_log(problem: BaseException) -> str:
    if isinstance(problem, IntegrityError):
        # Not its words, which number entries: with the tokens served they would tell a stop.
        return f"{type(problem).__name__}; tacit ledger status says what is wrong"
    return str(problem) if isinstance(problem, TacitError | OSError) else type(problem).__name__
