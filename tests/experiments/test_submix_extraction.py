"""The extraction experiment at scale `tiny`: unprotected models leak, and no certificate is passed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tacit.experiments import Result, Workshop, experiment_called
from tacit.experiments.submix_extraction import _later_for_longer
from tests.experiments.test_submix import records

NAME = "submix-extraction"


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    folder: Path = tmp_path_factory.mktemp("extraction")
    return Workshop(folder / "work")


@pytest.fixture(scope="module")
def result(shop: Workshop) -> Result:
    return experiment_called(NAME).run(shop, "tiny")


def rows(result: Result) -> list[dict[str, Any]]:
    return records(result.tables[0])


def test_unprotected_models_leak_and_the_public_one_does_not(result: Result) -> None:
    by_name = {row["answers by"]: row["hit rate"] for row in rows(result) if row["epsilon"] is None}
    for name in ("one member, not private", "fine-tuned on all codes, not private"):
        assert by_name[name].value > 0.4  # a processor that rounds otherwise ends at other weights
    assert by_name["public"].value < 0.2


def test_at_a_small_epsilon_nothing_leaks(result: Result) -> None:
    for row in rows(result):
        if row["epsilon"] == 2.0:
            # Chance is 4 in 100; 20 hits in 80 have a probability below 1e-9 even at 8 in 100.
            assert row["hit rate"].value < 0.25
            assert row["chance"] == pytest.approx(0.04)


def test_no_certificate_is_passed(result: Result) -> None:
    certified = [row for row in rows(result) if row["answers by"] == "certified"]
    assert len(certified) == 2
    for row in certified:
        assert row["computed"] <= row["certificate: at most"] + 1e-12
    assert all(row["certificate: at most"] is None for row in rows(result) if "SubMix" in row["answers by"])
    assert result.findings[-1].outcome == "holds"


def test_every_mechanism_has_a_figure_with_chance(result: Result) -> None:
    assert [chart.name for chart in result.charts] == [
        "figure-6-submix-paper",
        "figure-6-submix",
        "figure-6-certified",
    ]
    for chart in result.charts:
        assert [level.name for level in chart.levels] == ["chance, 2 digits"]
    assert len(result.charts[-1].series) == 2


def test_draws_are_counted_together(result: Result) -> None:
    for row in rows(result):
        assert "of 2 draws of codes" in row["hit rate"].method
        assert "n=80" in row["hit rate"].method


def test_it_goes_on_from_what_is_kept(shop: Workshop, result: Result) -> None:
    experiment = experiment_called(NAME)
    first, second = experiment.planned(shop, "tiny")
    assert first.done
    assert second.done
    again = experiment.run(shop, "tiny")
    assert again.tables == result.tables
    assert again.findings == result.findings


@pytest.mark.parametrize(
    ("first", "expected"),
    [
        ([100.0, 1e4, None], "holds"),
        ([None, 1e4], "does not hold"),
        ([None, None], "undecided"),
        ([1e4], "undecided"),
    ],
)
def test_longer_codes(first: list[float | None], expected: str) -> None:
    assert _later_for_longer(first) == expected
