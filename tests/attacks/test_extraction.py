"""The attack on models that memorised codes: it finds them where nothing protects, and only there.

Known answers: a member alone and a fine-tuned model give their codes away; the public model does not; and
what is certified is never passed by the exact rate.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from scipy import stats
from torch import Tensor

from tacit.attacks import (
    Codes,
    CodeTree,
    ExtractionReport,
    ExtractionRow,
    MemorisingPlan,
    Place,
    Places,
    analytic_hit_rate,
    judged,
    pmf_of,
)
from tacit.errors import InputError
from tacit.evaluation.extraction import Attacked, AttackPlan, _notes, attack_own_models, attack_run
from tacit.mechanisms import Certified
from tacit.models.ensemble import load_ensemble
from tacit.runs import Run
from tacit.statistics import clopper_pearson

EVERY: tuple[Attacked, ...] = (
    "submix",
    "submix_averaged",
    "submix_paper",
    "certified",
    "individual",
    "subsample_aggregate",
    "gnmax",
)
PLAN = AttackPlan(generations=100, mechanisms=EVERY, epsilons=(2.0,), seed=4)


def memorising(model: Path, **changes: object) -> MemorisingPlan:
    settings = {"digits": 3, "codes": 4, "steps": 120, "learning_rate": 3e-3, "adapter": "full", "seed": 3}
    return MemorisingPlan(model=str(model), **(settings | changes))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("extraction") / "attack"


@pytest.fixture(scope="module")
def report(place: Path, number_transformer: Path) -> ExtractionReport:
    return attack_own_models(memorising(number_transformer), PLAN, place, with_finetuned=True)


def row(report: ExtractionReport, name: str) -> ExtractionRow:
    return next(row for row in report.rows if row.name == name)


def test_unprotected_models_give_their_codes_away(report: ExtractionReport) -> None:
    for name in ("member", "finetuned"):
        found = row(report, name)
        assert found.rate.value > 0.5  # a processor that rounds otherwise ends at other weights
        assert found.verdict == "extracts"
        assert found.guarantee.kind == "none"
    assert row(report, "member").distinct == 1
    assert row(report, "finetuned").distinct >= 3


def test_computed_and_sampled_rates_agree(report: ExtractionReport) -> None:
    for found in report.rows:
        if found.analytic is not None and found.basis == "exact":
            slack = 0.02  # ten intervals of 95%: one may miss by a little
            assert found.rate.low - slack <= found.analytic.value <= found.rate.high + slack
            assert found.analytic.high - found.analytic.value < 0.01 * found.chance + 1e-6


def test_public_model_is_at_chance(report: ExtractionReport) -> None:
    public = row(report, "public")
    assert public.verdict == "at chance"
    assert public.analytic is not None
    assert public.analytic.value < 3 * public.chance
    assert public.private_answers == 0


@pytest.mark.parametrize("name", ["submix", "certified", "individual", "subsample_aggregate", "gnmax"])
def test_mechanisms_at_two_nats_do_not_extract(report: ExtractionReport, name: str) -> None:
    found, control = row(report, name), row(report, "member")
    # At five times chance, 2%, 14 hits in 100 have a probability of 1e-7: other processors draw other hits.
    assert found.hits < 14
    assert found.rate.high < control.rate.low / 2
    assert found.verdict != "inconclusive"
    if found.analytic is not None:
        assert found.analytic.value < 5 * found.chance


def test_certificates_hold(report: ExtractionReport) -> None:
    for name in ("certified", "individual"):
        found = row(report, name)
        assert found.basis == "exact"
        assert found.analytic is not None
        assert found.at_most is not None
        assert found.one_code is not None
        assert found.analytic.value <= found.at_most < 1
    for name in ("submix", "gnmax", "nonprivate"):
        assert row(report, name).at_most is None  # what holds for one corpus certifies nothing
    assert row(report, "submix").basis == "before STOP"


def test_no_code_passes_its_bound_for_this_very_draw(place: Path, report: ExtractionReport) -> None:
    """Hoelder around the law without the part: P(E) <= (e^eps Q(E))^((a-1)/a), for every event E."""
    ensemble = load_ensemble(Run.open(place / "ensemble"))
    codes = Codes.read(place / "codes.jsonl")
    tokens = report.tokens_per_generation
    for target, code in itertools.product((0.05, 0.5), codes.values):
        pmf = pmf_of(Certified(2.0, target))
        assert pmf is not None
        tree = CodeTree(ensemble.public.tokenizer, Codes(codes.digits, (code,)))
        places = Places(ensemble, tree.prompt, tokens)
        whole = analytic_hit_rate(tree, places, pmf).high
        for part in range(ensemble.parts):
            less = analytic_hit_rate(tree, places, without(part, pmf)).value
            assert whole <= math.sqrt(math.exp(tokens * target) * less) * (1 + 1e-6)


def without(part: int, pmf: Callable[[Place], Tensor]) -> Callable[[Place], Tensor]:
    """The same mechanism in the world where a part's text is nothing and its slot answers as the public."""

    def less(place: Place) -> Tensor:
        members = place.members.clone()
        members[part] = place.public
        return pmf(Place(members, place.public))

    return less


def test_finished_rows_are_not_measured_again(
    place: Path, number_transformer: Path, report: ExtractionReport, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tacit.evaluation.extraction.sample_hits", None)
    again = attack_own_models(memorising(number_transformer), PLAN, place, with_finetuned=True)
    assert again == report
    with pytest.raises(InputError, match="digits=3, not 2"):
        attack_own_models(memorising(number_transformer, digits=2), PLAN, place)


def test_runs_are_attacked_where_they_are(place: Path, report: ExtractionReport) -> None:
    plan = AttackPlan(generations=20, mechanisms=("certified",), epsilons=(1.0,), finish=True)
    found = attack_run(Run.open(place / "ensemble"), plan)
    assert [row.name for row in found.rows] == ["public", "member", "nonprivate", "certified"]
    assert all(row.answers == 20 * found.tokens_per_generation for row in found.rows)
    alone = attack_run(Run.open(place / "finetuned"), plan)
    assert [row.name for row in alone.rows] == ["public", "finetuned"]


def with_hits(found: ExtractionRow, hits: int, generations: int) -> ExtractionRow:
    return replace(found, analytic=None, hits=hits, rate=clopper_pearson(hits, generations))


def test_without_a_control_nothing_is_concluded(report: ExtractionReport) -> None:
    tame = [with_hits(row(report, name), 1, 100) for name in ("public", "submix", "certified")]
    assert {found.verdict for found in judged(tame, 100)} == {"inconclusive"}


@pytest.mark.parametrize(
    ("hits", "control", "generations", "verdict"),
    [
        (100, 950, 1000, "extracts"),  # chance is 0.004
        (8, 950, 1000, "at chance"),
        (4, 950, 1000, "at chance"),
        (0, 950, 1000, "at chance"),  # wholly below chance: no better than guessing, and called so
        (1, 9, 10, "inconclusive"),
        (1, 10, 100, "inconclusive"),
        (0, 4, 1000, "inconclusive"),  # the control is not above chance itself
    ],
)
def test_verdicts_are_what_is_said_of_them(
    report: ExtractionReport, hits: int, control: int, generations: int, verdict: str
) -> None:
    assert report.chance == 0.004
    rows = [
        with_hits(row(report, "member"), control, generations),
        with_hits(row(report, "certified"), hits, generations),
    ]
    assert judged(rows, generations)[1].verdict == verdict


@pytest.mark.parametrize("generations", [100, 1000, 10_000])
@pytest.mark.parametrize("count", [1, 10])
def test_rows_at_chance_are_seldom_called_extracting(
    report: ExtractionReport, count: int, generations: int
) -> None:
    """Exactly: the fewest hits that are called so, and their probability at chance, in any of the rows."""
    chance = row(report, "certified").chance

    def called(hits: int) -> bool:
        rows = [with_hits(row(report, "certified"), hits, generations)] * count
        return judged(rows, generations)[0].verdict == "extracts"

    fewest = next(hits for hits in range(generations) if called(hits))
    one = float(stats.binom.sf(fewest - 1, generations, chance))
    assert 1 - (1 - one) ** count <= 0.05
    # One hit fewer would have been too few: the level is used, not only kept.
    assert 1 - (1 - float(stats.binom.sf(fewest - 2, generations, chance))) ** count > 0.04


DISAGREE, NOTHING = (
    "Members that memorised different codes disagree",
    "The unprotected models do not extract",
)


def test_notes_explain_a_mean_at_chance_only_where_something_was_memorised(report: ExtractionReport) -> None:
    def notes(**hits: int) -> str:
        rows = [with_hits(found, hits.get(found.name, 0), 100) for found in report.rows]
        return " ".join(_notes(PLAN, 3, judged(rows, 100)))

    memorised = notes(member=95)
    assert DISAGREE in memorised
    assert NOTHING not in memorised
    assert DISAGREE in notes(finetuned=95)
    neither = notes()
    assert NOTHING in neither
    assert DISAGREE not in neither
    both = notes(member=95, nonprivate=55)
    assert DISAGREE not in both
    assert NOTHING not in both


def test_lstm(tmp_path: Path, number_lstm: Path) -> None:
    plan = AttackPlan(generations=50, mechanisms=("submix", "certified"), seed=1)
    lstm = memorising(number_lstm, codes=2, digits=2, steps=200, learning_rate=2e-2)
    found = attack_own_models(lstm, plan, tmp_path / "attack")
    assert row(found, "member").verdict == "extracts"
    certified = row(found, "certified")
    assert certified.analytic is not None
    assert certified.at_most is not None
    assert certified.analytic.value <= certified.at_most


def test_low_rank_members_work_too(tmp_path: Path, number_transformer: Path) -> None:
    plan = AttackPlan(generations=20, mechanisms=("submix",), seed=1)
    lora = memorising(number_transformer, codes=2, adapter="lora", steps=20, learning_rate=1e-2)
    found = attack_own_models(lora, plan, tmp_path / "attack")
    assert [row.name for row in found.rows] == ["public", "member", "nonprivate", "submix"]


@pytest.mark.parametrize("codes", [0, 3, -2])
def test_every_half_has_a_code(codes: int) -> None:
    with pytest.raises(InputError, match="even"):
        MemorisingPlan(codes=codes)


def test_bad_plans_are_refused() -> None:
    with pytest.raises(InputError, match="generations=0"):
        AttackPlan(generations=0)
    with pytest.raises(InputError, match="cannot be attacked"):
        AttackPlan(mechanisms=("magic",))  # type: ignore[arg-type]
    with pytest.raises(InputError, match="epsilon"):
        AttackPlan(epsilons=(0.0,))
    with pytest.raises(InputError, match="order"):
        AttackPlan(order=1.0)
    with pytest.raises(InputError, match="adapter"):
        MemorisingPlan(adapter="dora")  # type: ignore[arg-type]
