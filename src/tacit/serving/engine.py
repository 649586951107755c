"""Continuous batching: many texts in one forward pass, one durable transaction per step, then the release.

    admit -> read a chunk of questions -> one forward pass for all texts -> mix, draw -> decide
                     ^                                                                     |
                     |                   the next pass runs while this one becomes durable |
                     +------------------------------------------------- clerk: book -> release

The order is the guarantee: a piece of text is handed to its request by the clerk, after its step is booked.
What a step costs in time is a function of how many texts there are and how long: whether the budget is used
up, and what the private models say, changes nothing.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tacit.errors import LedgerUnavailable, TacitError
from tacit.ledger import Decided, Draw
from tacit.mechanisms import Decoding
from tacit.mechanisms.decoding import token_at
from tacit.models.ensemble import Ensemble
from tacit.models.executor import EnsembleExecutor
from tacit.models.executor_lazy import LazyExecutor
from tacit.prediction import Drawing, Drawn
from tacit.serving import problems
from tacit.serving.books import Books
from tacit.serving.metrics import Metrics
from tacit.serving.settings import Settings
from tacit.serving.writing import Piece, Writing

_log = logging.getLogger("tacit.serving")
_RETRY_SECONDS = 1.0
_LOOK_SECONDS = 0.2
_REST_SECONDS = 1.0  # how often an engine at rest looks whether its ledger is there


@dataclass(eq=False)
class Text:
    """One answer that is asked for, and how far it has come.

    id       what its tokens are booked under
    tenant   who asked
    prompt   the tokens to continue, start token included
    writing  what has been written; tokens that were paid for earlier are in it already
    deliver  takes pieces once they are paid for, from another thread; a `Problem` ends it
    let_go   called when the engine is done with it: nothing more will be booked under its id
    """

    id: str
    tenant: str
    prompt: Sequence[int]
    decoding: Decoding
    writing: Writing
    deliver: Callable[[Piece | problems.Problem], None]
    let_go: Callable[[], None]
    owed: int = 0  # tokens that it may still get and that are not booked yet
    paid: int = 0  # tokens of it that are booked, those of earlier requests included
    cancelled: bool = False
    slot: int = -1
    read: int = 0  # tokens that the models have read

    @property
    def tokens(self) -> list[int]:
        """Everything so far."""
        return [*self.prompt, *self.writing.tokens]


class _Queries:
    """What texts ask in one step: distributions, each made when it is mixed.

    It then has the memory of the one before, which is in cache still. What became of them is known after
    they were gone through: ``asked`` has the tokens that truncation kept (None: all), ``failed`` the rest.
    """

    def __init__(self, texts: Sequence[Text], logits: Tensor) -> None:
        self._texts, self._logits = texts, logits
        self.asked: list[tuple[Text, Tensor | None]] = []
        self.failed: list[tuple[Text, TacitError]] = []

    def __len__(self) -> int:
        return len(self._texts)

    def __iter__(self) -> Iterator[Tensor]:
        self.asked, self.failed = [], []
        for row, text in enumerate(self._texts):
            try:
                decoded = text.decoding.pmfs(self._logits[:, row], text.tokens, text.writing.tokens)
            except TacitError as fault:
                self.failed.append((text, fault))
                continue
            self.asked.append((text, decoded.tokens))
            yield decoded.pmfs


class Engine:
    """Writes many answers at once.

    ``submit`` takes texts until ``close``. One thread runs the models, another the ledger.
    """

    def __init__(self, ensemble: Ensemble, books: Books, settings: Settings, metrics: Metrics) -> None:
        self._books, self._settings, self._metrics = books, settings, metrics
        self.context = min(settings.context, ensemble.public.context_length)
        # One part per token where that is the same mechanism for less work.
        self.lazy = books.choice.name == "certified" and ensemble.halves == 1 and ensemble.has_adapters
        self._drawing = Drawing(books.choice, parts=ensemble.parts, halves=ensemble.halves, lazy=self.lazy)
        self._executor: EnsembleExecutor | LazyExecutor = (
            ensemble.lazy_executor(slots=settings.slots, context=self.context)
            if self.lazy
            else ensemble.executor(slots=settings.slots, context=self.context)
        )
        self._changed = threading.Condition()
        self._waiting: deque[Text] = deque()
        self._reading: list[Text] = []
        self._writing: list[Text] = []
        self._leaving: list[Text] = []
        self._closing = self._given_up = False
        self._booking: Future[None] | None = None
        self._clerk = ThreadPoolExecutor(1, thread_name_prefix="tacit-ledger")
        self._thread = threading.Thread(target=self._run, name="tacit-engine", daemon=True)
        self._reason: str | None = None  # why the ledger could not be opened again, last time
        books.when_shut = self._wake

    def start(self) -> None:
        """Begin to answer."""
        self._thread.start()

    def close(self) -> None:
        """Finish what was begun, book it, and end; `LedgerUnavailable` where the ledger does not answer."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        while self._thread.is_alive():
            self._thread.join(_LOOK_SECONDS)
            if self._books.hangs and self._thread.is_alive():
                self._clerk.shutdown(wait=False)
                raise self._books.unanswered()
        self._clerk.shutdown()

    def give_up(self) -> None:
        """End what runs with a problem, after the step that is being booked: the time to finish is over."""
        with self._changed:
            self._given_up = True
            self._changed.notify_all()

    @property
    def ready(self) -> bool:
        """Whether it would take a text now."""
        taking = self._thread.is_alive() and not self._closing and not self._given_up
        return taking and self._books.is_open and not self._books.hangs

    @property
    def load(self) -> tuple[int, int]:
        """Texts that are being answered, and texts that wait."""
        with self._changed:
            return len(self._reading) + len(self._writing), len(self._waiting)

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def submit(self, texts: Sequence[Text]) -> None:
        """Queue texts: all of them or none."""
        with self._changed:
            if self._thread.ident is not None and not self._thread.is_alive() and not self._closing:
                raise problems.internal()
            if self._closing or self._given_up:
                raise problems.closing()
            if not self._books.is_open or self._books.hangs:
                raise problems.ledger_unavailable()
            free = self._settings.slots - len(self._reading) - len(self._writing)
            if len(self._waiting) + len(texts) > self._settings.waiting + free:
                raise problems.overloaded()
            self._waiting.extend(texts)
            self._changed.notify_all()

    def cancel(self, texts: Sequence[Text]) -> None:
        """Nobody waits for these any more: no further token of them is drawn."""
        with self._changed:
            for text in texts:
                text.cancelled = True
            self._changed.notify_all()

    # The engine's own thread

    def _run(self) -> None:
        while True:
            with self._changed:
                if self._rests():
                    self._changed.wait(_REST_SECONDS)
                rests = self._rests()
                if self._closing and not self._busy():
                    return
            if rests:
                self._books.check_place()  # a step would; so that readiness is true where there is none
                continue
            try:
                if not self._books.is_open:
                    self._recover()
                    continue
                if self._given_up:
                    self._end_all(problems.closing())
                    continue
                with torch.inference_mode():
                    self._turn()
                for text in self._leaving:
                    self._clerk.submit(text.let_go)  # behind the last step that it was part of
                self._leaving = []
            except LedgerUnavailable:  # the books have logged why
                self._abandon(problems.ledger_unavailable())
            except Exception as fault:  # noqa: BLE001 - one faulty step must not end the service
                # Not the fault's words: they may hold numbers that came from private text.
                _log.error("fault", extra={"event": "engine_fault", "detail": type(fault).__name__})
                self._abandon(problems.internal())

    def _rests(self) -> bool:
        return not self._closing and not self._busy() and self._books.is_open

    def _busy(self) -> bool:
        return bool(self._waiting or self._reading or self._writing or self._booking)

    def _recover(self) -> None:
        """After the ledger failed: everybody is told, and it is opened anew once that is possible."""
        self._abandon(problems.ledger_unavailable())
        reason = self._books.reopen()
        if reason is None:
            _log.warning("ledger", extra={"event": "ledger_recovered"})
        elif reason != self._reason:
            _log.error("ledger", extra={"event": "ledger_closed", "detail": reason})
        self._reason = reason
        if reason is None:
            return
        with self._changed:
            if not self._closing:
                self._changed.wait(_RETRY_SECONDS)

    def _abandon(self, problem: problems.Problem) -> None:
        """End all texts with a problem. What was decided and not booked is forgotten."""
        with contextlib.suppress(Exception):
            self._settle()
        # A step may have been decided that will never be booked: begin again from what is durable. First, so
        # that nobody who is told, and asks again, meets a ledger that is about to be closed.
        self._books.shut()
        self._end_all(problem)

    def _end_all(self, problem: problems.Problem) -> None:
        with contextlib.suppress(Exception):
            self._settle()
        with self._changed:
            texts = [*self._reading, *self._writing, *self._waiting]
            self._reading, self._writing = [], []
            self._waiting.clear()
        self._leave(texts)
        leaving, self._leaving = self._leaving, []
        for text in leaving:  # those too whose last token will never be booked
            text.deliver(problem)
            text.let_go()

    def _turn(self) -> None:
        """One round: admit, read a little, one step for all that can be continued."""
        self._admit()
        self._read_a_chunk()
        if not self._writing:
            self._settle()
            return
        began = time.perf_counter()
        texts, drawn = self._draw(list(self._writing))
        draws = [
            Draw(text.id, len(text.writing.tokens), text.tenant, one.charges, one.private, one.public)
            for text, one in zip(texts, drawn, strict=True)
        ]
        decided = self._books.decide(draws)
        pieces = [
            (text, text.writing.add(answer.token))
            for text, answer in zip(texts, decided.answers, strict=True)
        ]
        for text, _ in pieces:
            text.read += 1
        self._evict([text for text in texts if text.writing.finish or text.cancelled])
        self._settle()  # the step before is durable now, or all of this is forgotten
        self._booking = self._clerk.submit(self._book_and_release, decided, pieces, drawn)
        self._metrics.step(time.perf_counter() - began)

    def _admit(self) -> None:
        with self._changed:
            given_up = [text for text in self._waiting if text.cancelled]
            for text in given_up:
                self._waiting.remove(text)
            gone = [text for text in (*self._reading, *self._writing) if text.cancelled]
            free = self._settings.slots - len(self._reading) - len(self._writing) + len(gone)
            admitted = [self._waiting.popleft() for _ in range(min(free, len(self._waiting)))]
            self._reading.extend(admitted)  # at once, so that no fault can lose one
        self._evict(gone)
        self._leave(given_up)
        for text in admitted:
            text.slot = self._executor.open()

    def _read_a_chunk(self) -> None:
        """Read questions, all but their last token, which the next step reads with everybody else's.

        A piece that is longer than what is left of the budget waits for the next turn: in two pieces it
        would keep everybody waiting for longer.
        """
        budget = self._settings.chunk
        while self._reading and budget > 0:
            text = self._reading[0]
            tokens = text.tokens
            piece = tokens[text.read : min(len(tokens) - 1, text.read + self._settings.chunk)]
            if len(piece) > budget:
                return
            if piece:
                self._executor.read(text.slot, piece)
                text.read += len(piece)
                budget -= len(piece)
            if text.read == len(tokens) - 1:
                self._reading.pop(0)
                self._writing.append(text)

    def _draw(self, texts: Sequence[Text]) -> tuple[list[Text], list[Drawn]]:
        """One query for each text; a text whose own settings make that impossible ends, and no other."""
        slots, last = [text.slot for text in texts], [text.tokens[-1] for text in texts]
        if isinstance(self._executor, LazyExecutor):
            logits = self._executor.step(slots, last, [self._drawing.secret_slot() for _ in texts])
        else:
            logits = self._executor.step(slots, last)
        queries = _Queries(texts, logits)
        answers = self._drawing.draw(queries, self._books.balance.left)
        for text, fault in queries.failed:
            self._end(text, fault)
        going, drawn = [], []
        for (text, kept), one in zip(queries.asked, answers, strict=True):
            if isinstance(one, TacitError):
                self._end(text, one)
                continue
            private, public = token_at(one.private, kept), token_at(one.public, kept)
            going.append(text)
            drawn.append(replace(one, private=private, public=public))
        return going, drawn

    def _end(self, text: Text, fault: TacitError) -> None:
        _log.error("fault", extra={"event": "text_fault", "detail": type(fault).__name__})
        text.deliver(problems.internal())
        self._evict([text])

    def _settle(self) -> None:
        """Wait until the last step is durable; raises what went wrong with it."""
        booking, self._booking = self._booking, None
        if booking is not None:
            booking.result()

    def _evict(self, texts: Sequence[Text]) -> None:
        gone = set(map(id, texts))
        self._reading = [text for text in self._reading if id(text) not in gone]
        self._writing = [text for text in self._writing if id(text) not in gone]
        self._leave(texts)

    def _leave(self, texts: Sequence[Text]) -> None:
        self._leaving.extend(texts)
        for text in texts:
            slot, text.slot = text.slot, -1
            if slot >= 0:
                try:
                    self._executor.close(slot)
                except Exception as fault:  # noqa: BLE001 - the slot is lost; those who wait must not be
                    _log.error("fault", extra={"event": "slot_fault", "detail": type(fault).__name__})

    # The clerk's thread

    def _book_and_release(
        self, decided: Decided, pieces: Sequence[tuple[Text, Piece]], drawn: Sequence[Drawn]
    ) -> None:
        began = time.perf_counter()
        try:
            self._books.book(decided)
        except BaseException:
            for text, _ in pieces:  # some of them have left the engine already
                text.deliver(problems.ledger_unavailable())
            raise
        for text, piece in pieces:
            text.owed = 0 if piece.finish else text.owed - 1
            text.paid += 1
            text.deliver(piece)
        self._metrics.booked(time.perf_counter() - began, drawn)
