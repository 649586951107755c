"""The benchmark that judges the regularisation paper: which Runs it keeps, and when it speaks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.regularisation_summary import at, frontier, judge


def folder_of(place: Path, key: str, perplexities: list[float]) -> Path:
    runs = []
    for number, perplexity in enumerate(perplexities):
        (place / str(number)).mkdir()
        utility = {"run": {"value": perplexity}}
        (place / str(number) / "audit.json").write_text(json.dumps({"utility": utility}))
        runs.append({"value": number, "run": str(number), "state": "audited"})
    runs.append({"value": 99, "run": "none", "state": "diverged"})
    (place / "tune.json").write_text(json.dumps({"key": key, "runs": runs}))
    return place


@pytest.mark.parametrize(
    ("key", "perplexities", "kept"),
    [
        ("training.epochs", [300, 200, 100, 150], [300, 200, 100]),
        ("training.epochs", [100, 110, 150], [100]),
        ("privacy.noise_multiplier", [105, 100, 180], [180, 100]),
        ("privacy.noise_multiplier", [100, 120, 180], [180, 120, 100]),
    ],
)
def test_what_learnt_too_long_or_from_too_little_noise_is_left_out(
    tmp_path: Path, key: str, perplexities: list[float], kept: list[float]
) -> None:
    assert [point.perplexity for point in frontier(folder_of(tmp_path, key, perplexities))] == kept


def test_between_two_runs_and_never_beyond_them(tmp_path: Path) -> None:
    points = frontier(folder_of(tmp_path, "training.epochs", [400, 100]))
    between = at(points, 200)
    assert between is not None
    assert between.share == pytest.approx(0.5)
    assert at(points, 401) is None
    assert at(points, 99) is None


def level(
    change: tuple[float, float, float] | None, gap: tuple[float, float, float] | None
) -> dict[str, object]:
    return {
        "differences": {} if change is None else {"triplet - DP-SGD": {"often": change}},
        "disparity_differences": {"triplet - DP-SGD": gap},
    }


@pytest.mark.parametrize(
    ("first", "second", "word"),
    [
        ((-3.0, -4.0, -2.0), (-1.0, -2.0, -0.1), "confirmed"),
        ((3.0, 2.0, 4.0), (1.0, 0.1, 2.0), "refuted"),
        ((-3.0, -4.0, -2.0), (1.0, 0.1, 2.0), "neither confirmed nor refuted"),
        ((-3.0, -4.0, -2.0), (-1.0, -2.0, 0.1), "neither confirmed nor refuted"),
        ((-3.0, -4.0, -2.0), None, "neither confirmed nor refuted"),
    ],
)
def test_a_claim_is_decided_only_where_both_intervals_leave_zero_out_on_one_side(
    first: tuple[float, float, float], second: tuple[float, float, float] | None, word: str
) -> None:
    told = dict(judge([level(first, first), level(second, second)]))
    assert told["triplet leaks less than DP-SGD what is repeated more than 9 times"] == word
    assert told["triplet is less unfair than DP-SGD to those who wrote little"] == word
    assert told["triplet leaks less than unmitigated what is repeated more than 9 times"].startswith(
        "neither"
    )
