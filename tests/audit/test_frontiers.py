"""Methods at one perplexity: known answers, what is not extrapolated, and how often intervals cover."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from scipy import stats

from tacit.audit.comparison import ComparedRun
from tacit.audit.frontiers import interpolated, methods_at
from tacit.errors import InputError
from tacit.report import render_comparison
from tacit.statistics import Estimate


def value(middle: float, reach: float = 0.5, confidence: float = 0.95) -> Estimate:
    return Estimate(middle, middle - reach, middle + reach, confidence, "m")


def run(name: str, method: str, perplexity: float | None, bits: float = 2.0, **changes: Any) -> ComparedRun:
    fields: dict[str, Any] = {
        "why": "",
        "exposure_max": bits,
        "exposure_mean": value(bits),
        "auc": value(0.6, 0.05),
        "tab": None,
        "disparity_gap": None,
    }
    return ComparedRun(
        name=name,
        method=method,
        guarantee="g",
        verdict="inconclusive",
        perplexity=None if perplexity is None else value(perplexity, 0.1),
        comparable=True,
        **(fields | changes),
    )


def test_a_frontier_is_interpolated_between_its_nearest_runs() -> None:
    """Exposure falls from 8 to 4 to 2 at perplexities 10, 20 and 40; half way in log between two it is 3."""
    frontier = [run("weak", "dp", 10, 8.0), run("strong", "dp", 40, 2.0), run("middle", "dp", 20, 4.0)]
    first = run("other", "redacted", math.sqrt(20 * 40), 1.0)
    redacted, dp = methods_at([first, *frontier])
    assert dp.perplexity == pytest.approx(math.sqrt(800))
    assert dp.how == "between middle and strong"
    assert dp.exposure_mean is not None
    assert dp.exposure_mean.value == pytest.approx(3.0)
    assert (dp.exposure_mean.low, dp.exposure_mean.high) == pytest.approx((2.5, 3.5))
    assert dp.exposure_mean.confidence == pytest.approx(0.9)
    assert dp.tab is None
    assert dp.runs == ("weak", "strong", "middle")
    assert redacted.how == "other itself"
    assert redacted.exposure_mean == first.exposure_mean
    # Elsewhere on request, and exactly at a Run the Run itself.
    at_ends = [methods_at(frontier, perplexity=where)[0] for where in (10, 20, 40)]
    assert [one.how for one in at_ends] == ["weak itself", "middle itself", "strong itself"]
    (at_ten,) = methods_at(frontier, perplexity=10)
    assert at_ten.exposure_mean == frontier[0].exposure_mean
    (quarter,) = methods_at(frontier, perplexity=10 * 2**0.25)
    assert quarter.exposure_mean is not None
    assert quarter.exposure_mean.value == pytest.approx(7.0)


def test_nothing_is_extrapolated() -> None:
    rows = [run("a", "one", 20), run("b", "two", 30), run("c", "two", 40), run("d", "three", None)]
    one, two, three = methods_at(rows)
    assert one.how == "a itself"
    assert (two.how, two.exposure_mean, two.auc) == ("", None, None)
    assert "30 to 40" in two.why
    assert "not measured" in three.why
    near = methods_at([run("a", "one", 20), run("b", "two", 20.5), run("c", "two", 40)])[1]
    assert near.how == "b itself"  # within the tolerance
    assert "not comparable" in str(two.cells()["how"])
    assert json.loads(json.dumps([row.to_json() for row in (one, two, three)]))[1]["auc"] is None
    page = render_comparison([row.to_json() for row in rows[:3]], [row.to_json() for row in (one, two)])
    assert "Methods at perplexity 20" in page
    assert "1 of 2 methods can be compared" in page
    assert "compared at 20" in page


def test_runs_that_were_audited_otherwise_are_on_no_frontier() -> None:
    rows = [run("a", "one", 20), run("b", "two", 10), run("c", "two", 40, alike=False, why="other canaries")]
    assert "its perplexity is 10" in methods_at(rows)[1].why
    assert methods_at([rows[0], rows[2]])[1].why == "other canaries"


def test_what_makes_no_sense_is_refused() -> None:
    for wrong in (0.5, math.inf, math.nan):
        with pytest.raises(InputError, match="perplexity="):
            methods_at([run("a", "one", 20)], perplexity=wrong)
    with pytest.raises(InputError, match="--perplexity"):
        methods_at([run("a", "one", None)])
    assert methods_at([run("a", "one", None)], perplexity=20)[0].how == ""


def test_equal_perplexities_are_no_way_to_go() -> None:
    (found,) = methods_at([run("a", "one", 20, 5.0), run("b", "one", 20, 3.0)])
    assert found.how == "a itself"


def test_interpolated_intervals_cover_at_least_as_often_as_they_say() -> None:
    rng, runs, share = np.random.default_rng(0), 2000, 0.3
    reach = float(stats.norm.ppf(0.875))  # two intervals of confidence 0.75: a half is left
    hits = 0
    for _ in range(runs):
        left, right = rng.normal((1.0, 3.0))
        found = interpolated(value(left, reach, 0.75), value(right, reach, 0.75), share)
        assert found is not None
        assert found.confidence == 0.5
        hits += found.low <= 1.6 <= found.high
    assert hits / runs >= 0.5
    assert interpolated(value(1, confidence=0.5), value(2, confidence=0.5), 0.5) is None
    assert interpolated(None, value(2), 0.5) is None


def test_ends_without_a_bound_stay_so() -> None:
    open_ended = Estimate(1.0, -math.inf, math.inf, 0.95, "one user: no interval")
    found = interpolated(open_ended, value(3.0), 0.5)
    assert found is not None
    assert (found.value, found.low, found.high) == (2.0, -math.inf, math.inf)
