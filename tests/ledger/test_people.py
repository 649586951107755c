"""Whose budget it is: the same people are known again, by keyed hashes of their ids and nothing else."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from tacit.errors import InputError, LedgerRefused, Tampered
from tacit.ledger import Domain, Ledger, Model, statement, store, verify
from tests.ledger.conftest import FIRST, people

PEOPLE = "people"
ANN_TO_DAN = ("ann", "ben", "cem", "dan")


def ensemble(number: int, ids: Iterable[str] | None, **changes: object) -> Model:
    """One that has nothing in common with another but perhaps its people."""
    who = None if ids is None else tuple(ids)
    made = Model(f"model-{number}", f"run-{number}", 2, f"partition-{number}", f"corpus-{number}", people=who)
    return replace(made, **changes)  # type: ignore[arg-type]


def account(number: int) -> Domain:
    return Domain(f"domain-{number}", 2.0, 2, f"partition-{number}", 1.0)


@pytest.fixture
def book(url: str, anchor: Path) -> Ledger:
    """A ledger with the account of four people."""
    made = Ledger.open(url, anchor=anchor, create=True)
    made.create(account(1), ensemble(1, ANN_TO_DAN))
    return made


def test_retraining_with_another_text_and_key_is_no_new_budget(book: Ledger) -> None:
    with book:
        with pytest.raises(InputError, match=r"4 of 4 in domain domain-1.*not given twice"):
            book.create(account(2), ensemble(2, ANN_TO_DAN))
        assert [domain.id for domain in book.domains()] == ["domain-1"]
        book.attach("domain-1", ensemble(2, ANN_TO_DAN), repartition=True)
        verify(book, "domain-1")


def test_nor_for_one_person_among_others(book: Ledger) -> None:
    with book:
        with pytest.raises(InputError, match="1 of 3 in domain domain-1"):
            book.create(account(2), ensemble(2, ("dan", "eve", "fay")))
        book.create(account(2), ensemble(2, ("eve", "fay")))
        with pytest.raises(InputError, match="1 of 3 in domain domain-1, 1 of 3 in domain domain-2"):
            book.create(account(3), ensemble(3, ("ann", "eve", "gus")))
        with pytest.raises(InputError, match="1 of 5 in domain domain-2"):
            book.attach("domain-1", ensemble(3, (*ANN_TO_DAN, "eve")), repartition=True)


def test_whoever_joins_a_domain_is_known_there(book: Ledger) -> None:
    with book:
        book.attach("domain-1", ensemble(2, (*ANN_TO_DAN, "eve")), repartition=True)
        with pytest.raises(InputError, match="1 of 1 in domain domain-1"):
            book.create(account(3), ensemble(3, ("eve",)))


def test_the_ledger_holds_no_id(book: Ledger, url: str, tmp_path: Path) -> None:
    with book:
        ((hashes,),) = book.store.run("SELECT hashes FROM people")
        found = [bytes(hashes)[i : i + 16] for i in range(0, len(bytes(hashes)), 16)]
        assert len(set(found)) == 4
        assert found == sorted(found), "in an order that tells nothing about who is in which part"
        notes = str(book.store.run("SELECT note FROM entry"))
    assert not any(name in notes for name in ANN_TO_DAN)
    assert not any(name in repr(ensemble(1, ANN_TO_DAN)) for name in ANN_TO_DAN)
    if not store.is_postgres(url):
        content = b"".join(file.read_bytes() for file in tmp_path.glob("ledger.db*"))
        assert b"cem" not in content


def test_the_same_id_has_another_hash_in_another_ledger(tmp_path: Path) -> None:
    found = []
    for name in ("a", "b"):
        with Ledger.open(str(tmp_path / name), create=True) as book:
            book.create(account(1), ensemble(1, ANN_TO_DAN))
            found.append(bytes(book.store.run("SELECT hashes FROM people")[0][0]))
    assert found[0] != found[1]


@pytest.mark.parametrize("statement", ["UPDATE people SET hashes = hashes", "DELETE FROM people"])
def test_the_database_forgets_nobody(book: Ledger, statement: str) -> None:
    with book, pytest.raises(LedgerRefused):
        book.store.run(statement)


@pytest.mark.parametrize("forgotten", [b"", b"0123456789abcdef"])
def test_whoever_forgets_people_behind_its_back_is_found(book: Ledger, forgotten: bytes) -> None:
    with book:
        where = " ON people" if book.store.dialect == "postgres" else ""
        book.store.run(f"DROP TRIGGER people_are_never_changed{where}")
        book.store.run("UPDATE people SET hashes = ?", (forgotten,))
        with pytest.raises(Tampered, match="people of domain domain-1"):
            verify(book, "domain-1")


def test_people_of_an_older_ledger_are_unknown_until_its_run_is_attached_again(
    url: str, anchor: Path
) -> None:
    with Ledger.open(url, anchor=anchor, create=True) as book:
        book.create(people(), FIRST)
        for undone in (
            "DROP TABLE people",
            "ALTER TABLE balance DROP COLUMN moved",
            "DELETE FROM migration WHERE number > 3",
        ):
            book.store.run(undone)
    with Ledger.open(url, anchor=anchor) as book:
        assert book.unknown_people(PEOPLE) == [], "there is nobody else"
        book.create(account(2), ensemble(2, ("ann", "eve")))
        assert book.unknown_people("domain-2") == [PEOPLE]
        assert book.unknown_people(PEOPLE) == ["domain-2"], "nor the other way round"
        (caveat,) = statement(book, "domain-2").caveats
        assert f"have a budget in {PEOPLE} too" in caveat
        book.attach(PEOPLE, replace(FIRST, people=("ben", "cem")))
        assert statement(book, "domain-2").caveats == ()
        assert (book.unknown_people("domain-2"), book.unknown_people(PEOPLE)) == ([], [])
        with pytest.raises(InputError, match="in domain people"):
            book.create(account(3), ensemble(3, ("cem",)))
        with pytest.raises(InputError, match="1 of 1 in domain domain-2"):
            book.attach(PEOPLE, replace(FIRST, fingerprint="model-3", people=("ann",)))
        for domain in (PEOPLE, "domain-2"):
            verify(book, domain)
        assert statement(book, PEOPLE).models == ("first",)


def _dialect(url: str) -> str:
    return "postgres" if store.is_postgres(url) else "sqlite"


@pytest.mark.slow
def test_a_million_people_are_bulk_work_and_little_room(tmp_path: Path) -> None:
    """Row by row, this runs into the time limit of every test."""
    ids = tuple(f"customer-{number:09d}" for number in range(1_000_000))
    path = tmp_path / "ledger.db"
    with Ledger.open(str(path), create=True) as book:
        book.create(account(1), ensemble(1, ids))
        with pytest.raises(InputError, match="1 of 1,000,000 in domain"):
            book.create(account(2), ensemble(2, (*(f"other-{name}" for name in ids[1:]), ids[0])))
    assert sum(file.stat().st_size for file in tmp_path.glob("ledger.db*")) < 50_000_000


def test_people_of_older_domains_that_overlap_are_known_and_told_of(url: str, anchor: Path) -> None:
    """Refusing them left advice that went in a circle, and a ledger that could never know them."""
    with Ledger.open(url, anchor=anchor, create=True) as book:
        book.create(account(1), ensemble(1, None))
        book.create(account(2), ensemble(2, None))
        book.attach("domain-2", ensemble(3, None), repartition=True)  # the second answers no more
        for number, domain, ids in (
            (1, "domain-1", ANN_TO_DAN),
            (2, "domain-2", ("dan", "eve")),
            (3, "domain-2", ("cem", "dan")),
        ):
            book.attach(domain, ensemble(number, ids))
        assert (book.unknown_people("domain-1"), book.unknown_people("domain-2")) == ([], [])
        assert book.shared_people("domain-1") == {"domain-2": 2}
        assert book.shared_people("domain-2") == {"domain-1": 2}
        for domain, other in (("domain-1", "domain-2"), ("domain-2", "domain-1")):
            (caveat,) = statement(book, domain).caveats
            assert f"in {other} (2)" in caveat
            verify(book, domain)
        with pytest.raises(InputError, match="1 of 1 in domain domain-1"):
            book.attach("domain-2", ensemble(4, ("cem",)), repartition=True)


def test_ids_that_no_encoding_has_are_known_too(book: Ledger) -> None:
    with book:
        book.create(account(2), ensemble(2, ("\ud800",)))
        with pytest.raises(InputError, match="1 of 1 in domain domain-2"):
            book.create(account(3), ensemble(3, ("\ud800",)))
