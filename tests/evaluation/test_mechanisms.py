"""Mechanisms on held-out text, against answering one query after the other."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tacit.errors import InputError
from tacit.evaluation import Grid, Measurement, Setting, Sweep
from tacit.evaluation.calibration import best_rows, calibrated
from tacit.evaluation.mechanism_blocks import (
    HeldOutBlocks,
    enough_blocks,
    fitting_queries,
    stretches,
)
from tacit.evaluation.mechanism_budgets import answers_of, block_perplexities, paid_for
from tacit.evaluation.mechanism_pmfs import trace
from tacit.evaluation.mechanism_report import MechanismRow
from tacit.evaluation.report import MeasuredText
from tacit.mechanisms import Decoding, GNMax, SubsampleAggregate
from tacit.mechanisms.choice import MechanismChoice, MechanismName
from tacit.mechanisms.pmfs import floored_public
from tacit.models.ensemble import Ensemble
from tacit.models.loading import load_public_model
from tacit.prediction import Budget
from tacit.privacy import Guarantee
from tests.mechanisms import oracle
from tests.models.ensembles import adapter_folder
from tests.tiny import public_sentences

PARTS = 3
TEXT = MeasuredText("text", held_out=True, private=True)


@pytest.fixture(scope="module")
def ensemble(tiny_transformer: Path, tmp_path_factory: pytest.TempPathFactory) -> Ensemble:
    """Three parts of two halves; halves of a part are the same up to a little, as trained ones are not."""
    folder = tmp_path_factory.mktemp("members")
    members = [
        adapter_folder(tiny_transformer, folder / f"m{seed}", seed, alpha=3.0) for seed in range(2 * PARTS)
    ]
    return Ensemble(load_public_model(str(tiny_transformer)), tuple(members), PARTS, 2)


def make_blocks(ensemble: Ensemble, lengths: list[int]) -> HeldOutBlocks:
    """Blocks of the given lengths, each a user of its own."""
    ids = ensemble.public.tokenizer.encode([" ".join(public_sentences(40, seed=9))])[0]
    starts = np.concatenate([[0], np.cumsum(lengths)])
    tokens = tuple(np.array(ids[a:b], dtype=np.int64) for a, b in itertools.pairwise(starts))
    assert all(len(block) == length for block, length in zip(tokens, lengths, strict=True))
    return HeldOutBlocks(tokens, np.arange(len(lengths)), max(lengths), ensemble.public.tokenizer.start_token)


def one(name: MechanismName, epsilon: float, queries: int, target: float, **options: object) -> Setting:
    parts = int(options.pop("parts", PARTS))  # type: ignore[call-overload]
    choice = MechanismChoice(name, target=target, **options)  # type: ignore[arg-type]
    return Setting(choice, Budget(epsilon, queries), parts)


def smaller(ensemble: Ensemble, parts: int) -> Ensemble:
    return Ensemble(ensemble.public, ensemble.members[: parts * ensemble.halves], parts, ensemble.halves)


def positions(ensemble: Ensemble, blocks: HeldOutBlocks) -> list[list[torch.Tensor]]:
    """The distributions of all models at every position of every block: [models, V] each."""
    executor = ensemble.executor(slots=1, context=64)
    found = []
    for block in range(len(blocks)):
        (scored,) = executor.score(torch.from_numpy(blocks.inputs(block))[None], block=64)
        length = scored.logits.shape[2]
        found.append([Decoding().pmfs(scored.logits[:, 0, at]).pmfs for at in range(length)])
    return found


def in_turn(
    ensemble: Ensemble, blocks: HeldOutBlocks, setting: Setting, given: list[list[torch.Tensor]]
) -> tuple[list[float], list[int]]:
    """Log-probabilities and queries before STOP by the service itself, one query after the other."""
    found, answered, number = [], [], 0
    for stretch in stretches(blocks, setting.budget.queries):
        answering = setting.answering(ensemble.halves)
        paid = 0
        for block in range(stretch.first, stretch.last):
            for pmfs, token in zip(given[block], blocks.tokens[block].tolist(), strict=True):
                members = ensemble.members_of(pmfs)[: setting.parts]
                mechanism = answering.mechanism
                if isinstance(mechanism, SubsampleAggregate):
                    mechanism.noise.manual_seed(number)
                answer = answering._charged(members, pmfs[0])
                view = answering.operator_view()
                if isinstance(mechanism, GNMax) and not view.stopped:
                    votes = mechanism.votes(members.mean(1)[None])
                    probability = float(mechanism.probability_bound(votes, torch.tensor([token])))
                else:
                    probability = max(float(answer[token]), 2.0**-62)
                found.append(math.log(probability))
                paid += not view.stopped
                number += 1
        answered.append(paid)
    return found, answered


CASES: list[Setting] = [
    one("submix", 0.02, 24, 0.05),
    one("submix", 5.0, 24, 0.01, mixing="averaged"),
    one("submix", 0.01, 24, 0.01, mixing="averaged"),
    one("submix", 0.02, 24, 0.05, guard=0.002),
    one("certified", 0.2, 24, 0.02),
    one("individual", 0.2, 24, 0.2 / 24),
    one("individual", 0.02, 24, 0.008),
    one("individual", 0.004, 24, 1.0, parts=2),
    one("subsample_aggregate", 2.0, 24, 0.3),
    one("gnmax", 2.0, 24, 0.2),
    one("public", 2.0, 24, 0.1),
    one("nonprivate", 2.0, 24, 0.1),
]


@pytest.mark.parametrize("lengths", [[8] * 9, [10, 3, 8, 9, 12, 2, 2, 7, 11, 8]], ids=["even", "uneven"])
def test_every_mechanism_equals_answering_in_turn(ensemble: Ensemble, lengths: list[int]) -> None:
    blocks = make_blocks(ensemble, lengths)
    stretched = stretches(blocks, 24)
    traces = trace(ensemble, blocks, CASES)
    given = positions(ensemble, blocks)
    stops = set()
    for setting in CASES:
        answers = answers_of(setting, traces, blocks, stretched)
        expected, answered = in_turn(ensemble, blocks, setting, given)
        np.testing.assert_allclose(
            answers.log_probability[: len(expected)], expected, rtol=1e-9, err_msg=str(setting)
        )
        if setting.choice.name != "individual":
            assert answers.answered.tolist() == answered, setting
        stops.add((setting.choice.name, bool(answers.stopped.any())))
    # The cases are worth something only if some of them stop and some do not.
    assert {("submix", True), ("submix", False), ("certified", True), ("gnmax", True)} <= stops


def test_submix_equals_the_slow_oracle_with_a_budget_in_plain_numbers(ensemble: Ensemble) -> None:
    blocks = make_blocks(ensemble, [8, 8, 8, 8])
    setting = one("submix", 0.01, 16, 0.05)
    answers = answers_of(setting, trace(ensemble, blocks, [setting]), blocks, stretches(blocks, 16))
    expected: list[float] = []
    given = positions(ensemble, blocks)
    for first in (0, 2):
        left, stopped = [0.01] * PARTS, False
        for block in (first, first + 1):
            for pmfs, token in zip(given[block], blocks.tokens[block], strict=True):
                halves = ensemble.members_of(pmfs).numpy()
                h, _, charges = oracle.submix(halves, pmfs[0].numpy(), order=2.0, target=0.05)
                after = [have - float(charge) for have, charge in zip(left, charges, strict=True)]
                stopped = stopped or min(after) <= 0
                left = left if stopped else after
                answer = oracle.floored(pmfs[0].numpy()) if stopped else h
                expected.append(math.log(answer[token]))
    np.testing.assert_allclose(
        answers.log_probability, expected, rtol=1e-5
    )  # models answer in single precision
    assert answers.stopped.all()


def test_stop_makes_the_rest_of_a_stretch_public_and_the_next_one_starts_afresh(ensemble: Ensemble) -> None:
    blocks = make_blocks(ensemble, [8] * 6)
    setting = one("submix", 0.02, 24, 0.05)
    traces = trace(ensemble, blocks, [setting])
    answers = answers_of(setting, traces, blocks, stretches(blocks, 24))
    for begin, paid in zip((0, 24), answers.answered.astype(int), strict=True):
        assert 0 < paid < 24
        mixed = answers.log_probability[begin : begin + paid]
        assert (mixed != traces.public[begin : begin + paid]).all()
        rest = slice(begin + paid, begin + 24)
        assert (answers.log_probability[rest] == traces.public[rest]).all()


def test_individual_parts_fade_but_answers_go_on(ensemble: Ensemble) -> None:
    blocks = make_blocks(ensemble, [8] * 6)
    tight = one("individual", 0.004, 48, 1.0)
    ample = one("individual", 1000.0, 48, 1.0)
    traces = trace(ensemble, blocks, [tight, ample])
    assert np.abs(traces.fading[tight] - traces.public)[-8:].max() < 1e-6
    assert np.abs(traces.fading[ample] - traces.public)[-8:].max() > 1e-3


def test_a_sweep_equals_single_runs(ensemble: Ensemble) -> None:
    blocks = make_blocks(ensemble, [8] * 4)
    sweep = Sweep(
        ("submix", "certified", "individual", "subsample_aggregate", "gnmax"),
        epsilons=(0.05, 2.0),
        queries=(16, 32),
        orders=(2.0, 4.0),
        mixings=("per_part", "averaged"),
        parts=(2, 3),
    )
    settings = sweep.settings(PARTS)
    assert len(settings) == len(set(settings)) == 16 * 6
    rows = Measurement(ensemble, blocks).rows(settings)
    for row in rows[:: len(rows) // 8]:
        (alone,) = Measurement(ensemble, blocks).rows([row.setting])
        assert alone.perplexity() == row.perplexity()
        assert alone.answered() == row.answered()


@pytest.mark.parametrize("parts", [1, 2])
def test_the_first_parts_equal_a_smaller_ensemble(ensemble: Ensemble, parts: int) -> None:
    blocks = make_blocks(ensemble, [8] * 4)
    sweep = Sweep(
        ("submix", "certified", "individual", "subsample_aggregate", "gnmax"), (0.5,), (16,), parts=(parts,)
    )
    subset = Measurement(ensemble, blocks)
    whole = Measurement(smaller(ensemble, parts), blocks)
    of_subset, of_whole = (m.rows(sweep.settings(m.ensemble.parts)) for m in (subset, whole))
    for one_row, other in zip(of_subset, of_whole, strict=True):
        assert one_row.perplexity().value == pytest.approx(other.perplexity().value, rel=1e-5)
        assert one_row.answered() == other.answered()
    assert [r.perplexity.value for r in subset.report(of_subset, TEXT).references] == pytest.approx(
        [r.perplexity.value for r in whole.report(of_whole, TEXT).references], rel=1e-5
    )


def test_references_are_what_their_names_say(ensemble: Ensemble) -> None:
    blocks = make_blocks(ensemble, [8, 5, 8])
    measurement = Measurement(ensemble, blocks)
    report = measurement.report(measurement.rows([one("public", 1.0, 8, 0.1)]), TEXT)
    public, single, mean = (reference.perplexity.value for reference in report.references)
    by_model: list[list[float]] = [[] for _ in range(2 * PARTS + 2)]
    for block, given in enumerate(positions(ensemble, blocks)):
        rows = torch.stack(given, 1)
        tokens = torch.from_numpy(blocks.tokens[block])
        every = [*rows, rows[1:].mean(0)]
        for place, model in enumerate(every):
            own = floored_public(model)[torch.arange(len(tokens)), tokens]
            by_model[place].append(math.exp(-float(own.log().mean())))
    means = [sum(values) / 3 for values in by_model]
    assert public == pytest.approx(means[0], rel=1e-6)
    assert single == pytest.approx(sum(means[1:-1]) / (2 * PARTS), rel=1e-6)
    assert mean == pytest.approx(means[-1], rel=1e-6)


def test_stretches_are_disjoint_whole_blocks_within_their_length(ensemble: Ensemble) -> None:
    blocks = make_blocks(ensemble, [10, 3, 8, 9, 12, 2, 2, 7, 11, 8])
    found = stretches(blocks, 24)
    assert [(s.first, s.last, s.queries) for s in found] == [(0, 3, 21), (3, 6, 23), (6, 9, 20)]
    even = make_blocks(ensemble, [8] * 7)
    assert [(s.first, s.last) for s in stretches(even, 24)] == [(0, 3), (3, 6)]
    with pytest.raises(InputError, match="less than a block of 12"):
        stretches(blocks, 11)
    with pytest.raises(InputError, match="less than one stretch of 1,024"):
        stretches(blocks, 1024)


def test_queries_and_blocks_that_fit_the_text() -> None:
    def blocks(count: int, length: int) -> HeldOutBlocks:
        return HeldOutBlocks((np.zeros(length, dtype=np.int64),) * count, np.arange(count), length, 0)

    assert fitting_queries(blocks(200, 128)) == 1024
    assert fitting_queries(blocks(100, 128)) == 512
    assert fitting_queries(blocks(3, 128)) == 128
    assert fitting_queries(blocks(1, 2000)) == 2000
    assert len(enough_blocks(blocks(200, 128), 1024)) == 160
    assert len(enough_blocks(blocks(200, 100), 1024)) == 200
    trimmed = enough_blocks(blocks(400, 100), 1024)
    assert len(stretches(trimmed, 1024)) == 20


def test_the_filter_reads_bad_charges_as_stop() -> None:
    charges = np.full((5, 2), 0.1)
    assert paid_for(charges, 1.0) == 5
    assert paid_for(charges, 0.5) == 4  # a budget that is just reached stops
    charges[2, 1] = math.nan
    assert paid_for(charges, 1.0) == 2
    charges[1, 0] = math.inf
    assert paid_for(charges, 1.0) == 1


def make_row(mechanism: MechanismName, numbers: dict[str, list[float]], **options: object) -> MechanismRow:
    setting = one(mechanism, 2.0, 8, 0.25)
    count = len(numbers["mechanism"])
    return MechanismRow(
        replace(setting, **options),  # type: ignore[arg-type]
        setting.guarantee(2),
        np.array(numbers["mechanism"]),
        np.array(numbers["public"]),
        np.array(numbers["ensemble"]),
        np.array(numbers["nonprivate"]) if "nonprivate" in numbers else None,
        blocks=np.ones(count),
        queries=np.full(count, 8.0),
        answered_queries=np.full(count, 7.0),
        stopped=np.ones(count),
    )


NUMBERS = {"mechanism": [15.0, 17.0], "public": [20.0, 24.0], "ensemble": [10.0, 14.0]}


def test_shares_compare_sums_over_the_same_blocks() -> None:
    row = make_row("certified", NUMBERS | {"nonprivate": [9.0, 11.0]})
    share, of_nonprivate = row.share_of_ensemble(), row.share_of_nonprivate()
    assert share is not None
    assert of_nonprivate is not None
    assert share.value == pytest.approx((44 - 32) / (44 - 24))
    assert of_nonprivate.value == pytest.approx((44 - 32) / (44 - 20))
    assert share.low == pytest.approx(5 / 10)
    assert share.high == pytest.approx(7 / 10)
    assert "2 stretches" in share.method
    assert row.perplexity().value == 16
    assert row.answered().value == 7
    worse = make_row("certified", NUMBERS | {"ensemble": [30.0, 30.0]})
    assert worse.share_of_ensemble() is None
    assert worse.share_of_nonprivate() is None


def test_only_guarantees_that_hold_for_every_corpus_are_converted() -> None:
    certified, submix = make_row("certified", NUMBERS), make_row("submix", NUMBERS)
    expected = Guarantee.certified(order=2.0, epsilon=2.0).to_dp(1e-5).epsilon
    assert certified.dp_epsilon() == expected
    assert expected == pytest.approx(12.13, abs=0.01)
    assert certified.labels == ()
    assert submix.dp_epsilon() is None
    assert submix.labels == ("instance-specific, not DP",)
    assert submix.to_json()["dp_delta"] is None
    assert make_row("gnmax", NUMBERS).labels == (
        "perplexity is a lower bound",
        "instance-specific, not DP",
        "one-directional (paper)",
    )
    assert make_row("subsample_aggregate", NUMBERS).labels == ("one draw of noise per query, zeros as 2^-62",)
    oracle_tuned = make_row("certified", NUMBERS, source="oracle")
    assert oracle_tuned.labels == ("oracle-tuned, outside the guarantee",)
    assert "tuned on the private ensemble" in str(oracle_tuned.setting.guarantee(2))


def test_a_target_is_chosen_by_perplexity_on_the_whole_grid(ensemble: Ensemble) -> None:
    blocks = make_blocks(ensemble, [8] * 8)
    grid = Grid((0.5, 1.0, 8.0), (1.0,), (0.5, 0.9))
    settings = Sweep(("submix", "certified", "public"), (0.2,), (16,)).settings(PARTS)
    measure = Measurement(ensemble, blocks).rows
    for setting, best in calibrated(settings, grid, measure).items():
        tried = measure(grid.candidates(setting, "calibrated"))
        assert len(tried) == {"submix": 3, "certified": 2, "public": 1}[setting.choice.name]
        assert best.perplexity().value == min(row.perplexity().value for row in tried)
        assert best.setting.source == ("heuristic" if setting.choice.name == "public" else "calibrated")
    assert {row.setting.source for row in best_rows(settings[:2], grid, "oracle", measure)} == {"oracle"}


def test_a_given_cap_is_kept_and_no_candidate_costs_more_than_the_budget() -> None:
    setting = one("certified", 2.0, 8, 0.25, cap=0.6)
    assert {c.choice.cap for c in Grid().candidates(setting, "calibrated")} == {0.6}
    targets = [c.choice.target for c in Grid().candidates(one("submix", 2.0, 8, 0.25), "oracle")]
    assert max(targets) == 2.0


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Sweep(("submix",), parts=(4,)).settings(PARTS), "parts=4"),
        (lambda: Sweep(("submix",), parts=(0,)).settings(PARTS), "parts=0"),
        (lambda: Sweep(("gnmax",), orders=(1.0,)).settings(PARTS), "order=1.0"),
        (lambda: Sweep(("certified",), epsilons=(-1.0,)).settings(PARTS), "epsilon=-1.0"),
        (lambda: Sweep(("certified",), queries=(0,)).settings(PARTS), "queries=0"),
        (lambda: Sweep(("submix",), target=0.0).settings(PARTS), "target=0.0"),
        (lambda: Sweep(("certified",), caps=(1.5,)).settings(PARTS), "cap=1.5"),
        (lambda: Sweep(("submix",), guards=(-1.0,)).settings(PARTS), "guard=-1.0"),
    ],
)
def test_what_cannot_be_measured_is_refused(make: Callable[[], object], says: str) -> None:
    with pytest.raises(InputError, match=says):
        make()


def test_what_this_ensemble_cannot_answer_is_refused_before_the_models_run(ensemble: Ensemble) -> None:
    blocks = make_blocks(ensemble, [8, 8])
    singles = Ensemble(ensemble.public, ensemble.members[:PARTS], PARTS, 1)
    with pytest.raises(InputError, match="two halves"):
        Measurement(singles, blocks).rows([one("submix", 2.0, 8, 0.1)])
    with pytest.raises(InputError, match="does not pay for one answer"):
        Measurement(ensemble, blocks).rows([one("certified", 2.0, 8, 3.0)])


def test_one_model_per_part_is_measured_too(ensemble: Ensemble) -> None:
    singles = Ensemble(ensemble.public, ensemble.members[:PARTS], PARTS, 1)
    blocks = make_blocks(ensemble, [8] * 4)
    setting = one("certified", 0.2, 16, 0.02)
    traces = trace(singles, blocks, [setting])
    expected, _ = in_turn(singles, blocks, setting, positions(singles, blocks))
    answers = answers_of(setting, traces, blocks, stretches(blocks, 16))
    np.testing.assert_allclose(answers.log_probability, expected, rtol=1e-9)
    assert block_perplexities(answers.log_probability, blocks).shape == (4,)


def test_a_smaller_support_approximates_and_a_large_one_is_exact(ensemble: Ensemble) -> None:
    blocks = make_blocks(ensemble, [8] * 4)
    settings = [
        one("submix", 5.0, 16, 0.05),
        one("certified", 0.5, 16, 0.03),
        one("individual", 0.02, 16, 0.03),
        one("gnmax", 2.0, 16, 0.2),
        one("subsample_aggregate", 2.0, 16, 0.1),
    ]
    exact = Measurement(ensemble, blocks).rows(settings)
    for support, tolerance in ((512, 0.0), (300, 1e-3), (60, 3e-2)):
        rows = Measurement(ensemble, blocks, support=support).rows(settings)
        for row, expected in zip(rows, exact, strict=True):
            assert row.perplexity().value == pytest.approx(expected.perplexity().value, rel=tolerance)
    charges = [
        trace(ensemble, blocks, settings[:1], support=support).probes.popitem()[1].charges
        for support in (60, None)
    ]
    assert charges[0].sum() == pytest.approx(charges[1].sum(), rel=0.03)
    with pytest.raises(InputError, match="support=0"):
        trace(ensemble, blocks, support=0)
