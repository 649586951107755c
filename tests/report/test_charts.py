"""Figures: well-formed, named, within their paper, and true to their numbers."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markupsafe import Markup

from tacit.audit.attack_parts import Exposure, MembershipSet
from tacit.audit.audit_file import Audit, Disparity, parse_audit
from tacit.report import charts, charts_of_cost
from tacit.report.charts import Measurement, Rung
from tacit.report.charts_of_cost import Bar, Place
from tacit.report.drawing import Drawing, Key, legend_height
from tacit.statistics import Estimate, clopper_pearson
from tests.report.samples import sample_audit

EVIL = "<script>alert('1')</script>\x00&\ud800"
_SVG = "{http://www.w3.org/2000/svg}"
_PLACES = ("x", "y", "x1", "x2", "y1", "y2", "cx", "cy")


def drawn(svg: Markup) -> ET.Element:
    """Parse, and check what every figure promises."""
    root = ET.fromstring(str(svg))  # noqa: S314 - our own
    assert root.tag == f"{_SVG}svg"
    _, _, width, height = map(float, root.attrib["viewBox"].split())
    title, description = root.find(f"{_SVG}title"), root.find(f"{_SVG}desc")
    assert title is not None
    assert title.text
    assert description is not None
    assert description.text
    assert root.attrib["aria-labelledby"].split() == [title.attrib["id"], description.attrib["id"]]
    for element in root.iter():
        assert not {"style", "href", "onload"} & set(element.attrib)
        for name in _PLACES:
            place = float(element.attrib.get(name, 0))
            assert -1 <= place <= (width if "x" in name else height) + 1, (element.tag, name, place)
    return root


def texts(root: ET.Element) -> list[str]:
    return [element.text or "" for element in root.iter(f"{_SVG}text")]


def styled(root: ET.Element, style: str, tag: str) -> list[dict[str, str]]:
    """Elements of a class, without those of the legend, which come first."""
    return [one.attrib for one in root.iter(f"{_SVG}{tag}") if style in one.attrib.get("class", "").split()]


@pytest.fixture(scope="module")
def audit() -> Audit:
    return parse_audit(sample_audit())


def exposure_of(audit: Audit) -> Exposure:
    assert audit.exposure is not None
    return audit.exposure


def set_of(audit: Audit, place: int = 0) -> MembershipSet:
    assert audit.membership is not None
    return audit.membership.sets[place]


def value(number: float, spread: float = 0.1) -> Estimate:
    return Estimate(number, number - spread, number + spread, 0.95, "m")


# Claims


def test_the_ladder_shows_what_passes_its_claim() -> None:
    root = drawn(
        charts.ladder("f", [Rung("kept", "supported", 8, 3, 10), Rung("broken", "contradicted", 8, 12, 15)])
    )
    assert {"kept", "broken", "epsilon (nats)"} <= set(texts(root))
    (kept,), (broken,) = styled(root, "supported", "rect"), styled(root, "contradicted", "rect")
    diamonds = [re.findall(r"[\d.]+", one["d"])[0] for one in styled(root, "diamond", "path")][1:]
    ends = [float(one["x"]) + float(one["width"]) for one in (kept, broken)]
    assert ends[0] < float(diamonds[0]) < ends[1]
    assert float(kept["width"]) / float(broken["width"]) == pytest.approx(3 / 12, rel=1e-3)
    assert len(styled(root, "unseen", "rect")) == 3  # and one in the legend


def test_a_ladder_without_numbers_or_with_endless_ones() -> None:
    rungs = [
        Rung("a", "inconclusive", None, None, None),
        Rung("b", "inconclusive", math.inf, 0.0, math.inf),
        Rung("c", "supported", 5000.0, 0.01, 90.0),
    ]
    root = drawn(charts.ladder("f", rungs))
    assert {"0", "1", "20"} <= set(texts(root))  # folded: 0.01 and 5,000 are on one axis
    (found,) = styled(root, "inconclusive", "rect")
    assert float(found["width"]) == 2  # nothing shown is still seen


# Exposure


def test_exposure_shows_every_canary_over_both_null_bands(audit: Audit) -> None:
    exposure = exposure_of(audit)
    root = drawn(charts.exposure_by_repetition("f", exposure))
    shown = styled(root, "dot", "circle")
    assert len(shown) == len(exposure.rows) + 1
    assert len(styled(root, "hollow", "circle")) == len(exposure.rows) + 1
    wide = styled(root, "wide", "rect")[-1]
    narrow = styled(root, "band", "rect")[-1]
    bottom = float(narrow["y"]) + float(narrow["height"])
    per_bit = float(narrow["height"]) / exposure.null.limit
    assert float(wide["y"]) == pytest.approx(bottom - per_bit * exposure.null.largest_limit, abs=0.05)
    highest = min(float(one["cy"]) for one in shown[1:])
    largest = max(row.exposure.value for row in exposure.rows)
    assert highest == pytest.approx(bottom - per_bit * largest, abs=0.05)
    assert {"not inserted", "1", "5", "10", "20"} <= set(texts(root))
    assert any("largest of 20 by chance" in one for one in texts(root))


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 200), st.integers(1, 76), st.randoms(use_true_random=False))
def test_exposure_of_any_number_of_canaries(count: int, bits: int, chance: Any) -> None:
    rows = [
        {
            "id": EVIL,
            "inserted": chance.random() < 0.5,
            "repetitions": chance.choice([1, 2, 50]),
            "exposure": value(chance.random() * bits, 0.5).to_json(),
            "method": "sampled",
            "rank": [1, 2],
        }
        for _ in range(count)
    ]
    exposure = Exposure.model_validate(
        {
            "candidates": str(2**bits),
            "score": "logprob",
            "canaries": count,
            "null": {"mean": 1.44, "limit": 4.32, "largest_mean": 5, "largest_limit": 8},
            "rows": rows,
        }
    )
    assert exposure.bits == bits
    assert len(styled(drawn(charts.exposure_by_repetition("f", exposure)), "dot", "circle")) == count + 1


# Membership


def test_the_roc_is_logarithmic_and_greys_what_cannot_be_told(audit: Audit) -> None:
    found = set_of(audit)
    root = drawn(charts.roc("f", found))
    assert {"0.1%", "1%", "10%", "100%"} <= set(texts(root))
    grey = styled(root, "unseen", "rect")[-1]
    box = styled(root, "axis", "line")[0]
    width = float(box["x2"]) - float(box["x1"])
    # Of three decades, 3 / 1000 is the first log10(3) from the left.
    assert float(grey["width"]) / width == pytest.approx(math.log10(3) / 3, abs=0.002)
    chance = styled(root, "dashed", "line")[-1]
    assert (float(chance["x1"]), float(chance["x2"])) == (float(box["x1"]), float(box["x2"]))


def test_a_straight_roc_is_the_diagonal_also_on_logarithmic_axes(audit: Audit) -> None:
    found = set_of(audit)
    assert found.roc is not None
    guessing = found.model_copy(update={"roc": found.roc.model_copy(update={"points": ((0, 0), (1, 1))})})
    root = drawn(charts.roc("f", guessing))
    (curve,) = styled(root, "curve", "path")
    chance = {
        name: float(place) for name, place in styled(root, "dashed", "line")[-1].items() if name != "class"
    }
    slope = (chance["y2"] - chance["y1"]) / (chance["x2"] - chance["x1"])
    places = [float(one) for one in re.findall(r"[\d.]+", curve["d"])]
    for across, height in zip(places[::2], places[1::2], strict=True):
        assert height == pytest.approx(chance["y1"] + slope * (across - chance["x1"]), abs=0.05)
    half = found.model_copy(update={"roc": found.roc.model_copy(update={"points": ((0, 0.5), (1, 1))})})
    (curve,) = styled(drawn(charts.roc("f", half)), "curve", "path")
    assert len(re.findall("L", curve["d"])) >= 6  # bent: half of the members without a false alarm


@pytest.mark.parametrize("negatives", [0, 1, 2, 3, 9, 100_000])
def test_a_roc_of_few_or_many_negatives(audit: Audit, negatives: int) -> None:
    found = set_of(audit).model_copy(update={"non_members": negatives})
    root = drawn(charts.roc("f", found))
    assert (float(styled(root, "unseen", "rect")[-1]["width"]) > 300) == (negatives <= 3)


def test_a_set_without_a_curve_has_no_roc(audit: Audit) -> None:
    with pytest.raises(ValueError, match="curve"):
        charts.roc("f", set_of(audit).model_copy(update={"roc": None}))


def test_intervals_are_as_wide_as_they_are() -> None:
    rows = [Measurement("a", value(0.5, 0.1)), Measurement(EVIL, value(0.7, 0.05), hollow=True)]
    root = drawn(charts.intervals("f", "AUC", rows, label="area", reference=(0.5, "guessing"), bounds=(0, 1)))
    first, second = (float(one["x2"]) - float(one["x1"]) for one in styled(root, "whisker", "line"))
    assert first == pytest.approx(2 * second, rel=0.01)
    assert "guessing" in texts(root)
    dashed = styled(root, "dashed", "line")[-1]["x1"]
    assert float(dashed) == pytest.approx(float(styled(root, "dot", "circle")[0]["cx"]), abs=0.02)


def test_intervals_without_ends() -> None:
    endless = Estimate(3, -math.inf, math.inf, 0.95, "one user: no interval")
    drawn(charts.intervals("f", "t", [Measurement("a", endless)], label="x"))


# Extraction, disparity, frontier


def test_bars_are_as_tall_as_their_shares_and_stand_on_chance() -> None:
    rows = [Bar("one", clopper_pearson(10, 100), 0.02), Bar("two", clopper_pearson(40, 100), 0.02)]
    root = drawn(
        charts_of_cost.bars("f", "t", rows, label="rate", across="who", lines=[(0.5, "at most: 50%")])
    )
    low, high = (float(one["height"]) for one in styled(root, "bar", "rect"))
    assert high == pytest.approx(4 * low, rel=0.01)
    assert len(styled(root, "tick", "line")) == 3
    assert "at most: 50%" in texts(root)


def test_ticks_of_tiny_shares_tell_them_apart() -> None:
    rows = [Bar("one", Estimate(2e-5, 1e-5, 6e-5, 0.95, "m"))]
    root = drawn(charts_of_cost.bars("f", "t", rows, label="rate", across="who"))
    ticks = [text for text in texts(root) if re.match(r"^[<0-9]", text)]
    assert len(ticks) > 3
    assert len(set(ticks)) == len(ticks)


def test_bars_of_nothing() -> None:
    root = drawn(charts_of_cost.bars("f", "t", [Bar("a", value(0, 0))], label="rate", across="who"))
    assert [float(one["height"]) for one in styled(root, "bar", "rect")] == [0]


def test_disparity_draws_every_user_and_the_measured_slope(audit: Audit) -> None:
    found = audit.disparity
    assert found is not None
    assert found.slope is not None
    root = drawn(charts_of_cost.disparity("f", found, found.slope))
    assert len(styled(root, "faint", "circle")) == len(found.points)
    (line,) = styled(root, "strong", "path")
    start, top, end, bottom = (float(one) for one in re.findall(r"[\d.]+", line["d"]))
    circles = styled(root, "faint", "circle")
    across, heights = ([float(one[axis]) for one in circles] for axis in ("cx", "cy"))
    assert [start, end] == pytest.approx([min(across), max(across)])
    counts, changes = zip(*found.points, strict=True)
    first, second = changes.index(min(changes)), changes.index(max(changes))
    per_unit = (heights[second] - heights[first]) / (changes[second] - changes[first])
    rise = found.slope.value * math.log(max(counts) / min(counts))
    assert bottom - top == pytest.approx(per_unit * rise, rel=0.01)


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 10**6), st.floats(-1e3, 1e3)), min_size=1, max_size=30),
    st.floats(-1e3, 1e3),
)
def test_a_slope_never_leaves_the_figure(points: list[tuple[int, float]], slope: float) -> None:
    found = Disparity(
        against="x",
        users=len(points),
        points=tuple(points),
        slope=value(slope),
        **{name: value(0.0) for name in ("mean", "top", "bottom", "gap")},
    )
    root = drawn(charts_of_cost.disparity("f", found, value(slope)))
    bottom = float(styled(root, "axis", "line")[0]["y1"])
    circles = [float(one["cy"]) for one in styled(root, "faint", "circle")]
    assert all(bottom - 250.01 <= height <= bottom + 0.01 for height in circles)
    for line in styled(root, "strong", "path"):
        heights = [float(one) for one in re.findall(r"-?[\d.]+", line["d"])[1::2]]
        assert bottom - 250.01 <= min(heights) <= max(heights) <= bottom + 0.01


def test_the_frontier_tells_who_is_not_comparable() -> None:
    rows = [
        Place("plain", value(18, 0.5), value(15, 1), True),
        Place(EVIL, value(27, 0.5), value(2, 1), False),
    ]
    root = drawn(charts_of_cost.frontier("f", "t", rows, label="bits", reference=(1.44, "by chance")))
    (_, plain), (_, other) = styled(root, "dot", "circle"), styled(root, "hollow", "circle")
    assert float(plain["cx"]) < float(other["cx"])
    assert float(plain["cy"]) < float(other["cy"])


def test_names_on_the_frontier_do_not_cover_each_other() -> None:
    rows = [Place(f"run {place}", value(20), value(5), True) for place in range(6)]
    root = drawn(charts_of_cost.frontier("f", "t", rows, label="bits"))
    heights = sorted(
        float(one.attrib["y"]) for one in root.iter(f"{_SVG}text") if (one.text or "").startswith("run ")
    )
    assert len(heights) == 6
    assert all(after - before >= 14.9 for before, after in itertools.pairwise(heights))


# The sheet


def keys(count: int) -> Sequence[Key]:
    return [Key("dot", f"a key with words {place}") for place in range(count)]


@pytest.mark.parametrize("count", [0, 1, 5, 9])
def test_a_legend_stays_above_what_was_left_for_it(count: int) -> None:
    height = legend_height(keys(count), left=60)
    drawing = Drawing("f", "t", "d", 300)
    drawing.legend(keys(count), left=60)
    root = drawn(drawing.svg())
    assert all(float(one.attrib["y"]) <= height for one in root.iter(f"{_SVG}text"))
    assert len(texts(root)) == count


def test_names_are_text_and_never_markup() -> None:
    drawing = Drawing("f", EVIL, EVIL, 100)
    drawing.text(1, 1, EVIL)
    drawing.dot(1, 1, 1, "dot", EVIL)
    root = drawn(drawing.svg())
    assert "<script" not in str(drawing.svg())
    assert texts(root) == ["<script>alert('1')</script> & "]


def test_no_place_on_paper_is_infinite() -> None:
    with pytest.raises(ValueError, match="paper"):
        Drawing("f", "t", "d", 100).dot(math.inf, 1, 1, "dot")
