"""The tree of candidates in flat arrays: equal to one of dictionaries, and its refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.attacks.exposure.candidates import UNKNOWN, CandidateTrie, candidate_trie, digit_continuations
from tacit.attacks.exposure.token_tree import ROOT, TokenRows, build_tree
from tacit.errors import InputError, ModelError
from tacit.models.tokenizer import PublicTokenizer
from tests.attacks.exposure.toys import PREFIX, Sequences, candidate_sets
from tests.attacks.number_models import number_tokenizer

ANY_SEQUENCES = st.lists(
    st.lists(st.integers(0, 4), min_size=1, max_size=4).map(tuple), min_size=1, max_size=40, unique=True
)


def single_digits() -> PublicTokenizer:
    return PublicTokenizer.wrap(number_tokenizer("single"), start_token=0, vocabulary="public")


def many_digits() -> PublicTokenizer:
    return PublicTokenizer.wrap(number_tokenizer("multi"), start_token=0, vocabulary="public")


def nested_dictionaries(sequences: Sequences) -> dict[int, Any]:
    tree: dict[int, Any] = {}
    for sequence in sequences:
        node = tree
        for token in sequence:
            node = node.setdefault(token, {})
    return tree


@settings(max_examples=150, deadline=None)
@given(ANY_SEQUENCES)
def test_equals_a_tree_of_dictionaries(sequences: Sequences) -> None:
    tree = build_tree(TokenRows.of(sequences))

    def compare(node: int, expected: dict[int, Any], path: tuple[int, ...]) -> None:
        below = [one for one in sequences if one[: len(path)] == path]
        assert tree.rows[node] == len(below)
        assert tree.longest[node] == max(map(len, below)) - len(path)
        assert tree.depth[node] == len(path)
        assert bool(tree.ends[node]) == (path in sequences)
        if path in sequences:
            assert sequences[int(tree.order[tree.first_row[node]])] == path
            assert tree.find(path) == tree.first_row[node]
        else:
            assert tree.find(path) is None
        _, children = tree.children_of(np.array([node]))
        assert sorted(expected) == tree.token[children].tolist()
        assert bool(tree.open[node]) == bool(expected)
        for child in children.tolist():
            token = int(tree.token[child])
            assert tree.child(node, token) == child
            compare(child, expected[token], (*path, token))
        assert tree.child(node, 99) is None

    compare(ROOT, nested_dictionaries(sequences), ())
    chains = [sum(one[: len(other)] == other for other in sequences) for one in sequences]
    assert tree.nested() == max(chains)


@settings(max_examples=50, deadline=None)
@given(candidate_sets())
def test_labels_and_counts(drawn: tuple[Sequences, list[int]]) -> None:
    sequences, targets = drawn
    trie = CandidateTrie(PREFIX, TokenRows.of(sequences), [sequences[target] for target in targets])
    assert trie.candidates == len(sequences)
    assert trie.longest == max(map(len, sequences))
    leaves = np.flatnonzero(trie.tree.ends)
    labels = trie.labels(leaves, np.empty((0, 0), np.int32))
    for leaf, label in zip(leaves.tolist(), labels.tolist(), strict=True):
        sequence = sequences[int(trie.tree.order[trie.tree.first_row[leaf]])]
        assert (label != UNKNOWN) == (sequence in trie.known)
        assert label == UNKNOWN or trie.known[label] == sequence
    assert trie.internal == len({one[:depth] for one in sequences for depth in range(len(one))})


def test_several_parents_at_once() -> None:
    trie = CandidateTrie(PREFIX, TokenRows.of([(1, 1), (1, 2), (2, 1), (3,)]), [])
    children = trie.expand(trie.expand(np.array([ROOT])).node[:2])
    assert children.parent.tolist() == [0, 0, 1]
    assert children.token.tolist() == [1, 2, 1]
    assert children.leaf.all()
    assert trie.child_counts(np.array([ROOT])).tolist() == [3]


def test_draws_are_uniform_over_the_unknown() -> None:
    sequences = [(1, 1), (1, 2), (2, 1), (2, 2), (3,)]
    trie = CandidateTrie(PREFIX, TokenRows.of(sequences), [(1, 2), (3,)])
    drawn = trie.sample(6000, np.random.default_rng(5))
    found = [drawn.sequence(row) for row in range(len(drawn))]
    counts = [found.count(one) for one in ((1, 1), (2, 1), (2, 2))]
    assert sum(counts) == 6000
    assert max(abs(count - 2000) for count in counts) < 5 * (6000 * 2 / 9) ** 0.5
    with pytest.raises(InputError, match="nothing to draw"):
        CandidateTrie(PREFIX, TokenRows.of([(1,), (2,)]), [(1,), (2,)]).sample(1, np.random.default_rng(0))


def test_candidates_that_begin_others_are_refused() -> None:
    with pytest.raises(InputError, match="append a terminator"):
        CandidateTrie(PREFIX, TokenRows.of([(1, 2), (1, 2, 3), (4,)]), [])
    nested = CandidateTrie(PREFIX, TokenRows.of([(1, 2), (1, 2, 3), (4,)]), [], nesting=True)
    assert nested.nested == 2


@pytest.mark.parametrize(
    ("sequences", "known", "message"),
    [
        ([(1, 2), (3,), (1, 2)], [], "same tokens"),
        ([(1, 2), ()], [], "at least one token"),
        ([(1, 2), (3,)], [(1,)], "not one of the candidates"),
        ([(1, 2), (3,)], [(3,), (3,)], "are the same"),
        ([], [], "at least one token"),
    ],
)
def test_what_is_no_space_is_refused(sequences: Sequences, known: Sequences, message: str) -> None:
    with pytest.raises(InputError, match=message):
        CandidateTrie(PREFIX, TokenRows.of(sequences), known)


@pytest.mark.parametrize("tokenizer", [single_digits(), many_digits()], ids=["single", "multi"])
def test_texts_become_their_canonical_tokens(tokenizer: PublicTokenizer) -> None:
    prefix = "My number is:"
    trie = candidate_trie(tokenizer, prefix, digit_continuations(3, " "), known=[" 007", " 942"])
    assert trie.prefix == (tokenizer.start_token, *tokenizer.encode([prefix])[0])
    assert trie.candidates == 1000
    rows = trie.tree.sorted_rows
    for row in (0, 17, 999):
        number = int(trie.tree.order[row])
        whole = [tokenizer.start_token, *tokenizer.encode([f"{prefix} {number:03d}"])[0]]
        assert (*trie.prefix, *rows.sequence(row)) == tuple(whole)
    assert trie.known[0] == tuple(tokenizer.encode([f"{prefix} 007"])[0][len(trie.prefix) - 1 :])


def test_a_prefix_that_changes_is_refused() -> None:
    """A prompt that ends in a space: with digits behind it the space is part of another token."""
    tokenizer = many_digits()
    with pytest.raises(ModelError, match="move the space"):
        candidate_trie(tokenizer, "My number is: ", digit_continuations(2, ""))
    # One among many is enough: the last of two hundred thousand is looked at like the first.
    bad = [*(f" {number:02d}" for number in range(100)), "x"]
    assert candidate_trie(tokenizer, "My number is:", bad[:-1]).candidates == 100
    with pytest.raises(ModelError, match="1 of 101"):
        candidate_trie(tokenizer, "My number i", [*(f" {number:02d}" for number in range(100)), "s:"])


def test_no_candidates_are_refused() -> None:
    with pytest.raises(InputError, match="no candidates"):
        candidate_trie(single_digits(), "My number is:", [])


def test_a_secret_of_another_space_is_refused() -> None:
    with pytest.raises(InputError, match="not one of the candidates"):
        candidate_trie(single_digits(), "My number is:", digit_continuations(2, " "), known=[" 123"])
