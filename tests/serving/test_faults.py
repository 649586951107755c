"""Disks, databases and engines that fail under a running service, and what a client gets meanwhile: nothing.

Every fault is a real one: a file system without room, a folder that cannot be written, a database that cuts
the line. Where the machine does not permit one of them, another that needs no permission stands beside it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import accumulate
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from tacit.errors import LedgerUnavailable
from tacit.ledger import Session, verify
from tacit.ledger.anchor import Position
from tacit.models.ensemble import load_ensemble
from tacit.models.tokenizer import PublicTokenizer
from tacit.runs import Run
from tacit.serving.api import public_app
from tacit.serving.service import Service
from tests.ledger.conftest import new_database
from tests.ledger.test_crashes import opened
from tests.serving.conftest import PROMPT, NewPlace, Place, Server, serving
from tests.serving.test_kills import (
    DOMAIN,
    RELEASE_FIRST,
    TEXTS,
    Asked,
    Client,
    ask,
    compare,
    left_behind,
    question,
    store,
    under_load,
    write_down,
)

__all__ = ["store"]  # a fixture of this module by being imported

Fault = contextlib.AbstractContextManager[None]
_PATIENCE = 120.0  # seconds until a test gives up; nothing is asserted about how long anything takes


def wait_until(holds: Callable[[], bool], what: str) -> None:
    """Poll, and fail with a sentence after a long time."""
    deadline = time.monotonic() + _PATIENCE
    while not holds():
        assert time.monotonic() < deadline, f"it never happened that {what}"
        time.sleep(0.05)


def tokenizer_of(place: Place) -> PublicTokenizer:
    return load_ensemble(Run.open(place.run)).public.tokenizer


def whole(server: Server, http: httpx.Client, key: str | None = None) -> httpx.Response:
    """One request without a stream."""
    content = {"model": server.model, "prompt": PROMPT, "max_tokens": 3}
    return http.post("/v1/completions", json=content, headers={"idempotency-key": key} if key else {})


def post(place: Place, service: Service, *, stream: bool) -> httpx.Response:
    """Ask a service in this process, through its app, for four answers."""

    async def send() -> httpx.Response:
        transport = httpx.ASGITransport(public_app(service))
        async with httpx.AsyncClient(transport=transport, base_url="http://here") as http:
            headers = {"authorization": f"Bearer {place.key}"}
            content = {"model": service.name, "prompt": PROMPT, "max_tokens": 8, "n": 4, "stream": stream}
            return await http.post("/v1/completions", json=content, headers=headers)

    return asyncio.run(send())


# The order of system calls


class Trace:
    """What strace saw of a server, line by line."""

    _CALL = re.compile(r"^(?P<pid>\d+) +(?P<at>[\d.]+) (?P<what>.*)$")

    def __init__(self, path: Path, since: float, wal: Path) -> None:
        """Only what came after a moment counts. A line stands where its call began."""
        self.committed: list[int] = []  # lines at which a sync of newly written log had returned
        self.pieces: list[int] = []  # lines at which a piece of text began to be sent
        unsynced = False
        syncing: set[str] = set()
        for number, line in enumerate(path.read_text(errors="replace").splitlines()):
            found = self._CALL.match(line)
            if found is None or float(found["at"]) < since:
                continue
            what = found["what"]
            if what.startswith("pwrite64(") and f"<{wal}>" in what:
                unsynced = True
            if what.startswith(("fdatasync(", "fsync(")) and f"<{wal}>" in what:
                syncing.add(found["pid"])
            returned = what.startswith(("fdatasync(", "fsync(", "<... fdatasync", "<... fsync"))
            if returned and found["pid"] in syncing and what.endswith("= 0"):
                syncing.discard(found["pid"])
                if unsynced:
                    self.committed.append(number)
                unsynced = False
            if what.startswith(("sendto(", "sendmsg(", "write(", "writev(")):
                self.pieces += [number] * what.count(r"data: {\"id\"")

    def commits_before(self, line: int) -> int:
        return sum(committed < line for committed in self.committed)


@contextlib.contextmanager
def traced(place: Place, words: Sequence[str], trace: Path) -> Iterator[Server]:
    """A server under strace."""
    strace = shutil.which("strace")
    assert strace is not None, (
        "strace is missing, which shows what is synced before what is sent: apt install strace."
    )
    # -D: the server is our own child and strace a grandchild, so that signals reach the server.
    options = ["-D", "-f", "-y", "--seccomp-bpf", "-ttt", "-s", "4000", "-o", str(trace)]
    calls = ["-e", "trace=fdatasync,fsync,pwrite64,write,sendto,sendmsg,writev"]
    command = [strace, *options, *calls, *words, str(place.run)]
    with serving(place, "--queries", "1000", command=command) as server:
        yield server
        assert server.stop() == 0
    end = re.compile(rf"^{server.process.pid} .*\+\+\+ exited with 0", re.MULTILINE)
    wait_until(lambda: end.search(trace.read_text()) is not None, "strace wrote the end of the server")


def ordered(place: Place, words: Sequence[str], folder: Path) -> tuple[list[bool], int, int]:
    """Whether each piece of an answer was sent after its commit was synced; commits, and tokens booked."""
    trace = folder / "trace"
    with traced(place, words, trace) as server, server.http() as http:
        began = time.time()
        asked = ask(http, Asked(question(server, tokens=16, choices=1), key=None))
    assert asked.done
    [(text, pieces)] = asked.received.items()
    paid = left_behind(place)[text]
    seen = Trace(trace, began, Path(place.ledger + "-wal").resolve())
    assert len(seen.pieces) == len(pieces), "strace saw every piece"
    decode = tokenizer_of(place).decode
    # The number of the token that each piece needed: halves of characters are held back.
    needed = [
        next(n for n in range(len(paid) + 1) if decode(paid[:n]).startswith(so_far))
        for so_far in accumulate(pieces)
    ]
    needed[-1] = len(paid)
    in_order = [seen.commits_before(line) >= n for line, n in zip(seen.pieces, needed, strict=True)]
    return in_order, len(seen.committed), len(paid)


@pytest.mark.slow
def test_the_log_is_synced_before_a_piece_is_sent(place: NewPlace, tmp_path: Path) -> None:
    """I1 where a kill cannot look: what is only in the page cache survives a kill, and no loss of power."""
    in_order, commits, booked = ordered(place(), [sys.executable, "-m", "tacit", "serve"], tmp_path)
    assert commits == booked, "every step is synced once, so that the n-th sync is the n-th token's"
    assert all(in_order)
    assert len(in_order) > 0


@pytest.mark.slow
def test_the_same_trace_finds_a_server_that_sends_first(place: NewPlace, tmp_path: Path) -> None:
    in_order, commits, booked = ordered(place(), [sys.executable, str(RELEASE_FIRST)], tmp_path)
    assert commits == booked
    assert not all(in_order)


# Faults that last: nothing leaves while they do, and the service is back when they end


def pieces_of(clients: Sequence[Client]) -> int:
    asked = [one for client in clients for one in list(client.asked)]
    return sum(len(pieces) for one in asked for pieces in one.received.values())


def refused(client: Client, since: int) -> bool:
    """Whether a client has been refused since it had asked so many times."""
    return any(one.problem for one in client.asked[since:])


def weather(server: Server, fault: Fault) -> list[Asked]:
    """Bring a fault over a service under load, and take it away again; all that was asked meanwhile."""
    clients = under_load(server)
    with server.http() as http:
        with fault:
            wait_until(lambda: http.get("/ready").status_code == 503, "the service noticed")
            before = [len(client.asked) for client in clients]
            wait_until(
                lambda: all(refused(client, n) for client, n in zip(clients, before, strict=True)),
                "every client had read its last answer and was told",
            )
            received = pieces_of(clients)
            for key in (None, "a-key"):
                for path, status in (("/ready", 503), ("/health", 200)):
                    assert http.get(path).status_code == status
                response = whole(server, http, key=key)
                error = response.json()["error"]
                assert (response.status_code, error["code"]) == (503, "ledger_unavailable")
                assert not re.search(r"\d", error["message"])
                assert "retry-after" in response.headers
                time.sleep(1.5)  # meanwhile it tries to open the ledger: that must not count as a recovery
            assert pieces_of(clients) == received, "nothing left while nothing could be booked"
        wait_until(lambda: http.get("/ready").status_code == 200, "the service recovered")
        wait_until(lambda: whole(server, http).status_code == 200, "a new request was answered")
        more = pieces_of(clients)
        wait_until(lambda: pieces_of(clients) > more, "the load went on")
    for client in clients:
        client.enough.set()
    for client in clients:
        client.join(timeout=_PATIENCE)
        assert not client.is_alive()
    asked = [one for client in clients for one in client.asked]
    assert {one.problem for one in asked} == {None, "ledger_unavailable"}, "answered, or told why not"
    return asked


def check_books(place: Place, asked: Sequence[Asked], failed_steps: int = 1) -> None:
    """Everything that was received is booked, and at most the steps that failed are booked in vain."""
    received = {text: pieces for one in asked for text, pieces in one.received.items()}
    booked = {text: tokens for text, tokens in left_behind(place).items() if text in received}
    compared = compare(booked, received, tokenizer_of(place))
    assert compared.undercount == 0
    assert compared.overcount <= failed_steps * TEXTS
    assert compared.received > 0


def survives(place: Place, fault: Callable[[Server], Fault]) -> None:
    """A fault and its end, and a ledger that is whole afterwards."""
    with serving(place, "--queries", "1000") as server:
        asked = weather(server, fault(server))
        assert server.stop() == 0
    check_books(place, asked)
    check_log(server)


def check_log(server: Server) -> None:
    """The first that is said of a failure is its cause."""
    events = [json.loads(line) for line in server.log if line.startswith("{")]
    why = [line["detail"] for line in events if line["event"] == "ledger_failed"]
    assert why
    assert not any("closed after a failure" in detail for detail in why)


@contextlib.contextmanager
def files_may_not_grow(server: Server) -> Iterator[None]:
    """A write fails as on a full disk, for this process alone; the anchor is smaller than the limit."""
    pid = server.process.pid
    before = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, before)


@pytest.mark.slow
def test_a_disk_that_takes_no_more_releases_nothing_until_it_does(place: NewPlace) -> None:
    """I9."""
    survives(place(), files_may_not_grow)


@contextlib.contextmanager
def mounted(folder: Path, *arguments: str) -> Iterator[None]:
    """A mount for a while; skips where only an administrator may, but fails where nobody reads of skips.

    What stands beside it (a limit on the size of files, a file in a folder's place) gives other errors than a
    disk that is full or read-only: it does not replace this one.
    """
    done = subprocess.run(["mount", *arguments, str(folder)], capture_output=True, text=True)  # noqa: S607
    if done.returncode:
        why = f"mounting is not permitted here: {done.stderr.strip()}"
        if os.environ.get("CI") == "true":
            pytest.fail(f"{why}; let continuous integration mount (CAP_SYS_ADMIN).")
        pytest.skip(why)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)  # noqa: S607


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of eight megabytes."""
    folder = tmp_path / "small"
    folder.mkdir()
    with mounted(folder, "-t", "tmpfs", "-o", "size=8m", "tmpfs"):
        yield folder


@contextlib.contextmanager
def filled(folder: Path) -> Iterator[None]:
    """To the last byte."""
    rest = folder / "rest"
    with rest.open("wb", buffering=0) as handle, contextlib.suppress(OSError):
        while True:
            handle.write(bytes(4096))
    try:
        yield
    finally:
        rest.unlink()


@pytest.mark.slow
def test_a_full_file_system_releases_nothing_until_there_is_room(place: NewPlace, small_disk: Path) -> None:
    """I9, with the error that a full disk really gives."""
    survives(place(ledger=str(small_disk / "ledger.db")), lambda _: filled(small_disk))


@contextlib.contextmanager
def replaced_by_a_file(folder: Path) -> Iterator[None]:
    """The folder is away, and what has its name is no folder."""
    away = folder.with_name("away")
    folder.rename(away)
    folder.write_text("not a folder")
    try:
        yield
    finally:
        folder.unlink()
        away.rename(folder)


@contextlib.contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """Whoever runs this: permissions do not bind an administrator, a read-only mount does."""
    if os.geteuid() == 0:
        with mounted(folder, "--bind", "-o", "ro", str(folder)):
            subprocess.run(["mount", "-o", "remount,bind,ro", str(folder)], check=True)  # noqa: S607
            yield
        return
    folder.chmod(0o500)
    try:
        yield
    finally:
        folder.chmod(0o700)


@pytest.mark.slow
@pytest.mark.parametrize("fault", [replaced_by_a_file, read_only])
def test_without_its_anchor_a_service_releases_nothing(
    place: NewPlace, fault: Callable[[Path], Fault]
) -> None:
    """I8 and I9: an answer that no anchor remembers could be rolled back."""
    account = place()
    survives(account, lambda _: fault(account.anchor.parent))


@contextlib.contextmanager
def taken_away(ledger: str) -> Iterator[None]:
    """The ledger's files are elsewhere for a while: whoever has them open writes to them all the same."""
    away = Path(ledger).parent / "away"
    away.mkdir()
    files = list(Path(ledger).parent.glob("ledger.db*"))
    for file in files:
        file.rename(away / file.name)
    try:
        yield
    finally:
        for file in files:
            (away / file.name).rename(file)


@pytest.mark.slow
def test_without_its_file_a_service_releases_nothing(place: NewPlace) -> None:
    """I9: what is booked in a file that has no name is lost when the process ends."""
    account = place()
    survives(account, lambda _: taken_away(account.ledger))


def test_a_file_that_is_taken_away_at_rest_is_noticed(place: NewPlace) -> None:
    account = place()
    with account.service() as service:
        assert post(account, service, stream=False).status_code == 200
        with taken_away(account.ledger):
            wait_until(lambda: not service.ready, "the service noticed, although nobody asked")
            assert post(account, service, stream=False).status_code == 503
        wait_until(lambda: service.ready, "the service recovered")
        assert post(account, service, stream=False).status_code == 200


def test_a_ledger_that_was_deleted_stays_deleted(place: NewPlace) -> None:
    """Nothing is released, and nothing is made in its place."""
    account = place()
    with account.service() as service:
        assert post(account, service, stream=False).status_code == 200
        for file in Path(account.ledger).parent.glob("ledger.db*"):
            file.unlink()
        for _ in range(3):
            response = post(account, service, stream=False)
            error = response.json()["error"]
            assert (response.status_code, error["code"]) == (503, "ledger_unavailable")
            time.sleep(1.1)  # meanwhile it tries to open it again
        assert not service.ready
        assert not list(Path(account.ledger).parent.glob("ledger.db*"))


def end_sessions(ledger: str) -> int:
    """Cut the lines of whoever has the ledger open; how many they were."""
    with administrator(ledger) as connection:
        ended = connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = %s AND application_name = 'tacit ledger'",
            (conninfo_to_dict(ledger)["dbname"],),
        )
        return len(ended.fetchall())


def administrator(ledger: str) -> psycopg.Connection[tuple[Any, ...]]:
    """A session in another database of the same server."""
    return psycopg.connect(ledger, dbname="postgres", autocommit=True)


@contextlib.contextmanager
def unreachable(ledger: str) -> Iterator[None]:
    """The database ends the session and lets nobody in."""
    name = conninfo_to_dict(ledger)["dbname"]
    with administrator(ledger) as connection:
        connection.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false".encode())
        try:
            assert end_sessions(ledger) == 1
            yield
        finally:
            connection.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true".encode())


@pytest.mark.slow
def test_without_its_database_a_service_releases_nothing(place: NewPlace, postgres: str) -> None:
    """I9."""
    account = place(ledger=new_database(postgres))
    survives(account, lambda _: unreachable(account.ledger))


@pytest.mark.slow
def test_lines_that_are_cut_under_load_cost_a_moment_and_no_entry(place: NewPlace, postgres: str) -> None:
    """I1: a COMMIT whose answer is lost may have happened, so that its step is booked and never released."""
    account = place(ledger=new_database(postgres))
    with serving(account, "--queries", "1000") as server:
        clients = under_load(server)
        for _ in range(5):
            more = pieces_of(clients)
            wait_until(lambda more=more: pieces_of(clients) > more + TEXTS, "the load went on")  # type: ignore[misc]
            wait_until(lambda: end_sessions(account.ledger) == 1, "the service had a session")
        more = pieces_of(clients)
        wait_until(lambda: pieces_of(clients) > more, "the load went on after the last cut")
        for client in clients:
            client.enough.set()
        for client in clients:
            client.join(timeout=_PATIENCE)
        assert server.stop() == 0
    check_books(account, [one for client in clients for one in client.asked], failed_steps=5)


# Faults that no step meets: the first to notice is a request at the door


def test_a_line_that_is_cut_at_rest_is_mended(place: NewPlace, postgres: str) -> None:
    account = place(ledger=new_database(postgres))
    with account.service() as service:
        assert post(account, service, stream=False).status_code == 200
        assert end_sessions(account.ledger) == 1
        wait_until(lambda: post(account, service, stream=False).status_code == 200, "the service recovered")
        assert service.ready


@pytest.mark.slow
def test_a_fault_that_only_repeatable_requests_meet_is_mended(place: NewPlace) -> None:
    """An Idempotency-Key is written down before anything is drawn: this write can be the one that fails."""
    with serving(place(), "--queries", "1000") as server, server.http() as http:
        with files_may_not_grow(server):
            assert whole(server, http, key="during").status_code == 503
        wait_until(lambda: whole(server, http, key="after").status_code == 200, "the service recovered")


# A ledger that neither answers nor fails


def session_of(ledger: str) -> int:
    """The process that serves a database's only session."""
    name = str(conninfo_to_dict(ledger)["dbname"])
    with administrator(ledger) as connection:
        ((process,),) = connection.execute(
            "SELECT pid FROM pg_stat_activity WHERE datname = %s", (name,)
        ).fetchall()
    return int(process)


def test_nobody_waits_for_a_ledger_that_hangs(place: NewPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    """I9: whoever was being answered is told, new questions are refused at once, and it may come back."""
    monkeypatch.setattr("tacit.serving.books.PATIENCE_SECONDS", 1.0)
    hung, booking, book = threading.Event(), threading.Event(), Session.book

    def hangs(self: Session, decided: Any) -> None:
        booking.set()
        assert hung.wait(60)
        book(self, decided)

    monkeypatch.setattr(Session, "book", hangs)
    account = place()
    with account.service() as service:
        status, told = completion(account, service)
        assert (status, told.problem, told.pieces) == (200, "ledger_unavailable", {})
        assert booking.is_set()
        assert not service.ready
        assert post(account, service, stream=False).status_code == 503
        hung.set()
        wait_until(lambda: service.ready, "the ledger answered again")
        status, answered = completion(account, service)
        assert (status, answered.problem, answered.done) == (200, None, True)
    check_books(account, [answered])


@pytest.mark.slow
def test_a_service_ends_although_its_database_hangs(place: NewPlace, postgres: str) -> None:
    account = place(ledger=new_database(postgres))
    with serving(account, "--queries", "1000", "--drain", "1") as server, server.http() as http:
        assert whole(server, http).status_code == 200
        backend = session_of(account.ledger)
        os.kill(backend, signal.SIGSTOP)
        try:
            refused = whole(server, http)
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "ledger_unavailable")
            assert http.get("/ready").status_code == 503
            assert http.get("/health").status_code == 200
            assert server.stop() == 3
        finally:
            os.kill(backend, signal.SIGCONT)
    assert "has not answered" in server.log[-1]
    wait_until(lambda: not sessions_of(account.ledger), "the database let go")
    with serving(account, "--queries", "1000") as server, server.http() as http:
        assert whole(server, http).status_code == 200


def sessions_of(ledger: str) -> int:
    name = str(conninfo_to_dict(ledger)["dbname"])
    with administrator(ledger) as connection:
        query = "SELECT count(*) FROM pg_stat_activity WHERE datname = %s"
        ((count,),) = connection.execute(query, (name,)).fetchall()
    return int(count)


@pytest.mark.slow
def test_who_asks_again_and_again_does_not_kill_a_service_that_closes(place: NewPlace) -> None:
    with serving(place(), "--queries", "1000") as server, server.http() as http:
        assert whole(server, http).status_code == 200
        for _ in range(40):
            server.process.send_signal(signal.SIGTERM)
            time.sleep(0.02)
            if server.process.poll() is not None:
                break
        assert server.process.wait(timeout=60) == 0


# Who may hold a ledger


def refused_to_start(place: Place, ledger: str | None = None) -> tuple[int, str]:
    """The exit code of another server, and the one sentence that it says."""
    words = [sys.executable, "-m", "tacit", "serve", str(place.run), "--port", "0", "--admin-port", "0"]
    done = subprocess.run(
        [*words, "--ledger", ledger or place.ledger, "--anchor", str(place.anchor)],
        capture_output=True,
        text=True,
        timeout=_PATIENCE,
    )
    assert done.stdout == ""
    said = done.stderr.splitlines()
    assert len(said) == 1, said
    return done.returncode, said[0]


@pytest.mark.slow
def test_a_second_server_on_one_ledger_is_refused(place: NewPlace, store: str) -> None:
    """I7."""
    account = place(ledger=store)
    with account.service() as service:
        code, sentence = refused_to_start(account)
        assert code == 3
        assert "is in use by another process" in sentence
        assert post(account, service, stream=False).status_code == 200, "the first one does not mind"


def copied(ledger: str, folder: Path) -> str:
    """A copy of a ledger as it is now."""
    if not ledger.startswith("postgresql://"):
        folder.mkdir()
        for file in Path(ledger).parent.glob("ledger.db*"):
            shutil.copy(file, folder)
        return str(folder / "ledger.db")
    name = str(conninfo_to_dict(ledger)["dbname"])
    with administrator(ledger) as connection:
        connection.execute(f"CREATE DATABASE {name}_old TEMPLATE {name}".encode())
    return ledger.replace(f"/{name}?", f"/{name}_old?")


@pytest.mark.slow
def test_a_ledger_older_than_its_anchor_does_not_start(place: NewPlace, store: str, tmp_path: Path) -> None:
    """I8."""
    account = place(ledger=store)
    old = copied(account.ledger, tmp_path / "old")
    with account.service() as service:
        assert post(account, service, stream=False).status_code == 200
    code, sentence = refused_to_start(account, old)
    assert code == 4
    assert "an older copy would spend the same budget again" in sentence


# The end of a service


@pytest.mark.slow
def test_sigterm_finishes_what_was_begun(place: NewPlace) -> None:
    account = place()
    signalled: list[datetime] = []
    late: list[int | str] = []

    def terminate_once() -> None:
        if not signalled:
            signalled.append(datetime.now(UTC))
            server.process.send_signal(signal.SIGTERM)
            late.append(refused_or_status(server))

    with serving(account, "--queries", "1000") as server, server.http() as http:
        asked = ask(http, Asked(question(server, tokens=100), key=None), terminate_once)
        assert server.process.wait(timeout=_PATIENCE) == 0
    assert asked.done
    assert asked.problem is None
    assert late[0] in ("refused", 503)
    anchor = json.loads(account.anchor.read_text())["domains"][DOMAIN]
    head, made = ledger_end(account)
    assert made > signalled[0], "it was in the middle of an answer"
    assert Position(anchor["seq"], bytes.fromhex(anchor["hash"])) == head, "closed in order"
    check_books(account, [asked])


def refused_or_status(server: Server) -> int | str:
    """What a newcomer gets while a server drains, once the signal has arrived."""
    deadline = time.monotonic() + _PATIENCE
    while time.monotonic() < deadline:
        try:
            with server.http() as http:
                found = http.get("/ready").status_code
        except httpx.TransportError:
            return "refused"
        if found != 200:
            return found
    return "still answered"


def ledger_end(place: Place) -> tuple[Position, datetime]:
    with opened(place.ledger, place.anchor) as ledger:
        verify(ledger, DOMAIN)
        [(made,)] = ledger.store.run(
            "SELECT made FROM entry WHERE domain = ? ORDER BY seq DESC LIMIT 1", (DOMAIN,)
        )
        return ledger.positions()[DOMAIN], datetime.fromisoformat(made)


# An engine that fails: in this process, where it can be made to


def completion(place: Place, service: Service) -> tuple[int, Asked]:
    """The status of a stream, and what was received."""
    response, asked = post(place, service, stream=True), Asked(b"", key=None)
    write_down(asked, response.iter_lines())
    return response.status_code, asked


SECRET_FAULT = RuntimeError("the third part has 0.25 nats left")


def fail_at(
    monkeypatch: pytest.MonkeyPatch,
    owner: object,
    name: str,
    call: int,
    *,
    work_first: bool = False,
    fault: Exception = SECRET_FAULT,
) -> None:
    """Let one call of a function fail, by default with words that nobody else may read."""
    working, calls = getattr(owner, name), iter(range(1, 1_000_000))

    def failing(*arguments: Any, **options: Any) -> Any:
        fails = next(calls) == call
        done = None if fails and not work_first else working(*arguments, **options)
        if fails:
            raise fault
        return done

    monkeypatch.setattr(owner, name, failing)


def fails_and_recovers(place: Place, service: Service, code: str) -> list[Asked]:
    """Two requests: one that ends with a problem, and one that is answered."""
    status, failed = completion(place, service)
    assert (status, failed.problem, failed.done) == (200, code, False)
    wait_until(lambda: service.ready, "the service recovered")
    status, answered = completion(place, service)
    assert (status, answered.problem, answered.done) == (200, None, True)
    return [failed, answered]


@pytest.mark.timeout(60, func_only=True)  # a client that is never told waits for ever
@pytest.mark.parametrize(("where", "call"), [("open", 1), ("open", 3), ("read", 2), ("step", 1), ("step", 5)])
def test_a_step_that_fails_ends_its_answers_and_nothing_else(
    place: NewPlace, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, where: str, call: int
) -> None:
    account = place()
    with account.service() as service, caplog.at_level(logging.INFO, "tacit.serving"):
        fail_at(monkeypatch, service.engine._executor, where, call)
        asked = fails_and_recovers(account, service, "internal_error")
    check_books(account, asked)
    faults = [record for record in caplog.records if getattr(record, "event", "") == "engine_fault"]
    assert [getattr(record, "detail", "") for record in faults] == ["RuntimeError"], "and not its words"


@pytest.mark.parametrize("call", [1, 6])
@pytest.mark.parametrize("durable", [False, True])
def test_a_booking_that_fails_in_an_unforeseen_way_releases_nothing(
    place: NewPlace, monkeypatch: pytest.MonkeyPatch, durable: bool, call: int
) -> None:
    """I9, whatever it is that fails, and whether the step has become durable or not."""
    account = place()
    with account.service() as service:
        fail_at(monkeypatch, Session, "book", call, work_first=durable)
        asked = fails_and_recovers(account, service, "ledger_unavailable")
    check_books(account, asked)


def test_why_a_ledger_failed_is_logged_once_whoever_meets_it_first(
    place: NewPlace, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The clerk's booking fails while the engine computes, which then finds the ledger closed."""
    account = place()
    with account.service() as service, caplog.at_level(logging.INFO, "tacit.serving"):
        step = service.engine._executor.step

        def slow_step(*arguments: Any) -> Any:
            time.sleep(0.1)  # longer than a booking takes to fail
            return step(*arguments)

        monkeypatch.setattr(service.engine._executor, "step", slow_step)
        full = LedgerUnavailable("ledger.db: database or disk is full; nothing was released.")
        fail_at(monkeypatch, Session, "book", 2, fault=full)
        fails_and_recovers(account, service, "ledger_unavailable")
    told = [vars(record) for record in caplog.records if getattr(record, "event", "") != "request"]
    assert [line["event"] for line in told] == ["ledger_failed", "ledger_recovered"]
    assert told[0]["detail"] == str(full)


def test_a_fault_tells_a_client_nothing_but_that_it_was_one(
    place: NewPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    account = place()
    with account.service() as service:
        fail_at(monkeypatch, service.engine, "_draw", 1)
        response = post(account, service, stream=False)
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["type"]) == (500, "internal_error", "server_error")
    assert not re.search(r"\d", error["message"])
    assert "nats" not in response.text
