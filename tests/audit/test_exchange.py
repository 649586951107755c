"""p-values by swapping: against all swaps, and how often they alarm where nothing is there."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from scipy import stats

from tacit.attacks.groups import GroupPlan, draw_groups
from tacit.attacks.look_alikes import MembershipSet, document_set
from tacit.audit.exchange import area_p_values, group_area, group_p_values
from tacit.audit.roc import delong
from tacit.errors import InputError
from tacit.statistics import FloatArray


def pairs(clusters: list[int]) -> MembershipSet:
    """A line and its look-alike for each place, clusters as given."""
    names = tuple(f"s{cluster}" for cluster in clusters for _ in range(2))
    texts = len(names)
    return MembershipSet(
        tuple(map(str, range(texts))),
        np.arange(texts) % 2 == 0,
        names,
        names,
        "spans",
        np.arange(texts) ^ 1,
    )


def singles(members: int, others: int) -> MembershipSet:
    rows = [(f"u{number}", "text") for number in range(members + others)]
    return document_set(rows[:members], rows[members:])


def test_p_values_are_shares_of_all_swaps() -> None:
    found = pairs([0, 0, 1, 2, 3, 3, 4])
    scores = np.random.default_rng(1).standard_normal(14) + 0.8 * found.is_member
    clusters = np.array([int(name[1:]) for name in found.secrets])
    areas = []
    for swapped in product([False, True], repeat=5):
        here = np.array(swapped)[clusters] ^ found.is_member
        areas.append(delong(scores[here], scores[~here])[0])
    exact = float(np.mean(np.array(areas) >= areas[0] - 1e-12))
    assert 0.01 < exact < 0.5
    assert area_p_values(found, {"x": scores}, draws=20_000)["x"] == pytest.approx(exact, abs=0.01)


def test_without_look_alikes_any_two_texts_are_swapped() -> None:
    found = singles(8, 9)
    scores = np.random.default_rng(2).standard_normal(17) + 0.5 * found.is_member
    exact = stats.mannwhitneyu(scores[:8], scores[8:], alternative="greater", method="exact").pvalue
    assert area_p_values(found, {"x": scores}, draws=20_000)["x"] == pytest.approx(exact, abs=0.01)


def test_lines_about_one_secret_are_no_more_evidence_than_one() -> None:
    """Ten lines about each of six secrets: luck is that of six coins."""
    once, often = pairs(list(range(6))), pairs(np.repeat(np.arange(6), 10).tolist())
    assert area_p_values(once, {"x": once.is_member.astype(float)})["x"] == pytest.approx(2**-6, abs=0.01)
    assert area_p_values(often, {"x": often.is_member.astype(float)})["x"] == pytest.approx(2**-6, abs=0.01)
    independent = singles(60, 60)
    assert area_p_values(independent, {"x": independent.is_member.astype(float)})["x"] == 1 / 2000


def secrets_that_differ(found: MembershipSet, rng: np.random.Generator) -> FloatArray:
    """Scores without memory: every value has its own strangeness, on all of its lines."""
    values = {
        (name, member): rng.standard_normal() for name in set(found.secrets) for member in (True, False)
    }
    own = [values[name, bool(member)] for name, member in zip(found.secrets, found.is_member, strict=True)]
    places = np.repeat(rng.standard_normal(len(found) // 2), 2)  # a line's own, which both share
    return np.array(own) + places + 0.1 * rng.standard_normal(len(found))


@pytest.mark.parametrize("kind", ["pairs", "singles"])
def test_false_alarms_are_at_most_the_level(kind: str) -> None:
    rng, runs, level = np.random.default_rng(3), 150, 0.1
    found = pairs(np.repeat(np.arange(15), 3).tolist()) if kind == "pairs" else singles(30, 30)
    alarms = grouped = naive = 0
    for run in range(runs):
        scores = secrets_that_differ(found, rng) if kind == "pairs" else rng.standard_normal(60)
        groups = draw_groups(found.is_member, found.secrets, GroupPlan(groups=40, size=8), seed=run)
        alarms += area_p_values(found, {"x": scores}, draws=99, seed=run)["x"] <= level
        grouped += group_p_values(found, groups, {"x": scores}, draws=49, seed=run)["x"] <= level
        sums = groups.sums(scores)
        naive += stats.mannwhitneyu(sums[:20], sums[20:], alternative="greater").pvalue <= level
    most = stats.binom.ppf(0.999, runs, level)
    assert alarms <= most
    assert grouped <= most
    assert naive > most  # groups taken as independent alarm at luck


def test_groups_that_know_their_members_are_found() -> None:
    found = pairs(list(range(40)))
    scores = np.random.default_rng(4).standard_normal(80) + 1.5 * found.is_member
    groups = draw_groups(found.is_member, found.secrets, GroupPlan(groups=60, size=10))
    (p_value,) = group_p_values(found, groups, {"x": scores}, draws=199).values()
    assert p_value == 1 / 200
    sums = groups.sums(scores)
    assert group_area(groups, scores) == pytest.approx(delong(sums[:30], sums[30:])[0])


def test_texts_that_share_a_secret_without_look_alikes_are_refused() -> None:
    shared = MembershipSet(("a", "b"), np.array([True, False]), ("s", "s"), ("u", "v"), "documents")
    with pytest.raises(InputError, match="share a secret"):
        area_p_values(shared, {"x": np.zeros(2)})
