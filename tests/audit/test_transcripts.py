"""The likelihood-ratio attack on whole transcripts: what is true is not contradicted, what is false is."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from tacit.attacks.places import Place
from tacit.audit.transcripts import audit_transcripts, shared_confidence
from tacit.audit.transcripts_divergence import (
    Law,
    Simulated,
    exact_divergence,
    simulate,
    simulated_divergence,
)
from tacit.audit.transcripts_worlds import Questions, TwoWorlds, Written
from tacit.errors import InputError
from tacit.mechanisms import Certified, GNMax, Individual, SubMix
from tacit.privacy import RenyiFilter, renyi_divergence
from tacit.progress import Silent
from tacit.statistics import Estimate
from tests.audit.toys import GenerousCertified, HalvedIndividual, HalvedSubMix, quick, tight_place, toy_ask
from tests.mechanisms.oracle import Array, floored

V, LENGTH = 3, 3
TIGHT = tight_place(0.1)
ADAPTIVE: tuple[Law, ...] = ("with", "without", "tilted", "tilted back")


def brute_force(mechanism: Any, ask: Any, *, part: int, parts: int, epsilon: float) -> float:
    """D_a^sym between transcript laws, world by world and transcript by transcript, sharing no code."""

    def answers(written: Written, silent: bool) -> Array:
        """The distribution after a history, all budgets replayed from the beginning."""
        real, own = (RenyiFilter(parts=parts, epsilon=epsilon) for _ in range(2))
        for t in range(len(written) + 1):
            place = ask(written[:t])
            members, public = place.members.numpy().copy(), place.public.numpy()
            if isinstance(mechanism, SubMix):
                if not real.spend(mechanism.mix(members, public).charges.numpy()):
                    return floored(public)
                if silent and mechanism.guard is not None:
                    members[part] = public
                elif silent:
                    members = np.delete(members, part, axis=0)
                pmf = mechanism.mix(members, public).pmf if len(members) else floored(public)
                continue
            if silent:
                members[part] = public
            if isinstance(mechanism, Certified):
                if t >= mechanism.queries(epsilon):
                    return floored(public)
                pmf = mechanism.mix(members.mean(1), public).pmf
                continue
            mixture = mechanism.mix(members.mean(1), public, own.remaining)
            own.debit(mixture.charges.numpy())
            pmf = mixture.pmf
        return np.asarray(pmf)

    def law(silent: bool) -> Array:
        histories = [h for n in range(LENGTH) for h in itertools.product(range(V), repeat=n)]
        pmf = {h: answers(h, silent) for h in histories}
        return np.array(
            [
                math.prod(float(pmf[y[:t]][y[t]]) for t in range(LENGTH))
                for y in itertools.product(range(V), repeat=LENGTH)
            ]
        )

    here, there = law(silent=False), law(silent=True)
    return max(
        float(renyi_divergence(here, there, mechanism.order)),
        float(renyi_divergence(there, here, mechanism.order)),
    )


CASES: list[tuple[Any, float, int]] = [
    (quick(SubMix(2.0, 0.05)), 0.013, 3),  # stops within the transcript, for some transcripts
    (quick(SubMix(2.0, 0.05)), 10.0, 1),
    (quick(SubMix(4.0, 0.1, mixing="averaged")), 10.0, 3),
    (quick(SubMix(2.0, 0.1, guard=0.02)), 0.05, 3),
    (quick(Certified(2.0, 0.05)), 0.1, 3),  # pays for two answers of three
    (quick(Certified(8.0, 0.05, cap=0.8)), 1.0, 2),
    (quick(Individual(2.0, 0.05)), 0.08, 3),  # fades
    (quick(Individual(8.0, 0.05)), 0.08, 1),
]
IDS = ["submix", "one part", "averaged", "guard", "certified", "capped", "individual", "individual, one part"]


@pytest.mark.parametrize(("mechanism", "epsilon", "k"), CASES, ids=IDS)
def test_the_enumeration_agrees_with_brute_force_and_keeps_the_claim(
    mechanism: Any, epsilon: float, k: int
) -> None:
    ask = toy_ask(3, length=LENGTH, k=k, vocabulary=V)
    questions = Questions((ask,), LENGTH)
    part = k - 1
    worlds = TwoWorlds(mechanism, parts=k, part=part, epsilon=epsilon)
    found = exact_divergence(worlds, questions, vocabulary=V)
    assert found is not None
    expected = brute_force(mechanism, ask, part=part, parts=k, epsilon=epsilon)
    assert found.value == pytest.approx(expected, rel=1e-6, abs=1e-12)
    assert 0 < found.value <= worlds.claim(LENGTH) * (1 + 1e-9)


def test_submix_stops_in_both_worlds_where_the_real_one_does() -> None:
    mechanism, epsilon = CASES[0][0], CASES[0][1]
    ask = toy_ask(3, length=LENGTH, k=3, vocabulary=V)
    worlds = TwoWorlds(mechanism, parts=3, part=0, epsilon=epsilon)
    ends = set()
    for history in itertools.product(range(V), repeat=2):
        budgets = worlds.begin()
        for t in range(3):
            step = worlds.step(budgets, ask(history[:t]))
            if step is None:
                ends.add(t)
                break
            budgets = step.after
        else:
            ends.add(3)
    assert ends == {1, 2, 3}  # transcripts are cut after one answer, after two, and not at all


def test_fixed_questions_add_up() -> None:
    ask = toy_ask(5, length=LENGTH, k=3, vocabulary=V)
    places = [ask(()), ask((1,)), ask((2, 0))]
    worlds = TwoWorlds(quick(Individual(2.0, 0.05)), parts=3, part=1, epsilon=0.08)
    fixed = exact_divergence(worlds, Questions.fixed(places), vocabulary=V)
    # The same as an adaptive question whose places happen not to depend on what was written.
    same = exact_divergence(worlds, Questions((lambda written: places[len(written)],), 3), vocabulary=V)
    assert fixed is not None
    assert same is not None
    assert fixed.value == pytest.approx(same.value, rel=1e-9)
    assert fixed.low == fixed.high == fixed.value


def test_large_vocabularies_are_simulated() -> None:
    worlds = TwoWorlds(SubMix(2.0, 0.05), parts=1, part=0, epsilon=1.0)
    questions = Questions((toy_ask(3, length=LENGTH, k=1),), LENGTH)
    assert exact_divergence(worlds, questions, vocabulary=28) is None
    assert exact_divergence(worlds, Questions.fixed([tight_place()]), vocabulary=50_000) is not None


@pytest.mark.parametrize(("mechanism", "epsilon", "k"), CASES, ids=IDS)
def test_simulated_divergences_are_close_and_never_above_the_truth(
    mechanism: Any, epsilon: float, k: int
) -> None:
    questions = Questions((toy_ask(3, length=LENGTH, k=k, vocabulary=V),), LENGTH)
    worlds = TwoWorlds(mechanism, parts=k, part=0, epsilon=epsilon)
    exact = exact_divergence(worlds, questions, vocabulary=V)
    assert exact is not None
    found = simulate(worlds, questions, dict.fromkeys(ADAPTIVE, 3000), seed=1, progress=Silent())
    divergence = simulated_divergence(found, pilot=500, order=worlds.order, confidence=0.999)
    assert divergence.low <= exact.value * (1 + 1e-9)
    assert divergence.high == math.inf
    assert divergence.value == pytest.approx(exact.value, rel=0.1)
    assert divergence.low > 0.8 * exact.value
    # The plain estimate from the world itself, for the same quantity.
    if worlds.order == 2:
        plain = [math.log(np.mean(np.exp(of))) for of in (found["with"].ratios, -found["without"].ratios)]
        assert max(plain) == pytest.approx(exact.value, rel=0.3, abs=0.003)


RARE = Place(torch.tensor([[[0.9, 0.1]] * 2], dtype=torch.float64), torch.tensor([0.5, 0.5]).double())
CALM = Place(torch.tensor([[[0.51, 0.49]] * 2], dtype=torch.float64), torch.tensor([0.5, 0.5]).double())


def uneven(written: Written) -> Place:
    """Transcripts that begin with one token, which one world says more often, lose far more than others."""
    return CALM if written[:1] == (1,) else RARE


def test_both_tilted_laws_give_their_own_direction() -> None:
    questions = Questions((uneven,), 4)
    worlds = TwoWorlds(quick(SubMix(3.0, 5.0)), parts=1, part=0, epsilon=100.0)
    laws = np.ones((2, 2**4))
    for number, written in enumerate(itertools.product(range(2), repeat=4)):
        budgets = worlds.begin()
        for t in range(4):
            step = worlds.step(budgets, uneven(written[:t]))
            assert step is not None
            laws[:, number] *= (step.with_part[written[t]], step.without[written[t]])
            budgets = step.after
    found = simulate(worlds, questions, dict.fromkeys(ADAPTIVE, 4000), seed=2, progress=Silent())
    there, back = (float(renyi_divergence(one, other, 3.0)) for one, other in (laws, laws[::-1]))
    assert abs(there - back) > 0.2 * back  # so that one cannot pass for the other
    for law, truth in (("tilted", there), ("tilted back", back)):
        exponents = found[law].exponents  # type: ignore[index]
        assert math.log(np.mean(np.exp(exponents))) / 2 == pytest.approx(truth, rel=0.05)


def test_equal_losses_leave_the_range_term_of_the_bound() -> None:
    """No variance: mean - 7 ln(2/error) / (3 (n-1)) of the range, at half of the error for a direction."""
    same = {law: Simulated(np.zeros(300), np.full(300, 0.4)) for law in ADAPTIVE}
    found = simulated_divergence(same, pilot=100, order=2.0, confidence=0.9)
    share = 1 - 7 * math.log(2 / 0.05) / (3 * 199)
    assert found.low == pytest.approx(math.log1p(share * math.expm1(0.4)))
    assert found.value == pytest.approx(0.4)


def test_the_simulated_bound_covers_what_it_states() -> None:
    """Losses that differ a lot between transcripts: the lower end passes the truth in few of many runs."""
    questions = Questions((uneven,), 4)
    worlds = TwoWorlds(quick(SubMix(2.0, 5.0)), parts=1, part=0, epsilon=100.0)
    exact = exact_divergence(worlds, questions, vocabulary=2)
    assert exact is not None
    above = 0
    lows = []
    for seed in range(100):
        found = simulate(worlds, questions, dict.fromkeys(ADAPTIVE, 400), seed=seed, progress=Silent())
        divergence = simulated_divergence(found, pilot=100, order=2.0, confidence=0.8)
        above += divergence.low > exact.value
        lows.append(divergence.low)
    assert above <= stats.binom.ppf(0.999, 100, 0.2)
    assert np.median(lows) > 0.7 * exact.value


def test_scores_are_the_log_likelihood_ratio() -> None:
    """Drawn tokens are few: each transcript's score is one of the ratios, as often as the law says."""
    ask = toy_ask(7, length=2, k=3, vocabulary=2)
    questions = Questions((ask,), 2)
    worlds = TwoWorlds(Certified(2.0, 0.5), parts=3, part=2, epsilon=10.0)
    laws: dict[Law, dict[float, float]] = {"with": {}, "without": {}}
    first = worlds.step(worlds.begin(), ask(()))
    assert first is not None
    for a, b in itertools.product(range(2), repeat=2):
        second = worlds.step(first.after, ask((a,)))
        assert second is not None
        p = float(first.with_part[a] * second.with_part[b])
        q = float(first.without[a] * second.without[b])
        laws["with"][round(math.log(p / q), 9)] = p
        laws["without"][round(math.log(p / q), 9)] = q
    found = simulate(worlds, questions, {"with": 20_000, "without": 20_000}, seed=3, progress=Silent())
    for law, expected in laws.items():
        seen, counts = np.unique(np.round(found[law].ratios, 9), return_counts=True)
        chances = np.array([expected[score] for score in seen.tolist()])
        assert len(seen) == 4
        assert stats.chisquare(counts, 20_000 * chances / chances.sum()).pvalue > 1e-3


# Verdicts


def attacked(mechanism: Any, questions: Questions, k: int, epsilon: float, **options: Any) -> Any:
    return audit_transcripts(mechanism, questions, parts=k, part=0, epsilon=epsilon, **options)


def test_an_exact_bound_that_is_attained_is_supported() -> None:
    questions = Questions.fixed([tight_place()] * 10)
    found = attacked(Certified(2.0, 0.1), questions, 1, 1.0)
    assert found.verdict == "supported"
    assert found.divergence.value == pytest.approx(1.0, rel=1e-3)  # all of the claim
    assert found.claimed == pytest.approx(1.0)
    assert not found.instance_specific
    assert found.detectable < 1.01
    assert found.auc.low > 0.5  # the attack sees something: it is within what is claimed


def test_weights_for_twice_the_price_are_contradicted_at_the_claims_order() -> None:
    questions = Questions.fixed([tight_place()] * 10)
    found = attacked(GenerousCertified(2.0, 0.1), questions, 1, 1.0)
    assert found.verdict == "contradicted"
    assert found.divergence.value == pytest.approx(2.0, rel=1e-3)
    assert "were claimed" in found.reason


def test_weights_for_twice_the_price_are_contradicted_by_the_attack_alone() -> None:
    """At a high order the conversion to (epsilon, delta) is nearly free; one answer tells worlds apart."""
    questions = Questions.fixed([tight_place()])
    options = {"delta": 0.01, "transcripts": 2000}
    wrong = attacked(GenerousCertified(32.0, 2.0), questions, 1, 2.0, **options)
    assert wrong.separation.epsilon > wrong.claimed_dp > 2.0
    # Had the divergence not been looked at, the attack alone would say so.
    unseen = replace(wrong, divergence=Estimate(0.0, 0.0, math.inf, 0.95, "not looked at"))
    assert (wrong.verdict, unseen.verdict) == ("contradicted", "contradicted")
    right = attacked(Certified(32.0, 2.0), questions, 1, 2.0, **options)
    assert right.separation.epsilon <= right.claimed_dp
    assert right.separation.epsilon > 1  # not for want of power
    assert right.verdict == "supported"


@pytest.mark.parametrize("adaptive", [False, True])
def test_halved_charges_are_contradicted(adaptive: bool) -> None:
    """The filter lets twice as much through; transcripts differ by nearly all of it."""
    place = tight_place(0.2)

    def asked(queries: int) -> Questions:
        return Questions((lambda _: place,), queries) if adaptive else Questions.fixed([place] * queries)

    # Eight answers cost 8/7 of the budget: the honest filter stops before, the other one does not.
    one = float(SubMix(2.0, 0.5, cap=0.2).mix(place.members, place.public).charges[0])
    epsilon = 7 * one
    honest = attacked(quick(SubMix(2.0, 0.5, cap=0.2)), asked(8), 1, epsilon)
    assert honest.instance_specific
    assert honest.verdict == "supported"
    assert honest.divergence.value == pytest.approx(6 * one, rel=1e-3)
    wrong = attacked(quick(HalvedSubMix(2.0, 0.5, cap=0.2)), asked(8), 1, epsilon)
    assert wrong.verdict == "contradicted"
    assert wrong.divergence.low > epsilon
    assert "this corpus" in wrong.reason


def test_halved_individual_charges_are_contradicted() -> None:
    questions = Questions.fixed([tight_place(0.2)] * 12)
    honest = attacked(quick(Individual(2.0, 0.1)), questions, 1, 1.0)
    assert honest.verdict == "supported"
    assert honest.divergence.value == pytest.approx(1.0, rel=1e-3)  # it fades where the budget ends
    wrong = attacked(quick(HalvedIndividual(2.0, 0.1)), questions, 1, 1.0)
    assert wrong.verdict == "contradicted"
    assert wrong.divergence.value == pytest.approx(1.2, rel=1e-3)


def test_a_mechanism_that_looks_at_other_parts_is_contradicted() -> None:
    """Charges by the definition, weights by the worst part of all: only worlds mixed anew show it."""

    class Tuned(SubMix):
        def mix(self, halves: Any, public: Any) -> Any:
            for target in np.geomspace(1e-6, 1.0, 60)[::-1]:
                found = SubMix(2.0, float(target)).mix(halves, public)
                if float(found.charges.max()) <= 0.01:
                    return found
            raise AssertionError("no target fits")

    rng = np.random.default_rng(0)
    public = torch.softmax(torch.from_numpy(rng.normal(size=V)), -1)
    halves = torch.softmax(public.log() + 1.5 * torch.from_numpy(rng.normal(size=V)), -1).repeat(4, 2, 1)
    halves[:, 1] = torch.softmax(halves[:, 1].log() + 0.3 * torch.from_numpy(rng.normal(size=V)), -1)
    halves[0, 0], halves[0, 1] = (torch.eye(V).double()[i] for i in (1, 0))
    questions = Questions.fixed([Place(halves, public)] * 5)
    found = attacked(Tuned(2.0, 0.01), questions, 4, 0.06)
    assert found.divergence.value > 3 * 0.06
    assert found.verdict == "contradicted"


def test_a_part_that_hardly_matters_is_inconclusive() -> None:
    questions = Questions((toy_ask(2, length=2, k=8, vocabulary=V, spread=0.1),), 2)
    found = attacked(quick(Certified(2.0, 0.05)), questions, 8, 1.0)
    assert found.verdict == "inconclusive"
    assert found.detectable > 2
    assert "wrong by a factor" in found.reason


@pytest.mark.parametrize(
    ("mechanism", "epsilon", "k", "questions"),
    [
        # Exactly at the claim, where a false alarm is likeliest; fixed and adaptive; simulated and exact.
        (quick(Certified(32.0, 2.0)), 2.0, 1, Questions.fixed([tight_place()])),
        (quick(Certified(2.0, 0.2)), 2.0, 1, Questions((lambda _: TIGHT,), 4)),
        (CASES[0][0], 0.013, 3, Questions((toy_ask(3, length=LENGTH, k=3, vocabulary=V),), LENGTH)),
    ],
    ids=["one answer", "simulated", "submix"],
)
def test_honest_mechanisms_are_hardly_ever_contradicted(
    mechanism: Any, epsilon: float, k: int, questions: Questions
) -> None:
    runs, confidence = 60, 0.8
    alarms = sum(
        attacked(
            mechanism,
            questions,
            k,
            epsilon,
            transcripts=200,
            confidence=confidence,
            delta=0.01,
            seed=seed,
            most_enumerated=1,
        ).verdict
        == "contradicted"
        for seed in range(runs)
    )
    assert alarms <= stats.binom.ppf(0.999, runs, 1 - confidence)


@settings(max_examples=8, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    k=st.integers(1, 4),
    spread=st.floats(0.05, 6.0),
    case=st.sampled_from([(mechanism, epsilon) for mechanism, epsilon, _ in CASES]),
)
def test_no_toy_ensemble_breaks_an_exact_claim(
    seed: int, k: int, spread: float, case: tuple[Any, float]
) -> None:
    questions = Questions((toy_ask(seed, length=2, k=k, vocabulary=2, spread=spread),), 2)
    worlds = TwoWorlds(case[0], parts=k, part=k - 1, epsilon=case[1])
    found = exact_divergence(worlds, questions, vocabulary=2)
    assert found is not None
    assert found.value <= worlds.claim(2) * (1 + 1e-9) + 1e-12


# What is shown


def test_results_are_json_without_scores_and_the_roc_is_whole() -> None:
    questions = Questions.fixed([tight_place()] * 3)
    found = attacked(SubMix(2.0, 0.5), questions, 1, 5.0, transcripts=400)
    content = json.loads(json.dumps(found.to_json()))
    assert "scores_with" not in content
    assert "scores" not in repr(found)
    assert content["verdict"] == found.verdict
    assert content["divergence"]["low"] == content["divergence"]["high"]
    roc = found.roc()
    assert roc[:, 0].tolist() == [0, 0]
    assert roc[:, -1].tolist() == [1, 1]
    assert np.all(np.diff(roc, axis=1) >= 0)
    area = float(np.trapezoid(roc[1], roc[0]))
    assert found.auc.low <= area <= found.auc.high


def test_the_same_seed_gives_the_same_audit() -> None:
    questions = Questions((toy_ask(3, length=2, k=2, vocabulary=2),), 2)
    one, same, other = (
        attacked(quick(SubMix(2.0, 0.05)), questions, 2, 1.0, transcripts=200, seed=seed)
        for seed in (1, 1, 2)
    )
    assert np.array_equal(one.scores_with, same.scores_with)
    assert not np.array_equal(one.scores_with, other.scores_with)


def test_what_makes_no_sense_is_refused() -> None:
    questions = Questions.fixed([tight_place()])
    with pytest.raises(InputError, match="transcripts=10"):
        attacked(SubMix(), questions, 1, 1.0, transcripts=10)
    with pytest.raises(InputError, match="part=0"):
        attacked(SubMix(), questions, 0, 1.0)
    with pytest.raises(InputError, match="this audit is of 2"):
        attacked(SubMix(), questions, 2, 1.0)
    with pytest.raises(InputError, match="delta=0"):
        attacked(SubMix(), questions, 1, 1.0, delta=0.0)
    with pytest.raises(InputError, match="confidence=1"):
        attacked(SubMix(), questions, 1, 1.0, confidence=1.0)
    with pytest.raises(InputError, match="does not mix parts"):
        attacked(GNMax(), questions, 1, 1.0)
    with pytest.raises(InputError, match="give at least one"):
        Questions(())
    with pytest.raises(InputError, match="tokens=0"):
        Questions((lambda _: tight_place(),), 0)
    single = Place(tight_place().members[:, :1], tight_place().public)
    with pytest.raises(InputError, match="two halves"):
        attacked(SubMix(), Questions.fixed([single]), 1, 1.0)


def test_several_audits_share_one_error() -> None:
    assert shared_confidence(0.95, 5) == pytest.approx(0.99)
    assert shared_confidence(0.95, 0) == 0.95
