"""Runs side by side."""

from __future__ import annotations

from typing import Any

import pytest

from tacit.errors import InputError
from tacit.report import render_comparison
from tests.report.samples import sample_comparison
from tests.report.test_page import EVIL, Page


def test_every_run_is_there_with_what_it_promises() -> None:
    page = Page(render_comparison(sample_comparison()))
    for row in sample_comparison():
        assert row["guarantee"] in page.words
        assert row["name"] in page.words
    measures = ("exposure", "auc", "tab", "linkability")
    assert set(page.data) == {f"frontier-{one}-data" for one in measures}
    assert [one["name"] for one in page.data["frontier-auc-data"]] == [r["name"] for r in sample_comparison()]
    assert "one epoch *" in page.words
    assert "5 Runs side by side; 1 is not comparable." in page.words
    assert "70% [45.7%, 88.1%]" in page.words


def test_measures_that_no_run_has_are_left_out() -> None:
    rows = [row | {"auc": None, "tab": None, "linkability": None} for row in sample_comparison()]
    assert set(Page(render_comparison(rows)).data) == {"frontier-exposure-data"}
    bare = [row | {"exposure_mean": None, "exposure_max": None} for row in rows]
    page = Page(render_comparison(bare))
    assert page.data == {}
    assert "No Run was attacked" in page.words


def test_runs_of_one_kind_say_so() -> None:
    words = Page(render_comparison(sample_comparison()[:1])).words
    assert "1 Run side by side" in words
    assert "not comparable" not in words


def test_nothing_is_compared_with_nothing() -> None:
    with pytest.raises(InputError, match="two Runs or more"):
        render_comparison([])


def test_a_row_without_a_perplexity_is_in_the_table_alone() -> None:
    rows: list[dict[str, Any]] = sample_comparison()
    rows[1] |= {"perplexity": None, "comparable": False, "why": "its perplexity was not measured"}
    page = Page(render_comparison(rows))
    assert rows[1]["name"] not in [one["name"] for one in page.data["frontier-auc-data"]]
    assert f"{rows[1]['name']} *" in page.words
    del rows[2]["method"]
    with pytest.raises(InputError, match="row 3: 'method' is missing"):
        render_comparison(rows)


def test_no_name_becomes_code() -> None:
    rows = [
        row | {"name": EVIL, "guarantee": EVIL, "why": EVIL, "method": EVIL} for row in sample_comparison()
    ]
    html = render_comparison(rows)
    assert html.count("<script") == 4
    assert not any("onload" in found for _, found in Page(html).elements)
