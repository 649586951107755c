"""Two listeners, one loop: clients on one port, the operator on another; a signal drains and closes both."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import math
import signal
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import uvicorn
from fastapi import FastAPI

from tacit.errors import EnvironmentProblem, InputError
from tacit.serving.admin import admin_app
from tacit.serving.api import public_app
from tacit.serving.service import Service

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_LAST_WORDS_SECONDS = 5  # to tell those whose answers are not finished


@dataclass(frozen=True)
class Address:
    """Where to listen; port 0 takes a free one."""

    host: str
    port: int

    @property
    def is_this_machine(self) -> bool:
        """Whether only this machine can reach it."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


@dataclass(frozen=True)
class Listening:
    """Where the two listeners really are."""

    public: str
    admin: str


def serve(
    service: Service,
    public: Address,
    admin: Address,
    *,
    password: str | None = None,
    drain_seconds: float = 30.0,
    announce: Callable[[Listening], None],
) -> None:
    """Answer until SIGTERM or SIGINT; then finish what runs, book it, and close the ledger.

    The last act of a process. ``announce`` is called once both listeners accept connections.
    """
    with contextlib.ExitStack() as stack:
        stack.callback(service.close)
        if not 0 <= drain_seconds < 1e6:
            raise InputError(f"drain={drain_seconds}: seconds to finish answers are a number of at least 0.")
        if not admin.is_this_machine and not password:
            raise InputError(
                f"The admin port on {admin.host} would show private numbers to anybody; listen on 127.0.0.1, "
                "or set TACIT_ADMIN_PASSWORD."
            )
        sockets = [stack.enter_context(_listening(address)) for address in (public, admin)]
        apps = (public_app(service), admin_app(service, password=password, host=admin.host))
        signals = _Signals()
        stack.callback(signals.ignore)
        service.engine.start()
        found = Listening(
            *(_url(address, one) for address, one in zip((public, admin), sockets, strict=True))
        )
        asyncio.run(_both(service, apps, sockets, drain_seconds, signals, lambda: announce(found)))


class _Signals:
    """SIGTERM and SIGINT, from before the listeners open until after the ledger is closed.

    Not by asyncio, which gives a signal back its deadly default when its loop ends, and the ledger is closed
    after that. Nor are they given back here: what comes now is the end of the process, and somebody who asks
    once more must not turn it into a failure. What comes before there is a loop to stop is kept for it.
    """

    def __init__(self) -> None:
        self._stop: Callable[[], object] | None = None
        self._came = False
        for number in _SIGNALS:
            signal.signal(number, lambda *_: self._ask())

    def _ask(self) -> None:
        if self._stop is None:
            self._came = True
        else:
            self._stop()

    def when_asked(self, stop: Callable[[], object]) -> None:
        """What to do when one comes, and now if one has come."""
        self._stop = stop
        if self._came:
            self._came = False
            stop()

    def ignore(self) -> None:
        """From here on; Python's own end would make them deadly otherwise."""
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_IGN)


@contextlib.contextmanager
def _listening(address: Address) -> Iterator[socket.socket]:
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((address.host, address.port))
        except (OSError, OverflowError) as problem:
            reason = getattr(problem, "strerror", None) or problem
            raise EnvironmentProblem(
                f"Port {address.port} on {address.host} cannot be used ({reason}); choose another host or "
                "port."
            ) from None
        listener.listen(128)
        yield listener


def _url(address: Address, listener: socket.socket) -> str:
    host = f"[{address.host}]" if ":" in address.host else address.host
    return f"http://{host}:{listener.getsockname()[1]}"


class _Server(uvicorn.Server):
    """Without uvicorn's own signals: there are two of them, and one of us."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def _both(
    service: Service,
    apps: tuple[FastAPI, FastAPI],
    sockets: list[socket.socket],
    drain_seconds: float,
    signals: _Signals,
    announce: Callable[[], None],
) -> None:
    servers = [
        _Server(
            uvicorn.Config(
                app,
                log_config=None,
                access_log=False,
                server_header=False,
                lifespan="off",
                timeout_graceful_shutdown=math.ceil(drain_seconds) + _LAST_WORDS_SECONDS,
                timeout_keep_alive=30,
            )
        )
        for app in apps
    ]

    loop = asyncio.get_running_loop()

    def stop() -> None:
        if service.draining.is_set():  # asked twice: now
            service.engine.give_up()
            return
        service.draining.set()
        for server in servers:
            server.should_exit = True
        # Whoever is not finished by then is told so, in the shape that clients know.
        loop.call_later(drain_seconds, service.engine.give_up)

    running = [
        asyncio.ensure_future(server.serve(sockets=[listener]))
        for server, listener in zip(servers, sockets, strict=True)
    ]
    while not all(server.started for server in servers) and not any(task.done() for task in running):
        await asyncio.sleep(0.01)
    announce()
    signals.when_asked(lambda: loop.call_soon_threadsafe(stop))
    try:
        await asyncio.gather(*running)
    finally:
        signals.when_asked(lambda: None)
