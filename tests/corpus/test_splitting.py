"""Splits cover the corpus, and nobody's place depends on anybody else."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.corpus import UserCorpus, split_held_out
from tacit.errors import CorpusError, RecipeError


def corpus_of(counts: dict[str, int]) -> UserCorpus:
    """So many documents for each user, in turns, each with a text of its own."""
    rounds = range(max(counts.values()))
    return UserCorpus.from_pairs(
        [(u, f"{u} {n}") for n in rounds for u, count in counts.items() if n < count]
    )


def texts(corpus: UserCorpus) -> set[str]:
    return {document.text for document in corpus.documents()}


def test_by_user_no_user_is_on_both_sides() -> None:
    corpus = corpus_of({f"user{n}": 2 for n in range(500)})
    split = split_held_out(corpus, 0.2, seed=1)
    assert not set(split.train.users) & set(split.held_out.users)
    assert texts(split.train) | texts(split.held_out) == texts(corpus)
    assert len(split.train) + len(split.held_out) == len(corpus)


@pytest.mark.parametrize("share", [0.05, 0.2, 0.5, 0.9])
def test_by_user_share_holds_in_expectation(share: float) -> None:
    corpus = corpus_of({f"user{n}": 1 for n in range(4000)})
    held_out = len(split_held_out(corpus, share, seed=7).held_out.users)
    # Five standard deviations: a false alarm in two million runs, and a wrong share by 0.04 is always caught.
    assert abs(held_out - 4000 * share) < 5 * math.sqrt(4000 * share * (1 - share))


def test_larger_share_only_adds_users() -> None:
    corpus = corpus_of({f"user{n}": 1 for n in range(300)})
    small, large = (set(split_held_out(corpus, share, seed=3).held_out.users) for share in (0.1, 0.4))
    assert small < large


@pytest.mark.parametrize("by", ["user", "within"])
def test_seed_decides(by: Any) -> None:
    corpus = corpus_of({f"user{n}": 4 for n in range(100)})
    first, again, other = (texts(split_held_out(corpus, by=by, seed=seed).held_out) for seed in (1, 1, 2))
    assert first == again != other


@pytest.mark.parametrize("by", ["user", "within"])
def test_adding_a_user_moves_nobody(by: Any) -> None:
    counts = {f"user{n}": 1 + n % 5 for n in range(60)}
    before = split_held_out(corpus_of(counts), by=by, seed=5)
    after = split_held_out(corpus_of({"newcomer": 3} | counts), by=by, seed=5)

    def without_newcomer(corpus: UserCorpus) -> set[str]:
        return {text for text in texts(corpus) if not text.startswith("newcomer")}

    assert texts(before.train) == without_newcomer(after.train)
    assert texts(before.held_out) == without_newcomer(after.held_out)


@settings(max_examples=40, deadline=None)
@given(
    st.dictionaries(st.sampled_from([f"user{n}" for n in range(8)]), st.integers(1, 12), min_size=1),
    st.floats(0.01, 0.99),
    st.integers(),
)
def test_within_holds_out_the_rounded_share_of_each_user(
    counts: dict[str, int], share: float, seed: int
) -> None:
    corpus = corpus_of(counts | {"always": 2})
    split = split_held_out(corpus, share, "within", seed=seed)
    held_out = dict(zip(split.held_out.users, split.held_out.document_counts().tolist(), strict=True))
    for user, count in (counts | {"always": 2}).items():
        expected = 0 if count == 1 else min(max(round(share * count), 1), count - 1)
        assert held_out.get(user, 0) == expected
    assert not texts(split.train) & texts(split.held_out)
    assert len(split.train) + len(split.held_out) == len(corpus)
    assert set(split.train.users) == set(corpus.users)


def test_within_does_not_favour_any_position() -> None:
    corpus = corpus_of({f"user{n}": 5 for n in range(1000)})
    held_out = split_held_out(corpus, 0.2, "within", seed=11).held_out
    positions = [int(document.text.split()[1]) for document in held_out.documents()]
    for position in range(5):
        assert abs(positions.count(position) - 200) < 5 * math.sqrt(1000 * 0.2 * 0.8)


def test_documents_behind_the_first_ones_stay_in_training_and_move_nobody() -> None:
    counts = {f"user{n}": 2 + n % 5 for n in range(40)}
    corpus = corpus_of(counts)
    own = [(document.user, document.text) for document in corpus.documents()]
    planted = UserCorpus.from_pairs(own + [(f"user{n}", "canary") for n in range(40)] * 3)
    alone = split_held_out(corpus, 0.3, "within", seed=5)
    among = split_held_out(planted, 0.3, "within", seed=5, among=len(corpus))
    assert texts(among.held_out) == texts(alone.held_out)
    assert texts(among.train) == texts(alone.train) | {"canary"}
    assert len(among.train) == len(alone.train) + 120
    # Without it some copies of a canary are held out, and its repetitions are fewer than planned.
    assert "canary" in texts(split_held_out(planted, 0.3, "within", seed=5).held_out)


def test_among_is_refused_where_users_are_held_out_whole() -> None:
    with pytest.raises(RecipeError, match="by='within'"):
        split_held_out(corpus_of({"ann": 2}), 0.3, "user", seed=5, among=1)


@pytest.mark.parametrize("share", [0, 1, -0.1, 1.5, math.nan])
def test_share_outside_its_bounds_is_refused(share: float) -> None:
    with pytest.raises(RecipeError, match="share="):
        split_held_out(corpus_of({"ann": 2}), share, seed=1)


def test_unknown_way_is_refused() -> None:
    with pytest.raises(RecipeError, match="'user' or 'within'"):
        split_held_out(corpus_of({"ann": 2}), by="document", seed=1)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("share", "by", "side"),
    [(1e-9, "user", "evaluation"), (1 - 1e-9, "user", "training"), (0.5, "within", "evaluation")],
)
def test_empty_side_is_refused_with_the_remedy(share: float, by: Any, side: str) -> None:
    with pytest.raises(CorpusError, match=f"nothing for {side}; "):
        split_held_out(corpus_of({"ann": 1, "bob": 1}), share, by, seed=1)


def test_text_without_users_is_refused(tmp_path: Any) -> None:
    from tacit.corpus import CorpusSource

    (tmp_path / "a.txt").write_text("one\ntwo")
    corpus = UserCorpus.read(CorpusSource(str(tmp_path), document="line"), without_users=True)
    with pytest.raises(CorpusError, match="cut it in blocks"):
        split_held_out(corpus, by="within", seed=1)
