"""Ledgers to test: in a SQLite file, and in a real PostgreSQL that the tests start."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from tacit.ledger import Domain, Ledger, Model

MakeUrl = Callable[[], str]


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where a new ledger may be made, once in each store."""
    if request.param == "sqlite":
        return str(tmp_path / "ledger.db")
    return new_database(request.getfixturevalue("postgres"))


def new_database(server: str) -> str:
    """A database of its own on the server."""
    name = f"t{uuid.uuid4().hex}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
    return server.replace("/postgres?", f"/{name}?")


@pytest.fixture
def anchor(tmp_path: Path) -> Path:
    """Where its anchor goes."""
    return tmp_path / "elsewhere" / "anchor.json"


FIRST = Model("model-1", "first", 2, "partition-1", "corpus-1")
"""The ensemble that a test's domain begins with."""


def people(mechanism: str = "submix-guarded", epsilon: float = 1.0) -> Domain:
    """The domain of most tests."""
    return Domain("people", 2.0, 2, "partition-1", epsilon, mechanism)


@pytest.fixture
def ledger(url: str, anchor: Path) -> Iterator[Ledger]:
    """A ledger with one domain of two parts and a budget of one nat."""
    with Ledger.open(url, anchor=anchor, create=True) as made:
        made.create(people(), FIRST)
        yield made
