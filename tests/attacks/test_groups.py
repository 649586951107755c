"""Groups of texts: the paper's numbers, what a group holds, and resampling by secrets."""

from __future__ import annotations

import numpy as np
import pytest

from tacit.attacks.groups import PAPER, GroupPlan, Groups, draw_groups
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


def test_scores_are_sums_over_the_texts_of_a_group() -> None:
    groups = drawn(GroupPlan(groups=6, size=3))
    losses = np.linspace(0.5, 4, 40)
    found = groups.scores(losses)
    for group, texts in enumerate(groups.texts):
        assert found.perplexity_sum[group] == pytest.approx(-sum(np.exp(losses[text]) for text in texts))
        assert found.mean_log_perplexity[group] == pytest.approx(-sum(losses[text] for text in texts) / 3)
    # Members have the lower losses, and higher scores.
    assert found.perplexity_sum[:3].min() > found.perplexity_sum[3:].max()
    with pytest.raises(ValueError, match="Expected 40 losses"):
        groups.scores(losses[:5])


def test_one_strange_text_dominates_the_sum_and_not_the_mean() -> None:
    groups = drawn(GroupPlan(groups=2, size=20))
    losses = np.full(40, 2.0)
    losses[0], losses[20:] = 12.0, 2.3
    found = groups.scores(losses)
    assert found.perplexity_sum[0] < found.perplexity_sum[1]
    usual = groups.scores(np.where(np.arange(40) < 20, 2.0, 2.3))
    assert usual.perplexity_sum[0] > usual.perplexity_sum[1]


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
    means = [groups.redrawn(generator).scores(losses).mean_log_perplexity[:500].mean() for _ in range(200)]
    by_secrets = losses[:20].std() / np.sqrt(20)
    assert np.std(means) == pytest.approx(by_secrets, rel=0.25)
    naive = groups.scores(losses).mean_log_perplexity[:500].std() / np.sqrt(500)
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
