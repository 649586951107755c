"""The exact rank of secrets among all candidates, by branch and bound.

Adding tokens only lowers a log-probability. So a node whose log-probability is below the target's has no
better candidate below it, and is cut. The survivors at one depth are disjoint events, each at least as
likely as the target: there are at most 1/p of them, however many candidates there are. Hence also

* rank <= 1/p: exposure is at least log2(|R| p), from the target's own forward pass;
* with open nodes v left, C better candidates seen and S(v) the log-probability of v,
  rank is in [1 + C, 1 + C + sum_v min(leaves(v), floor(e^S(v) / p))]: the anytime interval.

By perplexity (the mean over all tokens of prefix and candidate) a node is cut where even its longest
candidate, were all its further tokens certain, would have a lower mean; means are negative, so that longer
is better.

Where candidates nest (one is the beginning of another), at most ``nested`` of them end on one way down and
their probabilities sum to at most that: the same bounds hold times ``nested``.

Traps. The target is scored by the same path as all others, and left out of its own rank by identity.
Rounding moves sums by some 1e-5: candidates within the tolerance of the target may be better or worse, which
makes a rank an interval. Other secrets behind the same prefix compete: ranks come with and without those
that were inserted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

import numpy as np
import torch

from tacit.attacks.exposure.candidates import UNKNOWN, CandidateTree
from tacit.attacks.exposure.states import Root, Scorer
from tacit.attacks.exposure.token_tree import FloatArray, IntArray, SmallIntArray
from tacit.errors import InputError

ScoreKind = Literal["logprob", "perplexity"]
_CHILDREN_AT_ONCE: Final = 2_000_000


@dataclass(frozen=True)
class Rule:
    """How candidates are compared: a higher value is a better candidate."""

    kind: ScoreKind
    prefix_log_probability: float = 0.0
    prefix_tokens: int = 0

    def __post_init__(self) -> None:
        if self.kind not in get_args(ScoreKind):
            raise InputError(f"Expected score={self.kind!r} to be logprob or perplexity.")

    @classmethod
    def of(cls, kind: ScoreKind, root: Root) -> Rule:
        """The rule behind one prefix."""
        return cls(kind, root.prefix_log_probability, root.prefix_tokens)

    def value(self, sums: FloatArray, lengths: Any) -> FloatArray:
        """What sums of log-probabilities over ``lengths`` tokens are worth, or can be worth at best."""
        if self.kind == "logprob":
            return sums
        mean: FloatArray = (self.prefix_log_probability + sums) / (self.prefix_tokens + lengths)
        return mean

    def least_log_probability(self, value: FloatArray, longest: Any) -> FloatArray:
        """A candidate of at most ``longest`` tokens and at least this value is at least so likely."""
        if self.kind == "logprob":
            return value
        least: FloatArray = value * (self.prefix_tokens + longest) - self.prefix_log_probability
        return least

    def band(self, tolerance: float) -> float:
        """Rounding of a value, from that of a sum."""
        return tolerance if self.kind == "logprob" else tolerance / (self.prefix_tokens + 1)


@dataclass(frozen=True, eq=False, repr=False)
class Walked:
    """Known candidates: their log-probabilities, values, the band of rounding, and what finding them cost.

    at_most [m] is the rank that none can exceed, from the probability alone.
    """

    log_probabilities: FloatArray
    lengths: IntArray
    values: FloatArray
    band: float
    at_most: FloatArray
    positions: int


@dataclass(frozen=True, eq=False, repr=False)
class Found:
    """What a search saw.

    values     of all candidates that are not known ones and at least as good as the threshold
    nodes      where those candidates end
    threshold  the value below which nothing was followed
    open_*     nodes that a budget left unopened: log-probability, candidates below, and longest candidate
    positions  at how many places the model was asked
    """

    values: FloatArray
    nodes: IntArray
    threshold: float
    open_sums: FloatArray
    open_leaves: FloatArray
    open_longest: IntArray
    positions: int

    @property
    def complete(self) -> bool:
        """Whether nothing was left open."""
        return not len(self.open_sums)


@dataclass(frozen=True)
class Rank:
    """The rank of one secret, as an interval, among all candidates and without others that were inserted.

    The low end counts candidates that are better beyond rounding, the high end all that are not worse beyond
    rounding: ties make them differ. ``candidates`` and ``alone_candidates`` are what each rank is among.
    """

    low: int
    high: int
    alone_low: int
    alone_high: int
    candidates: int
    alone_candidates: int

    def __post_init__(self) -> None:
        whole = 1 <= self.low <= self.high <= self.candidates
        if not (whole and 1 <= self.alone_low <= self.alone_high <= self.alone_candidates):
            raise ValueError("Expected 1 <= low <= high <= candidates, with and without the other secrets.")


@dataclass(frozen=True)
class Ranked:
    """A rank, and whether nothing that a search left open could change it."""

    rank: Rank
    exact: bool


def walk(scorer: Scorer, tree: CandidateTree, root: Root, rule: Rule, *, rows: int | None = None) -> Walked:
    """Score the known candidates by the path that the search takes too: root, then step by step."""
    lengths = np.array([len(sequence) for sequence in tree.known], dtype=np.int64)
    at_once = rows or scorer.rows_at_once(root, tree.longest)
    sums, positions = np.zeros(len(lengths)), 0
    for first in range(0, len(lengths), at_once):
        some = slice(first, first + at_once)
        sums[some], asked = _walk_together(scorer, root, tree.known[some])
        positions += asked
    values = rule.value(sums, lengths)
    least = rule.least_log_probability(values, tree.longest) - scorer.tolerance
    with np.errstate(over="ignore"):
        at_most = np.minimum(np.floor(tree.nested * np.exp(-least)), float(tree.candidates))
    return Walked(sums, lengths, values, rule.band(scorer.tolerance), np.maximum(at_most, 1.0), positions)


def _walk_together(scorer: Scorer, root: Root, known: Sequence[tuple[int, ...]]) -> tuple[FloatArray, int]:
    sums = np.zeros(len(known))
    lengths = np.array([len(sequence) for sequence in known])
    scored, positions = root.scored, 0
    rows = np.zeros(len(known), dtype=np.int64)  # of each candidate in the last step
    going = np.arange(len(known))
    for depth in range(int(lengths.max(initial=0))):
        tokens = np.array([known[one][depth] for one in going.tolist()], dtype=np.int64)
        sums[going] += scored.log_probs.numpy()[rows[going], tokens].astype(np.float64)
        onward = lengths[going] > depth + 1
        going, tokens = going[onward], tokens[onward]
        if not len(going):
            break
        chosen = scorer.select(scored.state, torch.from_numpy(rows[going]))
        scored = scorer.step(chosen, torch.from_numpy(tokens))
        positions += len(going)
        rows[going] = np.arange(len(going))
    return sums, positions


def branch_and_bound(
    scorer: Scorer,
    tree: CandidateTree,
    root: Root,
    rule: Rule,
    *,
    threshold: float = -math.inf,
    budget: float = math.inf,
    rows: int | None = None,
) -> Found:
    """Find every candidate whose value is at least ``threshold``, asking at no more than ``budget`` places.

    Depth first, the likeliest nodes of a level first, ``rows`` at a time: memory is that of a few steps,
    whatever the number of candidates.
    """
    at_once = rows or scorer.rows_at_once(root, tree.longest)
    if at_once < 1:
        raise InputError(f"Expected rows={at_once} >= 1, e.g. 512.")
    search = _Search(tree, rule, threshold)
    start = _Pending(
        np.array([tree.root]), np.zeros(1), np.empty((1, 0), np.int32), np.zeros(1, np.int64), None, 0
    )
    search.open(start, root.scored.log_probs, root.scored.state)
    positions = 0
    while search.stack and positions < budget:
        taken = search.take(int(min(at_once, budget - positions)))
        state = scorer.select(taken.state, torch.from_numpy(taken.rows))
        scored = scorer.step(state, torch.from_numpy(taken.paths[:, -1].astype(np.int64)))
        positions += len(taken.nodes)
        search.open(taken, scored.log_probs, scored.state)
    return search.found(positions)


def ranks(
    tree: CandidateTree,
    rule: Rule,
    walked: Walked,
    found: Found,
    inserted: Sequence[bool],
    targets: Sequence[int],
) -> list[Ranked]:
    """The ranks of some known candidates; each must be at least as good as the search's threshold."""
    if len(inserted) != len(tree.known):
        raise InputError(f"Expected inserted to say so of {len(tree.known)} secrets, not of {len(inserted)}.")
    ordered = np.sort(found.values)
    result = []
    for target in targets:
        value = walked.values[target]
        if value - walked.band < found.threshold:
            raise InputError(
                "The search did not go down to this secret's score; search with a lower threshold."
            )
        better = len(ordered) - int(np.searchsorted(ordered, value + walked.band, side="right"))
        not_worse = len(ordered) - int(np.searchsorted(ordered, value - walked.band, side="left"))
        hidden = _open_at_most(tree, rule, found, value - walked.band)
        rank = rank_among(tree, walked, inserted, target, better, not_worse + hidden)
        result.append(Ranked(rank, hidden == 0))
    return result


def rank_among(
    tree: CandidateTree,
    walked: Walked,
    inserted: Sequence[bool],
    target: int,
    better: int,
    not_worse: int,
) -> Rank:
    """A rank from the candidates that are not known (``better`` to ``not_worse`` of them) and the known."""
    value, band = walked.values[target], walked.band
    low = high = alone_low = alone_high = 1
    others = 0
    for other, score in enumerate(walked.values):
        if other == target:
            continue
        low += score > value + band
        high += score >= value - band
        if inserted[other]:
            others += 1
        else:
            alone_low += score > value + band
            alone_high += score >= value - band
    at_most = int(walked.at_most[target])
    candidates, alone = tree.candidates, tree.candidates - others
    highest = min(int(high) + not_worse, at_most, candidates)
    alone_highest = min(int(alone_high) + not_worse, at_most, alone)
    return Rank(
        low=min(int(low) + better, highest),
        high=highest,
        alone_low=min(int(alone_low) + better, alone_highest),
        alone_high=alone_highest,
        candidates=candidates,
        alone_candidates=alone,
    )


def _open_at_most(tree: CandidateTree, rule: Rule, found: Found, value: float) -> int:
    """How many candidates below open nodes can have at least this value."""
    if found.complete:
        return 0
    least = rule.least_log_probability(np.full(len(found.open_sums), value), found.open_longest)
    with np.errstate(over="ignore"):
        by_mass = np.floor(tree.nested * np.exp(found.open_sums - least) * (1 + 1e-9))
    return int(np.minimum(found.open_leaves, by_mass).sum())


@dataclass(frozen=True, eq=False, repr=False)
class _Pending:
    """Nodes of one depth that are still to be opened; ``rows`` are their parents' in ``state``."""

    nodes: IntArray
    sums: FloatArray
    paths: SmallIntArray
    rows: IntArray
    state: Any
    depth: int

    def split(self, count: int) -> tuple[_Pending, _Pending]:
        head, tail = (
            _Pending(
                self.nodes[part], self.sums[part], self.paths[part], self.rows[part], self.state, self.depth
            )
            for part in (slice(None, count), slice(count, None))
        )
        return head, tail


class _Search:
    def __init__(self, tree: CandidateTree, rule: Rule, threshold: float) -> None:
        self._tree, self._rule, self._threshold = tree, rule, threshold
        self._values: list[FloatArray] = []
        self._nodes: list[IntArray] = []
        self.stack: list[_Pending] = []

    def take(self, count: int) -> _Pending:
        """Some of the deepest nodes."""
        head, tail = self.stack.pop().split(count)
        if len(tail.nodes):
            self.stack.append(tail)
        return head

    def open(self, nodes: _Pending, log_probs_BV: torch.Tensor, state: Any) -> None:
        """Look at the children of nodes whose predictions are known; keep what can reach the threshold."""
        log_probs = log_probs_BV.numpy()
        kept: list[_Pending] = []
        for part in _parts(self._tree.child_counts(nodes.nodes)):
            children = self._tree.expand(nodes.nodes[part])
            parent = children.parent + part.start
            sums = nodes.sums[parent] + log_probs[parent, children.token].astype(np.float64)
            longest = nodes.depth + 1 + self._tree.longest_below(children.node)
            # The best that can be below; for a leaf without children, its own value.
            keep = self._rule.value(sums, longest) >= self._threshold
            paths = np.concatenate(
                [nodes.paths[parent[keep]], children.token[keep, None].astype(np.int32)], axis=1
            )
            kept_nodes, kept_sums = children.node[keep], sums[keep]
            self._collect(kept_nodes, kept_sums, paths, children.leaf[keep])
            open_ = children.open[keep]
            kept.append(
                _Pending(
                    kept_nodes[open_],
                    kept_sums[open_],
                    paths[open_],
                    parent[keep][open_],
                    state,
                    nodes.depth + 1,
                )
            )
        merged = _merged(kept, state, nodes.depth + 1)
        if merged is not None:
            self.stack.append(merged)

    def _collect(self, nodes: IntArray, sums: FloatArray, paths: SmallIntArray, leaf: Any) -> None:
        values = self._rule.value(sums, paths.shape[1])
        chosen = leaf & (values >= self._threshold)
        labels = self._tree.labels(nodes[chosen], paths[chosen])
        # Known candidates are compared by their walk; here they would be counted a second time.
        self._values.append(values[chosen][labels == UNKNOWN])
        self._nodes.append(nodes[chosen][labels == UNKNOWN])

    def found(self, positions: int) -> Found:
        """What was seen and what was left open."""
        nodes = [pending.nodes for pending in self.stack]
        nothing: IntArray = np.empty(0, dtype=np.int64)
        return Found(
            values=np.concatenate([np.empty(0), *self._values]),
            nodes=np.concatenate([nothing, *self._nodes]),
            threshold=self._threshold,
            open_sums=np.concatenate([np.empty(0), *(pending.sums for pending in self.stack)]),
            open_leaves=np.concatenate([np.empty(0), *map(self._tree.leaves_below, nodes)]),
            open_longest=np.concatenate(
                [
                    nothing,
                    *(pending.depth + self._tree.longest_below(pending.nodes) for pending in self.stack),
                ]
            ),
            positions=positions,
        )


def _parts(counts: IntArray) -> list[slice]:
    """Nodes cut so that not too many children are looked at together."""
    parts, first, total = [], 0, 0
    for place, count in enumerate(counts.tolist()):
        if total + count > _CHILDREN_AT_ONCE and place > first:
            parts.append(slice(first, place))
            first, total = place, 0
        total += count
    return [*parts, slice(first, len(counts))]


def _merged(kept: Sequence[_Pending], state: Any, depth: int) -> _Pending | None:
    nodes = np.concatenate([part.nodes for part in kept])
    if not len(nodes):
        return None
    sums = np.concatenate([part.sums for part in kept])
    order = np.argsort(-sums, kind="stable")
    return _Pending(
        nodes[order],
        sums[order],
        np.concatenate([part.paths for part in kept])[order],
        np.concatenate([part.rows for part in kept])[order],
        state,
        depth,
    )
