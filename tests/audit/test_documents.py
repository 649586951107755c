"""One document of each user: who can be on either side, by user and within users."""

from __future__ import annotations

import numpy as np
from scipy import stats

from tacit.audit.documents import draw_documents
from tacit.audit.roc import separation_p_value
from tacit.corpus import UserCorpus, split_held_out


def corpus_of(counts: list[int]) -> UserCorpus:
    """Users with so many documents; who has one writes at length."""
    return UserCorpus.from_pairs(
        (f"u{user}", f"{number} " + "more " * (9 if count == 1 else user % 5))
        for user, count in enumerate(counts)
        for number in range(count)
    )


def test_by_user_each_is_on_the_side_of_their_coin() -> None:
    whole = corpus_of([3] * 40)
    sides = split_held_out(whole, 0.3, seed=1)
    found = draw_documents(sides.train, sides.held_out, None, most=100, seed=0)
    assert len(found) == 40
    trained = {user for user, member in zip(found.users, found.is_member, strict=True) if member}
    assert trained == set(sides.train.users)
    assert len(draw_documents(sides.train, sides.held_out, None, most=5, seed=0)) == 10


def test_within_users_only_those_on_both_sides_are_taken_and_half_of_them_for_either() -> None:
    whole = corpus_of([1] * 30 + [4] * 21)
    sides = split_held_out(whole, 0.3, "within", seed=1)
    found = draw_documents(sides.train, sides.held_out, None, most=100, seed=0)
    assert len(found) == len(set(found.users)) == 21
    assert found.is_member.sum() == 11
    assert all(int(user[1:]) >= 30 for user in found.users)
    few = draw_documents(sides.train, sides.held_out, None, most=4, seed=0)
    assert (len(few), few.is_member.sum()) == (8, 4)


def test_within_users_length_alone_alarms_at_most_at_the_level() -> None:
    """Who has one document is always trained on, and writes at length: that is no memory."""
    runs, alarms = 200, 0
    whole = corpus_of([1] * 60 + [2, 5] * 20)
    for run in range(runs):
        sides = split_held_out(whole, 0.3, "within", seed=run)
        found = draw_documents(sides.train, sides.held_out, None, most=15, seed=run)
        lengths = np.array([float(len(text)) for text in found.texts])
        members, others = lengths[found.is_member], lengths[~found.is_member]
        alarms += separation_p_value(members, others) <= 0.05
    assert alarms <= stats.binom.ppf(0.999, runs, 0.05)
