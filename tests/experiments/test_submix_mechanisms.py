"""SubMix beside other mechanisms, and certified mixing, at scale `tiny`."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest

from tacit.experiments import Result, Workshop, experiment_called
from tacit.experiments.submix_tables import all_above, all_below, clearly_above, falls, together
from tacit.statistics import Estimate
from tests.experiments.test_submix import records, share


@pytest.fixture(scope="session")
def tradeoff(submix_shop: Workshop) -> Result:
    return experiment_called("submix-tradeoff").run(submix_shop, "tiny")


@pytest.fixture(scope="session")
def certified(submix_shop: Workshop) -> Result:
    return experiment_called("submix-certified").run(submix_shop, "tiny")


def table(result: Result, title: str) -> list[dict[str, Any]]:
    (found,) = (one for one in result.tables if one.title.startswith(title))
    return records(found)


def test_figure_2_has_every_mechanism_for_one_query_and_for_many(tradeoff: Result) -> None:
    rows = [row for row in table(tradeoff, "Figure 2") if row["B"] is not None]
    assert {(row["mechanism"], row["B"]) for row in rows} == {
        (name, queries)
        for name in ("SubMix as printed", "SubMix per part", "subsample-and-aggregate", "GNMax")
        for queries in (1, 64)
    }
    assert all(row["epsilon"] == 2.0 for row in rows)
    weights = table(tradeoff, "Weights")
    assert [row["model"] for row in weights] == [
        "fine-tuned, not private",
        "DP-SGD, 1 epoch",
        "DP-SGD, 2 epochs",
    ]
    assert weights[0]["of the fine-tuned model's improvement"].value == pytest.approx(1.0)


def test_a_budget_for_one_query_keeps_more_than_one_for_many(tradeoff: Result) -> None:
    rows = table(tradeoff, "Figure 2")
    for name in ("SubMix as printed", "SubMix per part"):
        one, many = (
            next(
                row
                for row in rows
                if (row["mechanism"], row["B"]) == (name, queries) and "epsilon / queries" in row["target"]
            )
            for queries in (1, 64)
        )
        assert share(one).value >= share(many).value - 0.02


def test_noise_leaves_nothing_at_a_small_price(tradeoff: Result) -> None:
    public = next(row for row in table(tradeoff, "Figure 2") if row["mechanism"] == "public")
    for row in table(tradeoff, "Figure 2"):
        if row["mechanism"] in ("subsample-and-aggregate", "GNMax"):
            assert row["perplexity"].value > public["perplexity"].value


def test_only_what_holds_for_every_corpus_has_an_epsilon_and_a_delta(
    tradeoff: Result, certified: Result
) -> None:
    every = [*table(tradeoff, "Figure 2"), *table(certified, "At the same")]
    for row in every:
        if row["B"] is None:
            continue
        holds = row["mechanism"] in ("certified", "individual", "subsample-and-aggregate")
        assert ("DP" in row["guarantee"] and "not DP" not in row["guarantee"]) == holds
        if holds:
            assert row["guarantee"].startswith("(12.13, 1e-05)-DP")


def test_a_certified_budget_is_spent_exactly(certified: Result) -> None:
    rows = [row for row in table(certified, "Certified") if row["mechanism"] == "certified"]
    assert {row["k"] for row in rows} == {2, 4, 8}
    for row in rows:
        answered = row["answered before STOP"]
        # Stretches are whole blocks: at most B queries, and every one was answered.
        assert 0.5 * row["B"] <= answered.value <= row["B"]
    for chart in certified.charts:
        assert chart.series


def test_more_epsilon_keeps_more_of_certified_answers(certified: Result) -> None:
    rows = table(certified, "Certified")
    for parts in (2, 4, 8):
        for name in ("certified", "individual"):
            line = [row for row in rows if (row["mechanism"], row["k"]) == (name, parts)]
            values = [share(row).value for row in sorted(line, key=lambda row: float(row["epsilon"]))]
            assert len(values) == 3
            assert all(later >= earlier - 0.02 for earlier, later in itertools.pairwise(values))


def test_claims_are_beside_what_was_seen(tradeoff: Result, certified: Result) -> None:
    for result in (tradeoff, certified):
        assert all(one.claim.endswith(".") and one.here.endswith(".") for one in result.findings)
        assert any("tiny model" in one for one in result.conditions)
    assert certified.findings[1].outcome == "holds"


def measured(value: float, low: float, high: float) -> Estimate:
    return Estimate(value, low, high, 0.95, "a test")


HIGH, LOW, WIDE = measured(5, 4, 6), measured(2, 1, 3), measured(3, -math.inf, math.inf)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (all_above([HIGH], 3.5), "holds"),
        (all_above([HIGH, LOW], 3.5), "does not hold"),
        (all_above([HIGH, WIDE], 3.5), "undecided"),
        (all_above([HIGH, None], 3.5), "undecided"),
        (all_above([], 3.5), "undecided"),
        (all_below([LOW], 3.5), "holds"),
        (all_below([HIGH, LOW], 3.5), "does not hold"),
        (all_below([WIDE], 3.5), "undecided"),
        (clearly_above(HIGH, LOW), "holds"),
        (clearly_above(LOW, HIGH), "does not hold"),
        (clearly_above(HIGH, WIDE), "undecided"),
        (clearly_above(None, LOW), "undecided"),
        (falls([HIGH, measured(4, 2, 6), LOW]), "holds"),
        (falls([HIGH, LOW, HIGH]), "does not hold"),
        (falls([HIGH, HIGH]), "undecided"),
        (falls([HIGH, None]), "undecided"),
        (falls([HIGH]), "undecided"),
        (together(["holds", "holds"]), "holds"),
        (together(["holds", "undecided"]), "undecided"),
        (together(["does not hold", "undecided"]), "does not hold"),
        (together([]), "undecided"),
    ],
)
def test_intervals_decide(found: str, expected: str) -> None:
    assert found == expected
