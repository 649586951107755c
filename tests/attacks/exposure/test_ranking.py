"""Branch and bound equals full enumeration equals scoring each text by itself."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.attacks.exposure.candidates import CandidateTrie
from tacit.attacks.exposure.packed import enumerate_all, enumerate_packed, obeys_tree_mask
from tacit.attacks.exposure.ranking import Found, Rule, branch_and_bound, rank_among, ranks, walk
from tacit.attacks.exposure.states import ModelScorer
from tacit.attacks.exposure.token_tree import TokenRows
from tacit.errors import InputError, ModelError
from tests.attacks.exposure.toys import (
    FAMILIES,
    PREFIX,
    Sequences,
    candidate_sets,
    naive_rank,
    naive_values,
    rule_for,
    toy_model,
    trie_of,
)

CASES = {
    "family": st.sampled_from(FAMILIES),
    "seed": st.integers(0, 2),
    "drawn": candidate_sets(),
    "kind": st.sampled_from(["logprob", "perplexity"]),
    "rows": st.sampled_from([1, 3, 64]),
}


def searched(
    model: Any, trie: CandidateTrie, kind: Any, *, rows: int | None = None, budget: float = math.inf
) -> tuple[Rule, Any, Found]:
    scorer = ModelScorer(model)
    root = scorer.root(trie.prefix)
    rule = Rule.of(kind, root)
    walked = walk(scorer, trie, root, rule, rows=rows)
    threshold = float(walked.values.min()) - walked.band
    found = branch_and_bound(scorer, trie, root, rule, threshold=threshold, rows=rows, budget=budget)
    return rule, walked, found


@settings(max_examples=60, deadline=None)
@given(**CASES)
def test_search_equals_enumeration_equals_naive(
    family: str, seed: int, drawn: tuple[Sequences, list[int]], kind: Any, rows: int
) -> None:
    sequences, targets = drawn
    model = toy_model(family, seed)
    trie = trie_of(sequences, targets)
    values = naive_values(model, sequences, kind)
    rule, walked, found = searched(model, trie, kind, rows=rows)
    expected_rule = rule_for(model, kind)
    assert rule.prefix_tokens == expected_rule.prefix_tokens
    assert rule.prefix_log_probability == pytest.approx(expected_rule.prefix_log_probability, abs=1e-9)
    np.testing.assert_allclose(walked.values, values[targets], atol=1e-9)
    inserted = [place % 2 == 0 for place in range(len(targets))]
    places = {target for target, is_in in zip(targets, inserted, strict=True) if is_in}
    expected = [
        naive_rank(values, target, places - {target}, rule.band(ModelScorer(model).tolerance))
        for target in targets
    ]
    everyone = list(range(len(targets)))
    by_search = ranks(trie, rule, walked, found, inserted, everyone)
    assert [one.rank for one in by_search] == expected
    assert all(one.exact for one in by_search)
    scorer = ModelScorer(model)
    root = scorer.root(trie.prefix)
    assert obeys_tree_mask(scorer, root, trie.prefix) == (family != "lstm")
    for everything in (
        enumerate_all(scorer, trie, root, rule, rows=rows, block=rows),
        branch_and_bound(scorer, trie, root, rule, rows=rows),
    ):
        assert len(everything.values) == len(sequences) - len(targets)
        assert [one.rank for one in ranks(trie, rule, walked, everything, inserted, everyone)] == expected
        unknown = sorted(value for place, value in enumerate(values) if place not in targets)
        np.testing.assert_allclose(np.sort(everything.values), unknown, atol=1e-9)
        assert found.positions <= len(everything.values) * 4 + trie.internal


@settings(max_examples=40, deadline=None)
@given(budget=st.integers(1, 40), **CASES)
def test_the_anytime_interval_holds_the_rank(
    budget: int, family: str, seed: int, drawn: tuple[Sequences, list[int]], kind: Any, rows: int
) -> None:
    sequences, targets = drawn
    model = toy_model(family, seed)
    trie = trie_of(sequences, targets)
    rule, walked, found = searched(model, trie, kind, rows=rows, budget=budget)
    assert found.positions <= budget
    values = naive_values(model, sequences, kind)
    inserted = [True] * len(targets)
    for number, found_rank in enumerate(ranks(trie, rule, walked, found, inserted, range(len(targets)))):
        exact = naive_rank(values, targets[number], set(targets) - {targets[number]}, walked.band)
        assert found_rank.rank.low <= exact.low
        assert found_rank.rank.high >= exact.high
        assert found_rank.rank.alone_low <= exact.alone_low
        assert found_rank.rank.alone_high >= exact.alone_high
        assert found_rank.rank.high <= walked.at_most[number]
        if found_rank.exact:
            assert found_rank.rank == exact


@settings(max_examples=60, deadline=None)
@given(**CASES)
def test_probability_alone_bounds_the_rank(
    family: str, seed: int, drawn: tuple[Sequences, list[int]], kind: Any, rows: int
) -> None:
    """rank <= 1/p, from the secrets' own forward passes; by perplexity with what the longest could have."""
    sequences, targets = drawn
    model = toy_model(family, seed)
    trie = trie_of(sequences, targets)
    scorer = ModelScorer(model)
    root = scorer.root(trie.prefix)
    walked = walk(scorer, trie, root, Rule.of(kind, root), rows=rows)
    values = naive_values(model, sequences, kind)
    for number, target in enumerate(targets):
        assert naive_rank(values, target, set(), walked.band).high <= walked.at_most[number]
        if kind == "logprob":
            bound = math.exp(-walked.log_probabilities[number])
            assert walked.at_most[number] <= max(1, min(bound * (1 + 1e-3), len(sequences)))


@pytest.mark.parametrize("family", FAMILIES)
def test_single_precision_stays_within_the_tolerance(family: str) -> None:
    """Ranks of every batch size hold the rank in double precision."""
    sequences = [(a, b, c) for a in range(1, 7) for b in range(1, 7) for c in range(1, 7)]
    exact = naive_values(toy_model(family, 1), sequences, "logprob")
    targets = [3, 77, 140, 215]
    trie = trie_of(sequences, targets)
    seen = set()
    for rows in (1, 5, 64, 500):
        rule, walked, found = searched(toy_model(family, 1, torch.float32), trie, "logprob", rows=rows)
        by_rows = ranks(trie, rule, walked, found, [False] * 4, range(4))
        for target, one in zip(targets, by_rows, strict=True):
            true = naive_rank(exact, target, set(), 0.0)
            assert one.rank.low <= true.low <= true.high <= one.rank.high
        seen.add(tuple((one.rank.low, one.rank.high) for one in by_rows))
    assert len(seen) == 1


def test_ties_make_an_interval() -> None:
    """A model that cannot tell candidates apart: every rank from the first to the last is possible."""
    model = toy_model("gpt2", 0).__class__(toy_model("gpt2", 0).config).eval().double()
    torch.nn.init.zeros_(model.transformer.wte.weight)  # tied: all logits are zero
    trie = trie_of([(a, b) for a in range(1, 6) for b in range(1, 6)], [0])
    rule, walked, found = searched(model, trie, "logprob")
    (only,) = ranks(trie, rule, walked, found, [True], [0])
    assert (only.rank.low, only.rank.high) == (1, 25)


def test_competing_secrets() -> None:
    """Raw ranks count inserted secrets that are better; without them each is first."""
    model = toy_model("gpt2", 2)
    sequences = [(a, b) for a in range(1, 7) for b in range(1, 7)]
    values = naive_values(model, sequences, "logprob")
    best = np.argsort(-values)[:4].tolist()
    trie = trie_of(sequences, best)
    rule, walked, found = searched(model, trie, "logprob")
    together = [one.rank for one in ranks(trie, rule, walked, found, [True] * 4, range(4))]
    assert [rank.low for rank in together] == [1, 2, 3, 4]
    assert [rank.alone_low for rank in together] == [1, 1, 1, 1]
    assert {rank.alone_candidates for rank in together} == {36 - 3}
    controls = [one.rank for one in ranks(trie, rule, walked, found, [False] * 4, range(4))]
    assert [rank.alone_low for rank in controls] == [1, 2, 3, 4]


def test_a_memorised_secret_takes_few_positions() -> None:
    """The survivors of a depth are at most 1/p: far fewer than the nodes of the tree."""
    model = toy_model("lstm", 1)
    sequences = [
        (a, b, c, d) for a in range(1, 9) for b in range(1, 9) for c in range(1, 9) for d in range(1, 9)
    ]
    values = naive_values(model, sequences[:1], "logprob")
    assert len(values) == 1
    scorer = ModelScorer(model)
    root = scorer.root(PREFIX)
    every = branch_and_bound(scorer, trie_of(sequences, []), root, Rule("logprob"))
    best = int(every.nodes[np.argmax(every.values)])
    trie = CandidateTrie(PREFIX, TokenRows.of(sequences), [])
    row = int(trie.tree.first_row[best])
    trie = CandidateTrie(PREFIX, TokenRows.of(sequences), [trie.tree.sorted_rows.sequence(row)])
    rule, walked, found = searched(model, trie, "logprob")
    assert ranks(trie, rule, walked, found, [True], [0])[0].rank.high == 1
    assert found.positions <= 3 * walked.at_most[0]
    assert found.positions < trie.internal / 5


def test_a_higher_threshold_is_refused() -> None:
    model = toy_model("gpt2", 0)
    trie = trie_of([(1,), (2,), (3,)], [0, 1, 2])
    scorer = ModelScorer(model)
    root = scorer.root(trie.prefix)
    rule = Rule.of("logprob", root)
    walked = walk(scorer, trie, root, rule)
    found = branch_and_bound(scorer, trie, root, rule, threshold=float(walked.values.max()))
    worst = int(walked.values.argmin())
    with pytest.raises(InputError, match="lower threshold"):
        ranks(trie, rule, walked, found, [True] * 3, [worst])
    with pytest.raises(InputError, match="3 secrets"):
        ranks(trie, rule, walked, found, [True], [0])
    with pytest.raises(InputError, match="rows"):
        branch_and_bound(scorer, trie, root, rule, rows=-1)
    with pytest.raises(InputError, match="logprob or perplexity"):
        Rule("likelihood")  # type: ignore[arg-type]
    assert rank_among(trie, walked, [True] * 3, 0, 0, 0).candidates == 3


def test_damaged_models_are_refused() -> None:
    model = toy_model("gpt2", 0).__class__(toy_model("gpt2", 0).config).eval()
    model.transformer.ln_f.weight.data.fill_(math.nan)
    with pytest.raises(ModelError, match="damaged"):
        ModelScorer(model).root(PREFIX)


def test_a_mask_that_is_not_obeyed_is_noticed() -> None:
    """A model whose positions ignore what they are given: packed siblings would see wrong places."""
    model = toy_model("gpt2", 0).__class__(toy_model("gpt2", 0).config).eval().double()
    plain = model.forward

    def deaf(**arguments: Any) -> Any:
        arguments.pop("attention_mask", None)
        return plain(**arguments)

    model.forward = deaf
    scorer = ModelScorer(model)
    root = scorer.root(PREFIX)
    assert not obeys_tree_mask(scorer, root, PREFIX)
    trie = trie_of([(a, b, c) for a in (1, 2) for b in (1, 2) for c in (1, 2)], [0])
    right = enumerate_all(scorer, trie, root, Rule("logprob"))
    wrong = enumerate_packed(scorer, trie, root, Rule("logprob"))
    assert np.abs(np.sort(right.values) - np.sort(wrong.values)).max() > 1e-3
