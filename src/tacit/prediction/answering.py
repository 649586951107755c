"""Where mechanism, budget and sampling meet, once: the file an auditor reads first.

The order is the guarantee: distributions, then charges, then the budget, then the draw. A token is drawn
only from a distribution whose charge has been booked, or from the public model.

What may leave: tokens, and what follows from tokens. Weights, charges, what is left of a budget and whether
STOP has come are functions of private text; they are in :class:`OperatorView` and nowhere else.
"""

from __future__ import annotations

import math
import secrets
import threading
from dataclasses import dataclass

import torch
from torch import Tensor

from tacit.errors import InputError
from tacit.mechanisms import Certified, GNMax, Individual, NonPrivate, Public, RandomStopping, SubMix, sample
from tacit.mechanisms.choice import Mechanism, MechanismChoice, needs_halves
from tacit.mechanisms.pmfs import floored_public
from tacit.mechanisms.sampling import RandBelow
from tacit.prediction.drawing import check_halves, mixed
from tacit.privacy import Guarantee, RenyiFilter, random_stopping
from tacit.privacy.conversions import MOST_QUERIES
from tacit.privacy.filter import check_budget
from tacit.privacy.guarantee import Neighbours


@dataclass(frozen=True)
class Budget:
    """How much may be revealed, over how many answers: both public.

    epsilon   nats per part, at the mechanism's order
    queries   answers that the budget is meant for; the price per answer follows from it
    stopping  SubMix's random stopping, labelled `paper`; None for a plain STOP
    """

    epsilon: float
    queries: int
    stopping: RandomStopping | None = None

    def __post_init__(self) -> None:
        check_budget(self.epsilon)
        if not isinstance(self.queries, int) or not 1 <= self.queries <= MOST_QUERIES:
            raise InputError(
                f"queries={self.queries}: a budget is for a whole number of answers, from 1 to "
                f"{MOST_QUERIES:,}."
            )

    @property
    def target(self) -> float:
        """The paper's heuristic: the budget in equal shares."""
        return self.epsilon / self.queries


@dataclass(frozen=True)
class OperatorView:
    """What only the operator may see: functions of private text."""

    answered: int
    stopped: bool
    spent: tuple[float, ...]
    alarms: int


class Answering:
    """One ensemble's answers under one budget.

    Formal guarantee: see :attr:`guarantee`, which is a function of the mechanism and the budget. After STOP,
    or when a certified budget's tokens are used up, every answer is the public model's, for ever; the same
    work is done for it.
    """

    def __init__(
        self,
        choice: MechanismChoice,
        *,
        parts: int,
        halves: int,
        budget: Budget,
        outside: tuple[str, ...] = (),
        randbelow: RandBelow = secrets.randbelow,
    ) -> None:
        """``randbelow`` is replaced only by tests and seeded experiments."""
        self.mechanism: Mechanism = choice.build(parts)
        check_halves(self.mechanism, halves)
        self.budget = budget
        self._outside = outside
        self._randbelow = randbelow
        self._filter = RenyiFilter(parts=parts, epsilon=budget.epsilon)
        self._lock = threading.Lock()  # counting, checking and booking are one act, whoever asks
        self._answered = self._alarms = 0
        self._last = math.inf if budget.stopping is None else budget.stopping.draw(randbelow) - 1
        if isinstance(self.mechanism, Certified):
            paid = self.mechanism.queries(budget.epsilon)
            if paid == 0:
                raise InputError(
                    f"epsilon={budget.epsilon} does not pay for one answer at target={choice.target}; "
                    "lower the target or raise epsilon."
                )
            self._last = min(self._last, paid)
        self._order = choice.order

    @property
    def guarantee(self) -> Guarantee:
        """What holds for all answers together."""
        epsilon = self.budget.epsilon
        if isinstance(self.mechanism, NonPrivate):
            return Guarantee(
                kind="none",
                unit="part",
                caveat="Answers may reproduce any training text.",
                outside=self._outside,
            )
        if isinstance(self.mechanism, Public):
            return Guarantee(
                kind="public",
                unit="part",
                caveat="The public model never saw the private text.",
                outside=self._outside,
            )
        instance_specific = needs_halves(self.mechanism) or (
            isinstance(self.mechanism, GNMax) and self.mechanism.data_dependent
        )
        if not instance_specific:
            mixes = isinstance(self.mechanism, Certified | Individual)
            return Guarantee.certified(
                order=self._order,
                epsilon=epsilon,
                neighbours="null part" if mixes else "changed part",
                outside=self._outside,
            )
        outside = self._outside
        if self.budget.stopping is not None:
            stop = random_stopping(
                order=self._order,
                epsilon=epsilon,
                queries=self.budget.stopping.queries,
                expansion=self.budget.stopping.expansion,
            )
            outside += (f"random stopping (paper): epsilon {stop.epsilon:.4g}, {stop.direction}",)
        neighbours: Neighbours = "changed part"  # GNMax
        if isinstance(self.mechanism, SubMix):
            neighbours = "removed part" if self.mechanism.guard is None else "null part"
        return Guarantee.operational(
            order=self._order,
            epsilon=epsilon,
            neighbours=neighbours,
            one_directional=isinstance(self.mechanism, GNMax),
            outside=outside,
        )

    def draw(self, members: Tensor, public: Tensor) -> int:
        """One answer from members [parts, halves, n] and public [n]: charged first, then drawn."""
        pmf = self._charged(members, public)
        return sample(pmf, self._randbelow)

    def draw_lazily(self, part: Tensor, public: Tensor, *, parts: int) -> int:
        """One certified answer from the part of a secret slot [n] and public [n]; see `secret_slot`."""
        if not isinstance(self.mechanism, Certified):
            raise InputError("Only certified mixing can answer from one part; use another executor.")
        mixture = self.mechanism.slot(part, public, parts=parts)
        instead = floored_public(public)
        with self._lock:
            self._alarms += int((~mixture.sound).sum())
            self._answered += 1
            allowed = self._answered <= self._last
        return sample(mixture.pmf if allowed else instead, self._randbelow)

    def secret_slot(self, parts: int) -> int:
        """Which slot answers next: uniform, and never to be shown."""
        return self._randbelow(parts)

    def _charged(self, members: Tensor, public: Tensor) -> Tensor:
        """The distribution to draw from. Everything is computed whether or not it may be used."""
        instead = floored_public(public)
        with self._lock:
            left = torch.from_numpy(self._filter.remaining)
            mixture = mixed(self.mechanism, members, public, left)
            self._alarms += int((~mixture.sound).sum())
            self._answered += 1
            allowed = self._book(mixture.charges)
        return mixture.pmf if allowed else instead

    def _book(self, charges: Tensor) -> bool:
        if isinstance(self.mechanism, Public | NonPrivate):
            return True
        if self._answered > self._last:  # a certified counter or a random stop: not a function of the text
            return False
        if isinstance(self.mechanism, Certified):
            return True  # the counter is the budget: every answer costs every part the same
        if isinstance(self.mechanism, Individual):
            self._filter.debit(charges.numpy())
            return True
        return self._filter.spend(charges.numpy())

    def operator_view(self) -> OperatorView:
        """For the operator's eyes: never to a client, never to a log that others read."""
        spent = self._filter.spent
        if isinstance(self.mechanism, Certified):
            spent = spent + self.mechanism.target * min(self._answered, self._last)
        stopped = self._filter.stopped or self._answered > self._last
        return OperatorView(self._answered, stopped, tuple(float(value) for value in spent), self._alarms)
