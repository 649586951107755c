"""From a request to its pieces: what is checked before anything is drawn, and what is kept while it runs.

Quotas and counted budgets are reserved for the longest answer that a request may get, so that none of those
running together can pass them. A repeated request (Idempotency-Key) gets what was paid for again, for
nothing, and is then continued.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import math
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TypeVar

from tacit.ledger import OPERATOR, Access, Ledger, Request
from tacit.mechanisms import Decoding
from tacit.models.ensemble import Ensemble
from tacit.privacy import Guarantee
from tacit.serving import problems
from tacit.serving.books import Books
from tacit.serving.engine import Engine, Text
from tacit.serving.metrics import Metrics
from tacit.serving.settings import Settings
from tacit.serving.workers import Workers
from tacit.serving.writing import Finish, Piece, Writing

_T = TypeVar("_T")
_LET_GO_SECONDS = 10.0
_LET_GO_LOOK_SECONDS = 0.05
_LOOK_SECONDS = 1.0  # how often those who wait look whether the ledger hangs
_KEY_SECONDS = 86_400.0  # how long an Idempotency-Key stands for its request
_SWEEP_SECONDS = 3_600.0
_CHARACTERS_PER_TOKEN = 64  # text has three to five


@dataclass(frozen=True)
class Question:
    """What a request asks for, once its fields are understood.

    prompts   token ids, start token included
    choices   answers to each prompt
    key       its Idempotency-Key, and ``body`` the bytes that must be the same with it
    """

    tenant: str
    prompts: Sequence[Sequence[int]]
    choices: int
    max_tokens: int
    decoding: Decoding
    stop: tuple[str, ...] = ()
    stop_tokens: frozenset[int] = frozenset()
    key: str | None = None
    body: bytes = b""


@dataclass(frozen=True)
class Written:
    """A piece of one of the answers."""

    choice: int
    text: str
    finish: Finish | None


class Conversation:
    """One request while it is answered."""

    def __init__(self, request: Request, question: Question, texts: Sequence[Text]) -> None:
        self.request = request
        self.prompt_tokens = sum(len(prompt) for prompt in question.prompts)
        self._texts = texts
        self._earlier = self.completion_tokens

    @property
    def completion_tokens(self) -> int:
        """Tokens of its answers that are booked, now or earlier."""
        return sum(text.paid for text in self._texts)

    @property
    def booked_tokens(self) -> int:
        """Those that were booked for it, and not for an earlier request that it repeats."""
        return self.completion_tokens - self._earlier


@dataclass
class _Open:
    """A request that is being answered, and how many still hold it: whoever asked, and the engine."""

    texts: Sequence[Text] = ()
    holders: int = 1
    asked: bool = True  # whether somebody still waits for it


class Service:
    """An ensemble, its books and its engine."""

    def __init__(self, name: str, ensemble: Ensemble, books: Books, settings: Settings) -> None:
        self.name, self.settings, self.books = name, settings, books
        self.tokenizer = ensemble.public.tokenizer
        # A copy for the engine's thread: encoding changes settings that decoding must not meet half-way.
        self._decoder = replace(self.tokenizer, tokenizer=copy.deepcopy(self.tokenizer.tokenizer))
        name_of_base = ensemble.public.name
        # Of a folder the last word only: the rest is about this machine.
        self.public_model = Path(name_of_base).name if Path(name_of_base).is_absolute() else name_of_base
        self.metrics = Metrics()
        self.engine = Engine(ensemble, books, settings, self.metrics)
        self.started = time.time()
        self._swept = -math.inf
        self.draining = threading.Event()  # set when the service is asked to end
        self._lock = threading.Lock()  # of what is open, held for a moment only
        self._reserving = threading.Lock()  # one reservation at a time; the ledger is read meanwhile
        self._encoding = threading.Lock()
        self._open: dict[str, _Open] = {}  # by request, until nothing more can be booked for it
        self._workers = Workers(books)
        with books.using() as ledger:
            Access(ledger).ensure_tenant(OPERATOR)

    @property
    def guarantee(self) -> Guarantee | None:
        """What holds for everything that was and will be answered from this account: a public statement."""
        return self.books.guarantee

    @property
    def ready(self) -> bool:
        """Whether a question would be answered now."""
        return self.engine.ready

    def close(self) -> None:
        """Finish what runs, and close the ledger; one that does not answer is left: `LedgerUnavailable`."""
        self.draining.set()
        self.engine.close()
        self._workers.close()
        self.books.close()

    async def in_thread(self, work: Callable[[], _T]) -> _T:
        """Do what may wait for the ledger or take a while, off the loop; errors become problems."""
        return await self._workers.do(work)

    async def with_ledger(self, work: Callable[[Ledger], _T]) -> _T:
        """The same, with the ledger; where it fails, it is opened anew."""

        def use() -> _T:
            with self.books.using() as ledger:
                return work(ledger)

        return await self.in_thread(use)

    async def tenant_for(self, key: str) -> str | None:
        """Whose key this is."""
        return await self.with_ledger(lambda ledger: Access(ledger).tenant_for(key))

    async def encoded(self, encode: Callable[[], _T]) -> _T:
        """What the tokenizer makes of a text: one at a time, for it keeps settings between calls."""

        def alone() -> _T:
            with self._encoding:
                return encode()

        return await self.in_thread(alone)

    @contextlib.asynccontextmanager
    async def answering(
        self, question: Question
    ) -> AsyncIterator[tuple[Conversation, AsyncIterator[Written]]]:
        """Admit a question and give its pieces as they are paid for; leaving ends it, whatever is left.

        Everything that can be refused is refused before the first piece.
        """
        self.check_length(question.prompts, question.max_tokens)
        loop = asyncio.get_running_loop()
        queue: asyncio.Queue[Written | problems.Problem] = asyncio.Queue()
        request = await self._claimed(question)
        texts: Sequence[Text] = ()
        try:
            texts, earlier = await self.in_thread(
                lambda: self._texts(
                    question, request, lambda choice: _Delivery(loop, queue, choice, self.metrics)
                )
            )
            await self.in_thread(lambda: self._reserve(request, question.tenant, texts))
            conversation = Conversation(request, question, texts)  # before the engine can book anything
            self._submit(request, [text for text in texts if not text.writing.finish])
            yield conversation, self._pieces(queue, earlier, len(texts))
        finally:
            self.engine.cancel(texts)
            with self._lock:
                self._open[request.id].asked = False
            self._let_go(request)

    async def _pieces(
        self, queue: asyncio.Queue[Written | problems.Problem], earlier: Sequence[Written], choices: int
    ) -> AsyncIterator[Written]:
        unfinished = set(range(choices))
        for written in earlier:
            yield written
            if written.finish:
                unfinished.discard(written.choice)
        while unfinished:
            try:
                found = await asyncio.wait_for(queue.get(), _LOOK_SECONDS)
            except TimeoutError:
                if self.books.hangs:
                    raise problems.ledger_unavailable() from None
                continue
            if isinstance(found, problems.Problem):
                raise found
            yield found
            if found.finish:
                unfinished.discard(found.choice)

    def _submit(self, request: Request, texts: Sequence[Text]) -> None:
        if not texts:
            return
        with self._lock:
            self._open[request.id].holders += len(texts)  # the engine holds each
        try:
            self.engine.submit(texts)
        except problems.Problem:
            for _ in texts:
                self._let_go(request)
            raise

    def _let_go(self, request: Request) -> None:
        """One holder less; after the last one the same request may come again."""
        with self._lock:
            self._open[request.id].holders -= 1
            if not self._open[request.id].holders:
                del self._open[request.id]

    def check_characters(self, characters: int) -> None:
        """Refuse, before the tokenizer keeps others waiting, what is far too long in any language."""
        if characters > _CHARACTERS_PER_TOKEN * self.engine.context:
            raise problems.far_too_long(characters, self.engine.context)

    def check_length(self, prompts: Sequence[Sequence[int]], max_tokens: int) -> None:
        """Refuse what the context cannot hold; prompts have their start token."""
        for prompt in prompts:
            # The last token that is drawn is never read.
            needed = len(prompt) + max_tokens - 1
            if needed > self.engine.context:
                raise problems.too_long(needed, self.engine.context)

    async def _claimed(self, question: Question) -> Request:
        """The request's id; refused while one with the same key is being answered."""
        request = await self.in_thread(lambda: self._known(question))
        # Whoever asked has all of it, or has gone: the engine lets go when its step is booked. Without a
        # thread, or a few who ask for the same would keep everybody else from the ledger.
        until = time.monotonic() + _LET_GO_SECONDS
        while not self._take(request):
            if self.books.hangs:
                raise problems.ledger_unavailable()
            if time.monotonic() > until:
                raise problems.still_running()
            await asyncio.sleep(_LET_GO_LOOK_SECONDS)
        return request

    def _known(self, question: Question) -> Request:
        with self.books.using() as ledger:
            access = Access(ledger)
            self._forget_old_keys(access)
            return access.request(question.tenant, question.key, question.body)

    def _take(self, request: Request) -> bool:
        """Hold a request, if nobody does; refused where somebody waits for its answer."""
        with self._lock:
            held = self._open.get(request.id)
            if held is None:
                self._open[request.id] = _Open()
            elif held.asked:
                raise problems.still_running()
        return held is None

    def _forget_old_keys(self, access: Access) -> None:
        if time.monotonic() - self._swept > _SWEEP_SECONDS:
            self._swept = time.monotonic()
            before = datetime.now(UTC) - timedelta(seconds=_KEY_SECONDS)
            access.forget_requests(before.isoformat(timespec="milliseconds"))

    def _texts(
        self, question: Question, request: Request, delivery: Callable[[int], _Delivery]
    ) -> tuple[list[Text], list[Written]]:
        """The answers to write, and what of them was paid for before."""
        texts, earlier = [], []
        prompts = [prompt for prompt in question.prompts for _ in range(question.choices)]
        for choice, prompt in enumerate(prompts):
            writing = Writing(
                self._decoder,
                most=question.max_tokens,
                stop=question.stop,
                stop_tokens=question.stop_tokens,
            )
            text_id = f"{request.id}/{choice}"
            for token in self._paid(text_id) if question.key is not None else ():
                if writing.finish:  # the service's limits were others then
                    break
                piece = writing.add(token)
                earlier.append(Written(choice, piece.text, piece.finish))
            owed = 0 if writing.finish else question.max_tokens - len(writing.tokens)
            texts.append(
                Text(
                    text_id,
                    question.tenant,
                    prompt,
                    question.decoding,
                    writing,
                    deliver=delivery(choice),
                    let_go=lambda: self._let_go(request),
                    owed=owed,
                    paid=len(writing.tokens),
                )
            )
        return texts, earlier

    def _paid(self, text_id: str) -> list[int]:
        with self.books.using() as ledger:
            return ledger.tokens_of(self.books.account.id, text_id)

    def _reserve(self, request: Request, tenant: str, texts: Sequence[Text]) -> None:
        """Set aside what the longest answers may need, of the tenant's quota and of a counted budget."""
        wanted = sum(text.owed for text in texts)
        if not wanted:  # all of it was paid for, whatever is left now
            return
        with self._reserving:
            # First what is owed, then what is left: what is booked in between counts twice, never not at all.
            with self._lock:
                running = [text for held in self._open.values() for text in held.texts]
                everybody = sum(text.owed for text in running)
                mine = sum(text.owed for text in running if text.tenant == tenant)
            with self.books.using() as ledger:
                left = Access(ledger).tenant(tenant).tokens_left
            if left is not None and wanted > left - mine:
                raise problems.quota(left, mine, wanted)
            paid_for = self._private_answers_left()
            if paid_for is not None and wanted > paid_for - everybody:
                raise problems.exhausted(paid_for, everybody, wanted)
            with self._lock:
                self._open[request.id].texts = texts

    def _private_answers_left(self) -> int | None:
        """Where a used-up budget is an error: how many answers it still pays for, which is public."""
        if self.settings.on_exhausted != "error":
            return None
        return self.books.booked.pays_for(self.books.choice.target)


class _Delivery:
    """Hands pieces from the clerk's thread to a request's own."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        queue: asyncio.Queue[Written | problems.Problem],
        choice: int,
        metrics: Metrics,
    ) -> None:
        self._loop, self._queue, self._choice, self._metrics = loop, queue, choice, metrics
        self._last = time.perf_counter()
        self._delivered = 0

    def __call__(self, found: Piece | problems.Problem) -> None:
        if isinstance(found, Piece):
            now = time.perf_counter()
            since, self._last = now - self._last, now
            if self._delivered:
                self._metrics.between_tokens.add(since)
            else:
                self._metrics.first(since)
            self._delivered += 1
            given: Written | problems.Problem = Written(self._choice, found.text, found.finish)
        else:
            given = found
        with contextlib.suppress(RuntimeError):  # the loop has ended, and with it whoever asked
            self._loop.call_soon_threadsafe(self._queue.put_nowait, given)
