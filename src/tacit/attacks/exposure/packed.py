"""Every candidate's score: the whole tree in a few forward passes, many nodes side by side in one row.

Tree attention: the nodes of a block are the tokens of one sequence, each of which attends to the prefix, to
its ancestors and to itself, at the position that its depth gives it. Keys and values are neither gathered
nor copied. A block is a run of the tree's nodes in depth-first order behind the ancestors of its first node:
every ancestor of a node in the run is in the run or among those.

Only for transformers in which a probe shows that such a mask is obeyed; others, and LSTMs, take the batched
search of ``ranking`` without a threshold, which finds the same.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from tacit.attacks.exposure.candidates import UNKNOWN, CandidateTrie
from tacit.attacks.exposure.ranking import Found, Rule, branch_and_bound
from tacit.attacks.exposure.states import ModelScorer, Root, Scorer, branch, log_probabilities
from tacit.attacks.exposure.token_tree import ROOT, FloatArray, IntArray, TokenRows, TokenTree
from tacit.models.lstm import LSTMState
from tacit.progress import Progress, Silent

_BLOCK: Final = 256  # nodes: enough to fill the matrix products, few enough for a mask that stays in cache
_LOGITS_HELD: Final = 32 << 20


def enumerate_all(
    scorer: Scorer,
    trie: CandidateTrie,
    root: Root,
    rule: Rule,
    *,
    rows: int | None = None,
    block: int | None = None,
    progress: Progress | None = None,
) -> Found:
    """The values of all candidates that are not known ones, packed where the model allows it."""
    if isinstance(scorer, ModelScorer) and obeys_tree_mask(scorer, root, trie.prefix):
        return enumerate_packed(scorer, trie, root, rule, block=block, progress=progress)
    return branch_and_bound(scorer, trie, root, rule, rows=rows)


def enumerate_packed(
    scorer: ModelScorer,
    trie: CandidateTrie,
    root: Root,
    rule: Rule,
    *,
    block: int | None = None,
    progress: Progress | None = None,
) -> Found:
    """The same by tree attention; the model must obey its mask."""
    tree = trie.tree
    sums = np.zeros(len(tree))
    positions = 0
    _tell(tree, sums, np.array([ROOT]), root.scored.log_probs.numpy())
    layout = _depth_first(tree)
    size = block or max(1, min(_BLOCK, _LOGITS_HELD // root.scored.log_probs.shape[1]))
    progress = progress or Silent()
    progress.phase("scoring all candidates", len(layout.nodes))
    for first in range(0, len(layout.nodes), size):
        run = np.arange(first, min(first + size, len(layout.nodes)))
        places = np.concatenate([layout.ancestors(first), run])
        log_probs = _forward(scorer, root, layout, places)
        positions += len(places)
        _tell(tree, sums, layout.nodes[run], log_probs[len(places) - len(run) :].numpy())
        progress.advance(len(run))
    _add_up(tree, sums)
    leaves = np.flatnonzero(tree.ends)
    unknown = trie.labels(leaves, np.empty((0, 0), np.int32)) == UNKNOWN
    leaves = leaves[unknown]
    nothing: IntArray = np.empty(0, dtype=np.int64)
    return Found(
        values=rule.value(sums[leaves], tree.depth[leaves]),
        nodes=leaves,
        threshold=-math.inf,
        open_sums=np.empty(0),
        open_leaves=np.empty(0),
        open_longest=nothing,
        positions=positions,
    )


@torch.inference_mode()
def obeys_tree_mask(scorer: ModelScorer, root: Root, prefix: tuple[int, ...]) -> bool:
    """Whether packed nodes get the predictions of the plain path: found out on a tiny tree, not assumed."""
    attention = getattr(scorer.model.config, "_attn_implementation", None)
    if isinstance(root.scored.state, LSTMState) or attention not in ("sdpa", "eager"):
        return False
    size = root.scored.log_probs.shape[1]
    first, second, third = (token % size for token in (prefix[-1] + 1, prefix[-1] + 2, prefix[-1] + 3))
    sequences = [(first, second, third), (first, third, third), (second, first, third), (third, third, third)]
    probe = CandidateTrie(prefix, TokenRows.of(sorted(set(sequences))), [])
    plain = branch_and_bound(scorer, probe, root, Rule("logprob"))
    try:
        packed = enumerate_packed(scorer, probe, root, Rule("logprob"))
    except (TypeError, ValueError, RuntimeError, IndexError):
        return False
    by_node = plain.values[np.argsort(plain.nodes)]
    return bool(np.abs(by_node - packed.values).max() <= 10 * scorer.tolerance)


@dataclass(frozen=True, eq=False, repr=False)
class _DepthFirst:
    """Nodes with children, without the root, depth first; a node's tree ends before ``ends``."""

    nodes: IntArray
    ends: IntArray
    tokens: IntArray
    depths: IntArray

    def ancestors(self, place: int) -> IntArray:
        """The places above one, from the root down."""
        before = np.arange(place)
        return before[self.ends[:place] > place]


def _depth_first(tree: TokenTree) -> _DepthFirst:
    inner = np.flatnonzero(tree.open)[1:]
    # Ancestors begin at the same row or before it; at the same row the shallower node comes first.
    nodes = inner[np.lexsort((tree.depth[inner], tree.first_row[inner]))]
    first = tree.first_row[nodes]
    ends = np.searchsorted(first, first + tree.rows[nodes], side="left")
    return _DepthFirst(nodes, ends, tree.token[nodes].astype(np.int64), tree.depth[nodes].astype(np.int64))


def _tell(tree: TokenTree, steps: FloatArray, nodes: IntArray, log_probs: Any) -> None:
    """Note the log-probability of each child of some nodes behind its parent."""
    parent, child = tree.children_of(nodes)
    steps[child] = log_probs[parent, tree.token[child]]


def _add_up(tree: TokenTree, steps: FloatArray) -> None:
    """From steps to sums, in place: parents stand in the level above, and theirs are sums already."""
    for depth in range(1, int(tree.depth[-1])):
        parents = np.flatnonzero(tree.open & (tree.depth == depth))
        parent, child = tree.children_of(parents)
        steps[child] += steps[parents[parent]]


@torch.inference_mode()
def _forward(scorer: ModelScorer, root: Root, layout: _DepthFirst, places: IntArray) -> Tensor:
    """Log-probabilities [places, V] after each node."""
    length = root.prefix_tokens + 1
    above = (places[None, :] <= places[:, None]) & (places[:, None] < layout.ends[places][None, :])
    allowed = torch.ones(len(places), length + len(places), dtype=torch.bool)
    allowed[:, length:] = torch.from_numpy(above)
    mask = allowed[None, None]
    if scorer.model.config._attn_implementation != "sdpa":
        dtype = scorer.model.get_input_embeddings().weight.dtype
        mask = torch.zeros(mask.shape, dtype=dtype).masked_fill(~mask, torch.finfo(dtype).min)
    output = scorer.model(
        input_ids=torch.from_numpy(layout.tokens[places])[None].to(scorer.device),
        position_ids=torch.from_numpy(length + layout.depths[places] - 1)[None].to(scorer.device),
        attention_mask=mask.to(scorer.device),
        past_key_values=branch(root.scored.state),
        use_cache=True,
    )
    return log_probabilities(output.logits[0])
