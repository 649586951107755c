"""CRT's Figure 6: shape, golden values, and that what is printed is what was computed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tacit.experiments import Result, Workshop, experiment_called


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Result:
    shop = Workshop(tmp_path_factory.mktemp("work"))
    return experiment_called("crt-amplification").run(shop, "tiny")


def rows(result: Result) -> dict[tuple[object, object], tuple[float, float, float]]:
    (table,) = result.tables
    neighbours, whole, gamma, point, curve = (
        table.columns.index(name) for name in ("neighbours", "epsilon'", "gamma", "one point", "curve")
    )
    found = {}
    for row in table.rows:
        values = row[whole], row[point], row[curve]
        assert all(isinstance(value, float) for value in values)
        found[row[neighbours], row[gamma]] = values
    return found  # type: ignore[return-value]


def test_golden_values(result: Result) -> None:
    """research/methods: 0.159 and 0.11 under the paper's account, about 0.36 under replace-one."""
    found = rows(result)
    whole, point, curve = found["add-remove", 0.1]
    assert whole == pytest.approx(1.0, abs=2e-3)
    assert point == pytest.approx(0.159, abs=2e-3)
    assert curve == pytest.approx(0.11, abs=5e-3)
    _, point, curve = found["replace-one", 0.1]
    assert curve == pytest.approx(0.36, abs=1e-2)
    assert point > curve


def test_the_curve_is_never_above_one_point(result: Result) -> None:
    for whole, point, curve in rows(result).values():
        assert 0 < curve <= point <= whole


def test_the_papers_account_is_never_above_the_right_one(result: Result) -> None:
    found = rows(result)
    for gamma in (0.01, 0.1):
        wrong, right = found["add-remove", gamma], found["replace-one", gamma]
        assert all(one < other for one, other in zip(wrong, right, strict=True))


def test_findings_say_what_the_numbers_say(result: Result) -> None:
    outcomes = [finding.outcome for finding in result.findings]
    assert outcomes == ["holds", "does not hold", "holds"]
    assert "0.111" in result.findings[0].here
    assert "0.354" in result.findings[1].here


def test_figures_have_a_line_for_each_account_and_form(result: Result) -> None:
    (chart,) = result.charts
    assert len(chart.series) == 4
    assert all(len(series.points) == 3 for series in chart.series)


def test_it_resumes_from_what_is_kept(tmp_path: Path) -> None:
    shop = Workshop(tmp_path)
    experiment = experiment_called("crt-amplification")
    first = experiment.run(shop, "tiny")
    assert all(stage.done for stage in experiment.planned(shop, "tiny"))
    again = experiment.run(shop, "tiny")
    assert again.tables == first.tables
    assert again.provenance.stages == first.provenance.stages
    assert (tmp_path / "crt-amplification-tiny" / "result.md").is_file()
    assert (tmp_path / "crt-amplification-tiny" / "epsilon-1.svg").is_file()
