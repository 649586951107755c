"""Ensembles that were really trained, and services over them: in this process, or by `tacit serve`."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tacit.ledger import Access, Domain, Ledger
from tacit.models.ensemble import load_ensemble
from tacit.prediction.accounts import model_of
from tacit.runs import Run
from tacit.serving.books import Books
from tacit.serving.service import Service
from tacit.serving.settings import Settings
from tacit.training.ensemble import train_ensemble
from tests.training.ensembles import ensemble_recipe, sayings, write_sayings

TENANT = "acme"
PROMPT = "The baker"


@pytest.fixture(scope="session")
def runs(shared_folder: Path, tiny_transformer: Path) -> Path:
    """Two ensembles of two parts: ``halves`` with two models for each, ``single`` with one."""
    folder = shared_folder / "serving_runs"
    with (shared_folder / "serving_runs.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "single").is_dir():
            folder.mkdir(exist_ok=True)
            private = write_sayings(folder / "sayings.jsonl", sayings())
            for name, halves in (("halves", True), ("single", False)):
                changes: dict[str, Any] = {"ensemble": {"halves": halves}}
                train_ensemble(ensemble_recipe(tiny_transformer, private, folder / name, **changes))
    return folder


@dataclass
class Place:
    """A ledger with an account for a Run, and a key."""

    run: Path
    ledger: str
    anchor: Path
    key: str

    def opened(self) -> Ledger:
        """The ledger, while no service holds it."""
        return Ledger.open(self.ledger, anchor=self.anchor)

    @contextlib.contextmanager
    def service(self, **settings: Any) -> Iterator[Service]:
        """A service in this process whose engine runs."""
        service = self.idle_service(**settings)
        service.engine.start()
        try:
            yield service
        finally:
            service.close()

    def idle_service(self, **settings: Any) -> Service:
        """A service that has not begun."""
        run = Run.open(self.run)
        chosen = Settings(**({"context": 128} | settings))
        books = Books(self.ledger, self.anchor, model_of(run), chosen)
        return Service(self.run.name, load_ensemble(run), books, chosen)


def ledger_of(service: Service) -> Ledger:
    """The ledger that a service holds."""
    with service.books.using() as ledger:
        return ledger


NewPlace = Callable[..., Place]


@pytest.fixture
def place(runs: Path, tmp_path: Path) -> NewPlace:
    """Opens an account: by mechanism, budget, and where its ledger is."""

    def make(
        mechanism: str = "submix-guarded",
        *,
        epsilon: float = 1000.0,
        ledger: str | None = None,
        tokens: int | None = None,
    ) -> Place:
        run = runs / ("single" if mechanism in ("certified", "individual") else "halves")
        url = ledger or str(tmp_path / "ledger.db")
        anchor = tmp_path / "elsewhere" / "anchor.json"
        model = model_of(Run.open(run))
        with Ledger.open(url, anchor=anchor, create=True) as book:
            book.create(
                Domain("people", 2.0, model.parts, model.partition, epsilon, mechanism, model.unit), model
            )
            access = Access(book)
            if tokens is not None:
                access.set_quota(TENANT, tokens)
            key, _ = access.create_key(TENANT)
        return Place(run, url, anchor, key)

    return make


@dataclass
class Server:
    """A service in a process of its own."""

    process: subprocess.Popen[str]
    url: str
    admin: str
    model: str
    key: str
    log: list[str] = field(default_factory=list)

    def client(self, **options: Any) -> openai.OpenAI:
        """OpenAI's own client."""
        return openai.OpenAI(base_url=self.url, api_key=self.key, **({"max_retries": 0} | options))

    def http(self, **options: Any) -> httpx.Client:
        """A plain client with the key."""
        headers = {"authorization": f"Bearer {self.key}"}
        return httpx.Client(base_url=self.url.removesuffix("/v1"), headers=headers, timeout=60, **options)

    def stop(self, number: int = signal.SIGTERM) -> int:
        """End it, and its exit code."""
        self.process.send_signal(number)
        return self.process.wait(timeout=60)


@contextlib.contextmanager
def serving(
    place: Place, *options: str, command: list[str] | None = None, **environment: str
) -> Iterator[Server]:
    """`tacit serve`, or another command that says where it listens, until the block ends."""
    words = command or [sys.executable, "-m", "tacit", "serve", str(place.run)]
    ports = ["--port", "0", "--admin-port", "0", "--context", "128", "--json"]
    process = subprocess.Popen(
        [*words, "--ledger", place.ledger, "--anchor", str(place.anchor), *ports, *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | environment,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    log: list[str] = []
    errors = process.stderr
    reader = threading.Thread(target=lambda: log.extend(errors), daemon=True)
    reader.start()
    try:
        said = ""
        while not said.endswith("}\n"):
            line = process.stdout.readline()
            if not line:
                process.wait(timeout=30)
                reader.join(timeout=5)
                raise AssertionError(f"the server ended with {process.returncode}: {''.join(log)}")
            said += line
        found = json.loads(said)
        yield Server(process, found["url"], found["admin"], found["model"], place.key, log)
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(timeout=60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        process.stdout.close()
        reader.join(timeout=5)
        process.stderr.close()
