"""The ledger in both stores: what is charged, what stops, what is refused, what survives."""

from __future__ import annotations

import contextlib
import errno
import json
import math
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import apsw
import psycopg
import pytest

from tacit.errors import (
    BudgetExceeded,
    EnvironmentProblem,
    InputError,
    KeyReused,
    LedgerBusy,
    LedgerRefused,
    LedgerUnavailable,
    RolledBack,
    Tampered,
)
from tacit.files import sync
from tacit.ledger import Access, Domain, Draw, Ledger, Model, place_of, statement, verify
from tacit.ledger.entries import GENESIS, Entry, unpacked
from tacit.ledger.sqlite_store import check_version, has_wal_reset_bug
from tacit.ledger.store import Row, Store
from tacit.progress import Silent
from tests.ledger.conftest import FIRST, new_database, people

PEOPLE = "people"
PRIVATE, PUBLIC = 7, 8


def draw(step: int, *charges: float, request: str = "r") -> Draw:
    return Draw(request, step, "acme", charges, PRIVATE, PUBLIC)


def tokens(ledger: Ledger, *draws: Draw, model: str = "model-1", domain: str = PEOPLE) -> list[int]:
    mechanism = ledger.domain(domain).mechanism
    given = ledger.answer(domain, draws, model=model, mechanism=mechanism, order=2.0)
    return [answer.token for answer in given]


def other_people(mechanism: str) -> tuple[Domain, Model]:
    domain = Domain("others", 2.0, 2, "partition-9", 1.0, mechanism)
    return domain, Model("model-9", "other", 2, "partition-9", "corpus-9")


class TestCharging:
    def test_what_is_paid_for_is_private(self, ledger: Ledger) -> None:
        assert tokens(ledger, draw(0, 0.25, 0.5), draw(1, 0.25, 0.125)) == [PRIVATE, PRIVATE]
        assert ledger.balance(PEOPLE).spent == (500_000_000, 625_000_000)
        assert ledger.balance(PEOPLE).worst == pytest.approx(0.625)

    def test_charges_are_rounded_up_to_billionths(self, ledger: Ledger) -> None:
        tokens(ledger, draw(0, 1e-12, 0.0))
        assert ledger.balance(PEOPLE).spent == (1, 0)

    def test_a_part_that_cannot_pay_stops_everybody_for_good(self, ledger: Ledger) -> None:
        given = tokens(ledger, draw(0, 0.6, 0.1), draw(1, 0.5, 0.0), draw(2, 0.0, 0.0))
        assert given == [PRIVATE, PUBLIC, PUBLIC]
        assert tokens(ledger, draw(3, 0.0, 0.0)) == [PUBLIC]
        balance = ledger.balance(PEOPLE)
        assert balance.stopped
        assert (balance.private_answers, balance.public_answers) == (1, 3)
        assert balance.spent == (600_000_000, 100_000_000), "what was not released is not charged"

    def test_strictly_nothing_left_is_too_little(self, ledger: Ledger) -> None:
        assert tokens(ledger, draw(0, 1.0, 0.0)) == [PUBLIC]

    def test_a_public_counter_may_be_used_up(self, ledger: Ledger) -> None:
        ledger.create(*other_people("certified"))
        draws = [draw(step, 0.5, 0.5) for step in range(3)]
        with pytest.raises(LedgerRefused, match="the same price"):
            tokens(ledger, draw(0, 0.5, 0.25), model="model-9", domain="others")
        assert tokens(ledger, *draws, model="model-9", domain="others") == [PRIVATE, PRIVATE, PUBLIC]

    def test_a_fading_part_never_stops_anybody(self, ledger: Ledger) -> None:
        """A stop would tell what a part had spent; in the world without its text there would be none."""
        ledger.create(*other_people("individual"))
        used_up = [draw(0, 1.0, 0.5), draw(1, 0.0, 0.25)]
        assert tokens(ledger, *used_up, model="model-9", domain="others") == [PRIVATE, PRIVATE]
        for wrong in ((1e-9, 0.0), (0.0, math.nan)):
            with pytest.raises(LedgerRefused, match="nothing was booked"):
                tokens(ledger, draw(2, 0.0, 0.1), draw(3, *wrong), model="model-9", domain="others")
        balance = ledger.balance("others")
        assert (balance.spent, balance.stopped) == ((1_000_000_000, 750_000_000), False)
        assert tokens(ledger, draw(2, 0.0, 0.25), model="model-9", domain="others") == [PRIVATE]

    def test_no_budget_is_large_enough_for_what_is_no_number(self, ledger: Ledger) -> None:
        domain, model = other_people("submix-guarded")
        ledger.create(replace(domain, epsilon=4e9), model)
        given = tokens(ledger, draw(0, math.nan, 0.0), draw(1, 0.0, 0.0), model="model-9", domain="others")
        assert given == [PUBLIC, PUBLIC]

    @pytest.mark.parametrize("charge", [math.nan, math.inf])
    def test_nor_does_it_end_a_public_counter(self, ledger: Ledger, charge: float) -> None:
        """The text would decide when."""
        ledger.create(*other_people("certified"))
        with pytest.raises(LedgerRefused):
            tokens(ledger, draw(0, charge, charge), model="model-9", domain="others")
        assert tokens(ledger, draw(0, 0.1, 0.1), model="model-9", domain="others") == [PRIVATE]

    @pytest.mark.parametrize("charge", [math.nan, math.inf, -1e-9, -math.inf])
    def test_a_charge_that_is_no_number_pays_for_nothing(self, ledger: Ledger, charge: float) -> None:
        assert tokens(ledger, draw(0, 0.0, charge)) == [PUBLIC]
        assert ledger.balance(PEOPLE).stopped

    def test_one_charge_per_part(self, ledger: Ledger) -> None:
        with pytest.raises(InputError, match="one charge per part"):
            tokens(ledger, draw(0, 0.1))
        assert ledger.balance(PEOPLE).entries == 2
        assert tokens(ledger, draw(0, 0.1, 0.1)) == [PRIVATE], "a refused call does not break the ledger"

    def test_charges_of_two_kinds_are_not_added_up(self, ledger: Ledger) -> None:
        for mechanism, order in (("submix", 2.0), ("certified", 2.0), ("submix-guarded", 3.0)):
            with pytest.raises(InputError, match="do not add up"):
                ledger.answer(PEOPLE, [draw(0, 0.1, 0.1)], model="model-1", mechanism=mechanism, order=order)

    def test_only_a_known_ensemble_answers(self, ledger: Ledger) -> None:
        with pytest.raises(InputError, match="does not answer from domain people"):
            tokens(ledger, draw(0, 0.1, 0.1), model="unheard of")

    def test_unknown_domain(self, ledger: Ledger) -> None:
        with pytest.raises(InputError, match="no domain nobody"):
            ledger.answer("nobody", [draw(0, 0.1, 0.1)], model="m", mechanism="certified", order=2.0)

    def test_one_answer_is_never_booked_twice(self, ledger: Ledger) -> None:
        tokens(ledger, draw(0, 0.1, 0.1))
        with pytest.raises(LedgerRefused):
            tokens(ledger, draw(1, 0.1, 0.1), draw(0, 0.1, 0.1))
        assert ledger.balance(PEOPLE).spent == (100_000_000, 100_000_000)
        assert tokens(ledger, draw(1, 0.1, 0.1)) == [PRIVATE], "one client's mistake breaks nothing"


class TestTheDatabaseRefuses:
    """Whatever a bug in the program would ask for."""

    @pytest.mark.parametrize(
        "statement",
        [
            "UPDATE balance SET spent = budget + 1",
            "UPDATE balance SET spent = -1",
            "UPDATE balance SET leased = budget, spent = 1",
            "UPDATE entry SET token = 9",
            "DELETE FROM entry",
            "UPDATE head SET stopped = NULL",
            "UPDATE head SET stopped = 1",
            "DELETE FROM head",
            "UPDATE balance SET spent = 0",
            "UPDATE balance SET budget = 2000000000",
            "UPDATE domain SET mechanism = 'nonprivate'",
            "UPDATE domain SET renyi_order = 32",
            "DELETE FROM domain",
            "UPDATE model SET domain = domain",
            "DELETE FROM model",
            "DELETE FROM balance",
            "DELETE FROM balance WHERE part = 1",
            "INSERT INTO balance (domain, part, budget) VALUES ('people', 2, 1000000000)",
            "UPDATE balance SET leased = 5",
            "UPDATE balance SET part = part + 2",
            "UPDATE domain SET parts = 3",
            "UPDATE domain SET partitioning = 'x'",
            "UPDATE head SET seq = 0",
            "UPDATE head SET seq = 2, hash = (SELECT hash FROM entry WHERE seq = 2)",
            "UPDATE head SET seq = 9, hash = (SELECT hash FROM entry WHERE seq = 2)",
            "UPDATE head SET hash = (SELECT hash FROM entry WHERE seq = 2)",
            "UPDATE head SET private = 0",
            "UPDATE head SET public = 9",
            "UPDATE head SET private = 0, public = 2",
            "INSERT INTO head (domain, seq, hash) SELECT 'others', seq, hash FROM head",
            "UPDATE secret SET value = (SELECT hash FROM head)",
            "DELETE FROM secret",
        ],
    )
    def test_refused(self, ledger: Ledger, statement: str) -> None:
        self.refuses(ledger, statement)

    @staticmethod
    def refuses(ledger: Ledger, statement: str) -> None:
        tokens(ledger, draw(0, 0.1, 0.1), draw(1, 2.0, 2.0))
        before = ledger.balance(PEOPLE), ledger.positions(), ledger.domains(), ledger.secret("ledger")
        with pytest.raises(LedgerRefused), ledger.store.transaction():
            ledger.store.run(statement)
        assert (
            ledger.balance(PEOPLE),
            ledger.positions(),
            ledger.domains(),
            ledger.secret("ledger"),
        ) == before
        verify(ledger, PEOPLE)

    @pytest.mark.parametrize(
        "statement",
        [
            "INSERT OR REPLACE INTO balance VALUES ('people', 0, 1000000000, 0, 0, 0)",
            "INSERT OR REPLACE INTO head SELECT domain, seq, hash, private, public, NULL FROM head",
            "INSERT OR REPLACE INTO domain "
            "SELECT id, renyi_order, parts, partitioning, 'submix', unit, created FROM domain",
            "INSERT OR REPLACE INTO model "
            "SELECT fingerprint, domain, partitioning, corpus, 'x', attached FROM model",
            "UPDATE OR REPLACE balance SET part = 0",
        ],
    )
    def test_refused_by_sqlite(self, tmp_path: Path, anchor: Path, statement: str) -> None:
        with Ledger.open(str(tmp_path / "ledger.db"), anchor=anchor, create=True) as ledger:
            ledger.create(people(), FIRST)
            self.refuses(ledger, statement)

    @pytest.mark.parametrize("table", ["entry", "balance", "head", "domain", "model", "secret"])
    def test_refused_by_postgres(self, postgres: str, anchor: Path, table: str) -> None:
        with Ledger.open(new_database(postgres), anchor=anchor, create=True) as ledger:
            ledger.create(people(), FIRST)
            self.refuses(ledger, f"TRUNCATE {table} CASCADE")

    def test_a_stop_names_the_entry_that_stopped(self, ledger: Ledger) -> None:
        tokens(ledger, draw(0, 0.1, 0.1))
        for entry in (0, 2, 9):
            with pytest.raises(LedgerRefused), ledger.store.transaction():
                ledger.store.run("UPDATE head SET stopped = ?", (entry,))

    def test_a_new_partition_gives_nothing_back(self, ledger: Ledger) -> None:
        """Its entry opens a door in the middle of a transaction; what goes through is what the entry says."""
        tokens(ledger, draw(0, 0.1, 0.2))
        less = '{"carried": 100000000, "partition": "p2", "parts": 3}'
        enough = less.replace("100", "200")
        wrong = [
            (less, ["DELETE FROM balance"]),
            (enough, ["UPDATE domain SET parts = 4, partitioning = 'p2'"]),
            (enough, ["UPDATE domain SET parts = 3, partitioning = 'p3'"]),
        ]
        insert = "INSERT INTO balance (domain, part, budget, spent) VALUES ('people', {}, {}, {})"
        wrong += [
            (enough, ["DELETE FROM balance", insert.format(*row)])
            for row in (
                (3, 10**9, 2 * 10**8),
                (0, 2 * 10**9, 2 * 10**8),
                (0, 10**9, 10**8),
                (-1, 10**9, 2 * 10**8),
            )
        ]
        for note, statements in wrong:
            with pytest.raises(LedgerRefused), ledger.store.transaction():
                ledger._append(PEOPLE, [Entry(PEOPLE, -1, "repartition", "", (0, 0, 0), note=note)])
                for statement in statements:
                    ledger.store.run(statement)
            verify(ledger, PEOPLE)
        with pytest.raises(RuntimeError, match="fault"), ledger.store.transaction():
            ledger._append(PEOPLE, [Entry(PEOPLE, -1, "repartition", "", (0, 0, 0), note=enough)])
            ledger.store.run("DELETE FROM balance")
            for part in range(3):
                ledger.store.run(insert.format(part, 10**9, 2 * 10**8))
            raise RuntimeError("fault")
        assert ledger.balance(PEOPLE).spent == (10**8, 2 * 10**8), "and all of it is undone by a fault"
        verify(ledger, PEOPLE)


class TestOpening:
    """What somebody did who could alter the schema is found without reading every answer."""

    @pytest.mark.parametrize(
        ("alteration", "message"),
        [
            ("UPDATE head SET stopped = NULL", "the stop of domain people"),
            ("UPDATE head SET stopped = 2", "the stop of domain people"),
            ("UPDATE head SET seq = 2", "does not end at its head"),
            ("DELETE FROM head", "does not end at its head"),
            ("DELETE FROM balance", "the balances of domain people"),
            ("DELETE FROM balance WHERE part = 0", "the balances of domain people"),
            ("UPDATE balance SET leased = 1", "the balances of domain people"),
            ("UPDATE balance SET budget = 2000000000 WHERE part = 1", "the balances of domain people"),
            ("UPDATE balance SET part = part + 2", "the balances of domain people"),
            ("UPDATE domain SET parts = 1", "the terms of domain people"),
            ("UPDATE domain SET partitioning = 'x'", "the terms of domain people"),
            ("UPDATE domain SET renyi_order = 3", "the terms of domain people"),
            ("UPDATE domain SET mechanism = 'certified'", "the terms of domain people"),
            ("UPDATE domain SET unit = 'block'", "the terms of domain people"),
            ("UPDATE entry SET note = 'x' WHERE seq = 0", "the terms of domain people cannot be read"),
        ],
    )
    def test_finds(self, url: str, anchor: Path, alteration: str, message: str) -> None:
        with Ledger.open(url, anchor=anchor, create=True) as ledger:
            ledger.create(people(), FIRST)
            tokens(ledger, draw(0, 0.1, 0.1), draw(1, 2.0, 2.0))
        with Ledger.open(url, anchor=anchor) as ledger:
            drop_triggers(ledger)
            ledger.store.run(alteration)
            ledger._changed = False
        with pytest.raises(Tampered, match=message):
            Ledger.open(url, anchor=anchor)

    def test_a_partition_of_fewer_parts_opens_again(self, url: str, anchor: Path) -> None:
        with Ledger.open(url, anchor=anchor, create=True) as ledger:
            ledger.create(people(), FIRST)
            tokens(ledger, draw(0, 0.1, 0.2))
            ledger.attach(PEOPLE, replace(FIRST, fingerprint="m2", partition="p2", parts=1), repartition=True)
        with Ledger.open(url, anchor=anchor) as ledger:
            assert ledger.balance(PEOPLE).spent == (200_000_000,)
            verify(ledger, PEOPLE)


class TestSurvival:
    def test_a_ledger_of_an_earlier_version_is_brought_up_to_date(self, url: str, anchor: Path) -> None:
        with Ledger.open(url, anchor=anchor, create=True) as ledger:
            ledger.create(people(), FIRST)
            tokens(ledger, draw(0, 0.1, 0.1))
            first = ["entry_is_never_changed", "entry_is_never_removed", "entry_is_never_emptied"]
            drop_triggers(
                ledger, but=[*first, "stop_is_for_good", "head_is_never_removed", "nothing_is_given_back"]
            )
            if ledger.store.dialect == "postgres":
                ledger.store.run("DROP FUNCTION check_balance, check_parts, check_head, last_entry")
            ledger.store.run("DROP TABLE people")
            ledger.store.run("ALTER TABLE balance DROP COLUMN moved")
            ledger.store.run("DELETE FROM migration WHERE number > 1")
        with Ledger.open(url, anchor=anchor) as ledger:
            verify(ledger, PEOPLE)
            for statement in ("DELETE FROM model", "DELETE FROM balance"):
                with pytest.raises(LedgerRefused), ledger.store.transaction():
                    ledger.store.run(statement)
            assert tokens(ledger, draw(1, 0.1, 0.1)) == [PRIVATE]

    def test_everything_is_there_again(self, url: str, anchor: Path) -> None:
        with Ledger.open(url, anchor=anchor, create=True) as ledger:
            ledger.create(people(), FIRST)
            tokens(ledger, draw(0, 0.3, 0.1), draw(1, 2.0, 0.0))
            before = ledger.balance(PEOPLE), verify(ledger, PEOPLE), ledger.domains()
        with Ledger.open(url, anchor=anchor) as ledger:
            assert (ledger.balance(PEOPLE), verify(ledger, PEOPLE), ledger.domains()) == before
            assert tokens(ledger, draw(2, 0.0, 0.0)) == [PUBLIC], "I4: STOP is for good"

    def test_a_second_writer_is_kept_out(self, ledger: Ledger, url: str, anchor: Path) -> None:
        """I7."""
        with pytest.raises(LedgerBusy, match="in use by another process"):
            Ledger.open(url, anchor=anchor)
        code = "import sys; from tacit.ledger import Ledger; Ledger.open(sys.argv[1])"
        other = subprocess.run([sys.executable, "-c", code, url], capture_output=True, text=True, check=False)
        assert "LedgerBusy" in other.stderr

    def test_a_failed_store_is_not_written_to_again(
        self, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """I9: a sync that failed once may have lost what it says it has."""

        def fails(*_: object) -> None:
            raise LedgerUnavailable("the disk is full")

        with monkeypatch.context() as patched:
            patched.setattr(ledger.store, "run_many", fails)
            with pytest.raises(LedgerUnavailable, match="full"):
                tokens(ledger, draw(0, 0.1, 0.1))
        with pytest.raises(LedgerUnavailable, match="failed before"):
            tokens(ledger, draw(1, 0.1, 0.1))
        assert ledger.balance(PEOPLE).entries == 2

    def test_nothing_is_made_by_opening(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="tacit ledger init"):
            Ledger.open(str(tmp_path / "none.db"))
        assert not list(tmp_path.iterdir())

    def test_nor_in_somebody_elses_database(self, tmp_path: Path) -> None:
        path = tmp_path / "notes.db"
        with contextlib.closing(sqlite3.connect(path)) as other, other:
            other.execute("CREATE TABLE migration (text TEXT)")
        before = path.read_bytes()
        for create, words in ((False, "holds no ledger"), (True, "is another database")):
            with pytest.raises(InputError, match=words):
                Ledger.open(str(path), create=create)
        assert path.read_bytes() == before
        assert list(tmp_path.iterdir()) == [path]

    def test_nor_in_an_empty_schema(self, postgres: str) -> None:
        url = new_database(postgres)
        with pytest.raises(InputError, match="holds no ledger"):
            Ledger.open(url)
        with psycopg.connect(url) as admin:
            assert admin.execute("SELECT to_regnamespace('tacit')").fetchone() == (None,)
            admin.execute("CREATE SCHEMA tacit")
            admin.execute("CREATE TABLE tacit.note (text TEXT)")
        with pytest.raises(InputError, match="of another kind"):
            Ledger.open(url, create=True)

    def test_the_lock_outlives_whoever_reads_the_file(self, tmp_path: Path) -> None:
        """SQLite's own lock does not: closing any descriptor of the file gives it up."""
        url = str(tmp_path / "l.db")
        with Ledger.open(url, create=True):
            (tmp_path / "l.db").read_bytes()
            code = "import sys; from tacit.ledger import Ledger; Ledger.open(sys.argv[1])"
            other = subprocess.run([sys.executable, "-c", code, url], capture_output=True, check=False)
            assert b"LedgerBusy" in other.stderr

    def test_a_forked_process_can_neither_use_nor_harm_it(self, url: str, anchor: Path) -> None:
        """SQLite in a child that ends would remove the log that its parent goes on writing to."""
        code = """
import os, sys
from pathlib import Path
from tacit.errors import LedgerUnavailable
from tacit.ledger import Draw, Ledger
ledger = Ledger.open(sys.argv[1], anchor=Path(sys.argv[2]))
ledger.anchor._every = 1e9
for step in range(3):
    child = os.fork()
    if not child:
        try:
            ledger.domains()
        except LedgerUnavailable:
            if step == 1:
                ledger.store.close()
            sys.exit(7)
        sys.exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    draws = [Draw("r", step, "t", (0.1, 0.1), 1, 2)]
    ledger.answer("people", draws, model="model-1", mechanism="submix-guarded", order=2.0)
os._exit(0)  # as a crash would
"""
        with Ledger.open(url, anchor=anchor, create=True) as made:
            made.create(people(), FIRST)
        subprocess.run([sys.executable, "-c", code, url, str(anchor)], check=True)
        with Ledger.open(url, anchor=anchor) as ledger:
            assert ledger.balance(PEOPLE).private_answers == 3
            verify(ledger, PEOPLE)

    def test_another_file_is_no_ledger(self, tmp_path: Path) -> None:
        path = tmp_path / "notes.txt"
        path.write_text("not a database " * 100)
        with pytest.raises(InputError, match="not a ledger"):
            Ledger.open(str(path))
        assert list(tmp_path.iterdir()) == [path]

    def test_other_schemes_are_refused(self) -> None:
        with pytest.raises(InputError, match="mysql:// is no ledger"):
            Ledger.open("mysql://host/db")


class TestAnchor:
    @pytest.fixture
    def copied(self, tmp_path: Path, anchor: Path) -> tuple[Path, Path]:
        """A ledger that went on after a copy of it was made."""
        path, copy = tmp_path / "ledger.db", tmp_path / "copy.db"
        with Ledger.open(str(path), anchor=anchor, create=True) as ledger:
            ledger.create(people(), FIRST)
            tokens(ledger, draw(0, 0.1, 0.1))
            ledger.store.backup(copy)
            tokens(ledger, draw(1, 0.1, 0.1))
        return path, copy

    def test_a_copy_has_its_name_when_it_is_whole(
        self, tmp_path: Path, anchor: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        seen: list[bool] = []
        copy = tmp_path / "copies" / "copy.db"

        def looked(path: Path) -> None:
            seen.append(copy.exists())
            sync(path)

        monkeypatch.setattr("tacit.ledger.sqlite_store.sync", looked)
        with Ledger.open(str(tmp_path / "ledger.db"), anchor=anchor, create=True) as ledger:
            ledger.create(people(), FIRST)
            seen.clear()
            ledger.store.backup(copy)
            assert seen == [False, True], "synced before it is named, and its name afterwards"
            with pytest.raises(InputError, match="exists"):
                ledger.store.backup(copy)
        assert [path.name for path in copy.parent.iterdir()] == ["copy.db"], "nothing else is left"
        assert copy.stat().st_mode & 0o777 == 0o600

    def test_a_copy_that_cannot_be_made_says_why_and_leaves_nothing(
        self, tmp_path: Path, anchor: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with Ledger.open(str(tmp_path / "ledger.db"), anchor=anchor, create=True) as ledger:
            ledger.create(people(), FIRST)
            (tmp_path / "file").write_text("")
            with pytest.raises(InputError, match="Cannot create the folder"):
                ledger.store.backup(tmp_path / "file" / "copy.db")
            for problem in (OSError(errno.ENOSPC, "No space left on device"), apsw.FullError("full")):
                monkeypatch.setattr("tacit.ledger.sqlite_store.sync", Mock(side_effect=problem))
                with pytest.raises(EnvironmentProblem, match=r"to .*copy.db \(.*full|No space.*\)") as found:
                    ledger.store.backup(tmp_path / "copy.db")
                assert not isinstance(found.value, LedgerUnavailable), "the ledger itself has not failed"
            assert not list(tmp_path.glob("*copy*"))
            assert tokens(ledger, draw(0, 0.1, 0.1))

    def test_an_older_ledger_cannot_start(self, copied: tuple[Path, Path], anchor: Path) -> None:
        """I8."""
        _, copy = copied
        with pytest.raises(RolledBack, match="ends before entry 3"):
            Ledger.open(str(copy), anchor=anchor)

    def test_nor_one_without_its_anchor(self, copied: tuple[Path, Path]) -> None:
        """A copy elsewhere has none beside it, and an unmounted disk has none either."""
        _, copy = copied
        with pytest.raises(RolledBack, match=r"copy.db.anchor is missing"):
            Ledger.open(str(copy))

    def test_nor_with_that_of_another_ledger(self, tmp_path: Path, anchor: Path) -> None:
        with Ledger.open(str(tmp_path / "a.db"), anchor=anchor, create=True) as ledger:
            ledger.create(people(), FIRST)
        with pytest.raises(RolledBack, match="anchor of another ledger"):
            Ledger.open(str(tmp_path / "b.db"), anchor=anchor, create=True)
        assert not list(tmp_path.glob("b.db*")), "a refusal leaves no ledger behind"
        with pytest.raises(RolledBack, match="anchor of another ledger"):
            Ledger.open(str(tmp_path / "c.db"), create=True).close()
            Ledger.open(str(tmp_path / "c.db"), anchor=anchor, create=True)
        assert (tmp_path / "c.db").is_file(), "and takes nothing away"

    def test_who_begins_a_new_anchor_is_on_record(self, copied: tuple[Path, Path], anchor: Path) -> None:
        path, _ = copied
        anchor.unlink()
        with Ledger.open(str(path), anchor=anchor, new_anchor=True) as ledger:
            verify(ledger, PEOPLE)
            assert statement(ledger, PEOPLE).new_anchors == 1
        with Ledger.open(str(path), anchor=anchor) as ledger:
            assert statement(ledger, PEOPLE).new_anchors == 1

    def test_it_is_written_before_a_charge_when_it_is_old(
        self, url: str, anchor: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """And where that fails, nothing is charged."""
        ledger = Ledger.open(url, anchor=anchor, create=True)
        ledger.create(people(), FIRST)
        ledger.anchor._every = 0.0
        for step in range(3):
            tokens(ledger, draw(step, 0.1, 0.1))
        assert json.loads(anchor.read_text())["domains"][PEOPLE]["seq"] == 3, "as it was before the last"
        anchor.unlink()
        anchor.parent.rmdir()
        anchor.parent.write_text("in the way")
        with pytest.raises(LedgerUnavailable, match="cannot be written"):
            tokens(ledger, draw(3, 0.1, 0.1))
        with pytest.raises(LedgerUnavailable, match="failed before"):
            tokens(ledger, draw(4, 0.1, 0.1))
        assert ledger.balance(PEOPLE).private_answers == 3
        ledger.close()

    def test_every_change_of_terms_is_remembered_at_once(self, url: str, anchor: Path) -> None:
        with Ledger.open(url, anchor=anchor, create=True) as ledger:

            def remembered() -> bool:
                found = json.loads(anchor.read_text())["domains"][PEOPLE]["seq"]
                return bool(found == ledger.positions()[PEOPLE].seq)

            ledger.create(people("certified"), FIRST)
            assert remembered()
            ledger.book_training(PEOPLE, 0.1, "weights")
            assert remembered()
            ledger.attach(PEOPLE, replace(FIRST, fingerprint="m2", partition="p2"), repartition=True)
            assert remembered()

    def test_a_chain_that_was_cut_does_not_start(self, url: str, anchor: Path) -> None:
        with Ledger.open(url, anchor=anchor, create=True) as ledger:
            ledger.create(people(), FIRST)
            tokens(ledger, draw(0, 0.1, 0.1))
            ledger.anchor._every = math.inf
            drop_triggers(ledger)
            ledger.store.run("DELETE FROM entry WHERE seq = 2")
            ledger._changed = False
        with pytest.raises(Tampered, match="does not end at its head"):
            Ledger.open(url, anchor=anchor)

    def test_nor_one_with_another_history(self, copied: tuple[Path, Path], anchor: Path) -> None:
        _, copy = copied
        with Ledger.open(str(copy), anchor=anchor.with_name("other"), new_anchor=True) as ledger:
            for step in range(5):
                tokens(ledger, draw(step, 0.0, 0.0, request="elsewhere"))
        with pytest.raises(RolledBack, match="another history"):
            Ledger.open(str(copy), anchor=anchor)

    def test_the_newest_starts(self, copied: tuple[Path, Path], anchor: Path) -> None:
        path, _ = copied
        with Ledger.open(str(path), anchor=anchor) as ledger:
            assert ledger.balance(PEOPLE).entries == 4
            assert ledger.anchor.age is not None
            assert ledger.anchor.age < 60

    def test_a_damaged_anchor_is_not_taken_for_none(self, copied: tuple[Path, Path], anchor: Path) -> None:
        path, _ = copied
        broken = '{"ledger": "", "domains": {"people": {"seq": "x", "hash": ""}}}'
        for content in ("", '{"version": 1}', broken):
            anchor.write_text(content)
            with pytest.raises((Tampered, InputError), match="damaged"):
                Ledger.open(str(path), anchor=anchor)

    def test_files_are_the_owners(self, copied: tuple[Path, Path], anchor: Path) -> None:
        for path in (*copied, anchor):
            assert path.stat().st_mode & 0o077 == 0


def drop_triggers(ledger: Ledger, but: Sequence[str] = ()) -> None:
    """As somebody may who can alter the schema."""
    if ledger.store.dialect == "sqlite":
        rows = ledger.store.run("SELECT name, tbl_name FROM sqlite_master WHERE type = 'trigger'")
    else:
        rows = ledger.store.run(
            "SELECT tgname, relname FROM pg_trigger JOIN pg_class ON pg_class.oid = tgrelid "
            "WHERE NOT tgisinternal"
        )
    for name, table in rows:
        if name not in but:
            on = "" if ledger.store.dialect == "sqlite" else f" ON {table}"
            ledger.store.run(f"DROP TRIGGER {name}{on}")


def rewrite(ledger: Ledger, change: Callable[[Entry], Entry | None]) -> None:
    """Alter entries and compute every hash anew: what only the meaning of the entries can tell."""
    rows = ledger.store.run(
        "SELECT domain, seq, kind, made, charges, request, step, tenant, token, note FROM entry "
        "WHERE domain = ? ORDER BY seq",
        (PEOPLE,),
    )
    make: Any = Entry
    entries: list[Entry] = [make(*row[:4], unpacked(bytes(row[4])), *row[5:]) for row in rows]
    kept = [entry for entry in map(change, entries) if entry is not None]
    drop_triggers(ledger)
    ledger.store.run("DELETE FROM entry WHERE domain = ?", (PEOPLE,))
    ledger.store.run("UPDATE head SET seq = -1, hash = ?, private = 0, public = 0", (GENESIS,))
    ledger._append(PEOPLE, kept)


class TestVerification:
    @pytest.mark.parametrize(
        ("alteration", "message"),
        [
            ("UPDATE entry SET token = 9 WHERE seq = 2", "Entry 2 .* does not match its hash"),
            ("UPDATE entry SET tenant = NULL WHERE seq = 3", "Entry 3 .* does not match its hash"),
            ("DELETE FROM entry WHERE seq = 2", "Entry 2 .* is missing"),
            ("DELETE FROM entry WHERE seq = 4", "not the end of its chain"),
            ("UPDATE balance SET spent = 0 WHERE part = 1", "not what its entries add up to"),
            ("UPDATE balance SET budget = 2000000000", "not what its entries add up to"),
            ("UPDATE balance SET leased = 1", "leases that no entry speaks of"),
            ("DELETE FROM balance", "balances of domain people are gone"),
            ("UPDATE domain SET renyi_order = 3", "terms of domain"),
            ("UPDATE domain SET mechanism = 'certified'", "terms of domain"),
            ("UPDATE domain SET unit = 'block'", "terms of domain"),
            ("UPDATE head SET stopped = 2", "not the end of its chain"),
            ("UPDATE head SET private = 2", "not as many as its entries"),
            ("DELETE FROM model", "models of domain"),
            ("UPDATE model SET partitioning = 'x'", "models of domain"),
        ],
    )
    def test_finds(self, ledger: Ledger, alteration: str, message: str) -> None:
        tokens(ledger, *(draw(step, 0.1, 0.2) for step in range(3)))
        assert verify(ledger, PEOPLE).entries == 5
        drop_triggers(ledger)
        ledger.store.run(alteration)
        with pytest.raises(Tampered, match=message):
            verify(ledger, PEOPLE)

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"charges": (10**9 + 1, 0)}, "passes the budget"),
            ({"charges": (-1, 0)}, "does not charge every part"),
            ({"charges": (1,)}, "does not charge every part"),
            ({"kind": "public"}, "answers against the stop"),
            ({"kind": "model", "note": "{}"}, "cannot be read"),
            ({"kind": "terms"}, "terms in the wrong place"),
            ({"kind": "anchor"}, "charges what must be free"),
            ({"kind": "repartition", "note": '{"parts": 2, "partition": "x", "carried": 5}'}, "another sum"),
        ],
    )
    def test_finds_by_its_meaning_what_was_hashed_anew(
        self, ledger: Ledger, change: dict[str, Any], message: str
    ) -> None:
        """Entry 2 of: terms, model, token, token, stop, public."""
        tokens(ledger, draw(0, 0.1, 0.2), draw(1, 0.1, 0.2), draw(2, 2.0, 2.0))
        rewrite(ledger, lambda entry: replace(entry, **change) if entry.seq == 2 else entry)
        with pytest.raises(Tampered, match=message):
            verify(ledger, PEOPLE)

    def test_finds_a_second_stop(self, ledger: Ledger) -> None:
        tokens(ledger, draw(0, 0.1, 0.2), draw(1, 2.0, 2.0))
        free: dict[str, Any] = {"kind": "stop", "charges": (0, 0)}
        rewrite(ledger, lambda entry: replace(entry, **free) if entry.kind == "token" else entry)
        with pytest.raises(Tampered, match="stops a second time"):
            verify(ledger, PEOPLE)

    def test_finds_a_private_answer_after_the_stop(self, ledger: Ledger) -> None:
        tokens(ledger, draw(0, 0.1, 0.2), draw(1, 2.0, 2.0))
        rewrite(ledger, lambda entry: replace(entry, kind="token") if entry.kind == "public" else entry)
        with pytest.raises(Tampered, match="answers against the stop"):
            verify(ledger, PEOPLE)

    def test_answers_may_go_on_meanwhile(self, ledger: Ledger) -> None:
        """Every charge that was answered during a verification is there when it has ended."""
        for step in range(40):
            tokens(ledger, *(draw(40 * step + row, 1e-6, 1e-6) for row in range(40)))
        paused = threading.Event()

        def answers() -> None:
            for step in range(10):
                tokens(ledger, draw(step, 1e-6, 1e-6, request="meanwhile"))
            paused.set()

        class Answering(Silent):
            def advance(self, units: int, note: str = "") -> None:
                thread = threading.Thread(target=answers)
                if not paused.is_set():
                    thread.start()
                    thread.join()

        found = verify(ledger, PEOPLE, Answering())
        assert found.entries == 2 + 1600 + 10
        assert len(ledger.tokens_of(PEOPLE, "meanwhile")) == 10

    def test_a_balance_is_the_sum_of_its_charges(self, ledger: Ledger) -> None:
        """I3."""
        charges = [(0.1 / (step + 3), 0.7 / (step + 9)) for step in range(20)]
        tokens(ledger, *(draw(step, *both) for step, both in enumerate(charges)))
        spent = ledger.balance(PEOPLE).spent
        assert spent == tuple(sum(math.ceil(both[part] * 10**9) for both in charges[:]) for part in (0, 1))
        assert verify(ledger, PEOPLE).entries == 22


class TestThreads:
    def test_nobody_sees_what_may_still_be_undone(self, ledger: Ledger) -> None:
        """Or a replay would send a token that nobody paid for."""
        seen: list[list[int]] = []
        reading = threading.Thread(target=lambda: seen.append(ledger.tokens_of(PEOPLE, "r")))
        with pytest.raises(RuntimeError, match="fault"), ledger.writing():
            ledger._append(PEOPLE, [Entry(PEOPLE, -1, "token", "", (0, 0), "r", 0, "t", PRIVATE)])
            reading.start()
            time.sleep(0.2)
            assert not seen
            raise RuntimeError("fault")
        reading.join()
        assert seen == [[]]

    def test_a_transaction_within_a_transaction_is_refused(self, ledger: Ledger) -> None:
        """It would be undone with the outer one, after its answer has left."""
        with pytest.raises(LedgerUnavailable, match="within a transaction"), ledger.store.transaction():
            tokens(ledger, draw(0, 0.1, 0.1))

    def test_parallel_steps_add_up(self, ledger: Ledger) -> None:
        def client(number: int) -> int:
            charges = (0.003, 0.002)
            return sum(
                tokens(ledger, draw(step, *charges, request=str(number))) == [PRIVATE] for step in range(20)
            )

        with ThreadPoolExecutor(8) as clients:
            private = sum(clients.map(client, range(20)))
        assert ledger.balance(PEOPLE).spent == (private * 3_000_000, private * 2_000_000)
        assert private == 333, "the last that leaves something of a budget of one"
        verify(ledger, PEOPLE)


class TestComposition:
    @pytest.fixture
    def sure(self, url: str, anchor: Path) -> Iterator[Ledger]:
        with Ledger.open(url, anchor=anchor, create=True) as made:
            made.create(people("certified"), FIRST)
            yield made

    def test_training_is_charged_to_everybody(self, sure: Ledger) -> None:
        tokens(sure, draw(0, 0.25, 0.25))
        sure.book_training(PEOPLE, 0.5, "weights by DP-SGD")
        assert sure.balance(PEOPLE).spent == (750_000_000, 750_000_000)
        verify(sure, PEOPLE)

    def test_but_not_beyond_what_is_left(self, sure: Ledger) -> None:
        tokens(sure, draw(0, 0.75, 0.75))
        with pytest.raises(BudgetExceeded, match="nothing was booked"):
            sure.book_training(PEOPLE, 0.5, "weights by DP-SGD")
        assert sure.balance(PEOPLE).spent == (750_000_000, 750_000_000)

    @pytest.mark.parametrize("epsilon", [0.0, -1.0, math.nan, math.inf])
    def test_nor_by_a_number_that_is_none(self, sure: Ledger, epsilon: float) -> None:
        with pytest.raises(InputError):
            sure.book_training(PEOPLE, epsilon, "x")

    def test_nor_where_no_statement_would_cover_it(self, ledger: Ledger) -> None:
        with pytest.raises(InputError, match="instance-specific"):
            ledger.book_training(PEOPLE, 0.1, "weights")
        ledger.create(*other_people("individual"))
        ledger.book_training("others", 0.1, "weights, before anything was answered")
        tokens(ledger, draw(0, 0.1, 0.0), model="model-9", domain="others")
        with pytest.raises(InputError, match="has answered"):
            ledger.book_training("others", 0.1, "weights")

    def test_the_same_people_in_other_parts_keep_the_most_that_was_spent(self, ledger: Ledger) -> None:
        tokens(ledger, draw(0, 0.25, 0.5))
        second = Model("model-2", "second", 3, "partition-2", "corpus-1")
        with pytest.raises(InputError, match="--repartition"):
            ledger.attach(PEOPLE, second)
        assert ledger.balance(PEOPLE).spent == (250_000_000, 500_000_000)
        ledger.attach(PEOPLE, second, repartition=True)
        assert ledger.balance(PEOPLE).spent == (500_000_000,) * 3
        assert ledger.domain(PEOPLE).partition == "partition-2"
        assert tokens(ledger, draw(1, 0.1, 0.1, 0.1), model="model-2") == [PRIVATE]
        verify(ledger, PEOPLE)

    def test_an_ensemble_of_the_old_parts_answers_no_more(self, ledger: Ledger) -> None:
        """Its part 0 is not the people of part 0 now."""
        ledger.attach(PEOPLE, Model("model-2", "second", 2, "partition-2", "corpus-1"), repartition=True)
        with pytest.raises(InputError, match="in other parts now"):
            tokens(ledger, draw(0, 0.1, 0.1), model="model-1")
        assert (ledger.domain_of("model-1"), ledger.domain_of("model-2")) == (None, PEOPLE)
        with pytest.raises(InputError, match="partition of then"):
            ledger.attach(PEOPLE, FIRST, repartition=True)

    def test_a_stop_survives_a_new_partition(self, ledger: Ledger) -> None:
        tokens(ledger, draw(0, 2.0, 0.0))
        ledger.attach(PEOPLE, Model("model-2", "second", 1, "partition-2", "corpus-1"), repartition=True)
        assert tokens(ledger, draw(1, 0.0), model="model-2") == [PUBLIC]
        verify(ledger, PEOPLE)

    def test_a_retrained_ensemble_shares_the_budget(self, ledger: Ledger) -> None:
        second = replace(FIRST, fingerprint="model-2", corpus="corpus-2")
        ledger.attach(PEOPLE, second)
        ledger.attach(PEOPLE, second)  # again is no harm
        tokens(ledger, draw(0, 0.5, 0.0))
        assert tokens(ledger, draw(1, 0.6, 0.0), model="model-2") == [PUBLIC]
        assert statement(ledger, PEOPLE).models == ("first", "first")

    @pytest.mark.parametrize(
        "again",
        [
            {"fingerprint": "m", "partition": "p"},  # the same text
            {"fingerprint": "m", "corpus": "c"},  # the same partition
            {"partition": "p", "corpus": "c"},  # the same ensemble
        ],
    )
    def test_a_budget_is_not_given_twice(self, ledger: Ledger, again: dict[str, Any]) -> None:
        model = replace(FIRST, **again)
        with pytest.raises(InputError, match="not given twice"):
            ledger.create(Domain("fresh", 2.0, 2, model.partition, 1.0), model)

    def test_nor_by_joining_others(self, ledger: Ledger) -> None:
        ledger.create(*other_people("certified"))
        for again in ({"partition": "p"}, {"corpus": "c"}):
            model = replace(replace(FIRST, fingerprint="m"), **again)  # type: ignore[arg-type]
            with pytest.raises(InputError, match="not given twice"):
                ledger.attach("others", model, repartition=True)

    def test_an_ensemble_of_another_shape_is_not_attached(self, ledger: Ledger) -> None:
        with pytest.raises(InputError, match="3 parts and domain people 2"):
            ledger.attach(PEOPLE, replace(FIRST, fingerprint="m", parts=3))
        with pytest.raises(InputError, match="made of blocks"):
            ledger.attach(
                PEOPLE, replace(FIRST, fingerprint="m", unit="block", partition="p"), repartition=True
            )
        verify(ledger, PEOPLE)

    def test_parts_that_have_faded_stay_as_they_are(self, ledger: Ledger) -> None:
        domain, model = other_people("individual")
        ledger.create(domain, model)
        second = replace(model, fingerprint="m", partition="p")
        tokens(ledger, draw(0, 0.1, 0.0), model="model-9", domain="others")
        with pytest.raises(InputError, match="cannot change any more"):
            ledger.attach("others", second, repartition=True)

    def test_neither_a_statement_nor_an_opening_reads_every_answer(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A service does both while its clients wait, and a chain may have ten million answers."""
        asked: list[tuple[str, Sequence[object]]] = []
        run = Store.run

        def remembered(store: Store, words: str, values: Sequence[object] = ()) -> list[Row]:
            asked.append((words, values))
            return run(store, words, values)

        monkeypatch.setattr(Store, "run", remembered)
        url = str(tmp_path / "ledger.db")
        with Ledger.open(url, create=True) as made:
            made.create(people(), FIRST)
        asked.clear()
        with Ledger.open(url) as ledger:
            statement(ledger, PEOPLE)
            of_entries = [one for one in asked if "entry" in one[0] and one[0].startswith("SELECT")]
            assert len(of_entries) > 3
            for words, values in of_entries:
                plan = [str(row[3]) for row in run(ledger.store, f"EXPLAIN QUERY PLAN {words}", values)]
                few = words.endswith("LIMIT 1") or all(
                    "entry_event" in step or "seq=?" in step for step in plan
                )
                assert few, (words, plan)

    def test_what_a_statement_may_say(self, ledger: Ledger) -> None:
        """By its terms, from the first day on, and for users where parts have changed."""
        said = statement(ledger, PEOPLE).guarantee
        assert said is not None
        assert (said.kind, said.unit, said.epsilon) == ("rop", "part", 1.0)
        words = ("the vocabulary, which was built from private text",)
        second = Model("model-2", "second", 2, "partition-2", "corpus-1", "user", words)
        ledger.attach(PEOPLE, second, repartition=True)
        assert statement(ledger, PEOPLE).guarantee is None
        assert "no statement that covers both" in statement(ledger, PEOPLE).caveats[0]
        domain, model = other_people("certified")
        model = replace(model, unit="block", outside=words)
        ledger.create(replace(domain, unit="block"), model)
        said = statement(ledger, "others").guarantee
        assert said is not None
        assert (said.kind, said.unit, said.outside) == ("rdp", "part", words)
        ledger.attach("others", replace(model, fingerprint="m", partition="p"), repartition=True)
        said = statement(ledger, "others").guarantee
        assert said is not None
        assert (said.unit, said.epsilon) == ("block", 3.0)
        assert said.order == pytest.approx(4 / 3)

    def test_a_statement_says_which_charges_bound_one_direction_only(self, ledger: Ledger) -> None:
        said = statement(ledger, PEOPLE).guarantee
        assert said is not None
        assert "One-directional" not in said.caveat
        ledger.create(*other_people("gnmax"))
        said = statement(ledger, "others").guarantee
        assert said is not None
        assert said.caveat.startswith("One-directional (paper)")

    def test_noise_is_priced_for_a_part_that_changes_and_so_for_a_user(self, ledger: Ledger) -> None:
        domain, model = other_people("subsample_aggregate")
        ledger.create(domain, model)
        said = statement(ledger, "others").guarantee
        assert said is not None
        assert (said.unit, said.neighbours) == ("part", "changed part")
        ledger.attach("others", replace(model, fingerprint="m", partition="p"), repartition=True)
        said = statement(ledger, "others").guarantee
        assert said is not None
        assert (said.unit, said.order, said.epsilon) == ("user", domain.order, domain.epsilon)

    def test_a_domain_is_made_once(self, ledger: Ledger) -> None:
        with pytest.raises(InputError, match="has a domain people already"):
            ledger.create(people(epsilon=5.0), FIRST)

    @pytest.mark.parametrize(
        "terms",
        [
            ("", 2.0, 2, 1.0),
            ("x", 1.0, 2, 1.0),
            ("x", 2.0, 0, 1.0),
            ("x", 2.0, 2, 0.0),
            ("x\n", 2, 2, 1),
            ("x", 2, 2, 1e-10),
        ],
    )
    def test_terms_are_checked(self, terms: tuple[str, float, int, float]) -> None:
        name, order, parts, epsilon = terms
        with pytest.raises(InputError):
            Domain(name, order, parts, "p", epsilon)
        wrong: list[dict[str, Any]] = [{"mechanism": "nonprivate"}, {"unit": "household"}]
        for field in wrong:
            with pytest.raises(InputError):
                replace(people(), **field)


class TestAccess:
    def test_keys(self, ledger: Ledger) -> None:
        access = Access(ledger)
        key, made = access.create_key("acme")
        other, _ = access.create_key("zenith")
        assert (access.tenant_for(key), access.tenant_for(other)) == ("acme", "zenith")
        assert access.tenant_for(key + "x") is None
        access.revoke_key(made.id)
        assert access.tenant_for(key) is None
        assert [one.revoked is None for one in access.every_key()].count(True) == 1
        with pytest.raises(InputError, match="no key nothing"):
            access.revoke_key("nothing")

    @pytest.mark.parametrize("name", ["\0", "a\ud800b", "", "x" * 201], ids=lambda one: ascii(one)[:10])
    def test_names_that_no_database_keeps_are_the_callers_fault(self, ledger: Ledger, name: str) -> None:
        access = Access(ledger)
        calls: list[Callable[[], object]] = [
            lambda: access.create_key(name),
            lambda: access.create_key(name, tokens_most=1),
            lambda: access.ensure_tenant(name),
            lambda: access.change_quota(name, 1),
            lambda: access.tenant(name),
            lambda: access.revoke_key(name),
        ]
        for call in calls:
            with pytest.raises(InputError, match=r"printable name|8 hexadecimal digits") as refused:
                call()
            assert type(refused.value) is InputError  # and nothing that the database said
        assert access.every_key() == []

    def test_a_key_is_not_kept(self, tmp_path: Path) -> None:
        with Ledger.open(str(tmp_path / "l.db"), create=True) as ledger:
            key, _ = Access(ledger).create_key("acme")
        assert key.encode() not in b"".join(file.read_bytes() for file in tmp_path.iterdir())

    def test_quotas_count_tokens_whoever_answered(self, ledger: Ledger) -> None:
        access = Access(ledger)
        access.set_quota("acme", 10)
        tokens(ledger, draw(0, 0.1, 0.1), draw(1, 2.0, 0.0))
        found = access.tenant("acme")
        assert (found.tokens_used, found.tokens_left) == (2, 8)
        access.set_quota("acme", None)
        assert access.tenant("acme").tokens_left is None
        with pytest.raises(InputError, match="at least 0"):
            access.set_quota("acme", -1)

    def test_the_same_request_has_the_same_id_and_tokens(self, ledger: Ledger) -> None:
        """I5: what was paid for is given again for nothing."""
        access = Access(ledger)
        for tenant in ("acme", "zenith"):
            access.set_quota(tenant, None)
        first = access.request("acme", "key-1", b"body")
        tokens(ledger, draw(0, 0.1, 0.1, request=first.id), draw(1, 2.0, 0.0, request=first.id))
        assert access.request("acme", "key-1", b"body") == first
        assert ledger.tokens_of(PEOPLE, first.id) == [PRIVATE, PUBLIC]
        assert access.request("zenith", "key-1", b"body") != first
        assert access.request("acme", None, b"body") != access.request("acme", None, b"body")
        with pytest.raises(KeyReused):
            access.request("acme", "key-1", b"another body")

    def test_nothing_of_a_request_is_kept(self, tmp_path: Path) -> None:
        with Ledger.open(str(tmp_path / "l.db"), create=True) as ledger:
            access = Access(ledger)
            access.set_quota("acme", None)
            access.request("acme", "my-very-own-key", b"a prompt in confidence")
        content = b"".join(file.read_bytes() for file in tmp_path.iterdir())
        assert b"my-very-own-key" not in content
        assert b"confidence" not in content


class TestDurability:
    @pytest.mark.parametrize(
        ("version", "affected"),
        [
            ("3.6.23", False),
            ("3.7.0", True),
            ("3.40.1", True),
            ("3.44.5", True),
            ("3.44.6", False),
            ("3.50.6", True),
            ("3.50.7", False),
            ("3.51.2", True),
            ("3.51.3", False),
            ("3.54.1", False),
            ("4.0", False),
        ],
    )
    def test_the_wal_reset_bug(self, version: str, affected: bool) -> None:
        assert has_wal_reset_bug(version) is affected
        if affected:
            with pytest.raises(EnvironmentProblem, match="pip install --upgrade apsw"):
                check_version(version)
        else:
            check_version(version)

    def test_sqlite_writes_through(self, tmp_path: Path) -> None:
        with Ledger.open(str(tmp_path / "l.db"), create=True) as ledger:
            found = ledger.store.durability()
        assert (found["journal_mode"], found["synchronous"], found["locking_mode"]) == (
            "wal",
            "full",
            "exclusive",
        )

    @pytest.mark.parametrize("setting", ["off", "local"])
    def test_postgres_must_wait_for_the_disk(self, postgres: str, setting: str) -> None:
        url = f"{postgres}&options=-csynchronous_commit%3D{setting}"
        with pytest.raises(EnvironmentProblem, match=f"synchronous_commit is {setting}"):
            Ledger.open(url, create=True)

    def test_a_lost_connection_releases_nothing_and_can_be_opened_again(
        self, postgres: str, anchor: Path
    ) -> None:
        """I9."""
        url = new_database(postgres)
        ledger = Ledger.open(url, anchor=anchor, create=True)
        ledger.create(people(), FIRST)
        tokens(ledger, draw(0, 0.1, 0.1))
        with psycopg.connect(url, autocommit=True) as admin:
            admin.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() "
                "AND pid <> pg_backend_pid()"
            )
        with pytest.raises(LedgerUnavailable):
            ledger.answer(PEOPLE, [draw(1, 0.1, 0.1)], model="model-1", mechanism="submix-guarded", order=2.0)
        with pytest.raises(LedgerUnavailable, match="failed before"), ledger.writing():
            pass
        ledger.close()
        with Ledger.open(url, anchor=anchor) as again:
            assert again.balance(PEOPLE).entries == 3
            assert tokens(again, draw(1, 0.1, 0.1)) == [PRIVATE]

    def test_an_unreachable_server_is_a_sentence_without_its_password(self) -> None:
        with pytest.raises(LedgerUnavailable, match="check the URL") as raised:
            Ledger.open("postgresql://someone:hunter2@127.0.0.1:1/db")
        assert "hunter2" not in str(raised.value)
        with pytest.raises(InputError, match="cannot be read") as misspelt:
            Ledger.open("postgresql://someone:hun%zzter2@127.0.0.1:1/db")
        assert "zzter2" not in str(misspelt.value)
        assert place_of("postgresql://a:b@host:5/db?password=hunter2") == "postgresql://host:5/db"

    def test_a_reload_of_the_server_does_not_change_the_session(self, postgres: str, anchor: Path) -> None:
        url = new_database(postgres)
        with (
            Ledger.open(url, anchor=anchor, create=True) as ledger,
            psycopg.connect(url, autocommit=True) as admin,
        ):
            admin.execute("ALTER SYSTEM SET synchronous_commit TO off")
            admin.execute("SELECT pg_reload_conf()")
            try:
                for _ in range(300):  # sessions notice a reload when they get to it
                    if admin.execute("SHOW synchronous_commit").fetchone() == ("off",):
                        break
                    time.sleep(0.1)
                assert admin.execute("SHOW synchronous_commit").fetchone() == ("off",)
                assert ledger.store.durability()["synchronous_commit"] == "on"
            finally:
                admin.execute("ALTER SYSTEM RESET synchronous_commit")
                admin.execute("SELECT pg_reload_conf()")
                time.sleep(0.5)


def test_the_ledger_needs_no_torch() -> None:
    code = "import sys, tacit.ledger; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
