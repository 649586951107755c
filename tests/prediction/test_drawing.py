"""Many queries of one step: each as if it were alone, and what is wrong with one is wrong with that one."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tacit.errors import InputError
from tacit.mechanisms.choice import MechanismChoice
from tacit.prediction import Drawing, Drawn

PARTS = 3


def queries(rows: int, *sizes: int) -> list[torch.Tensor]:
    torch.manual_seed(4)
    return [torch.softmax(torch.randn(rows, size), -1) for size in sizes]


@pytest.mark.parametrize(
    ("choice", "halves", "lazy"),
    [
        (MechanismChoice("submix", target=0.05), 2, False),
        (MechanismChoice("submix", target=0.05, guard=0.1), 2, False),
        (MechanismChoice("certified", target=0.05), 1, False),
        (MechanismChoice("certified", target=0.05), 1, True),
    ],
)
def test_queries_of_one_step_are_charged_as_if_alone(
    choice: MechanismChoice, halves: int, lazy: bool
) -> None:
    asked = queries(2 if lazy else 1 + PARTS * halves, 12, 30, 12, 12, 30, 7)
    drawing = Drawing(choice, parts=PARTS, halves=halves, lazy=lazy)
    together: list[Any] = drawing.draw(asked, [0] * PARTS)
    alone: list[Any] = [drawing.draw([query], [0] * PARTS)[0] for query in asked]
    for query, one, other in zip(asked, together, alone, strict=True):
        assert one.charges == pytest.approx(other.charges, rel=1e-4)
        assert one.weights == pytest.approx(other.weights, rel=1e-4)
        assert max(one.private, one.public) < query.shape[1]


def test_a_query_that_cannot_be_answered_ends_alone() -> None:
    asked = queries(1 + 2 * PARTS, 12, 12, 12)
    asked[1][0, 3] = float("nan")
    drawing = Drawing(MechanismChoice("submix", target=0.05), parts=PARTS, halves=2)
    first, second, third = drawing.draw(asked, [0] * PARTS)
    assert isinstance(second, InputError)
    assert isinstance(first, Drawn)
    assert isinstance(third, Drawn)


def test_a_member_that_is_not_finite_is_an_alarm_of_its_own_query() -> None:
    asked = queries(1 + 2 * PARTS, 12, 12)
    asked[1][2, 3] = float("nan")
    drawing = Drawing(MechanismChoice("submix", target=0.05), parts=PARTS, halves=2)
    found: list[Any] = drawing.draw(asked, [0] * PARTS)
    assert [one.alarms for one in found] == [0, 1]


def test_individual_budgets_pay_one_after_the_other() -> None:
    """What two queries cost together is within what there was; each alone would have taken nearly all."""
    asked = queries(1 + PARTS, 12, 12, 12)
    drawing = Drawing(MechanismChoice("individual", target=0.05), parts=PARTS, halves=1)
    left = [60_000_000] * PARTS
    found: list[Any] = drawing.draw(asked, left)
    for part in range(PARTS):
        paid = [one.charges[part] for one in found]
        assert paid[0] > 0.04
        assert sum(paid) <= 0.06
        assert paid[2] < 0.001


def test_one_part_is_enough_for_certified_mixing_only() -> None:
    with pytest.raises(InputError, match="Only certified"):
        Drawing(MechanismChoice("individual", target=0.05), parts=PARTS, halves=1, lazy=True)
