"""Membership of groups: many weak signals added up (Confidentially Redacted Training, A.5).

A group holds some texts, all of them members or all look-alikes, and its score is a sum over them. Groups are
drawn from a pool of secrets that is much smaller than they are together, so that groups overlap: their scores
are not independent, and an interval over groups is too narrow. Every group therefore remembers which texts
and which secrets it holds, and :meth:`Groups.redrawn` makes the groups of a resampled pool: secrets are the
clusters to resample, never groups.

``perplexity_sum`` is the paper's score. It is dominated by the strangest text of a group;
``mean_log_perplexity`` is not, and stands beside it, as does ``mean_reference``, which takes off what a
reference model finds strange too. Groups have one size, so that sums order them as means do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from tacit.attacks.token_statistics import BoolArray, IntArray
from tacit.errors import InputError
from tacit.statistics import FloatArray

GroupScore = Literal["perplexity_sum", "mean_log_perplexity", "mean_reference"]


@dataclass(frozen=True)
class GroupPlan:
    """How many texts of each kind to take, and how many groups of which size to draw, half of each kind."""

    members: int = 1000
    look_alikes: int = 1000
    groups: int = 2000
    size: int = 20

    def __post_init__(self) -> None:
        for name in ("members", "look_alikes", "groups", "size"):
            if getattr(self, name) < 1:
                raise InputError(f"Expected {name}={getattr(self, name)} to be at least 1.")
        if self.groups % 2:
            raise InputError(f"Expected groups={self.groups} to be even: half of them hold members.")


PAPER: Final = GroupPlan()  # 1000 members and 1000 look-alikes, 2000 groups of 20


@dataclass(frozen=True)
class Groups:
    """Groups of texts.

    texts      [groups, size] numbers of the texts in each group
    is_member  [groups]
    secrets    the number of the secret that each text holds, by the text's number: the clusters
    pools      numbers of the texts that groups are drawn from, members first
    """

    texts: IntArray = field(repr=False)
    is_member: BoolArray = field(repr=False)
    secrets: IntArray = field(repr=False)
    pools: tuple[IntArray, IntArray] = field(repr=False)

    @property
    def secrets_held(self) -> IntArray:
        """[groups, size] the secrets in each group."""
        return self.secrets[self.texts]

    def sums(self, values: FloatArray) -> FloatArray:
        """[groups] the sum of the texts' values in each group."""
        if values.shape != self.secrets.shape:
            raise ValueError(f"Expected {len(self.secrets)} values, got shape {values.shape}.")
        found: FloatArray = values[self.texts].sum(axis=1)
        return found

    def redrawn(self, generator: np.random.Generator) -> Groups:
        """The groups of a pool whose secrets are drawn anew with replacement.

        One step of a bootstrap over secrets: a secret that is drawn twice brings its texts twice. Secrets of
        members, of look-alikes and of both (a canary and its twin) are drawn each for themselves, so that
        the two kinds stay as many as they were.
        """
        holds = [np.isin(np.arange(self.secrets.max() + 1), self.secrets[pool]) for pool in self.pools]
        kinds = 2 * holds[0] + holds[1]
        times = np.zeros(len(kinds), dtype=np.int64)
        for kind in (1, 2, 3):
            own = np.flatnonzero(kinds == kind)
            if len(own):
                times += np.bincount(generator.choice(own, len(own)), minlength=len(kinds))
        members, others = (np.repeat(pool, times[self.secrets[pool]]) for pool in self.pools)
        return self._drawn_from((members, others), generator)

    def _drawn_from(self, pools: tuple[IntArray, IntArray], generator: np.random.Generator) -> Groups:
        groups, size = self.texts.shape
        drawn = [_draw(pool, groups // 2, size, generator) for pool in pools]
        return replace(self, texts=np.concatenate(drawn), pools=pools)


def values_of(scores: Mapping[str, FloatArray]) -> dict[GroupScore, FloatArray]:
    """What each text adds to its group, from the texts' membership scores; higher means members."""
    found: dict[GroupScore, FloatArray] = {
        "perplexity_sum": scores["perplexity"],
        "mean_log_perplexity": scores["loss"],
    }
    if "reference" in scores:
        found["mean_reference"] = scores["reference"]
    return found


def draw_groups(
    is_member: npt.ArrayLike, secrets: Sequence[str], plan: GroupPlan = PAPER, *, seed: int = 0
) -> Groups:
    """Draw the plan's groups from texts that are members or look-alikes; the first half of them are members.

    ``secrets`` names what each text holds; texts that hold the same secret are one cluster. Where there are
    more texts of a kind than the plan takes, those it takes are drawn too. Within a group no text comes
    twice.
    """
    labels = np.asarray(is_member, dtype=np.bool_)
    if labels.shape != (len(secrets),):
        raise InputError(f"Expected one label for each of {len(secrets)} texts, got {labels.size}.")
    generator = np.random.default_rng(seed)
    pools = []
    for kind, wanted, name in ((True, plan.members, "members"), (False, plan.look_alikes, "look-alikes")):
        pool = generator.permutation(np.flatnonzero(labels == kind))[:wanted]
        if len(pool) < plan.size:
            raise InputError(
                f"{len(pool)} {name} do not fill a group of size={plan.size}; give more, or smaller groups."
            )
        pools.append(pool)
    numbers = {secret: number for number, secret in enumerate(dict.fromkeys(secrets))}
    half = plan.groups // 2
    empty = Groups(
        np.zeros((plan.groups, plan.size), dtype=np.int64),
        np.repeat([True, False], half),
        np.array([numbers[secret] for secret in secrets], dtype=np.int64),
        (pools[0], pools[1]),
    )
    return empty._drawn_from((pools[0], pools[1]), generator)


def _draw(pool: IntArray, groups: int, size: int, generator: np.random.Generator) -> IntArray:
    """[groups, size] without repetition within a group, as far as the pool has no repetition.

    Floyd's draw of a set, for all groups at once: ``size`` numbers each, however large the pool is. Every
    set is as likely; within a group the order is not.
    """
    if len(pool) < size:  # a resampled pool can be smaller where secrets have unequal numbers of texts
        return generator.choice(pool, (groups, size))
    chosen = np.empty((groups, size), dtype=np.int64)
    for column, last in enumerate(range(len(pool) - size, len(pool))):
        place = generator.integers(0, last + 1, size=groups)
        taken = (chosen[:, :column] == place[:, None]).any(axis=1)
        chosen[:, column] = np.where(taken, last, place)
    return pool[chosen]
