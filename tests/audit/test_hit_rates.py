"""Rates of secrets in generations: chance by enumeration over all secrets, and known answers."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from tacit.attacks.np_extraction import NPExtraction, Sampling
from tacit.audit.hit_rates import hit_row, rate_p_value, tries_rows


@pytest.mark.parametrize("confidence", [0.6, 0.9, 0.95])
@pytest.mark.parametrize("shape", ["uniform", "certain", "geometric", "some"])
@pytest.mark.parametrize("replaced", [True, False])
def test_secrets_that_no_model_saw_are_extracted_as_rarely_as_stated(
    shape: str, confidence: float, replaced: bool
) -> None:
    candidates, canaries = 24, 3
    laws = {
        "uniform": np.full(candidates, 1 / candidates),
        "certain": np.eye(candidates)[3],
        "geometric": 0.5 ** np.arange(1.0, candidates + 1),
        "some": np.where(np.arange(candidates) < 8, 1 / 8, 0.0),
    }
    places = range(candidates)
    with_replacement = itertools.product(places, repeat=canaries)
    chosen = list(with_replacement if replaced else itertools.permutations(places, canaries))
    rates = laws[shape][np.array(chosen)].mean(axis=1)
    alarms = [rate_p_value(rate, candidates=candidates) <= 1 - confidence for rate in rates]
    assert np.mean(alarms) <= 1 - confidence


def test_a_memorised_secret_is_extracted_and_a_likely_one_among_few_is_not() -> None:
    row = hit_row("model", [math.log(0.3), -math.inf], candidates=10**6, attempt="it")
    assert row["rate"]["value"] == row["rate"]["low"] == pytest.approx(0.15)
    assert row["verdict"] == "extracts"
    assert row["chance"] == 1e-6
    assert hit_row("model", [math.log(0.3)], candidates=20, attempt="it")["verdict"] == "none"
    sure = hit_row("model", [math.log(0.3)], candidates=20, confidence=0.7, attempt="it")
    assert sure["verdict"] == "extracts"
    assert hit_row("public model", [math.log(0.3)], candidates=10**6)["verdict"] == "not judged"


def test_tries_until_a_secret_comes_out() -> None:
    found = NPExtraction(("a", "b", "c"), np.log([0.5, 0.01, 1e-9]), Sampling())
    rows = tries_rows(found, confidence=0.9)
    half = next(row for row in rows if row["p"] == 0.5)
    assert half["median_tries"] == pytest.approx(math.log(0.5) / math.log(0.99))
    shares = {one["tries"]: one["share"] for one in half["within"]}
    assert [shares[many]["value"] for many in (1, 100, 10_000)] == pytest.approx([1 / 3, 2 / 3, 2 / 3])
    assert shares[1]["confidence"] == 0.9
