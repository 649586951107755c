"""A service's hold on a domain: decided in memory, booked in order, or not at all. In both stores."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tacit.errors import InputError, LedgerUnavailable
from tacit.ledger import Access, Domain, Draw, Ledger, Model, Session, verify
from tacit.ledger.history import events, latest_charges
from tacit.ledger.store import Store
from tests.ledger.conftest import FIRST, people


def session_of(ledger: Ledger, mechanism: str = "submix-guarded") -> Session:
    return Session(ledger, "people", model=FIRST.fingerprint, mechanism=mechanism, order=2.0)


def draw(step: int, *charges: float, request: str = "r") -> Draw:
    return Draw(request, step, "acme", charges, private=100 + step, public=200 + step)


STEPS = [
    [draw(0, 0.3, 0.1), draw(0, 0.2, 0.2, request="s")],
    [draw(1, 0.3, 0.1)],
    [draw(2, 0.3, 0.1)],
    [draw(3, 0.0, 0.0)],
]


def test_deciding_ahead_gives_what_answering_at_once_gives(url: str, anchor: Path, tmp_path: Path) -> None:
    """All steps are decided before the first is booked; answers, balances and entries are the same."""
    with Ledger.open(str(tmp_path / "other.db"), create=True) as at_once:
        at_once.create(people(), FIRST)
        terms = {"model": FIRST.fingerprint, "mechanism": "submix-guarded", "order": 2.0}
        expected = [at_once.answer("people", step, **terms) for step in STEPS]  # type: ignore[arg-type]
        balance = at_once.balance("people")
    with Ledger.open(url, anchor=anchor, create=True) as ledger:
        ledger.create(people(), FIRST)
        Access(ledger).ensure_tenant("acme")
        session = session_of(ledger)
        decided = [session.decide(step) for step in STEPS]
        assert [list(one.answers) for one in decided] == expected
        assert ledger.balance("people").private_answers == 0, "nothing is durable yet"
        for one in decided:
            session.book(one)
        assert ledger.balance("people") == session.balance == balance
        assert balance.stopped
        assert Access(ledger).tenant("acme").tokens_used == 5
        verify(ledger, "people")


def test_steps_are_booked_in_order_or_not_at_all(ledger: Ledger) -> None:
    session = session_of(ledger)
    first, second = (session.decide([draw(step, 0.1, 0.1)]) for step in range(2))
    with pytest.raises(LedgerUnavailable, match="somebody else"):
        session.book(second)
    with pytest.raises(LedgerUnavailable, match="failed before"):
        session.book(first)  # what is true of the database is only known after opening it anew
    assert ledger.balance("people").private_answers == 0


def test_a_step_is_booked_once(ledger: Ledger) -> None:
    session = session_of(ledger)
    step = session.decide([draw(0, 0.1, 0.1)])
    session.book(step)
    with pytest.raises(LedgerUnavailable):
        session.book(step)
    assert ledger.balance("people").private_answers == 1


def test_entries_of_somebody_else_end_the_session(ledger: Ledger) -> None:
    session = session_of(ledger)
    step = session.decide([draw(0, 0.1, 0.1)])
    ledger.answer(
        "people", [draw(9, 0.5, 0.5)], model=FIRST.fingerprint, mechanism="submix-guarded", order=2.0
    )
    with pytest.raises(LedgerUnavailable, match="nothing was released"):
        session.book(step)


@pytest.mark.parametrize(
    ("mechanism", "model", "order"),
    [("submix", "model-1", 2.0), ("submix-guarded", "x", 2.0), ("submix-guarded", "model-1", 3.0)],
)
def test_only_the_domains_own_terms_open_a_session(
    ledger: Ledger, mechanism: str, model: str, order: float
) -> None:
    with pytest.raises(InputError):
        Session(ledger, "people", model=model, mechanism=mechanism, order=order)


def test_a_balance_knows_how_many_answers_it_pays_for(ledger: Ledger) -> None:
    session = session_of(ledger)
    assert session.balance.pays_for(0.25) == 4
    session.decide([draw(0, 0.25, 0.0)])
    assert session.balance.pays_for(0.25) == 3, "the part that has least left decides"
    session.decide([draw(1, 2.0, 0.0)])
    assert session.balance.pays_for(0.25) == 0, "stopped"


def test_old_idempotency_keys_are_forgotten_and_what_was_paid_is_not(ledger: Ledger) -> None:
    access = Access(ledger)
    access.ensure_tenant("acme")
    first = access.request("acme", "key", b"body")
    session = session_of(ledger)
    session.book(session.decide([draw(0, 0.1, 0.1, request=first.id)]))
    access.forget_requests(first.created)
    assert access.request("acme", "key", b"body") == first, "not older than that"
    access.forget_requests("9999")
    assert access.request("acme", "key", b"another body").id != first.id
    assert ledger.tokens_of("people", first.id) == [100]


def test_latest_charges_and_events_come_in_order(ledger: Ledger) -> None:
    session = session_of(ledger)
    for step in range(3):
        session.book(session.decide([draw(step, 2.0 ** (step - 3), 0.0)]))
    session.book(session.decide([draw(3, 5.0, 0.0)]))
    charges = [one.charges for one in latest_charges(ledger.store, "people", 3)]
    assert charges == [(250_000_000, 0), (500_000_000, 0), (0, 0)]
    assert [event.kind for event in events(ledger.store, "people")] == ["terms", "model", "stop"]


def test_a_step_writes_the_same_rows_before_and_after_stop(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the time of a step would tell that nobody pays any more."""
    rows: list[tuple[str, int]] = []
    run_many = Store.run_many

    def counted(self: Store, statement: str, values: Sequence[Sequence[object]]) -> None:
        rows.append((" ".join(statement.split()[:3]), len(values)))
        run_many(self, statement, values)

    session = session_of(ledger)
    monkeypatch.setattr(Store, "run_many", counted)
    seen = []
    for step, charge in enumerate((0.5, 5.0, 0.5, 0.5)):
        rows.clear()
        session.book(session.decide([draw(step, charge, 0.0)]))
        seen.append(sorted(rows))
    assert session.balance.private_answers == 1
    assert seen[0] == seen[2] == seen[3], "the one that stops writes one line more, once"
    assert ("UPDATE balance SET", 2) in seen[0]


def test_the_operators_name_is_nobody_elses(ledger: Ledger) -> None:
    with pytest.raises(InputError, match="choose another"):
        Access(ledger).create_key("operator", tokens_most=0)
    assert not Access(ledger).tenants()


def test_after_stop_a_step_writes_as_many_pages_as_if_nobody_had_stopped(tmp_path: Path) -> None:
    """SQLite writes no page of a row that stays as it is, and a token waits for what is written."""
    written = {epsilon: pages_of_steps(tmp_path / f"{epsilon}.db", epsilon) for epsilon in (1.0, 1000.0)}
    assert written[1.0][:150] == written[1000.0][:150], "before it stops"
    late = {epsilon: pages[250:] for epsilon, pages in written.items()}
    assert sum(late[1.0]) == pytest.approx(sum(late[1000.0]), rel=0.01)


def pages_of_steps(path: Path, epsilon: float) -> list[int]:
    """Pages that each of 450 steps writes; with an epsilon of 1 the 200th stops."""
    parts, log = 8, path.with_name(f"{path.name}-wal")
    pages = []
    with Ledger.open(str(path), create=True) as ledger:
        ledger.create(Domain("people", 2.0, parts, "p", epsilon, "submix"), Model("m", "m", parts, "p", "c"))
        Access(ledger).ensure_tenant("acme")
        ledger.store.run("PRAGMA wal_autocheckpoint=0")
        session = Session(ledger, "people", model="m", mechanism="submix", order=2.0)
        for step in range(450):
            before = log.stat().st_size
            session.book(session.decide([draw(step, *[0.005 * (1 + part / 1e3) for part in range(parts)])]))
            pages.append((log.stat().st_size - before) // 4096)
        assert session.balance.stopped == (epsilon == 1.0)
    return pages
