"""A ledger that neither answers nor fails: who waits is told, who comes is refused, and a service can end."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import tacit.ledger.verification
from tacit.errors import LedgerUnavailable
from tacit.ledger import Access, Ledger
from tacit.serving.admin import admin_app
from tacit.serving.api import public_app
from tacit.serving.books import Books
from tacit.serving.problems import Problem
from tacit.serving.service import Service, _Open
from tests.ledger.conftest import new_database
from tests.serving.conftest import TENANT, NewPlace, ledger_of, serving
from tests.serving.test_engine import answers, question
from tests.serving.test_faults import session_of, wait_until, whole


@pytest.fixture
def little_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tacit.serving.books.PATIENCE_SECONDS", 1.0)


@contextlib.contextmanager
def hanging(service: Service) -> Iterator[None]:
    """Nothing that the ledger is asked for comes back, until the block ends."""
    store, go_on, held = ledger_of(service).store, threading.Event(), threading.Event()

    def hold() -> None:
        with store._mutex:
            held.set()
            go_on.wait(120)

    holder = threading.Thread(target=hold, daemon=True)
    holder.start()
    assert held.wait(30)
    try:
        yield
    finally:
        go_on.set()
        holder.join(30)


class Ending(threading.Thread):
    """Closes a service, and keeps what it says."""

    def __init__(self, service: Service) -> None:
        super().__init__(daemon=True)
        self._service = service
        self.said: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self._service.close()
        except BaseException as problem:  # noqa: BLE001 - looked at by the test
            self.said = problem

    def gave_up(self) -> bool:
        self.join(30)
        assert not self.is_alive(), "the service never ended"
        return isinstance(self.said, LedgerUnavailable) and "has not answered" in str(self.said)


def started(place: NewPlace) -> Service:
    service = place().idle_service()
    service.engine.start()
    return service


def in_background(asking: Coroutine[Any, Any, Any]) -> threading.Thread:
    def ask() -> None:
        with contextlib.suppress(Problem):
            asyncio.run(asking)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    return thread


@pytest.mark.usefixtures("little_patience")
def test_an_idle_service_ends_although_its_ledger_hangs(place: NewPlace) -> None:
    """The first to notice is whoever closes: there is an anchor to write."""
    service = started(place)
    with hanging(service):
        assert Ending(service).gave_up()


@pytest.mark.usefixtures("little_patience")
def test_so_does_one_that_somebody_has_just_asked(place: NewPlace) -> None:
    """It hangs, and nobody can know yet."""
    service = started(place)
    with hanging(service):
        asking = in_background(service.tenant_for("a key"))
        wait_until(lambda: bool(service.books._waits), "somebody waited")
        assert not service.books.hangs
        assert Ending(service).gave_up()
        asking.join(30)


@pytest.mark.usefixtures("little_patience")
def test_the_log_says_once_that_it_hangs_and_that_it_answers(
    place: NewPlace, caplog: pytest.LogCaptureFixture
) -> None:
    def lines() -> list[str]:
        said = [record.event for record in caplog.records if record.name == "tacit.serving"]  # type: ignore[attr-defined]
        # Of this service: one of an earlier test may still be going, and its ledger answer only now.
        return said[said.index("ledger_hangs") :] if "ledger_hangs" in said else []

    with caplog.at_level("WARNING", "tacit.serving"), place().service() as service:
        with hanging(service):
            told(asyncio.run(keyless(service, 3)))
            told(asyncio.run(keyless(service, 3)))
            assert lines() == ["ledger_hangs"]
        wait_until(lambda: service.ready, "the ledger answered again")
        wait_until(lambda: lines() == ["ledger_hangs", "ledger_answers"], "the log said so")


async def post(app: Any, path: str) -> httpx.Response:
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
        return await http.post(path, timeout=60)


@pytest.mark.usefixtures("little_patience")
def test_so_does_one_that_is_verifying(place: NewPlace) -> None:
    service = started(place)
    with hanging(service):
        found: list[int] = []

        async def verify() -> None:
            found.append((await post(admin_app(service), "/admin/verify")).status_code)

        asking = in_background(verify())
        wait_until(lambda: bool(service.books._waits), "somebody waited")
        assert Ending(service).gave_up()
        asking.join(30)
        assert found == [503]


@pytest.mark.usefixtures("little_patience")
def test_a_long_verification_is_no_hang(place: NewPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Page by page the ledger answers, for longer than anybody would wait for one."""
    page = tacit.ledger.verification._page

    def slow(ledger: Ledger, domain: str, first: int, most: int = 1) -> Any:
        time.sleep(0.25)
        return page(ledger, domain, first, most)

    with place().service() as service:
        answers(service, question(service, max_tokens=6))
        monkeypatch.setattr(tacit.ledger.verification, "_page", slow)
        began = time.monotonic()
        response = asyncio.run(post(admin_app(service), "/admin/verify"))
        assert response.json()["verified"] is True
        assert time.monotonic() - began > 1.0
        assert service.ready


@pytest.mark.slow
def test_an_idle_server_ends_although_its_database_hangs(place: NewPlace, postgres: str) -> None:
    account = place(ledger=new_database(postgres))
    with serving(account, "--queries", "1000", "--drain", "1") as server, server.http() as http:
        assert whole(server, http).status_code == 200
        backend = session_of(account.ledger)
        os.kill(backend, signal.SIGSTOP)
        try:
            assert server.stop() == 3
        finally:
            os.kill(backend, signal.SIGCONT)
    assert "has not answered" in server.log[-1]


# Those who come meanwhile


def keyless(service: Service, times: int) -> Coroutine[Any, Any, list[httpx.Response]]:
    """So many requests at once, with a key that opens nothing."""

    async def ask() -> list[httpx.Response]:
        transport = httpx.ASGITransport(public_app(service))
        headers = {"authorization": "Bearer wrong"}
        async with httpx.AsyncClient(transport=transport, base_url="http://here", headers=headers) as http:
            return await asyncio.gather(*(http.get("/v1/models", timeout=60) for _ in range(times)))

    return ask()


def told(responses: list[httpx.Response]) -> Counter[str]:
    assert {response.status_code for response in responses} == {503}
    return Counter(response.json()["error"]["code"] for response in responses)


@pytest.mark.usefixtures("little_patience")
def test_who_comes_while_it_hangs_is_refused_at_once_and_leaves_no_work(
    place: NewPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_up: list[str] = []
    tenant_for = Access.tenant_for

    def counted(self: Access, key: str) -> str | None:
        looked_up.append(key)
        return tenant_for(self, key)

    monkeypatch.setattr(Access, "tenant_for", counted)
    with place().service() as service:
        with hanging(service):
            assert set(told(asyncio.run(keyless(service, 40)))) == {"ledger_unavailable"}
            assert set(told(asyncio.run(keyless(service, 300)))) == {"ledger_unavailable"}
            begun = len(looked_up)
            assert begun < 40, "as many as there are threads"
        wait_until(lambda: service.ready, "the ledger answered again")
        assert [response.status_code for response in asyncio.run(keyless(service, 5))] == [401] * 5
        assert len(looked_up) == begun + 5, "what nobody waits for is not begun"


def test_before_that_is_known_the_line_is_bounded(place: NewPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tacit.serving.books.PATIENCE_SECONDS", math.inf)
    with place().service() as service, hanging(service):

        async def ask() -> list[httpx.Response]:
            asking = [asyncio.ensure_future(keyless(service, 1)) for _ in range(400)]
            while sum(one.done() for one in asking) < 400 - 256:
                await asyncio.sleep(0.01)
            # Everybody is in the line or was turned away; now it becomes known.
            monkeypatch.setattr("tacit.serving.books.PATIENCE_SECONDS", 0.0)
            return [response for responses in await asyncio.gather(*asking) for response in responses]

        codes = told(asyncio.run(ask()))
    assert codes == {"overloaded": 400 - 256, "ledger_unavailable": 256}


def test_who_waits_for_a_key_to_be_free_keeps_no_thread(place: NewPlace) -> None:
    """Many who ask again for an answer whose client has gone, and somebody else at the same time."""
    with place().service() as service:
        asked = question(service, key="key", body=b"x")
        with service.books.using() as ledger:
            request = Access(ledger).request(TENANT, "key", b"x")
        service._open[request.id] = _Open(asked=False)  # as while a last step is being booked

        async def ask() -> list[Any]:
            async def once() -> str:
                async with service.answering(asked) as (conversation, _):
                    return conversation.request.id

            again = [asyncio.ensure_future(once()) for _ in range(40)]
            await asyncio.sleep(0.5)
            assert await asyncio.wait_for(service.tenant_for("wrong"), 5) is None
            assert not any(one.done() for one in again)
            service._let_go(request)
            return await asyncio.gather(*again, return_exceptions=True)

        found = asyncio.run(ask())
    assert request.id in found, "one of them has it now"
    refused = [one.code for one in found if isinstance(one, Problem)]
    assert set(refused) <= {"idempotency_key_in_use"}
    assert found.count(request.id) + len(refused) == 40, "everybody got the one or the other"


# A ledger that must not open again


def test_a_log_line_about_it_numbers_no_entries(place: NewPlace, tmp_path: Path) -> None:
    """Entries less the tokens that were served would tell whether there was a stop."""
    account = place()
    with account.opened() as ledger:
        ledger.store.backup(tmp_path / "copy.db")
    with account.service() as service:
        answers(service, question(service))
    books: Books = account.idle_service().books
    try:
        books.shut()
        for file in Path(account.ledger).parent.glob("ledger.db*"):
            file.unlink()
        (tmp_path / "copy.db").rename(account.ledger)
        assert books.reopen() == "RolledBack; tacit ledger status says what is wrong"
    finally:
        books.close()


# Signals before there is anything to stop


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_that_comes_too_early_is_kept(place: NewPlace, number: signal.Signals) -> None:
    code = f"""
import os, sys
from tacit.cli import main
from tacit.serving.engine import Engine
start = Engine.start
def start_and_signal(self):
    start(self)
    os.kill(os.getpid(), {int(number)})
Engine.start = start_and_signal
sys.argv.insert(1, "serve")
main()
"""
    account = place()
    with serving(account, command=[sys.executable, "-c", code, str(account.run)]) as server:
        assert server.process.wait(timeout=60) == 0
