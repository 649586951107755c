"""Canary secrets: uniform and independent draws, exchangeable twins, by tests that a biased draw fails."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2, chi2_contingency
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from tacit.corpus import Canary, CanaryManifest, CanaryPlan, draw_canaries
from tacit.corpus.canary_secrets import SecretSpace, Stream, draw_pair
from tacit.errors import InputError

USERS = [f"person-{number}" for number in range(40)]
WORDS = [f"{head}{tail}" for head in "bcdfgklmn" for tail in ("ale", "ind", "ore", "ump", "ask")]
TEN = 10  # digits


def draw(plan: CanaryPlan, users: Sequence[str] = USERS, **options: Any) -> CanaryManifest:
    """Draw for a corpus with one document of five characters for each user."""
    size = {"documents": len(set(users)), "characters": 5 * len(set(users))}
    return draw_canaries(plan, users, **(size | options))


def looks_uniform(counts: Sequence[int]) -> bool:
    """Chi-square against equal shares, on both sides: neither too uneven nor too even to be chance."""
    expected = sum(counts) / len(counts)
    statistic = sum((count - expected) ** 2 / expected for count in counts)
    return bool(0.0005 < chi2.sf(statistic, len(counts) - 1) < 0.9995)


def counts_at(position: int, drawn: Sequence[str]) -> list[int]:
    tally = Counter(secret[position] for secret in drawn)
    return [tally[str(digit)] for digit in range(TEN)]


@pytest.fixture(scope="module")
def firsts() -> list[Canary]:
    """The first canary of many draws, as one who draws a single canary sees it."""
    return [draw(CanaryPlan(users=1, seed=seed), ["only"]).canaries[0] for seed in range(1500)]


@pytest.fixture(scope="module", params=["distinct", "shared"])
def many(request: pytest.FixtureRequest) -> CanaryManifest:
    users = [str(number) for number in range(4000)]
    return draw(CanaryPlan(users=4000, prefix=request.param, seed=1), users)


@pytest.mark.parametrize("position", range(6))
def test_every_digit_of_many_canaries_is_uniform(many: CanaryManifest, position: int) -> None:
    assert looks_uniform(counts_at(position, [canary.secret for canary in many.canaries]))
    assert looks_uniform(counts_at(position, [canary.twin for canary in many.canaries]))


@pytest.mark.parametrize("position", range(6))
def test_every_digit_of_the_first_canary_is_uniform_over_seeds(firsts: list[Canary], position: int) -> None:
    assert looks_uniform(counts_at(position, [canary.secret for canary in firsts]))
    assert looks_uniform(counts_at(position, [canary.twin for canary in firsts]))


def test_pairs_of_neighbouring_digits_are_uniform(many: CanaryManifest) -> None:
    for position in range(5):
        tally = Counter(canary.secret[position : position + 2] for canary in many.canaries)
        assert looks_uniform([tally[f"{pair:02d}"] for pair in range(100)])


def test_the_same_test_catches_a_draw_that_sorts_and_truncates() -> None:
    """The known failure: draw a surplus, collect it in order, keep the first so many."""
    surplus = sorted({f"{Random(seed).randrange(10**6):06d}" for seed in range(8000)})[:4000]
    assert not looks_uniform(counts_at(0, surplus))


def test_the_same_test_catches_lost_leading_zeros_and_a_remainder_and_a_cycle() -> None:
    generator = Random(0)
    assert not looks_uniform(counts_at(0, [str(generator.randrange(10**5, 10**6)) for _ in range(4000)]))
    assert not looks_uniform(counts_at(0, [str(generator.getrandbits(4) % 10) for _ in range(4000)]))
    assert not looks_uniform(counts_at(0, [str(number % 10) for number in range(4000)]))  # too even


def test_words_are_uniform() -> None:
    plan = CanaryPlan(secret="words", length=5, users=2000, owner="new", seed=4)
    drawn = [canary.secret.split(" ") for canary in draw(plan, [], words=WORDS).canaries]
    for position in range(5):
        tally = Counter(words[position] for words in drawn)
        assert looks_uniform([tally[word] for word in WORDS])


def test_coins_are_fair_and_independent_of_secret_and_twin(many: CanaryManifest) -> None:
    assert looks_uniform(list(Counter(canary.inserted for canary in many.canaries).values()))
    for which in ("secret", "twin"):
        table = [[0] * TEN, [0] * TEN]
        for canary in many.canaries:
            table[canary.inserted][int(getattr(canary, which)[0])] += 1
        assert chi2_contingency(table).pvalue > 0.001


def test_the_coin_follows_its_chance() -> None:
    users = [str(number) for number in range(2000)]
    for include, low, high in ((0.0, 0, 0), (0.1, 150, 250), (0.9, 1750, 1850), (1.0, 2000, 2000)):
        manifest = draw(CanaryPlan(users=2000, include=include, seed=2), users)
        assert low <= sum(canary.inserted for canary in manifest.canaries) <= high


@settings(max_examples=50, deadline=None)
@given(bound=st.integers(1, 2**80), seed=st.integers(0, 2**256))
def test_a_stream_stays_below_its_bound_and_repeats(bound: int, seed: int) -> None:
    drawn = [Stream(seed, "purpose", 3).below(bound) for _ in range(2)]
    assert drawn[0] == drawn[1]
    assert 0 <= drawn[0] < bound


def test_owners_are_drawn_without_replacement_and_evenly() -> None:
    tally: Counter[str] = Counter()
    for seed in range(400):
        owners = [canary.user for canary in draw(CanaryPlan(users=5, seed=seed), USERS).canaries]
        assert len(set(owners)) == 5
        tally.update(owners)
    assert looks_uniform([tally[user] for user in USERS])


def test_twins_differ_and_have_the_same_length(many: CanaryManifest) -> None:
    for canary in many.canaries:
        assert canary.twin != canary.secret
        assert len(canary.twin) == len(canary.secret) == 6
        assert canary.text == canary.prefix + canary.continuation(canary.secret)
        assert canary.twin_text == canary.prefix + canary.continuation(canary.twin)


def test_a_shared_prefix_never_uses_a_secret_or_twin_twice() -> None:
    plan = CanaryPlan(prefix="shared", length=2, users=25, seed=8)
    canaries = draw(plan, USERS).canaries
    assert len({text for canary in canaries for text in (canary.secret, canary.twin)}) == 50
    assert {canary.prefix for canary in canaries} == {"My ID is:"}


def test_a_pair_is_exchangeable_within_its_token_count() -> None:
    """On a space of 20 with token counts 1 (8 candidates) and 2 (12): all ordered pairs equally likely."""
    space = SecretSpace([f"{number:02d}" for number in range(20)], 1, "")

    def tokens(secret: str) -> int:
        return 1 if int(secret) < 8 else 2

    pairs = [draw_pair(space, 7, index, set(), tokens) for index in range(12000)]
    tally = Counter((pair.secret, pair.twin) for pair in pairs)
    short = [(a, b) for a in space.symbols[:8] for b in space.symbols[:8] if a != b]
    long = [(a, b) for a in space.symbols[8:] for b in space.symbols[8:] if a != b]
    assert sum(tally[pair] for pair in short + long) == 12000
    assert looks_uniform([tally[pair] for pair in short])
    assert looks_uniform([tally[pair] for pair in long])
    assert looks_uniform([Counter(pair.secret for pair in pairs)[symbol] for symbol in space.symbols])
    assert looks_uniform([Counter(pair.twin for pair in pairs)[symbol] for symbol in space.symbols])


def test_later_canaries_of_a_shared_prefix_stay_uniform_under_a_token_count() -> None:
    space = SecretSpace([f"{number:02d}" for number in range(20)], 1, "")
    third: Counter[str] = Counter()
    for seed in range(4000):
        taken: set[str] = set()
        for index in range(3):
            pair = draw_pair(space, seed, index, taken, lambda secret: int(secret) < 8)
        third[pair.secret] += 1
    assert looks_uniform([third[symbol] for symbol in space.symbols])


def test_twins_match_in_tokens_of_a_real_tokenizer() -> None:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    texts = [f"My ID is: {number:06d}" for number in range(0, 10**6, 997)]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, show_progress=False, initial_alphabet=alphabet)
    tokenizer.train_from_iterator(texts, trainer)

    def tokens(text: str) -> int:
        return len(tokenizer.encode(text).ids)

    free = draw(CanaryPlan(users=40, seed=5), USERS)
    matched = draw(CanaryPlan(users=40, seed=5), USERS, token_count=tokens)
    assert any(tokens(canary.text) != tokens(canary.twin_text) for canary in free.canaries)
    assert all(tokens(canary.text) == tokens(canary.twin_text) for canary in matched.canaries)
    # The secret must not depend on the tokenizer, or it would not be uniform.
    assert [c.secret for c in free.canaries] == [c.secret for c in matched.canaries]


def test_a_secret_without_a_possible_twin_is_refused_without_naming_it() -> None:
    counts: Iterator[int] = iter(range(10**9))
    with pytest.raises(InputError, match="another seed") as refusal:
        draw(CanaryPlan(users=1, seed=3), USERS, token_count=lambda _: next(counts))
    secret = draw(CanaryPlan(users=1, seed=3), USERS).canaries[0].secret
    assert secret not in str(refusal.value)
