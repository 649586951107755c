"""What durability costs, and whether a long ledger stays usable.

First table: one step's transaction (several answers, k parts) against the least that is durable at all, a
raw append with a sync, in turn. Then a ledger of so many charges: how long status, statement and verify take.

Run: python benchmarks/ledger.py [--entries N] [--postgres URL]
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tacit.ledger import Domain, Draw, Ledger, Model, statement, verify

PARTS = 8
STEPS = 200
CERTIFIED: dict[str, Any] = {"mechanism": "certified", "order": 2.0}


def seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def model(name: str) -> Model:
    return Model(name, name, PARTS, name, name)


def commits(folder: Path, postgres: str | None) -> None:
    print(f"one step, {PARTS} parts, milliseconds (median, 99%); ratio to a raw append with a sync")
    ledgers = {"SQLite": Ledger.open(str(folder / "ledger.db"), create=True)}
    if postgres:
        ledgers["PostgreSQL"] = Ledger.open(postgres, anchor=folder / "anchor", create=True)
    name = f"bench-{os.getpid()}"
    for ledger in ledgers.values():
        ledger.create(Domain(name, 2.0, PARTS, name, 1e6), model(name))
    raw = os.open(folder / "raw", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def append() -> None:
        os.write(raw, bytes(4096))
        os.fdatasync(raw)

    number = 0
    for rows in (1, 16):
        times: dict[str, list[float]] = {kind: [] for kind in ("raw append", *ledgers)}
        for _ in range(STEPS):
            times["raw append"].append(seconds(append))
            for kind, ledger in ledgers.items():
                number += 1
                draws = [Draw(f"{number}-{row}", 0, "t", (1e-6,) * PARTS, 1, 2) for row in range(rows)]
                answer = ledger.answer
                times[kind].append(
                    seconds(lambda answer=answer, draws=draws: answer(name, draws, model=name, **CERTIFIED))  # type: ignore[misc]
                )
        floor = statistics.median(times["raw append"])
        for kind, found in times.items():
            median, last = statistics.median(found), statistics.quantiles(found, n=100)[98]
            print(f"{kind:12} {rows:3} answers {1e3 * median:8.2f} {1e3 * last:8.2f} {median / floor:6.2f}x")
    os.close(raw)
    for ledger in ledgers.values():
        ledger.close()


def long_ledger(folder: Path, entries: int) -> None:
    with Ledger.open(str(folder / "long.db"), create=True) as ledger:
        ledger.create(Domain("people", 2.0, PARTS, "people", 1e6), model("people"))
        at_once = 5000
        made = 0.0
        for first in range(0, entries, at_once):
            steps = range(first, min(first + at_once, entries))
            draws = [Draw("r", step, "t", (1e-6,) * PARTS, 1, 2) for step in steps]
            made += seconds(
                lambda draws=draws: ledger.answer("people", draws, model="people", **CERTIFIED)  # type: ignore[misc]
            )
        size = (folder / "long.db").stat().st_size

        def status() -> None:
            for domain in ledger.domains():
                ledger.balance(domain.id)

        print(f"{entries:,} charges, {size / 1e9:.2f} GB, written in {made:.0f} s")
        print(f"status     {1e3 * statistics.median(seconds(status) for _ in range(9)):10.1f} ms")
        print(f"statement  {seconds(lambda: statement(ledger, 'people')):10.1f} s")
        print(f"verify     {seconds(lambda: verify(ledger, 'people')):10.1f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--entries", type=int, default=1_000_000)
    parser.add_argument("--postgres", help="URL of a database that may be written to")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
        commits(Path(folder), options.postgres)
        long_ledger(Path(folder), options.entries)


if __name__ == "__main__":
    main()
