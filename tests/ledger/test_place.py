"""Files that are taken away, replaced or made by two at once: nothing is booked where nobody will find it."""

from __future__ import annotations

import fcntl
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tacit.errors import InputError, LedgerBusy, LedgerUnavailable, RolledBack, TacitError
from tacit.files import make_parent
from tacit.ledger import Draw, Ledger, sqlite_store, store, verify
from tacit.ledger.postgres_store import _LOCK
from tests.ledger.conftest import FIRST, new_database, people

PEOPLE, PRIVATE, PUBLIC = "people", 7, 8
Change = Callable[[Path], None]


def answer(ledger: Ledger, step: int) -> list[int]:
    draws = [Draw("r", step, "acme", (0.1, 0.1), PRIVATE, PUBLIC)]
    given = ledger.answer(PEOPLE, draws, model="model-1", mechanism="submix-guarded", order=2.0)
    return [one.token for one in given]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


@pytest.fixture
def books(path: Path, anchor: Path) -> Iterator[Ledger]:
    """A ledger in a file, with one answer in its log and not in the file itself."""
    ledger = Ledger.open(str(path), anchor=anchor, create=True)
    ledger.create(people(), FIRST)
    ledger.store.run("PRAGMA wal_checkpoint(TRUNCATE)")
    ledger.anchor._every = 1e9  # it remembers nothing of what is answered here, unless it must
    assert answer(ledger, 0) == [PRIVATE]
    yield ledger
    ledger.store.close()


def wal(path: Path) -> Path:
    return path.with_name(path.name + "-wal")


def remove_all(path: Path) -> None:
    for file in path.parent.glob(f"{path.name}*"):
        file.unlink()


def replace_with_a_copy(file: Path) -> None:
    """The same bytes, in another file."""
    shutil.copy(file, file.with_name("copy"))
    file.with_name("copy").rename(file)


def put_a_folder_there(path: Path) -> None:
    path.unlink()
    path.mkdir()


CHANGES: dict[str, Change] = {
    "all removed": remove_all,
    "file removed": lambda path: path.unlink(),
    "log removed": lambda path: wal(path).unlink(),
    "file replaced": replace_with_a_copy,
    "log replaced": lambda path: replace_with_a_copy(wal(path)),
    "folder in its place": put_a_folder_there,
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_nothing_is_answered_from_files_that_are_not_in_their_place(
    books: Ledger, path: Path, change: Change
) -> None:
    """I1, I9: a charge in a file without a name is gone when the process ends."""
    change(path)
    with pytest.raises(LedgerUnavailable, match="removed or replaced"):
        answer(books, 1)
    assert books.balance(PEOPLE).private_answers == 1, "nothing was booked"
    with pytest.raises(LedgerUnavailable, match="failed before"):
        answer(books, 2)


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_nor_where_that_happens_while_it_is_booked(books: Ledger, path: Path, change: Change) -> None:
    with pytest.raises(LedgerUnavailable, match="removed or replaced"), books.writing():
        change(path)


def test_without_the_log_the_file_alone_is_an_older_copy(books: Ledger, path: Path, anchor: Path) -> None:
    """I8: what was released since the last anchor was in the log; the ledger remembers it before it ends."""
    wal(path).unlink()
    with pytest.raises(LedgerUnavailable):
        answer(books, 1)
    books.store.close()
    with pytest.raises(RolledBack):
        Ledger.open(str(path), anchor=anchor)


def test_files_that_come_back_open_again(books: Ledger, path: Path, anchor: Path, tmp_path: Path) -> None:
    away = tmp_path / "away"
    away.mkdir()
    for file in (path, wal(path)):
        file.rename(away / file.name)
    with pytest.raises(LedgerUnavailable):
        answer(books, 1)
    books.store.close()
    with pytest.raises(InputError):
        Ledger.open(str(path), anchor=anchor)
    for file in (path, wal(path)):
        (away / file.name).rename(file)
    with Ledger.open(str(path), anchor=anchor) as ledger:
        assert answer(ledger, 1) == [PRIVATE]
        verify(ledger, PEOPLE)


def test_who_closes_what_has_gone_is_told(books: Ledger, path: Path) -> None:
    remove_all(path)
    with pytest.raises(LedgerUnavailable, match="removed or replaced"):
        books.close()


def test_a_long_log_stays_in_its_place(books: Ledger, path: Path, anchor: Path) -> None:
    """Copying the log into the file, which SQLite does by itself, replaces neither."""
    for step in range(1, 7):
        answer(books, step)
        books.store.run("PRAGMA wal_checkpoint(TRUNCATE)" if step % 2 else "PRAGMA wal_checkpoint(RESTART)")
    books.close()
    with Ledger.open(str(path), anchor=anchor) as ledger:
        assert answer(ledger, 7) == [PRIVATE]


# Made, and not to be kept


@pytest.mark.parametrize("moment", ["check_version", "make_parent"])
def test_a_ledger_that_another_process_has_made_is_never_removed(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """It was not there when we looked, and is when we open it."""
    anchor = tmp_path / "other.anchor"
    work = getattr(sqlite_store, moment)

    def others_are_faster(*arguments: Any) -> None:
        monkeypatch.setattr(sqlite_store, moment, work)
        with Ledger.open(str(path), anchor=anchor, create=True) as other:
            other.create(people(), FIRST)
        work(*arguments)

    monkeypatch.setattr(sqlite_store, moment, others_are_faster)
    with pytest.raises(RolledBack, match="is missing"):
        Ledger.open(str(path), anchor=tmp_path / "mine.anchor", create=True)
    with Ledger.open(str(path), anchor=anchor) as ledger:
        assert ledger.domains() == [people()]


def test_nor_one_that_another_process_is_making(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def opened_meanwhile(folder: Path) -> None:
        monkeypatch.setattr(sqlite_store, "make_parent", make_parent)
        held.append(Ledger.open(str(path), anchor=tmp_path / "other.anchor", create=True))
        make_parent(folder)

    held: list[Ledger] = []
    monkeypatch.setattr(sqlite_store, "make_parent", opened_meanwhile)
    with pytest.raises(LedgerBusy):
        Ledger.open(str(path), anchor=tmp_path / "mine.anchor", create=True)
    held[0].create(people(), FIRST)
    held[0].close()
    with Ledger.open(str(path), anchor=tmp_path / "other.anchor") as ledger:
        assert ledger.domains() == [people()]


@pytest.mark.parametrize("script", ["CREATE TABLE first (a TEXT); nonsense", "nonsense"])
def test_one_that_could_not_be_made_leaves_nothing(
    tmp_path: Path, path: Path, monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    monkeypatch.setattr(store, "_migrations", lambda _: [(1, "0001_bad.sql", script)])
    with pytest.raises(TacitError):
        Ledger.open(str(path), create=True)
    assert not list(tmp_path.iterdir())


def test_nor_one_with_the_anchor_of_another(tmp_path: Path, path: Path, anchor: Path) -> None:
    with Ledger.open(str(path), anchor=anchor, create=True) as ledger:
        ledger.create(people(), FIRST)
    with pytest.raises(RolledBack, match="anchor of another ledger"):
        Ledger.open(str(tmp_path / "new" / "b.db"), anchor=anchor, create=True)
    assert not list((tmp_path / "new").iterdir()), "the folder stays, and is empty"


def test_a_file_that_was_there_is_not_taken_away(tmp_path: Path, path: Path, anchor: Path) -> None:
    with Ledger.open(str(tmp_path / "a.db"), anchor=anchor, create=True) as ledger:
        ledger.create(people(), FIRST)
    path.touch()
    with pytest.raises(RolledBack, match="anchor of another ledger"):
        Ledger.open(str(path), anchor=anchor, create=True)
    assert path.is_file()


def test_a_lock_that_was_removed_with_its_ledger_locks_nothing(path: Path, tmp_path: Path) -> None:
    """Who waits for a lock that is unlinked meanwhile must not take it for that of the next ledger."""
    lock = path.with_name("ledger.db.lock")
    flock = fcntl.flock
    taken: list[int] = []

    def removed_first(descriptor: int, operation: int) -> None:
        if not taken:
            lock.unlink()
        flock(descriptor, operation)
        taken.append(descriptor)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(fcntl, "flock", removed_first)
        ledger = Ledger.open(str(path), anchor=tmp_path / "anchor", create=True)
    with ledger, pytest.raises(LedgerBusy):
        Ledger.open(str(path), anchor=tmp_path / "anchor")
    assert len(taken) == 2


def test_whoever_is_leaving_is_waited_for(postgres: str) -> None:
    """A closed connection's lock is free a moment later; the next one to open had been told it was busy."""
    url = new_database(postgres)
    with Ledger.open(url, create=True):
        pass
    holder = psycopg.connect(url, autocommit=True)
    holder.execute("SELECT pg_advisory_lock(%s)", (_LOCK,))
    leaving = threading.Timer(0.5, holder.close)
    leaving.start()
    with Ledger.open(url) as book:
        assert book.domains() == []
    leaving.join()
