"""Threads for what may wait for the ledger, and a bounded line in front of them.

Nobody waits for a ledger that hangs: whoever waits is told, whoever comes is refused at once, and what
nobody waits for any more is not begun.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from tacit.errors import TacitError
from tacit.serving import problems
from tacit.serving.books import Books

_T = TypeVar("_T")
_THREADS = 16
_MOST = 256  # pieces of work that are done or wait; a full line turns away
_LOOK_SECONDS = 1.0  # how often those who wait look whether the ledger hangs
_CLOSING_LOOK_SECONDS = 0.2


class Workers:
    """Does work off the loop, for as long as somebody waits for it."""

    def __init__(self, books: Books) -> None:
        self._books = books
        self._threads = concurrent.futures.ThreadPoolExecutor(_THREADS, thread_name_prefix="tacit-door")
        self._places = threading.Semaphore(_MOST)
        self._given: set[concurrent.futures.Future[Any]] = set()

    async def do(self, work: Callable[[], _T]) -> _T:
        """What work brings; errors become problems."""
        self._refuse_if_it_hangs()
        if not self._places.acquire(blocking=False):
            raise problems.overloaded()
        wanted = threading.Event()
        wanted.set()
        try:
            given = self._threads.submit(self._begin, work, wanted)
        except RuntimeError:  # the service has ended
            self._places.release()
            raise problems.closing() from None
        self._given.add(given)
        given.add_done_callback(self._given.discard)
        running = asyncio.wrap_future(given)
        try:
            while not (await asyncio.wait([running], timeout=_LOOK_SECONDS))[0]:
                self._refuse_if_it_hangs()
            return running.result()
        except TacitError as error:
            raise problems.problem_of(error) from error
        finally:
            wanted.clear()
            # Not cancelled: its place in the line is free when it is taken from there, and not before.
            running.add_done_callback(lambda done: done.cancelled() or done.exception())

    def _refuse_if_it_hangs(self) -> None:
        if self._books.hangs:
            raise problems.ledger_unavailable()

    def _begin(self, work: Callable[[], _T], wanted: threading.Event) -> _T:
        try:
            if not wanted.is_set():
                raise problems.ledger_unavailable()  # which nobody hears
            return work()
        finally:
            self._places.release()

    def close(self) -> None:
        """Begin nothing more and wait for what has begun; `LedgerUnavailable` where the ledger hangs."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        while waiting := {future for future in list(self._given) if not future.done()}:
            concurrent.futures.wait(waiting, timeout=_CLOSING_LOOK_SECONDS)
            if self._books.hangs:
                raise self._books.unanswered()
