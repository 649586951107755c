"""The ledger in both stores: what is charged, what stops, what is refused, what survives."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from tacit.errors import (
    BudgetExceeded,
    EnvironmentProblem,
    InputError,
    KeyReused,
    LedgerBusy,
    LedgerUnavailable,
    RolledBack,
    Tampered,
)
from tacit.ledger import Access, Domain, Draw, Ledger, verify
from tacit.ledger.sqlite_store import check_version, has_wal_reset_bug

PEOPLE = "people"
PRIVATE, PUBLIC = 7, 8


def draw(step: int, *charges: float, request: str = "r") -> Draw:
    return Draw(request, step, "acme", charges, PRIVATE, PUBLIC)


def tokens(ledger: Ledger, *draws: Draw, strict: bool = True) -> list[int]:
    return [
        answer.token for answer in ledger.answer(PEOPLE, draws, mechanism="submix-guarded", strict=strict)
    ]


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
        assert tokens(ledger, *(draw(step, 0.5, 0.5) for step in range(3)), strict=False) == [
            PRIVATE,
            PRIVATE,
            PUBLIC,
        ]

    @pytest.mark.parametrize("charge", [math.nan, math.inf, -1e-9, -math.inf])
    def test_a_charge_that_is_no_number_pays_for_nothing(self, ledger: Ledger, charge: float) -> None:
        assert tokens(ledger, draw(0, 0.0, charge)) == [PUBLIC]
        assert ledger.balance(PEOPLE).stopped

    def test_one_charge_per_part(self, ledger: Ledger) -> None:
        with pytest.raises(InputError, match="one charge per part"):
            tokens(ledger, draw(0, 0.1))
        assert ledger.balance(PEOPLE).entries == 1
        assert tokens(ledger, draw(0, 0.1, 0.1)) == [PRIVATE], "a refused call does not break the ledger"

    def test_charges_of_two_kinds_are_not_added_up(self, ledger: Ledger) -> None:
        for mechanism in ("submix", "nonprivate", "unheard of"):
            with pytest.raises(InputError, match="against a null part"):
                ledger.answer(PEOPLE, [draw(0, 0.1, 0.1)], mechanism=mechanism)
        ledger.create(Domain("others", 2.0, 2, "p", 1.0, "removed part"))
        assert ledger.answer("others", [draw(0, 0.1, 0.1)], mechanism="submix")[0].was_private
        with pytest.raises(InputError, match="against a removed part"):
            ledger.answer("others", [draw(1, 0.1, 0.1)], mechanism="certified")
        verify(ledger, "others")

    def test_unknown_domain(self, ledger: Ledger) -> None:
        with pytest.raises(InputError, match="no domain nobody"):
            ledger.answer("nobody", [draw(0, 0.1, 0.1)], mechanism="submix-guarded")

    def test_one_answer_is_never_booked_twice(self, ledger: Ledger) -> None:
        tokens(ledger, draw(0, 0.1, 0.1))
        with pytest.raises(LedgerUnavailable):
            tokens(ledger, draw(0, 0.1, 0.1))
        assert ledger.balance(PEOPLE).spent == (100_000_000, 100_000_000)


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
        ],
    )
    def test_refused(self, ledger: Ledger, statement: str) -> None:
        tokens(ledger, draw(0, 0.1, 0.1), draw(1, 2.0, 2.0))
        before = ledger.balance(PEOPLE)
        with pytest.raises(LedgerUnavailable), ledger.store.transaction():
            ledger.store.run(statement)
        assert ledger.balance(PEOPLE) == before
        verify(ledger, PEOPLE)


class TestSurvival:
    def test_everything_is_there_again(self, url: str, anchor: Path) -> None:
        with Ledger.open(url, anchor=anchor, create=True) as ledger:
            ledger.create(Domain(PEOPLE, 2.0, 2, "partition-1", 1.0))
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
        assert ledger.balance(PEOPLE).entries == 1

    def test_nothing_is_made_by_opening(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="tacit ledger init"):
            Ledger.open(str(tmp_path / "none.db"))
        assert not list(tmp_path.iterdir())

    def test_another_file_is_no_ledger(self, tmp_path: Path) -> None:
        path = tmp_path / "notes.txt"
        path.write_text("not a database " * 100)
        with pytest.raises(InputError, match="not a ledger"):
            Ledger.open(str(path))

    def test_other_schemes_are_refused(self) -> None:
        with pytest.raises(InputError, match="mysql:// is no ledger"):
            Ledger.open("mysql://host/db")


class TestAnchor:
    @pytest.fixture
    def copied(self, tmp_path: Path, anchor: Path) -> tuple[Path, Path]:
        """A ledger that went on after a copy of it was made."""
        path, copy = tmp_path / "ledger.db", tmp_path / "copy.db"
        with Ledger.open(str(path), anchor=anchor, create=True) as ledger:
            ledger.create(Domain(PEOPLE, 2.0, 2, "partition-1", 1.0))
            tokens(ledger, draw(0, 0.1, 0.1))
            ledger.store.backup(copy)
            tokens(ledger, draw(1, 0.1, 0.1))
        return path, copy

    def test_an_older_ledger_cannot_start(self, copied: tuple[Path, Path], anchor: Path) -> None:
        """I8."""
        _, copy = copied
        with pytest.raises(RolledBack, match="ends before entry 2"):
            Ledger.open(str(copy), anchor=anchor)

    def test_nor_one_with_another_history(self, copied: tuple[Path, Path], anchor: Path) -> None:
        _, copy = copied
        with Ledger.open(str(copy), anchor=anchor.with_name("other")) as ledger:
            for step in range(5):
                tokens(ledger, draw(step, 0.0, 0.0, request="elsewhere"))
        with pytest.raises(RolledBack, match="another history"):
            Ledger.open(str(copy), anchor=anchor)

    def test_the_newest_starts(self, copied: tuple[Path, Path], anchor: Path) -> None:
        path, _ = copied
        with Ledger.open(str(path), anchor=anchor) as ledger:
            assert ledger.balance(PEOPLE).entries == 3
            assert ledger.anchor.age is not None
            assert ledger.anchor.age < 60

    def test_a_damaged_anchor_is_not_taken_for_none(self, copied: tuple[Path, Path], anchor: Path) -> None:
        path, _ = copied
        for content in ("", '{"version": 1}', '{"domains": {"people": {"seq": "x", "hash": ""}}}'):
            anchor.write_text(content)
            with pytest.raises((Tampered, InputError), match="damaged"):
                Ledger.open(str(path), anchor=anchor)

    def test_files_are_the_owners(self, copied: tuple[Path, Path], anchor: Path) -> None:
        for path in (*copied, anchor):
            assert path.stat().st_mode & 0o077 == 0


class TestVerification:
    @pytest.mark.parametrize(
        ("alteration", "message"),
        [
            ("UPDATE entry SET token = 9 WHERE seq = 1", "Entry 1 .* does not match its hash"),
            ("UPDATE entry SET tenant = NULL WHERE seq = 2", "Entry 2 .* does not match its hash"),
            ("DELETE FROM entry WHERE seq = 1", "Entry 1 .* is missing"),
            ("DELETE FROM entry WHERE seq = 3", "not the end of its chain"),
            ("UPDATE balance SET spent = 0 WHERE part = 1", "not what its entries add up to"),
            ("UPDATE balance SET budget = 2000000000", "not what its entries add up to"),
            ("UPDATE domain SET renyi_order = 3", "terms of domain"),
            ("UPDATE domain SET neighbours = 'removed part'", "terms of domain"),
            ("UPDATE head SET stopped = 2", "not the end of its chain"),
            ("UPDATE head SET private = 2", "not as many as its entries"),
        ],
    )
    def test_finds(self, ledger: Ledger, alteration: str, message: str) -> None:
        tokens(ledger, *(draw(step, 0.1, 0.2) for step in range(3)))
        assert verify(ledger, PEOPLE).entries == 4
        drop = "DROP TRIGGER {}" if ledger.store.dialect == "sqlite" else "DROP TRIGGER {} ON entry"
        names = ["entry_is_never_changed"]
        names += ["entry_is_never_removed"] if ledger.store.dialect == "sqlite" else []
        for name in names:  # somebody who may alter the schema
            ledger.store.run(drop.format(name))
        ledger.store.run(alteration)
        with pytest.raises(Tampered, match=message):
            verify(ledger, PEOPLE)

    def test_a_balance_is_the_sum_of_its_charges(self, ledger: Ledger) -> None:
        """I3."""
        charges = [(0.1 / (step + 3), 0.7 / (step + 9)) for step in range(20)]
        tokens(ledger, *(draw(step, *both) for step, both in enumerate(charges)))
        spent = ledger.balance(PEOPLE).spent
        assert spent == tuple(sum(math.ceil(both[part] * 10**9) for both in charges[:]) for part in (0, 1))
        assert verify(ledger, PEOPLE).entries == 21


class TestComposition:
    def test_training_is_charged_to_everybody(self, ledger: Ledger) -> None:
        tokens(ledger, draw(0, 0.25, 0.0))
        ledger.book_training(PEOPLE, 0.5, "weights by DP-SGD")
        assert ledger.balance(PEOPLE).spent == (750_000_000, 500_000_000)
        verify(ledger, PEOPLE)

    def test_but_not_beyond_what_is_left(self, ledger: Ledger) -> None:
        tokens(ledger, draw(0, 0.75, 0.0))
        with pytest.raises(BudgetExceeded, match="nothing was booked"):
            ledger.book_training(PEOPLE, 0.5, "weights by DP-SGD")
        assert ledger.balance(PEOPLE).spent == (750_000_000, 0)

    @pytest.mark.parametrize("epsilon", [0.0, -1.0, math.nan, math.inf])
    def test_nor_by_a_number_that_is_none(self, ledger: Ledger, epsilon: float) -> None:
        with pytest.raises(InputError):
            ledger.book_training(PEOPLE, epsilon, "x")

    def test_the_same_people_in_other_parts_keep_the_most_that_was_spent(self, ledger: Ledger) -> None:
        tokens(ledger, draw(0, 0.25, 0.5))
        ledger.repartition(PEOPLE, parts=3, partition="partition-2", note="retrained")
        balance = ledger.balance(PEOPLE)
        assert balance.spent == (500_000_000,) * 3
        assert ledger.domain(PEOPLE).partition == "partition-2"
        assert [
            a.token for a in ledger.answer(PEOPLE, [draw(1, 0.1, 0.1, 0.1)], mechanism="submix-guarded")
        ] == [PRIVATE]
        verify(ledger, PEOPLE)

    def test_a_stop_survives_a_new_partition(self, ledger: Ledger) -> None:
        tokens(ledger, draw(0, 2.0, 0.0))
        ledger.repartition(PEOPLE, parts=1, partition="partition-2")
        assert [a.token for a in ledger.answer(PEOPLE, [draw(1, 0.0)], mechanism="submix-guarded")] == [
            PUBLIC
        ]
        verify(ledger, PEOPLE)

    def test_a_model_answers_from_one_domain(self, ledger: Ledger) -> None:
        ledger.create(Domain("others", 2.0, 2, "partition-1", 1.0))
        ledger.attach("model-1", "run", PEOPLE, "partition-1")
        ledger.attach("model-1", "run", PEOPLE, "partition-1")  # again is no harm
        ledger.attach("model-2", "retrained", PEOPLE, "partition-1")
        assert (ledger.domain_of("model-1"), ledger.domain_of("model-3")) == (PEOPLE, None)
        with pytest.raises(InputError, match="answers from domain people already"):
            ledger.attach("model-1", "run", "others", "partition-1")
        with pytest.raises(InputError, match="--repartition"):
            ledger.attach("model-3", "run", PEOPLE, "partition-2")

    def test_a_domain_is_made_once(self, ledger: Ledger) -> None:
        with pytest.raises(InputError, match="has a domain people already"):
            ledger.create(Domain(PEOPLE, 2.0, 2, "partition-1", 5.0))

    @pytest.mark.parametrize(
        "terms",
        [("", 2.0, 2, 1.0), ("x", 1.0, 2, 1.0), ("x", 2.0, 0, 1.0), ("x", 2.0, 2, 0.0), ("x\n", 2, 2, 1)],
    )
    def test_terms_are_checked(self, terms: tuple[str, float, int, float]) -> None:
        name, order, parts, epsilon = terms
        with pytest.raises(InputError):
            Domain(name, order, parts, "p", epsilon)


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
        first = access.request_id("acme", "key-1", b"body")
        tokens(ledger, draw(0, 0.1, 0.1, request=first), draw(1, 2.0, 0.0, request=first))
        assert access.request_id("acme", "key-1", b"body") == first
        assert ledger.tokens_of(PEOPLE, first) == [PRIVATE, PUBLIC]
        assert access.request_id("zenith", "key-1", b"body") != first
        assert access.request_id("acme", None, b"body") != access.request_id("acme", None, b"body")
        with pytest.raises(KeyReused):
            access.request_id("acme", "key-1", b"another body")

    def test_nothing_of_a_request_is_kept(self, tmp_path: Path) -> None:
        with Ledger.open(str(tmp_path / "l.db"), create=True) as ledger:
            access = Access(ledger)
            access.set_quota("acme", None)
            access.request_id("acme", "my-very-own-key", b"a prompt in confidence")
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
        from tests.ledger.conftest import new_database

        url = new_database(postgres)
        ledger = Ledger.open(url, anchor=anchor, create=True)
        ledger.create(Domain(PEOPLE, 2.0, 2, "partition-1", 1.0))
        tokens(ledger, draw(0, 0.1, 0.1))
        with psycopg.connect(url, autocommit=True) as admin:
            admin.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() "
                "AND pid <> pg_backend_pid()"
            )
        with pytest.raises(LedgerUnavailable):
            tokens(ledger, draw(1, 0.1, 0.1))
        with pytest.raises(LedgerUnavailable, match="failed before"):
            tokens(ledger, draw(2, 0.1, 0.1))
        ledger.close()
        with Ledger.open(url, anchor=anchor) as again:
            assert again.balance(PEOPLE).entries == 2
            assert tokens(again, draw(1, 0.1, 0.1)) == [PRIVATE]

    def test_an_unreachable_server_is_a_sentence_without_its_password(self) -> None:
        with pytest.raises(LedgerUnavailable, match="check the URL") as raised:
            Ledger.open("postgresql://someone:hunter2@127.0.0.1:1/db")
        assert "hunter2" not in str(raised.value)


def test_the_ledger_needs_no_torch() -> None:
    code = "import sys, tacit.ledger; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
