"""Servers that are killed under load: is every token that a client received on record?

Trains a tiny ensemble, starts `tacit serve` over SQLite and over PostgreSQL, kills it (SIGKILL) at random
moments while clients stream, and compares the ledger that is left with what the clients have received. Then
the same with a server that releases before it books: its undercounts show that the comparison sees them.

A tiny model, because it is the harder case: computing takes a smaller share of each step, so that more kills
hit a step that is being booked or sent.

Run from the repository: python benchmarks/service_kills.py [--kills N] [--late-kills N]
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported, here and in the servers
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tacit.ledger import Access, Domain, Ledger
from tacit.prediction.accounts import model_of
from tacit.runs import Run
from tacit.training.ensemble import train_ensemble
from tests.ledger.conftest import new_database
from tests.serving.conftest import TENANT, Place
from tests.serving.test_kills import DOMAIN, IN_FLIGHT, RELEASE_FIRST, live
from tests.tiny import BUILDERS
from tests.training.ensembles import ensemble_recipe, sayings, write_sayings


def trained(folder: Path) -> Path:
    model, run = folder / "model", folder / "run"
    model.mkdir()
    BUILDERS["transformer"](model)
    train_ensemble(ensemble_recipe(model, write_sayings(folder / "sayings.jsonl", sayings()), run))
    return run


@contextmanager
def postgres(folder: Path) -> Iterator[str]:
    (folder / "runtime").mkdir(mode=0o700)
    os.environ.setdefault("XDG_RUNTIME_DIR", str(folder / "runtime"))
    import pgserver

    module: Any = pgserver  # which has no types
    server = module.get_server(folder / "pg", cleanup_mode="stop")
    try:
        yield server.get_uri()
    finally:
        server.cleanup()


def account(run: Path, url: str, anchor: Path) -> Place:
    model = model_of(Run.open(run))
    terms = Domain(DOMAIN, 2.0, model.parts, model.partition, 1e6, "submix-guarded", model.unit)
    with Ledger.open(url, anchor=anchor, create=True) as book:
        book.create(terms, model)
        key, _ = Access(book).create_key(TENANT)
    return Place(run, url, anchor, key)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=50, help="of the real server, on each store")
    parser.add_argument("--late-kills", type=int, default=10, help="of the one that books too late")
    options = parser.parse_args()
    orders: list[tuple[str, list[str] | None, int]] = [
        ("books first", None, options.kills),
        ("releases first", [sys.executable, str(RELEASE_FIRST)], options.late_kills),
    ]
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as name, postgres(Path(name)) as server:
        folder = Path(name)
        run = trained(folder)
        print(f"over-count: tokens booked and not received, of {IN_FLIGHT} that may be in flight")
        print("server          store       kills  received  undercounts  over-count  repeated  minutes")
        for order, words, kills in orders:
            for store in ("SQLite", "PostgreSQL"):
                url = str(folder / f"{order}.db") if store == "SQLite" else new_database(server)
                place = account(run, url, folder / f"{order}-{store}.anchor")
                began = time.monotonic()
                lives = live(place, kills, seed=3, command=[*words, str(run)] if words else None)
                print(
                    f"{order:15} {store:10} {lives.kills:6} {lives.received:9,} {lives.undercounts:12} "
                    f"{lives.largest_overcount:11} {lives.repeated:9} {(time.monotonic() - began) / 60:8.1f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
