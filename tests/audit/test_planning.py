"""How many canaries: the exact answers, the rule of thumb, and the edges of each answer."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special, stats
from typer.core import TyperGroup
from typer.main import get_command

from tacit.attacks.exposure import CanaryExposure, ExposureReport
from tacit.attacks.membership import MembershipScores
from tacit.audit import (
    Design,
    PlanRow,
    detectable,
    gaussian_one_run_bound,
    multi_split_bound,
    one_run_bound,
    plan_audit,
)
from tacit.audit.bounds import Neighbours
from tacit.audit.canary_findings import ExposureFinding
from tacit.audit.claimed import JudgedClaim
from tacit.audit.membership_findings import PRIMARY
from tacit.audit.model_audit import CanaryScores, ModelAudit
from tacit.audit.planning import Needed
from tacit.audit.plans import AuditPlan
from tacit.audit.thresholds import CoinScores
from tacit.audit.verdicts import Claim
from tacit.cli.audit import app
from tacit.corpus.canaries import draw_canaries
from tacit.corpus.canary_plan import CanaryPlan
from tacit.errors import InputError
from tacit.statistics import Estimate


def rows_of(**asked: Any) -> dict[str, PlanRow]:
    """Of new owners, whose coins count too, unless told otherwise."""
    options: dict[str, Any] = {"delta": 0.0, "owner": "new"}
    return {row.design: row for row in plan_audit(**(options | asked))}


def test_the_plan_is_at_the_audits_delta_unless_told_otherwise() -> None:
    assert plan_audit(epsilon=2.0) == plan_audit(epsilon=2.0, delta=AuditPlan().delta)
    command = get_command(app)
    assert isinstance(command, TyperGroup)
    delta = {
        name: next(one.default for one in command.commands[name].params if one.name == "delta")
        for name in ("run", "plan")
    }
    assert delta == {"run": AuditPlan().delta, "plan": AuditPlan().delta}


def test_what_ranks_never_show_is_said_with_what_would_help() -> None:
    """Over two steps, (error - delta) e^-epsilon must exceed delta: 6.44 at 1e-5 with any number of ranks."""
    alone = {one.design: one for one in plan_audit(epsilon=8.0)}["exposure"]
    assert "at delta = 1e-05 they never show more than epsilon = 7.13" in alone.note
    assert math.log(0.05 / 4 / 1e-5 - 1) == pytest.approx(7.13, abs=0.005)
    row = rows_of(epsilon=8.0, delta=1e-5)["exposure"]
    assert row.contradict == row.support == Needed(None, None)
    error = 0.025 / 4
    assert "at delta = 1e-05 they never show more than epsilon = 6.44" in row.note
    assert math.log(error / 1e-5 - 1) == pytest.approx(6.44, abs=0.005)
    for many, candidates in ((10, 10**9), (1000, 10**6)):
        options: dict[str, Any] = {"confidence": 0.975, "candidates": candidates, "neighbours": "add/remove"}
        assert detectable("exposure", many, delta=1e-5, **options).epsilon < 6.44
    assert "neither more of them nor more values raise that" in row.note
    few = rows_of(epsilon=8.0, delta=1e-5, candidates=20)["exposure"]
    assert "secrets with more values raise that, but never above 7.13" in few.note
    allowed = error / (1 + math.exp(8.0))
    assert f"a delta below {allowed:.2g} to be contradicted" in row.note
    smaller = rows_of(epsilon=8.0, delta=0.9 * allowed)["exposure"]
    assert smaller.contradict.canaries is not None
    assert (
        "values raise that"
        in {one.design: one for one in plan_audit(epsilon=20.0, neighbours="replace")}["exposure"].note
    )


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 4.0, 8.0])
def test_perfect_guesses_need_what_the_closed_form_says(epsilon: float) -> None:
    """0.05^(1/m) <= e^epsilon/(1 + e^epsilon); about 3 e^epsilon."""
    row = rows_of(epsilon=epsilon)["one run"]
    assert row.contradict.canaries == math.ceil(math.log(20) / math.log1p(math.exp(-epsilon)) - 1e-9)
    assert row.contradict == Needed(row.contradict.canaries, row.contradict.canaries)
    more = math.ceil(math.log(20) / math.log1p(math.exp(-1.5 * epsilon)) - 1e-9)
    assert row.support == Needed(more, more)
    assert row.rule == math.ceil(math.log(20) * math.exp(epsilon))
    if epsilon >= 4:
        assert row.contradict.canaries == pytest.approx(row.rule, rel=0.02)
        assert row.rule == pytest.approx(3 * math.exp(epsilon), rel=0.01)
    assert json.dumps(row.to_json())


@pytest.mark.parametrize("delta", [0.0, 1e-6])
@pytest.mark.parametrize("epsilon", [1.0, 4.0])
@pytest.mark.parametrize("neighbours", ["add/remove", "replace"])
def test_the_planned_number_suffices_and_one_fewer_does_not(
    epsilon: float, delta: float, neighbours: Neighbours
) -> None:
    """Ranks and splits have half of the error each, as in an audit; of replaced secrets no coin tells."""
    rows = plan_audit(epsilon=epsilon, delta=delta, neighbours=neighbours, owner="new")
    coins = neighbours == "add/remove"
    designs = ["exposure", *(["one run, split", "one run"] if coins else []), "in/out"]
    gaussian = [*(["gaussian"] if coins else []), "gaussian exposure"]
    assert [row.design for row in rows] == [*designs, *(gaussian if delta else [])]
    for row in rows:
        sharing = coins and row.design not in ("one run", "in/out")
        error = (0.025 if sharing else 0.05) / (4 if row.design == "gaussian exposure" else 1)  # list sizes

        def shown(canaries: int, row: PlanRow = row, error: float = error) -> float:
            return detectable(
                row.design,
                canaries,
                delta=delta,
                confidence=1 - error,
                neighbours=neighbours,
            ).epsilon

        for claimed, needed in ((epsilon, row.contradict), (1.5 * epsilon, row.support)):
            assert row.neighbours == neighbours
            assert needed.canaries is not None
            assert shown(needed.canaries) >= claimed - 1e-5
            if needed.canaries > 2:
                assert shown(needed.canaries - (2 if row.design == "one run, split" else 1)) < claimed
    by_design = {row.design: row.contradict.canaries for row in rows}
    if coins:
        assert by_design["one run, split"] > by_design["one run"]  # type: ignore[operator]


def audited(owner: Literal["existing", "new"], many: int) -> float:
    """What `tacit audit` bounds epsilon by where so many secrets are first and coins tell nothing."""
    plan = CanaryPlan(users=60, owner=owner, seed=5)
    manifest = draw_canaries(plan, [f"u{i}" for i in range(80)], documents=80, characters=800)
    bits = Estimate(19.9, 19.9, 19.9, 0.95, "exact")
    first = CanaryExposure(
        id="c", inserted=True, repetitions=1, candidates=10**6, rank_low=1, rank_high=1, alone_low=1,
        alone_high=1, exposure=bits, raw_exposure=bits, p_value=1e-6, certified=0.0, method="exact", tokens=6,
        positions=6, log_probability=-1.0,
    )  # fmt: skip
    report = ExposureReport("logprob", "trained model", (first,) * many, 6, 0, ())
    audit = ModelAudit.__new__(ModelAudit)
    audit.plan, audit.manifest = AuditPlan(manifest=manifest), manifest
    scores = CanaryScores(MembershipScores.__new__(MembershipScores), len(manifest.canaries))
    blind = dataclasses.replace(scores, found={PRIMARY: np.zeros(len(manifest.canaries))})  # type: ignore[arg-type]
    judged = JudgedClaim(Claim("c", "user", "add/remove", 8.0, 0.0), "user", "add/remove")
    bound = audit._bound(
        ExposureFinding(manifest, report, report), blind, {"unit": "user", "delta": 0.0}, judged
    )
    assert bound is not None
    return bound.epsilon


@pytest.mark.parametrize("owner", ["existing", "new"])
def test_the_audit_shows_what_the_plan_says(owner: Literal["existing", "new"]) -> None:
    many = rows_of(epsilon=8.0, owner=owner)["exposure"].contradict.canaries
    assert many is not None
    assert audited(owner, many) >= 8.0 > audited(owner, many - 1)


def test_a_plan_is_for_canaries_as_they_are_planted_unless_told_otherwise() -> None:
    assert CanaryPlan().owner == "existing"
    planted = plan_audit(epsilon=8.0, delta=0.0)
    assert planted == plan_audit(
        epsilon=8.0, delta=0.0, owner=CanaryPlan().owner, include=CanaryPlan().include
    )
    assert [row.design for row in planted] == ["exposure", "in/out"]  # no coins, and all of the error
    assert "half of the error" not in planted[0].assumption
    assert planted[0].contradict.canaries == 42
    for changes in ({"owner": "existing"}, {"include": 0.9}, {"neighbours": "mask"}):
        with pytest.raises(InputError, match=r"owner='new', include=0\.5 and neighbours='add/remove'"):
            rows_of(epsilon=1.0, accuracy=0.9, **changes)


def test_the_plan_is_for_what_an_audit_judges() -> None:
    """What one canary shows of one secret in another's place takes dozens for one that comes or goes."""
    # 1 canary shows 4.72 under add/remove, 10 show 7.21, 30 show 7.83 and 100 show 8.46, at all of the error.
    for many, shown in ((1, 4.72), (10, 7.21), (30, 7.83), (100, 8.46)):
        assert detectable("exposure", many, neighbours="add/remove").epsilon == pytest.approx(
            shown, abs=0.005
        )
    needed = rows_of(epsilon=8.0)["exposure"].contradict
    assert needed.canaries == 48  # as ranks of new owners share the error with coins
    # Without a coin nothing is shared: (log(K - 1) + logit(0.0125^(1/m))) / 2 >= 8, over four list sizes.
    alone = next(m for m in range(1, 100) if np.log(999_999) + special.logit(0.0125 ** (1 / m)) >= 16)
    assert rows_of(epsilon=8.0, include=1.0)["exposure"].contradict == Needed(alone, alone)
    assert rows_of(epsilon=8.0, owner="existing")["exposure"].contradict.canaries == alone == 42
    assert rows_of(epsilon=8.0, neighbours="replace")["exposure"].contradict.canaries == 1
    # Enough are in with probability 95%, and with one planted fewer they are not.
    assert needed.planted is not None
    assert stats.binom.sf(47, needed.planted, 0.5) >= 0.95 > stats.binom.sf(47, needed.planted - 1, 0.5)


def test_coins_that_are_not_fair_are_no_evidence() -> None:
    assert set(rows_of(epsilon=2.0, include=0.9, delta=1e-6)) == {"exposure", "in/out", "gaussian exposure"}


def test_published_limits() -> None:
    """research/audit.md 4.2."""
    goldens: list[tuple[Design, int, float]] = [
        ("one run", 100, 3.49),
        ("in/out", 100, 3.28),
        ("exposure", 10, 14.87),
        ("one run", 10_000, 8.11),
    ]
    for design, canaries, epsilon in goldens:
        assert detectable(design, canaries, list_sizes=(1,)).epsilon == pytest.approx(epsilon, abs=0.005)
    gaussian = detectable("gaussian exposure", 10, delta=1e-5)
    assert gaussian == gaussian_one_run_bound(correct=10, guesses=10, canaries=10, alphabet=10**6)
    assert gaussian.mu == pytest.approx(4.20, abs=0.005)
    assert detectable("exposure", 10, neighbours="mask", insertions=2).epsilon == pytest.approx(
        detectable("exposure", 10).epsilon / 4
    )


def test_too_much_delta_is_said() -> None:
    row = rows_of(epsilon=5.0, delta=0.01)["one run"]
    assert row.contradict == row.support == Needed(None, None)
    assert "delta" in row.note
    # In between, delta costs canaries but does not forbid.
    costly = rows_of(epsilon=5.0, delta=1e-5)["one run"].contradict.canaries
    free = rows_of(epsilon=5.0)["one run"].contradict.canaries
    assert costly is not None
    assert free is not None
    assert free < costly < 1.3 * free


def power_of(canaries: int, epsilon: float, accuracy: float, delta: float) -> float:
    """How often guesses that are right with this probability show epsilon, by enumeration."""
    counts = np.arange(canaries + 1)
    bounds = [
        one_run_bound(correct=int(v), guesses=canaries, canaries=canaries, delta=delta).epsilon
        for v in counts
    ]
    return float(stats.binom.pmf(counts, canaries, accuracy)[np.array(bounds) >= epsilon].sum())


def test_an_attack_of_some_accuracy_shows_it_as_often_as_planned() -> None:
    epsilon, accuracy = 1.0, 0.85
    row = plan_audit(epsilon=epsilon, delta=0.0, accuracy=accuracy, power=0.8, owner="new")[3]
    many = row.contradict.canaries
    assert many is not None
    assert 0.8 <= power_of(many, epsilon, accuracy, 0.0) < 0.9
    more = plan_audit(epsilon=1.5 * epsilon, delta=0.0, accuracy=accuracy, owner="new")[3]
    assert row.support == more.contradict
    with_delta = plan_audit(epsilon=epsilon, accuracy=accuracy, delta=2e-3, owner="new")[
        3
    ].contradict.canaries
    assert with_delta is not None
    assert with_delta > many
    assert 0.8 <= power_of(with_delta, epsilon, accuracy, 2e-3) < 0.9
    hopeless = plan_audit(epsilon=2.0, delta=0.0, accuracy=0.85, owner="new")[3]
    assert hopeless.contradict.canaries is None
    assert "epsilon = 1.73" in hopeless.note


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 200), st.sampled_from([0.0, 1e-6]), st.sampled_from(["one run", "in/out", "exposure"]))
def test_more_canaries_see_further(canaries: int, delta: float, design: Design) -> None:
    found = detectable(design, canaries, delta=delta).epsilon
    assert found <= detectable(design, canaries + 1, delta=delta).epsilon + 1e-6
    assert found >= detectable(design, canaries, delta=delta, confidence=0.99).epsilon - 1e-6


def test_a_split_audit_cannot_show_more_than_is_said_to_be_detectable() -> None:
    """Scores that separate fully: the median of splits is the detectable bound itself."""
    coins = np.random.default_rng(1).random(101) < 0.5
    found = multi_split_bound(CoinScores.of_pairs(np.ones(101), np.zeros(101)), splits=5)
    limit = detectable("one run, split", 101)
    assert found.epsilon == pytest.approx(limit.epsilon)
    assert multi_split_bound(CoinScores.of(coins.astype(float), coins), splits=5).epsilon <= limit.epsilon


def test_nonsense_is_refused() -> None:
    for wrong, number in (("epsilon", 0.0), ("epsilon", 51.0), ("power", 1.0), ("accuracy", 0.5)):
        with pytest.raises(InputError, match=rf"Expected [0-9.]+ < {wrong}={number} <=? [0-9]+, e\.g\."):
            plan_audit(**{"epsilon": 1.0} | {wrong: number})  # type: ignore[arg-type]
    for name, value in (
        ("include", 0.0),
        ("include", 1.5),
        ("candidates", 1),
        ("neighbours", "near"),
        ("owner", "x"),
    ):
        with pytest.raises(InputError, match=f"{name}="):
            rows_of(epsilon=1.0, **{name: value})
    with pytest.raises(InputError, match="canaries"):
        detectable("one run", 0)
