"""Groups of texts: the paper's numbers, what a group holds, and resampling by secrets."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
from scipy import stats

from tacit.attacks.groups import PAPER, GroupPlan, Groups, draw_groups, values_of
from tacit.errors import InputError


def drawn(plan: GroupPlan, texts: int = 40, secrets: int | None = None) -> Groups:
    labels = np.arange(texts) < texts // 2
    return draw_groups(labels, [f"s{number % (secrets or texts)}" for number in range(texts)], plan)


def test_the_papers_groups() -> None:
    assert (PAPER.members, PAPER.look_alikes, PAPER.groups, PAPER.size) == (1000, 1000, 2000, 20)
    groups = drawn(PAPER, texts=2400)
    assert groups.texts.shape == (2000, 20)
    assert groups.is_member.sum() == 1000
    labels = np.arange(2400) < 1200
    assert (labels[groups.texts] == groups.is_member[:, None]).all()
    # A thousand of the 1200 of each kind are taken, and nearly all come up in a thousand groups of twenty.
    assert [len(pool) for pool in groups.pools] == [1000, 1000]
    assert len(np.unique(groups.texts)) == 2000
    assert all(len(set(group)) == 20 for group in groups.texts.tolist())


def test_every_set_of_texts_is_as_likely() -> None:
    groups = drawn(GroupPlan(groups=20_000, size=3), texts=12)
    sets = Counter(tuple(sorted(group)) for group in groups.texts[:10_000].tolist())
    assert len(sets) == math.comb(6, 3)
    assert stats.chisquare(list(sets.values())).pvalue > 0.001
    assert stats.chisquare([500] * 10 + [510] * 10).pvalue > 0.001  # what it lets through
    assert stats.chisquare([450] * 10 + [550] * 10).pvalue < 0.001  # and what it does not


def test_scores_are_sums_over_the_texts_of_a_group() -> None:
    groups = drawn(GroupPlan(groups=6, size=3))
    losses = np.linspace(0.5, 4, 40)
    values = values_of({"perplexity": -np.exp(losses), "loss": -losses})
    assert set(values) == {"perplexity_sum", "mean_log_perplexity"}
    for group, texts in enumerate(groups.texts):
        total = groups.sums(values["perplexity_sum"])[group]
        assert total == pytest.approx(-sum(np.exp(losses[text]) for text in texts))
        mean = groups.sums(values["mean_log_perplexity"])[group] / 3
        assert mean == pytest.approx(-sum(losses[text] for text in texts) / 3)
    # Members have the lower losses, and higher scores.
    for one in values.values():
        assert groups.sums(one)[:3].min() > groups.sums(one)[3:].max()
    known = values_of({"perplexity": -np.exp(losses), "loss": -losses, "reference": losses})
    np.testing.assert_array_equal(known["mean_reference"], losses)
    with pytest.raises(ValueError, match="Expected 40 values"):
        groups.sums(losses[:5])


def test_one_strange_text_dominates_the_sum_and_not_the_mean() -> None:
    groups = drawn(GroupPlan(groups=2, size=20))
    losses = np.full(40, 2.0)
    losses[0], losses[20:] = 12.0, 2.3
    strange = groups.sums(-np.exp(losses))
    assert strange[0] < strange[1]
    usual = groups.sums(-np.exp(np.where(np.arange(40) < 20, 2.0, 2.3)))
    assert usual[0] > usual[1]


def test_groups_know_their_secrets_and_resampling_draws_secrets() -> None:
    groups = drawn(GroupPlan(groups=40, size=5), secrets=10)  # 40 texts about ten secrets, each of both kinds
    assert groups.secrets_held.shape == (40, 5)
    assert (groups.secrets_held == groups.secrets[groups.texts]).all()
    generator = np.random.default_rng(0)
    shares = []
    for _ in range(300):
        again = groups.redrawn(generator)
        held = [np.unique(groups.secrets[pool]) for pool in again.pools]
        # A canary and its twin go together, and every text of a drawn secret comes with it.
        np.testing.assert_array_equal(held[0], held[1])
        assert [len(pool) for pool in again.pools] == [20, 20]
        assert np.isin(again.texts[:20], again.pools[0]).all()
        assert np.isin(again.texts[20:], again.pools[1]).all()
        shares.append(len(held[0]) / 10)
    # A bootstrap of ten leaves out (1 - 1/10)^10 = 0.349 of them on average.
    assert np.mean(shares) == pytest.approx(1 - 0.9**10, abs=0.02)


def test_resampling_spreads_as_secrets_do_and_not_as_groups() -> None:
    """Few secrets in many groups: the mean over groups moves as the mean of the secrets does."""
    generator = np.random.default_rng(1)
    losses = generator.normal(2.0, 0.5, size=40)
    groups = drawn(GroupPlan(groups=1000, size=10))
    means = [groups.redrawn(generator).sums(losses)[:500].mean() / 10 for _ in range(200)]
    by_secrets = losses[:20].std() / np.sqrt(20)
    assert np.std(means) == pytest.approx(by_secrets, rel=0.25)
    naive = groups.sums(losses)[:500].std() / 10 / np.sqrt(500)
    assert naive < by_secrets / 5


@pytest.mark.parametrize("broken", [{"size": 0}, {"groups": 3}, {"members": 0}])
def test_bad_plans_are_refused(broken: dict[str, int]) -> None:
    with pytest.raises(InputError):
        GroupPlan(**broken)


def test_too_few_texts_are_refused() -> None:
    with pytest.raises(InputError, match="do not fill a group"):
        drawn(GroupPlan(size=21))
    with pytest.raises(InputError, match="one label"):
        draw_groups([True], ["a", "b"])
