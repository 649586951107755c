"""The certificate says what the functions say, in words that round up, and survives JSON."""

from __future__ import annotations

import json
import math
from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.errors import InputError
from tacit.privacy import (
    Certificate,
    DpSgdProcess,
    MissRate,
    certify,
    dpsgd_curve,
    group_by_composition,
    random_secret_at_point,
    random_secret_epsilon,
)
from tacit.privacy.certificate_words import up

PROCESS = DpSgdProcess(0.1, 3.4385, 100)
DELTA = 8e-5


@cache
def everything_private() -> Certificate:
    return certify(
        PROCESS,
        delta=DELTA,
        gamma=MissRate.assumed(0.1),
        private_points=1000,
        bare_points=650,
        groups={"customer 7": 2, "nobody": 0},
        uniform_points=3,
    )


@cache
def with_public_text(public: int = 0, labelled: int = 200) -> Certificate:
    return certify(
        PROCESS,
        delta=DELTA,
        gamma=MissRate.measured(20, 200),
        delta2=MissRate.measured(public, labelled),
        outside=("the vocabulary",),
    )


def words(certificate: Certificate) -> str:
    return " ".join(str(certificate).split())


def test_the_certificate_holds_what_the_functions_say() -> None:
    found, one = everything_private(), dpsgd_curve(PROCESS)
    epsilon = one.epsilon_at(DELTA)
    assert found.training.epsilon == found.missed.epsilon == epsilon
    assert found.random_secret.epsilon == random_secret_epsilon(one, DELTA, gamma=0.1)
    assert found.random_secret.epsilon == pytest.approx(0.36, abs=0.01)
    assert found.at_point == random_secret_at_point(epsilon, DELTA, gamma=0.1)
    assert found.paper.random_secret.epsilon == pytest.approx(0.11, abs=0.002)
    assert found.paper.at_point.epsilon == pytest.approx(0.159, abs=0.001)
    customer, nobody = found.groups
    assert customer.direct.epsilon == dpsgd_curve(PROCESS, group=2).epsilon_at(DELTA)
    assert customer.composition == group_by_composition(epsilon, DELTA, 2)
    assert (nobody.direct.epsilon, nobody.composition.epsilon) == (0, 0)
    assert found.uniform is not None
    assert found.uniform.direct.epsilon > customer.direct.epsilon
    assert found.confidence is None  # nothing was measured


def test_bare_masks_flatter_and_the_certificate_says_so() -> None:
    part = everything_private().private_part
    assert part is not None
    assert part.without_bare is not None
    only_text = dpsgd_curve(DpSgdProcess(0.1 / 0.35, 3.4385, 100)).epsilon_at(DELTA)
    assert part.without_bare == pytest.approx(only_text, rel=1e-4)
    assert only_text > 2 * everything_private().training.epsilon
    assert f"on 350 data points would give epsilon {up(part.without_bare)}." in words(everything_private())
    empty = certify(PROCESS, delta=DELTA, gamma=MissRate.assumed(0.1), private_points=9, bare_points=9)
    assert empty.private_part is not None
    assert empty.private_part.without_bare is None
    assert "there is no private text" in words(empty)
    full = certify(PROCESS, delta=DELTA, gamma=MissRate.assumed(0.1), private_points=99, bare_points=98)
    assert full.private_part is not None  # every batch has the one data point that is left
    assert full.private_part.without_bare == dpsgd_curve(DpSgdProcess(1.0, 3.4385, 100)).epsilon_at(DELTA)


def test_where_everything_is_private_the_headline_is_about_each_secret() -> None:
    found = everything_private()
    guarantee = found.guarantee
    assert (guarantee.kind, guarantee.unit, guarantee.epsilon) == (
        "confidentiality",
        "secret",
        found.missed.epsilon,
    )
    assert "about: each secret" in guarantee.assumptions
    assert "every data point is private" in words(found)
    assert "both policies miss" not in words(found)


def test_with_public_text_the_headline_is_about_a_random_secret() -> None:
    found = with_public_text()
    missed = MissRate.measured(0, 200).upper
    assert math.isinf(found.random_secret.epsilon)  # 200 labels do not show a miss rate below 8e-5
    assert found.with_delta2.delta == pytest.approx(DELTA + missed)
    guarantee = found.guarantee
    assert (guarantee.epsilon, guarantee.delta) == (found.with_delta2.epsilon, found.with_delta2.delta)
    assert "about: a random secret" in guarantee.assumptions
    assert guarantee.outside == ("the vocabulary",)
    assert found.confidence == pytest.approx(0.9)  # both bounds together
    text = words(found)
    assert (
        f"No finite epsilon at delta 8e-05: secrets that both policies miss may be {up(missed)} of all"
        in text
    )
    assert "A secret that both policies miss: no bound." in text
    assert "20 of 200 labelled secrets missed, one-sided Clopper-Pearson bound at 0.95" in text
    assert "- the vocabulary" in text
    sure = with_public_text(0, 100_000)
    assert sure.guarantee.epsilon == sure.random_secret.epsilon < math.inf
    assert sure.guarantee.delta == DELTA


def test_nothing_is_promised_where_nothing_is_known() -> None:
    """Both policies may miss everything: no words may sound like a bound."""
    blind = certify(PROCESS, delta=DELTA, gamma=MissRate.assumed(1.0), delta2=MissRate.assumed(1.0))
    assert math.isinf(blind.guarantee.epsilon or 0)
    assert not blind.guarantee.promises
    assert "without a finite epsilon" in str(blind.guarantee)
    quiet = certify(DpSgdProcess(0.1, 0.0, 9), delta=DELTA, gamma=MissRate.assumed(0.1))
    assert "no finite epsilon at delta 8e-05" in words(quiet)
    assert "No finite epsilon at delta 8e-05: too little noise" in words(quiet)


def test_an_empty_private_part_is_legal() -> None:
    nothing = certify(DpSgdProcess(0.1, 1.0, 0), delta=DELTA, gamma=MissRate.assumed(0.1), private_points=0)
    assert nothing.training.epsilon == nothing.random_secret.epsilon == 0
    assert "Nothing private was sampled" in words(nothing)


def test_a_secret_in_several_data_points_is_a_group() -> None:
    spread = certify(PROCESS, delta=DELTA, gamma=MissRate.assumed(0.1), secret_points=3)
    three = dpsgd_curve(PROCESS, group=3)
    assert spread.missed.epsilon == three.epsilon_at(DELTA)
    # Where its sentence may be repeated, a caught secret changes data points too: gamma amplifies nothing.
    assert spread.random_secret.epsilon == spread.at_point.epsilon == spread.missed.epsilon
    assert "nothing is gained from gamma" in words(spread)
    assert spread.training.epsilon < spread.missed.epsilon
    assert "masking it changes up to 3 data points" in words(spread)


@pytest.mark.parametrize("make", [everything_private, with_public_text])
def test_certificates_survive_json(make: object) -> None:
    assert callable(make)
    written = make()
    content = json.loads(json.dumps(written.to_json(), allow_nan=False))
    assert Certificate.from_json(content) == written
    assert content["words"] == str(written)
    with pytest.raises(InputError, match="another version"):
        Certificate.from_json(content | {"format": 0})


@given(st.floats(1e-300, 1e300))
def test_bounds_are_printed_rounded_up(value: float) -> None:
    shown = float(up(value))
    assert value * (1 - 1e-8) <= shown <= value * 1.0011


def test_printed_bounds_keep_their_digits() -> None:
    assert [up(one) for one in (0.0, 0.1 * 8e-5, 0.36041, 0.36049, 9.99991, 123456.0, math.inf)] == [
        "0",
        "8e-06",
        "0.3605",
        "0.3605",
        "10",
        "1.235e+05",
        "inf",
    ]


def test_refusals() -> None:
    rate = MissRate.assumed(0.1)
    for options, said in (
        ({"delta": 1.0}, "delta=1.0"),
        ({"delta": DELTA, "bare_points": 3}, "give private_points as well"),
        ({"delta": DELTA, "private_points": 2, "bare_points": 3}, "private_points=2"),
        ({"delta": DELTA, "secret_points": -1}, "group=-1"),
        ({"delta": DELTA, "groups": {"x": -1}}, "group=-1"),
    ):
        with pytest.raises(InputError, match=said):
            certify(PROCESS, gamma=rate, **options)


def test_that_nothing_is_missed_is_an_assumption_which_the_headline_names() -> None:
    gamma = MissRate.assumed(0.1)
    assumed = certify(PROCESS, delta=DELTA, gamma=gamma, delta2=MissRate.assumed(0.0)).guarantee
    everything = certify(PROCESS, delta=DELTA, gamma=gamma).guarantee
    assert "of which it was assumed that there are none" in str(assumed)
    assert any("the conservative one 0" in one for one in assumed.assumptions)
    assert "assumed" not in str(everything)


def test_what_is_masked_and_not_caught_is_promised_nothing_but_what_training_gives() -> None:
    """A secret that is masked as a part of something longer still changes its data point."""
    found = everything_private()
    told = words(found)
    assert "A secret that the redaction policy catches: epsilon 0" in told
    assert "Caught is more than masked" in told
    assert "A secret that the redaction policy masks" not in told
    assert any("all others count as missed, masked or not" in one for one in found.assumptions)


def test_that_a_sentence_occurs_once_is_an_assumption() -> None:
    once = "a secret stands in one data point, whose sentence occurs once in the corpus"
    found = everything_private()
    assert once in found.assumptions
    assert once in found.guarantee.assumptions
    assert once in found.to_json()["assumptions"]
    assert once in words(found)
    more = certify(PROCESS, delta=DELTA, gamma=MissRate.assumed(0.1), secret_points=2)
    assert once not in more.assumptions
    assert "masking a secret changes at most 2 data points" in words(more)


def test_the_headline_says_that_delta_is_larger_than_asked_for() -> None:
    told = with_public_text().guarantee
    assert told.delta is not None
    assert told.delta > DELTA
    assert "Delta is 8e-05 and 0.01487 more, for what both policies miss." in str(told)
    assert "more, for what both policies miss" not in str(everything_private().guarantee)


def test_public_points_that_secrets_change_leave_no_bound() -> None:
    told = certify(
        PROCESS, delta=DELTA, gamma=MissRate.assumed(0.1), uniform_points=3, uniform_public_points=1
    )
    assert told.uniform is not None
    assert math.isinf(told.uniform.direct.epsilon)
    assert Certificate.from_json(json.loads(json.dumps(told.to_json()))) == told


def test_where_a_secret_may_be_repeated_words_and_json_say_by_which_rates() -> None:
    """gamma is below delta and not the reason: what the conservative policy misses is."""
    rates: dict[str, Any] = {"gamma": MissRate.assumed(1e-6), "delta2": MissRate.assumed(0.01)}
    spread = certify(PROCESS, delta=DELTA, secret_points=2, **rates)
    assert math.isinf(spread.random_secret.epsilon)
    assert "secrets that the conservative policy misses may be 0.01 of all" in words(spread)
    assert "for what the conservative policy misses" in str(spread.guarantee)
    single = certify(PROCESS, delta=DELTA, **rates)
    # The paper's figures are of a secret in one data point, whatever is bounded here.
    assert spread.paper == single.paper
    assert single.to_json()["caught"] == {"epsilon": 0.0, "delta": 0.0}
    content = json.loads(json.dumps(spread.to_json(), allow_nan=False))
    assert content["caught"] is None
    assert Certificate.from_json(content) == spread


def test_that_differing_points_are_private_is_counted_or_named_as_assumed() -> None:
    gamma, said = MissRate.assumed(0.1), "assumed that none of these points is public"
    options: dict[str, Any] = {"delta": DELTA, "gamma": gamma, "groups": {"customer 7": 2}}
    options["uniform_points"] = 3
    assumed = certify(PROCESS, delta2=gamma, **options)
    assert words(assumed).count(said) == 2
    assert [one["assumed_private"] for one in assumed.to_json()["groups"]] == [True]
    assert Certificate.from_json(json.loads(json.dumps(assumed.to_json()))) == assumed
    counted = certify(PROCESS, delta2=gamma, uniform_public_points=0, **options)
    assert words(counted).count(said) == 1
    exposed = certify(PROCESS, delta2=gamma, uniform_public_points=1, **options)
    assert exposed.uniform is not None
    assert (math.isinf(exposed.uniform.direct.epsilon), words(exposed).count(said)) == (True, 1)
    # Nothing is public, and nothing has to be assumed.
    assert said not in words(certify(PROCESS, **options))


def test_the_statement_says_on_how_many_secrets_its_rates_were_measured_and_how_surely() -> None:
    """A bound from a sample is one with a confidence: whoever reads the headline alone sees both."""
    told = with_public_text(0, 300).guarantee
    both = (
        "Miss rates were measured on 200 and 300 labelled secrets; both are within their bounds with "
        "confidence 0.9."
    )
    assert both in str(told)
    (rates,) = [one for one in told.assumptions if one.startswith("the redaction policy misses")]
    assert "20 of 200 labelled secrets missed, one-sided Clopper-Pearson bound at 0.95" in rates
    assert "0 of 300 labelled secrets missed" in rates
    assert "with confidence 0.9" in rates
    half = certify(PROCESS, delta=DELTA, gamma=MissRate.assumed(0.1), delta2=MissRate.measured(0, 10**6))
    one = (
        "A miss rate was measured on 1,000,000 labelled secrets and is within its bound with confidence 0.95."
    )
    assert one in str(half.guarantee)
    assert "labelled" not in str(everything_private().guarantee)  # nothing was measured
    assert "assumed, not measured" in str(
        certify(
            PROCESS, delta=DELTA, gamma=MissRate.assumed(0.1), delta2=MissRate.assumed(1e-6)
        ).guarantee.assumptions
    )
