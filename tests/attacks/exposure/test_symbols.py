"""Candidates made of symbols when asked for: the same ranks as with all of them in memory."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import numpy as np
import pytest

from tacit.attacks.exposure import ExposureSettings, measure_exposure, rank_group
from tacit.attacks.exposure.candidates import CandidateTrie, encoded_behind
from tacit.attacks.exposure.ranking import Rule, branch_and_bound, ranks, walk
from tacit.attacks.exposure.states import ModelScorer
from tacit.attacks.exposure.symbols import SymbolTree
from tacit.errors import InputError, ModelError
from tacit.models.loading import load_public_model
from tacit.models.tokenizer import PublicTokenizer
from tests.attacks.exposure.memorised import memorising, number_canaries
from tests.attacks.exposure.test_token_tree import many_digits
from tests.tiny import byte_level_tokenizer

PREFIX = "The password of our teacher is"
# Some are one token, some several; " b" begins " bx" and " bxy" in tokens.
WORDS = ["lamps", "river", "b", "bx", "bxy", "zq", "market"]


def word_tokenizer() -> PublicTokenizer:
    return PublicTokenizer.wrap(byte_level_tokenizer(), start_token=0, vocabulary="public")


def eager(tokenizer: PublicTokenizer, secrets: list[str], known: list[str]) -> CandidateTrie:
    beginning = tokenizer.encode([PREFIX])[0]
    rows = encoded_behind(tokenizer, PREFIX, beginning, [f" {secret}" for secret in secrets])
    wanted = encoded_behind(tokenizer, PREFIX, beginning, [f" {secret}" for secret in known])
    sequences = [wanted.sequence(row) for row in range(len(wanted))]
    return CandidateTrie((tokenizer.start_token, *beginning), rows, sequences, nesting=True)


@pytest.mark.parametrize("length", [1, 2, 3])
@pytest.mark.parametrize("kind", ["logprob", "perplexity"])
def test_equals_all_candidates_in_memory(kind: str, length: int, tiny_model: Path) -> None:
    public = load_public_model(str(tiny_model))
    secrets = [" ".join(words) for words in itertools.product(WORDS, repeat=length)]
    known = [secrets[len(secrets) // 2], secrets[-1], secrets[2]]
    lazy = SymbolTree(public.tokenizer, PREFIX, WORDS, length, separator=" ", between=" ", known=known)
    whole = eager(public.tokenizer, secrets, known)
    assert lazy.candidates == whole.candidates == len(WORDS) ** length
    assert lazy.known == whole.known
    assert lazy.prefix == whole.prefix
    assert lazy.longest == whole.longest
    assert lazy.nested == whole.nested > 1
    scorer = ModelScorer(public.model)
    root = scorer.root(lazy.prefix)
    rule = Rule.of(kind, root)  # type: ignore[arg-type]
    by_budget = {}
    for budget in (math.inf, 5):
        by_tree = []
        for tree in (lazy, whole):
            walked = walk(scorer, tree, root, rule)
            found = branch_and_bound(
                scorer, tree, root, rule, threshold=float(walked.values.min()) - walked.band, budget=budget
            )
            by_tree.append(ranks(tree, rule, walked, found, [True, False, False], range(3)))
        by_budget[budget] = by_tree
    exact = by_budget[math.inf][0]
    assert exact == by_budget[math.inf][1]
    for some, true in zip(by_budget[5][0], exact, strict=True):
        assert some.rank.low <= true.rank.low <= true.rank.high <= some.rank.high
    for tree in (lazy, whole):
        assert len(branch_and_bound(scorer, tree, root, rule).values) == tree.candidates - 3


def test_counts_below_nodes() -> None:
    tree = SymbolTree(word_tokenizer(), PREFIX, WORDS, 2, separator=" ", between=" ")
    first = tree.expand(np.array([tree.root]))
    assert tree.child_counts(np.array([tree.root]))[0] == len(first.node)
    assert tree.leaves_below(np.array([tree.root])).tolist() == [49.0]
    assert tree.leaves_below(first.node).sum() == 49
    assert not first.leaf.any()
    assert (tree.longest_below(first.node) + 1).max() == tree.longest


def test_draws_are_uniform_and_spare_the_known() -> None:
    tree = SymbolTree(word_tokenizer(), PREFIX, WORDS, 1, separator=" ", between=" ", known=["b", "zq"])
    drawn = tree.sample(5000, np.random.default_rng(2))
    found = [drawn.sequence(row) for row in range(len(drawn))]
    counts = [found.count(one) for one in set(found)]
    assert len(counts) == 5
    assert not set(found) & set(tree.known)
    assert max(abs(count - 1000) for count in counts) < 5 * (5000 * 4 / 25) ** 0.5


def test_a_space_that_nobody_can_enumerate(tiny_transformer: Path) -> None:
    """Five words of two hundred: a memorised secret is ranked exactly, an unseen one by sampling."""
    people = ["baker", "sailor", "farmer", "doctor", "boat", "door", "clock", "basket", "mill", "hill"]
    words = [*people, *(f"{a}{b}" for a in people for b in ("s", "er", "ing", "ly", "man", "day"))]
    manifest = number_canaries(
        template="The word is {secret}", secret="words", length=5, users=4, words=words, seed=3
    )
    assert {canary.inserted for canary in manifest.canaries} == {True, False}
    trained = memorising(tiny_transformer, manifest, steps=120, learning_rate=3e-3)
    report = measure_exposure(trained, manifest, words=words, settings=ExposureSettings(samples=100, seed=0))
    assert report.canaries[0].candidates == len(words) ** 5 > 10**9
    for found in report.canaries:
        assert found.exposure.high <= math.log2(found.candidates)
        if found.inserted:
            assert found.method == "exact"
            assert found.alone_high <= 5  # "baker" is never less likely than "bakers"
            assert found.exposure.value > 28
        else:
            assert found.method == "sampled"
    with pytest.raises(InputError, match="give the list"):
        measure_exposure(trained, manifest)
    with pytest.raises(InputError, match="not the one"):
        measure_exposure(trained, manifest, words=words[::-1])
    with pytest.raises(InputError, match="too many to enumerate"):
        measure_exposure(trained, manifest, words=words, settings=ExposureSettings(full=True))


def test_tokenizers_that_join_symbols_are_refused() -> None:
    with pytest.raises(ModelError, match="joins neighbouring symbols"):
        SymbolTree(many_digits(), "My number is:", "0123456789", 4, separator=" ", between="")


@pytest.mark.parametrize(
    ("symbols", "between", "message"),
    [
        (["q", "qq"], "", "cut into symbols"),
        (["q", "q"], " ", "distinct symbols"),
        (["q"], " ", "distinct symbols"),
    ],
)
def test_ambiguous_symbols_are_refused(symbols: list[str], between: str, message: str) -> None:
    with pytest.raises((InputError, ModelError), match=message):
        SymbolTree(word_tokenizer(), PREFIX, symbols, 2, separator=" ", between=between)


@pytest.mark.parametrize("known", [["b"], ["b b b"], ["b nobody"]])
def test_secrets_of_another_space_are_refused(known: list[str]) -> None:
    with pytest.raises(InputError, match="not one of the candidates"):
        SymbolTree(word_tokenizer(), PREFIX, WORDS, 2, separator=" ", between=" ", known=known)
    with pytest.raises(InputError, match="are the same"):
        SymbolTree(word_tokenizer(), PREFIX, WORDS, 2, separator=" ", between=" ", known=["b b", "b b"])


def test_sampling_where_candidates_nest(tiny_transformer: Path) -> None:
    public = load_public_model(str(tiny_transformer))
    tree = SymbolTree(
        public.tokenizer, PREFIX, WORDS, 3, separator=" ", between=" ", known=["b bx bxy", "zq zq zq"]
    )
    settings = ExposureSettings(budget=1, samples=300)
    exact = rank_group(
        ModelScorer(public.model),
        tree,
        [True, True],
        ExposureSettings(budget=10**6),
        generator=np.random.default_rng(0),
    )
    drawn = rank_group(
        ModelScorer(public.model), tree, [True, True], settings, generator=np.random.default_rng(0)
    )
    assert set(drawn.methods) == {"sampled"}
    for one, true in zip(drawn.ranks, exact.ranks, strict=True):
        assert one.low <= true.low <= true.high <= one.high
