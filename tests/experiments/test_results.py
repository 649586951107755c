"""Results, their pages and their figures: functions of `result.json` and of nothing else."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from pydantic import ValidationError

from tacit.errors import InputError
from tacit.experiments import Result, page_of_all, results_in
from tacit.experiments.pages import page_of
from tacit.experiments.plots import svg_of
from tacit.experiments.results import Chart, Finding, Level, Point, Provenance, Series, StageRecord, Table
from tacit.statistics import Estimate

SVG = "{http://www.w3.org/2000/svg}"


def sample(name: str = "some-experiment", title: str = "Some experiment") -> Result:
    measured = Estimate(12.3, 11.8, 12.9, 0.95, "bootstrap over 40 users")
    series = Series(name="certified", points=(Point(x=1, y=measured), Point(x=100, y=measured)))
    table = Table(
        title="Perplexity",
        columns=("mechanism", "B", "share"),
        rows=(("a | b", 1024, measured), ("c", 1, None)),
    )
    return Result(
        experiment=name,
        title=title,
        shows="SubMix, Figure 2",
        scale="tiny",
        conditions=("A tiny model; 3 epochs.",),
        tables=(table,),
        charts=(
            Chart(
                name="tradeoff",
                title="Perplexity over epsilon",
                x_label="epsilon",
                y_label="perplexity",
                series=(series,),
                levels=(Level(name="public", value=20.0),),
                log_x=True,
            ),
        ),
        findings=(Finding(claim="It grows.", here="It does not.", outcome="does not hold"),),
        caveats=("Of one draw.",),
        settings={"seed": 1},
        provenance=Provenance(
            created="2026-11-18T20:00:00+00:00",
            versions={"torch": "2.13.0"},
            machine="a machine",
            stages=(StageRecord(name="train", mark="abc", seconds=90.0),),
        ),
    )


def test_a_result_reads_as_it_was_written(tmp_path: Path) -> None:
    result = sample()
    result.save(tmp_path)
    assert Result.load(tmp_path / "result.json") == result


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("format",), 2),
        (("scale",), "huge"),
        (("tables", 0, "rows", 0), [1]),
        (("findings", 0, "outcome"), "yes"),
    ],
)
def test_what_is_no_result_is_told(tmp_path: Path, path: tuple[str | int, ...], value: Any) -> None:
    sample().save(tmp_path)
    content = json.loads((tmp_path / "result.json").read_text())
    place = content
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    (tmp_path / "result.json").write_text(json.dumps(content))
    with pytest.raises(InputError, match=r"run the experiment again\.$"):
        Result.load(tmp_path / "result.json")


def test_rows_that_do_not_fit_their_columns_are_refused() -> None:
    with pytest.raises(ValidationError, match="as many cells"):
        Table(title="t", columns=("a", "b"), rows=((1,),))


def test_a_number_that_is_none_is_refused() -> None:
    with pytest.raises(ValidationError):
        Level(name="public", value=math.nan)


def test_a_page_says_all_that_a_result_has() -> None:
    page = page_of(sample())
    for said in (
        "# Some experiment",
        "`tacit experiment some-experiment` (SubMix, Figure 2)",
        "**does not hold here**: It grows. It does not.",
        "![Perplexity over epsilon](tradeoff.svg)",
        "| mechanism | B | share |",
        "| a \\| b | 1,024 | 12.3 [11.8, 12.9] |",
        "| c | 1 | – |",
        "bootstrap over 40 users",
        "Of one draw.",
        "18 November 2026",
        "torch 2.13.0",
        "a machine",
    ):
        assert said in page


def test_a_page_of_all_has_every_result_and_links_to_it() -> None:
    results = [sample(), sample("another", "Another: one")]
    page = page_of_all(results, "# Results\n\nAn introduction.\n", figures="results/")
    assert page.startswith("# Results\n\nAn introduction.\n")
    assert "[Another: one](#another-one)" in page
    assert "## Another: one" in page
    assert "![Perplexity over epsilon](results/another/tradeoff.svg)" in page
    with pytest.raises(InputError, match="same experiment"):
        page_of_all([sample(), sample()], "", figures="")


def test_results_are_found_in_folders(tmp_path: Path) -> None:
    for name in ("b", "a"):
        sample(name).save(tmp_path / name)
    assert [one.experiment for one in results_in(tmp_path)] == ["a", "b"]


def test_a_figure_shows_every_point_with_its_interval() -> None:
    (chart,) = sample().charts
    drawn = ET.fromstring(svg_of(chart))  # noqa: S314 - our own
    dots = [one for one in drawn.iter(f"{SVG}circle") if "dot" in (one.get("class") or "")]
    whiskers = [one for one in drawn.iter() if "whisker" in (one.get("class") or "")]
    assert len(dots) == 2
    assert len(whiskers) >= 2
    text = " ".join(drawn.itertext())
    assert "12.3 [11.8, 12.9]" in text
    assert "public: 20" in text
    assert svg_of(chart) == svg_of(chart)


@pytest.mark.parametrize("log_y", [False, True])
def test_intervals_without_an_end_run_off_the_paper(log_y: bool) -> None:
    wide = Estimate(3.0, 0.0, math.inf, 0.95, "one draw")
    series = Series(name="one", points=(Point(x=1, y=wide), Point(x=2, y=Estimate(5.0, 4.0, 6.0, 0.95, "m"))))
    chart = Chart(name="c", title="t", x_label="x", y_label="y", series=(series,), log_y=log_y)
    drawn = svg_of(chart)
    assert "nan" not in drawn
    elements = ET.fromstring(drawn).iter()  # noqa: S314 - our own
    assert not any("inf" in value for one in elements for value in one.attrib.values())
