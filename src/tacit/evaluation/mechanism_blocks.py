"""Held-out text as the SubMix paper queries it: blocks, and stretches of blocks that share one budget.

Every position of a block is one query, answered from the start token and the block's own earlier tokens.
A *stretch* of B queries is a run of whole blocks with at most B tokens, as many as fit; each stretch has a
fresh budget, and no block is in two. With blocks of L tokens and B a multiple of L a stretch has exactly B
queries; otherwise it has fewer, and how many is told.

Users come in an order that a fixed seed draws and that no text decides; each user's blocks stay together.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tacit.corpus import UserCorpus
from tacit.corpus.corpus_folder import passing_storage
from tacit.errors import InputError
from tacit.models.loading import PublicModel
from tacit.progress import Progress
from tacit.training.encoding import EncodedCorpus, IntArray, encode

WANTED_STRETCHES = 20
USUAL_QUERIES = 1024
_ORDER_SEED = 0


@dataclass(frozen=True)
class HeldOutBlocks:
    """Blocks in the order in which they are asked about."""

    tokens: tuple[npt.NDArray[np.int64], ...]  # the tokens of each block, without the start token
    user: IntArray  # [blocks] whose block it is
    block_size: int
    start_token: int

    def __post_init__(self) -> None:
        if not self.tokens:
            raise InputError("No held-out block to measure on; hold out more text.")

    def __len__(self) -> int:
        """Number of blocks."""
        return len(self.tokens)

    @property
    def lengths(self) -> IntArray:
        """Queries of each block."""
        return np.array([len(block) for block in self.tokens], dtype=np.int64)

    @property
    def starts(self) -> IntArray:
        """[blocks + 1] block b is the queries starts[b] : starts[b + 1]."""
        return np.concatenate([[0], np.cumsum(self.lengths)])

    def first(self, count: int) -> HeldOutBlocks:
        """The first ``count`` blocks."""
        return HeldOutBlocks(self.tokens[:count], self.user[:count], self.block_size, self.start_token)

    def inputs(self, block: int) -> npt.NDArray[np.int64]:
        """[tokens] what a model reads to predict every token of a block."""
        return np.concatenate([[self.start_token], self.tokens[block][:-1]])


@dataclass(frozen=True)
class Stretch:
    """Blocks ``first`` to ``last`` (not included), with ``queries`` tokens in all."""

    first: int
    last: int
    queries: int


def blocks_of_text(
    corpus: UserCorpus, public: PublicModel, *, block_size: int, progress: Progress
) -> HeldOutBlocks:
    """All blocks of a corpus."""
    if block_size > public.context_length:
        progress.remark(f"blocks of {public.context_length} tokens: the model's context takes no more")
        block_size = public.context_length
    with passing_storage() as folder:
        storage = folder / "tokens.int32"
        encoded = encode(corpus, public.tokenizer, block_size=block_size, storage=storage, progress=progress)
        return blocks_of_pieces(encoded, block_size)


def blocks_of_pieces(encoded: EncodedCorpus, block_size: int) -> HeldOutBlocks:
    """The pieces of an encoded corpus, user by user, in an order drawn by a fixed seed."""
    place = np.random.default_rng(_ORDER_SEED).permutation(len(encoded.users))
    order = np.argsort(place[encoded.piece_user], kind="stable")
    tokens = tuple(np.array(encoded.piece(piece), dtype=np.int64) for piece in order)
    return HeldOutBlocks(tokens, encoded.piece_user[order], block_size, encoded.start_token)


def stretches(blocks: HeldOutBlocks, queries: int) -> tuple[Stretch, ...]:
    """The disjoint stretches of at most ``queries`` queries; at least one, or the text is refused."""
    lengths = blocks.lengths.tolist()
    if queries < max(lengths):
        raise InputError(
            f"queries={queries} is less than a block of {max(lengths)} tokens, and a budget is measured on "
            f"whole blocks; give more queries, or a block size of at most {queries}."
        )
    found: list[Stretch] = []
    first = total = 0
    for block, length in enumerate(lengths):
        if total + length > queries:
            found.append(Stretch(first, block, total))
            first, total = block, 0
        total += length
    if total == queries:
        found.append(Stretch(first, len(lengths), total))
    # A last stretch that the text ran out on has an easier budget than the others: it is left out.
    if not found:
        raise InputError(
            f"The held-out text has {sum(lengths):,} tokens, less than one stretch of {queries:,} queries; "
            "lower the queries, allow more blocks, or hold out more text."
        )
    return tuple(found)


def fitting_queries(blocks: HeldOutBlocks) -> int:
    """The usual number of queries, or the largest half, quarter, ... of it with enough stretches."""
    longest = int(blocks.lengths.max())
    queries = USUAL_QUERIES
    while queries >= longest:
        if int(blocks.lengths.sum()) >= queries and len(stretches(blocks, queries)) >= WANTED_STRETCHES:
            return queries
        queries //= 2
    return longest


def enough_blocks(blocks: HeldOutBlocks, queries: int) -> HeldOutBlocks:
    """No more blocks than the wanted number of stretches takes; all where there are not so many."""
    found = stretches(blocks, queries)
    if len(found) <= WANTED_STRETCHES:
        return blocks
    last = found[WANTED_STRETCHES - 1]
    # A stretch that is not full ends with the block that no longer fits, which has to be there.
    return blocks.first(last.last if last.queries == queries else last.last + 1)
