"""Sampled ranks: their intervals cover at least as often as they say, and their p-values are honest."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from tacit.attacks.exposure import ExposureSettings, rank_group
from tacit.attacks.exposure.candidates import CandidateTrie
from tacit.attacks.exposure.ranking import Rule, branch_and_bound, ranks, walk
from tacit.attacks.exposure.report import ExposureMethod, estimates
from tacit.attacks.exposure.sampled import better_among, sampled_ranks
from tacit.attacks.exposure.states import ModelScorer, Root, Scored
from tacit.attacks.exposure.token_tree import TokenRows
from tacit.errors import InputError
from tests.attacks.exposure.toys import PREFIX, toy_model, trie_of

_SIMULATIONS = 400


@pytest.mark.parametrize("share", [0.0, 0.0004, 0.03, 0.5, 0.999, 1.0])
def test_the_interval_covers(share: float) -> None:
    """Simulated hits; at most 5 % of intervals may miss, with room for the simulation's own noise."""
    others, samples = 10_000, 500
    true = round(share * others)
    draw = np.random.default_rng(int(share * 1e4))
    missed = 0
    for hits in draw.binomial(samples, true / others, size=_SIMULATIONS).tolist():
        low, high = better_among(others, hits, hits, samples, 0.95)
        assert 0 <= low <= high <= others
        missed += not low <= true <= high
    assert stats.binomtest(missed, _SIMULATIONS, 0.05, alternative="greater").pvalue > 1e-3


def test_half_the_confidence_misses_often() -> None:
    """The other side: intervals that cover half the time would not pass the test above."""
    others, samples, true = 10_000, 500, 3_000
    draw = np.random.default_rng(0)
    bounds = [
        better_among(others, hits, hits, samples, 0.5)
        for hits in draw.binomial(samples, true / others, size=_SIMULATIONS).tolist()
    ]
    missed = sum(not low <= true <= high for low, high in bounds)
    assert stats.binomtest(missed, _SIMULATIONS, 0.05, alternative="greater").pvalue < 1e-6


def test_sampled_ranks_cover_the_exact_ones() -> None:
    """On a model, with ties' band, other secrets and repeated draws; one set of draws for three targets."""
    model = toy_model("gpt2", 1)
    sequences = [(a, b, c) for a in range(1, 7) for b in range(1, 7) for c in range(1, 7)]
    trie = trie_of(sequences, [5, 100, 190])
    inserted = [True, False, True]
    scorer = ModelScorer(model)
    root = scorer.root(trie.prefix)
    rule = Rule.of("logprob", root)
    walked = walk(scorer, trie, root, rule)
    everything = branch_and_bound(scorer, trie, root, rule)
    exact = [one.rank for one in ranks(trie, rule, walked, everything, inserted, range(3))]
    missed = np.zeros(3)
    repeats = 60
    for seed in range(repeats):
        drawn = sampled_ranks(
            scorer,
            trie,
            root,
            rule,
            walked,
            inserted,
            range(3),
            samples=40,
            confidence=0.9,
            generator=np.random.default_rng(seed),
        )
        assert drawn.positions <= trie.internal + 40
        for place, (one, true) in enumerate(zip(drawn.ranks, exact, strict=True)):
            assert one.rank.candidates == 216
            assert one.rank.alone_candidates == true.alone_candidates
            held = one.rank.low <= true.low <= true.high <= one.rank.high
            held &= one.rank.alone_low <= true.alone_low <= true.alone_high <= one.rank.alone_high
            missed[place] += not held
    for count in missed.tolist():
        assert stats.binomtest(int(count), repeats, 0.1, alternative="greater").pvalue > 1e-3


FIRSTS, SECONDS = 40, 5
SPACE = [(first, FIRSTS + second) for first in range(FIRSTS) for second in range(SECONDS)]
SEARCHED = 29  # of the 200: those within the budget, 14.5%, a little more than one in seven
BUDGET = 30  # fewer positions than the 41 that enumerating takes
DRAWS = 6


class TableScorer:
    """A model of two tokens by a table [first, second] of probabilities."""

    tolerance = 1e-9

    def __init__(self, table: np.ndarray[Any, np.dtype[np.float64]]) -> None:
        nothing = np.full((FIRSTS, FIRSTS), 1e-300)
        self._second = torch.tensor(np.log(np.hstack([nothing, table / table.sum(1, keepdims=True)])))
        self._first = torch.tensor(np.log(np.hstack([table.sum(1), np.full(SECONDS, 1e-300)])))

    def root(self, prefix: Sequence[int], *, whole: bool = False) -> Root:
        return Root(Scored(self._first[None], torch.zeros(1, dtype=torch.int64)), 0.0, len(prefix) - 1)

    def step(self, state: Any, tokens: torch.Tensor) -> Scored:
        return Scored(self._second[tokens], tokens)

    def select(self, state: Any, rows: torch.Tensor) -> Any:
        return state[rows]

    def rows_at_once(self, root: Root, longest: int) -> int:
        return 64


class ToldTrie(CandidateTrie):
    """Draws what it is told to."""

    told: Sequence[tuple[int, ...]] = ()

    def sample(self, count: int, generator: np.random.Generator) -> TokenRows:
        assert len(self.told) == count
        return TokenRows.of(list(self.told))


def chances_of_p_values(
    settings: ExposureSettings,
) -> tuple[dict[float, float], dict[float, float], list[ExposureMethod]]:
    """Each p-value's probability, and 2^-exposure's, over a uniform secret and all draws, by enumeration.

    Only how many draws are better matters, so that one of each number stands for all, with its probability.
    """
    order = np.random.default_rng(0).permutation(len(SPACE))  # the order of rank stands anywhere in the table
    table = np.empty(len(SPACE))
    table[order[:SEARCHED]] = 1 / 30 - 1e-5 * np.arange(SEARCHED)
    rest = 1 - table[order[:SEARCHED]].sum()
    falling = np.linspace(2, 1, len(SPACE) - SEARCHED)
    table[order[SEARCHED:]] = rest * falling / falling.sum()
    scorer = TableScorer(table.reshape(FIRSTS, SECONDS))
    honest: dict[float, float] = defaultdict(float)
    by_exposure: dict[float, float] = defaultdict(float)
    methods: list[ExposureMethod] = []
    for place, secret in enumerate(order):
        trie = ToldTrie(PREFIX, TokenRows.of(SPACE), [SPACE[secret]])
        share = place / (len(SPACE) - 1)
        for better in range(DRAWS + 1):
            chance = float(stats.binom.pmf(better, DRAWS, share))
            trie.told = [SPACE[order[0]]] * better + [SPACE[order[-1]]] * (DRAWS - better)
            group = rank_group(scorer, trie, [True], settings, generator=np.random.default_rng(0))
            drawn = group.methods[0] == "sampled"
            found, _ = estimates(
                group.ranks[0], confidence=settings.confidence, method="", p_value=group.drawn[0]
            )
            honest[group.p_values[0]] += (chance if drawn else 1) / len(SPACE)
            by_exposure[2.0**-found.value] += (chance if drawn else 1) / len(SPACE)
            if not drawn:
                break
        methods.append(group.methods[0])
    return honest, by_exposure, methods


def excess(chances: dict[float, float]) -> float:
    """The largest P(p <= u) / u."""
    return max(
        sum(chance for p, chance in chances.items() if p <= level * (1 + 1e-9)) / level for level in chances
    )


def test_p_values_of_unseen_secrets_are_honest() -> None:
    """The secret decides how its rank is found: exposure alone is too large too often, the p-value is not."""
    honest, by_exposure, methods = chances_of_p_values(ExposureSettings(budget=BUDGET, samples=DRAWS))
    assert methods == ["exact"] * SEARCHED + ["sampled"] * (len(SPACE) - SEARCHED)
    assert sum(honest.values()) == pytest.approx(1)
    # 29 in 200 are searched, and of the others one in 21 has no better draw: a chance of 0.193 for 0.145.
    assert excess(by_exposure) > 1.3
    assert excess(honest) == pytest.approx(1), "nothing is lost for what is searched"


@pytest.mark.parametrize("settings", [ExposureSettings(full=True), ExposureSettings(budget=250)])
def test_p_values_lose_nothing_where_the_secret_decides_nothing(settings: ExposureSettings) -> None:
    settings = dataclasses.replace(settings, samples=DRAWS)
    honest, by_exposure, methods = chances_of_p_values(settings)
    assert set(methods) == {"exact"}
    for chances in (honest, by_exposure):
        assert sorted(chances) == pytest.approx(np.arange(1, len(SPACE) + 1) / len(SPACE))
        assert excess(chances) == pytest.approx(1)


def test_no_samples_are_refused() -> None:
    trie = trie_of([(1,), (2,)], [0])
    scorer = ModelScorer(toy_model("gpt2", 1))
    root = scorer.root(trie.prefix)
    rule = Rule.of("logprob", root)
    walked = walk(scorer, trie, root, rule)
    with pytest.raises(InputError, match="samples=0"):
        sampled_ranks(
            scorer,
            trie,
            root,
            rule,
            walked,
            [True],
            [0],
            samples=0,
            confidence=0.9,
            generator=np.random.default_rng(0),
        )


def test_ties_are_counted_both_ways() -> None:
    """A model that cannot tell candidates apart: no draw is better, and all are not worse."""
    model = toy_model("gpt2", 0).__class__(toy_model("gpt2", 0).config).eval().double()
    torch.nn.init.zeros_(model.transformer.wte.weight)  # tied: all logits are zero
    trie = trie_of([(a, b) for a in range(1, 6) for b in range(1, 6)], [0])
    scorer = ModelScorer(model)
    root = scorer.root(trie.prefix)
    rule = Rule.of("logprob", root)
    drawn = sampled_ranks(
        scorer,
        trie,
        root,
        rule,
        walk(scorer, trie, root, rule),
        [True],
        [0],
        samples=200,
        confidence=0.95,
        generator=np.random.default_rng(0),
    )
    assert (drawn.ranks[0].rank.low, drawn.ranks[0].rank.high) == (1, 25)
    assert drawn.ranks[0].p_value == 1
