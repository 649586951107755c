"""The ledger against a model of thirty lines, over whatever order of calls Hypothesis thinks of."""

from __future__ import annotations

import math
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tacit.errors import BudgetExceeded
from tacit.ledger import Domain, Draw, Ledger, Model, verify

BILLION = 10**9
charges = st.one_of(
    st.sampled_from([0.0, 1e-12, 0.1, 0.25, 0.5, 1.0, math.inf, math.nan, -0.1]), st.floats(0, 1.1)
)


class Expected:
    """What a ledger is meant to do, without a database."""

    def __init__(self, parts: int, *, strict: bool) -> None:
        self.spent, self.stopped, self.entries, self.strict = [0] * parts, False, 2, strict

    def answer(self, asked: list[list[float]]) -> list[bool]:
        private = []
        for row in asked:
            after = [
                spent + math.ceil(c * BILLION) if 0 <= c < math.inf else math.inf
                for spent, c in zip(self.spent, row, strict=True)
            ]
            most = BILLION - 1 if self.strict else BILLION
            if not self.stopped and max(after) > most:
                self.stopped = True
                self.entries += 1
            if not self.stopped:
                self.spent = [int(value) for value in after]
            self.entries += 1
            private.append(not self.stopped)
        return private


class LedgerMachine(RuleBasedStateMachine):
    @initialize(parts=st.integers(1, 3), mechanism=st.sampled_from(["certified", "submix-guarded"]))
    def begin(self, parts: int, mechanism: str) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.url, self.parts, self.step = str(Path(self.folder.name) / "ledger.db"), parts, 0
        self.number, self.mechanism = 0, mechanism
        self.ledger = Ledger.open(self.url, create=True)
        self.ledger.create(Domain("d", 2.0, parts, "p0", 1.0, mechanism), self.ensemble)
        self.model = Expected(parts, strict=mechanism == "submix-guarded")

    @property
    def ensemble(self) -> Model:
        return Model(f"m{self.number}", "run", self.parts, f"p{self.number}", "c")

    @rule(data=st.data(), count=st.integers(1, 4))
    def answer(self, data: st.DataObject, count: int) -> None:
        asked = [[data.draw(charges) for _ in range(self.parts)] for _ in range(count)]
        if self.mechanism == "certified":  # one price for everybody
            asked = [[row[0] if 0 <= row[0] < 2 else 0.1] * self.parts for row in asked]
        draws = [Draw("r", self.step + i, "t", row, 1, 2) for i, row in enumerate(asked)]
        self.step += count
        given = self.ledger.answer(
            "d", draws, model=self.ensemble.fingerprint, mechanism=self.mechanism, order=2.0
        )
        expected = self.model.answer(asked)
        assert [answer.was_private for answer in given] == expected
        assert [answer.token for answer in given] == [1 if private else 2 for private in expected]

    @precondition(lambda self: self.mechanism == "certified")
    @rule(epsilon=st.floats(1e-9, 1.0))
    def train(self, epsilon: float) -> None:
        charge = math.ceil(epsilon * BILLION)
        fits = max(self.model.spent) + charge <= BILLION
        try:
            self.ledger.book_training("d", epsilon, "weights")
        except BudgetExceeded:
            assert not fits
        else:
            assert fits
            self.model.spent = [spent + charge for spent in self.model.spent]
            self.model.entries += 1

    @rule(parts=st.integers(1, 3))
    def repartition(self, parts: int) -> None:
        self.number, self.parts = self.number + 1, parts
        self.ledger.attach("d", self.ensemble, repartition=True)
        self.model.spent = [max(self.model.spent)] * parts
        self.model.entries += 2

    @rule()
    def restart(self) -> None:
        self.ledger.close()
        self.ledger = Ledger.open(self.url)

    @invariant()
    def they_agree(self) -> None:
        if not hasattr(self, "ledger"):
            return
        found = self.ledger.balance("d")
        assert list(found.spent) == self.model.spent
        assert (found.stopped, found.entries) == (self.model.stopped, self.model.entries)
        assert all(spent <= BILLION for spent in found.spent)

    def teardown(self) -> None:
        if hasattr(self, "ledger"):
            verify(self.ledger, "d")
            self.ledger.close()
            self.folder.cleanup()


TestLedgerMachine = LedgerMachine.TestCase
TestLedgerMachine.settings = settings(
    max_examples=25, stateful_step_count=15, deadline=None, suppress_health_check=list(HealthCheck)
)
