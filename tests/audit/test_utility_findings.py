"""Who pays: changes by training samples, the paper's five and five, and whom it is told against."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tacit.audit.utility_findings import disparity_section
from tacit.corpus import UserCorpus, split_held_out
from tacit.corpus.canaries import draw_canaries
from tacit.corpus.canary_plan import CanaryPlan
from tacit.evaluation.perplexity import Losses
from tacit.training.preparation import SplitCorpus


def losses(perplexities: dict[str, float]) -> Losses:
    ones = np.ones(len(perplexities))
    values = np.array(list(perplexities.values()))
    return Losses(tuple(perplexities), values, ones, np.log(values), ones, ones, 0.0, 16)


def corpus(counts: dict[str, int]) -> UserCorpus:
    return UserCorpus.from_pairs(
        [(user, f"text {number} of {user}") for user, many in counts.items() for number in range(many)]
    )


COUNTS = {f"u{number:02d}": 2 * (number + 1) for number in range(24)}


def section(by: Any, baseline: Any = "run") -> tuple[dict[str, Any], SplitCorpus]:
    whole = corpus(COUNTS)
    split = split_held_out(whole, 0.5, by, seed=0)
    texts = SplitCorpus(whole, split.train, split.held_out)
    # Protection costs 3 - log(samples in training) / 2, but for a user's own noise.
    noise = np.random.default_rng(0).normal(0, 0.01, len(split.held_out.users))
    costs = [3 - 0.5 * np.log(COUNTS[user] / 2) for user in split.held_out.users]
    without = dict.fromkeys(split.held_out.users, 20.0)
    protected = {
        user: 20.0 + cost + one
        for user, cost, one in zip(split.held_out.users, costs, noise.tolist(), strict=True)
    }
    found = disparity_section(
        losses(protected),
        losses(without),
        texts,
        split_within=by == "within",
        against="plain",
        baseline=baseline,
        confidence=0.95,
        planted=(),
    )
    assert found is not None
    return found, texts


def test_five_with_most_and_five_with_fewest_training_samples_and_the_slope_over_all() -> None:
    found, texts = section("within")
    assert (found["users"], found["compared"]) == (24, 5)
    # Half of everybody's documents was held out: the other half is what training saw.
    trained = dict(zip(texts.train.users, texts.train.document_counts().tolist(), strict=True))
    assert {count for count, _ in found["points"]} == set(trained.values()) == set(range(1, 25))
    cost = {count: 3 - 0.5 * np.log(count) for count in range(1, 25)}
    assert found["top"]["value"] == pytest.approx(np.mean([cost[count] for count in range(20, 25)]), abs=0.02)
    assert found["bottom"]["value"] == pytest.approx(
        np.mean([cost[count] for count in range(1, 6)]), abs=0.02
    )
    assert found["gap"]["value"] == pytest.approx(found["bottom"]["value"] - found["top"]["value"])
    assert found["slope"]["low"] <= -0.5 <= found["slope"]["high"] < 0
    assert found["slope"]["high"] - found["slope"]["low"] < 0.05
    assert not any("trained on" in caveat for caveat in found["caveats"])


def test_users_who_were_held_out_as_a_whole_are_told_of() -> None:
    found, texts = section("user", baseline="public")
    assert texts.held_out is not None
    assert not set(texts.held_out.users) & set(texts.train.users)
    assert {count for count, _ in found["points"]} == {COUNTS[user] for user in texts.held_out.users}
    assert "none of it was trained on" in found["caveats"][-1]
    assert found["baseline"] == "public"


def test_one_user_alone_is_nobody_to_compare() -> None:
    whole = corpus({"a": 2})
    texts = SplitCorpus(whole, whole, whole)
    alone = losses({"a": 20.0})
    options: dict[str, Any] = {"against": "x", "baseline": "run", "confidence": 0.95, "planted": ()}
    assert disparity_section(alone, alone, texts, split_within=True, **options) is None


def test_planted_canaries_are_nobodys_samples() -> None:
    """Who wrote least and carries most canaries is among those who wrote least."""
    counts = {f"u{number:02d}": number + 2 for number in range(20)}
    whole = corpus(counts)
    plan = CanaryPlan(users=20, include=1.0, ladder=(40,), template=" The code is {secret} ", seed=1)
    manifest = draw_canaries(plan, list(counts), documents=len(whole), characters=9)
    carriers = [one for one in manifest.canaries if one.user in ("u00", "u01")]
    pairs = [(one.user, one.text) for one in whole.documents()]
    # As a screening leaves them: without the spaces around.
    pairs += [(one.user, one.text.strip()) for one in carriers for _ in range(one.repetitions)]
    pairs += [("only", carriers[0].text)] * 3
    train = UserCorpus.from_pairs(pairs)
    own = losses(dict.fromkeys([*counts, "only"], 20.0) | {"u00": 30.0, "u01": 30.0})
    before = losses(dict.fromkeys([*counts, "only"], 20.0))
    found = disparity_section(
        own,
        before,
        SplitCorpus(train, train, train),
        split_within=True,
        against="plain",
        baseline="run",
        confidence=0.95,
        planted=frozenset(one.text.strip() for one in manifest.canaries),
    )
    assert found is not None
    assert found["users"] == 20
    assert [count for count, _ in found["points"]] == list(counts.values())
    assert found["bottom"]["value"] == pytest.approx(4.0)  # two of five
    assert found["top"]["value"] == 0.0
    assert "Users left out: 1," in found["caveats"][-1]
