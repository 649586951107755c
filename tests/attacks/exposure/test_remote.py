"""Extraction from samples alone: counted by the rule, within the budget, with an interval."""

from __future__ import annotations

import random

import pytest

from tacit.attacks.exposure.remote import extract_by_sampling, gives_away
from tacit.errors import InputError
from tests.attacks.exposure.memorised import number_canaries


@pytest.mark.parametrize(
    ("text", "hit"),
    [
        ("123", True),
        (" 123 and more", True),
        ("1234", True),
        ("  123", False),
        ("a 123", False),
        ("12", False),
    ],
)
def test_the_rule(text: str, hit: bool) -> None:
    assert gives_away(text, "123") == hit
    assert gives_away(" car, red", "car")
    assert not gives_away("carpet", "car")


def test_what_leaks_is_found_and_what_does_not_is_not() -> None:
    manifest = number_canaries(users=4)
    leaked = manifest.canaries[1]
    draw = random.Random(1)

    def sample(prompt: str) -> str:
        assert prompt == "My number is:"
        return f" {leaked.secret}." if draw.random() < 0.3 else f"so: {leaked.secret}"

    report = extract_by_sampling(sample, manifest, samples=400)
    assert report.queries == 400
    for found, canary in zip(report.canaries, manifest.canaries, strict=True):
        assert found.samples == 400
        assert found.chance == 1 / 1000
        if canary is leaked:
            assert found.rate.low <= 0.3 <= found.rate.high
            assert found.within == 400
        else:
            assert found.hits == found.within == 0
            assert found.rate.high < 0.01
    assert leaked.secret not in str(report.to_json()["canaries"][1]["id"])
    assert set(report.to_json()["canaries"][0]) == {
        "id", "inserted", "repetitions", "hits", "within", "samples", "rate", "chance",
    }  # fmt: skip


@pytest.mark.parametrize(("budget", "asked"), [(None, [5, 5, 5]), (7, [3, 2, 2]), (100, [5, 5, 5])])
def test_a_budget_is_kept_and_spent_evenly(budget: int | None, asked: list[int]) -> None:
    manifest = number_canaries(prefix="distinct", users=3)
    prompts: list[str] = []

    def sample(prompt: str) -> str:
        prompts.append(prompt)
        return ""

    report = extract_by_sampling(sample, manifest, samples=5, most_queries=budget)
    assert report.queries == len(prompts) == sum(asked)
    assert [prompts.count(canary.prefix) for canary in manifest.canaries] == asked
    assert [found.samples for found in report.canaries] == asked


@pytest.mark.parametrize("wrong", [{"samples": 0}, {"most_queries": 0}])
def test_no_queries_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(InputError, match=next(iter(wrong))):
        extract_by_sampling(str, number_canaries(), **wrong)  # type: ignore[arg-type]
