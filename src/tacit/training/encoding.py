"""From documents to rows of token ids.

A *piece* is a run of at most ``block_size`` tokens of one document. Its model input is the start token
followed by all of its tokens but the last, and its labels are its tokens: every token is predicted once,
from the tokens before it in the same piece.

A *row* is what the model sees as one sequence. Packed rows hold several pieces, laid out so that a
position attends to earlier positions of its own piece only; unpacked rows hold one piece each.

Token ids live in one flat file, memory-mapped: a corpus larger than memory streams.
"""

from __future__ import annotations

import heapq
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from tacit.corpus import Document, UserCorpus
from tacit.errors import CorpusError
from tacit.files import PRIVATE_FILE_MODE
from tacit.models.likelihood import NO_LABEL
from tacit.models.tokenizer import MASK_TEXT, PublicTokenizer
from tacit.progress import Progress, Silent

IntArray = npt.NDArray[np.int64]
_DOCUMENTS_AT_ONCE = 512
NO_ROW = -1
"""Stands in a batch for a row that holds nothing: padding from end to end."""


@dataclass(frozen=True)
class EncodedCorpus:
    """Pieces of a corpus as token ids, with whose they are."""

    tokens: npt.NDArray[np.int32]
    starts: IntArray  # piece p holds tokens[starts[p] : starts[p + 1]]
    piece_user: IntArray  # index into `users`
    users: Sequence[str]
    user_bytes: IntArray  # UTF-8 bytes of each user's text, masks left out
    start_token: int
    piece_document: IntArray  # index of the document that a piece is of
    documents: int  # in all, also those without any token
    unlabelled: int | None = None  # a token that is read and never predicted: the mask of screened text

    def __len__(self) -> int:
        """Number of pieces."""
        return len(self.starts) - 1

    @cached_property
    def lengths(self) -> IntArray:
        """Tokens in each piece."""
        return np.diff(self.starts)

    @cached_property
    def labels(self) -> IntArray:
        """Tokens of each piece that are predicted."""
        if self.unlabelled is None:
            return self.lengths
        masks = np.concatenate([[0], np.cumsum(self.tokens == self.unlabelled)])
        return self.lengths - np.diff(masks[self.starts])

    def piece(self, index: int) -> npt.NDArray[np.int32]:
        """The tokens of one piece."""
        return self.tokens[self.starts[index] : self.starts[index + 1]]


def encode(
    corpus: UserCorpus,
    tokenizer: PublicTokenizer,
    *,
    block_size: int,
    storage: Path,
    end_token: int | None = None,
    learn_masks: bool = False,
    progress: Progress | None = None,
) -> EncodedCorpus:
    """Tokenise a corpus into pieces of at most ``block_size`` tokens.

    Args:
        corpus: documents; a corpus in blocks brings its own token ids and must have been cut with the
            same tokenizer.
        tokenizer: the public tokenizer.
        block_size: most tokens in a piece; a longer document becomes several pieces, each of which
            starts afresh from the start token.
        storage: file for the flat token ids, readable by its owner only.
        end_token: appended to every document where given, so that a model learns to stop.
        learn_masks: predict the masks of a screened corpus too. Otherwise they are context alone, and a
            document that is nothing but masks teaches nothing, not even where texts end.
        progress: told of every document.
    """
    if corpus.tokenizer_fingerprint not in (None, tokenizer.fingerprint):
        raise CorpusError(
            "The corpus was rendered or cut with another tokenizer; make it again with this model's."
        )
    progress = progress or Silent()
    progress.phase("tokenising", len(corpus))
    codes = {user: code for code, user in enumerate(corpus.users)}
    user_bytes = np.zeros(len(codes), dtype=np.int64)
    starts, piece_user, piece_document = [0], [], []
    unlabelled = tokenizer.mask_token if corpus.has_masks and not learn_masks else None
    descriptor = os.open(storage, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, PRIVATE_FILE_MODE)
    with os.fdopen(descriptor, "wb") as handle:
        for batch in _batches(corpus):
            for document, ids in zip(batch, _token_ids(batch, corpus, tokenizer), strict=True):
                code = codes[document.user]
                user_bytes[code] += len(document.text.encode()) - _mask_bytes(document, corpus)
                # A block was cut out of running text: its last token ends nothing.
                ends = end_token is not None and document.tokens is None
                teaches = unlabelled is None or any(token != unlabelled for token in ids)
                whole = [*ids, end_token] if ends and teaches else ids
                handle.write(np.asarray(whole, dtype=np.int32).tobytes())
                for size in piece_sizes(len(whole), block_size):
                    starts.append(starts[-1] + size)
                    piece_user.append(code)
                    piece_document.append(document.index)
            progress.advance(len(batch))
    if starts[-1] == 0:
        raise CorpusError("The corpus has no token; check the text column and the tokenizer.")
    return EncodedCorpus(
        tokens=np.memmap(storage, dtype=np.int32, mode="r"),
        starts=np.asarray(starts, dtype=np.int64),
        piece_user=np.asarray(piece_user, dtype=np.int64),
        users=corpus.users,
        user_bytes=user_bytes,
        start_token=tokenizer.start_token,
        piece_document=np.asarray(piece_document, dtype=np.int64),
        documents=len(corpus),
        unlabelled=unlabelled,
    )


def _mask_bytes(document: Document, corpus: UserCorpus) -> int:
    return document.text.count(MASK_TEXT) * len(MASK_TEXT) if corpus.has_masks else 0


def piece_sizes(tokens: int, block_size: int) -> list[int]:
    """As few pieces as possible, as equal as possible.

    Full blocks and a rest would make a piece of one token out of a document that is one token too long,
    and a mean over blocks of their perplexities would be ruled by such rests.
    """
    count = -(-tokens // block_size)
    return [tokens // count + (number < tokens % count) for number in range(count)]


def _batches(corpus: UserCorpus) -> Iterator[list[Document]]:
    batch: list[Document] = []
    for document in corpus.documents():
        batch.append(document)
        if len(batch) == _DOCUMENTS_AT_ONCE:
            yield batch
            batch = []
    if batch:
        yield batch


def _token_ids(
    batch: Sequence[Document], corpus: UserCorpus, tokenizer: PublicTokenizer
) -> list[Sequence[int]]:
    texts = [document.text for document in batch if document.tokens is None]
    control = corpus.has_control_tokens
    encoded = iter(tokenizer.encode(texts, control_tokens=control, masks=corpus.has_masks))
    return [next(encoded) if document.tokens is None else document.tokens for document in batch]


@dataclass(frozen=True)
class Batch:
    """What one forward pass needs."""

    inputs: dict[str, Any]  # arguments of the model's forward
    labels: torch.Tensor
    pieces: torch.Tensor  # which piece each position belongs to; -1 where the row is padded; on the CPU
    rows: IntArray  # which rows these are
    masks: int = 0  # positions that have a token and no label

    @property
    def label_count(self) -> int:
        """Tokens that are predicted."""
        return int((self.pieces >= 0).sum()) - self.masks


@dataclass(frozen=True)
class Rows:
    """Pieces laid out as rows."""

    corpus: EncodedCorpus
    pieces: Sequence[Sequence[int]]  # the pieces of each row, in order
    lengths: IntArray  # positions that each row uses
    packed: bool

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.pieces)

    @cached_property
    def labels(self) -> IntArray:
        """Tokens of each row that are predicted."""
        labels = self.corpus.labels
        return np.array([labels[pieces].sum() for pieces in self.pieces], dtype=np.int64)

    def only(self, rows: IntArray) -> Rows:
        """Some of the rows, numbered anew."""
        return Rows(self.corpus, [self.pieces[row] for row in rows], self.lengths[rows], self.packed)

    def batch(
        self,
        rows: IntArray,
        *,
        attention: str | None,
        pad_token: int,
        device: torch.device | str = "cpu",
        width: int | None = None,
    ) -> Batch:
        """Rows side by side, padded on the right to the longest.

        Args:
            rows: which rows; NO_ROW is one of padding alone, where a width is given.
            attention: the model's attention implementation, or None for a recurrent model.
            pad_token: any id of the vocabulary; padded positions predict nothing and are seen by nobody.
            device: where the model is.
            width: positions of every row. Given, it fixes every shape and which kernels run, whatever the
                rows hold.
        """
        fixed, width = width is not None, width or int(self.lengths[rows].max())
        input_ids = np.full((len(rows), width), pad_token, dtype=np.int64)
        labels = np.full((len(rows), width), NO_LABEL, dtype=np.int64)
        positions = np.zeros((len(rows), width), dtype=np.int64)
        pieces = np.full((len(rows), width), -1, dtype=np.int64)
        for line, row in enumerate(rows):
            begin = 0
            for piece in () if row == NO_ROW else self.pieces[row]:
                tokens = self.corpus.piece(piece)
                end = begin + len(tokens)
                input_ids[line, begin] = self.corpus.start_token
                input_ids[line, begin + 1 : end] = tokens[:-1]
                labels[line, begin:end] = tokens
                if self.corpus.unlabelled is not None:
                    labels[line, begin:end][tokens == self.corpus.unlabelled] = NO_LABEL
                positions[line, begin:end] = np.arange(len(tokens))
                pieces[line, begin:end] = piece
                begin = end
        inputs: dict[str, Any] = {"input_ids": torch.from_numpy(input_ids).to(device), "use_cache": False}
        if attention is not None:
            inputs["position_ids"] = torch.from_numpy(positions).to(device)
            if self.packed:
                mask = _own_piece_mask(torch.from_numpy(pieces), attention, always=fixed)
                inputs["attention_mask"] = None if mask is None else mask.to(device)
        masks = int((pieces >= 0).sum() - (labels != NO_LABEL).sum())
        return Batch(inputs, torch.from_numpy(labels).to(device), torch.from_numpy(pieces), rows, masks)


def side_by_side(batches: Sequence[Batch]) -> Batch:
    """Batches of one width as one, one after the other; row numbers stay each batch's own."""
    first = batches[0].inputs
    inputs = {
        name: torch.cat([batch.inputs[name] for batch in batches])
        if isinstance(value, torch.Tensor)
        else value
        for name, value in first.items()
    }
    labels, pieces = (torch.cat([getattr(b, name) for b in batches]) for name in ("labels", "pieces"))
    masks = sum(batch.masks for batch in batches)
    return Batch(inputs, labels, pieces, np.concatenate([batch.rows for batch in batches]), masks)


def _own_piece_mask(pieces: torch.Tensor, attention: str, *, always: bool) -> torch.Tensor | None:
    """Mask [B, 1, T, T]: a position sees itself and earlier positions of its own piece, nothing else."""
    if not always and bool((pieces == pieces[:, :1]).all()):
        return None  # one piece per row and no padding: plain causal attention, which has a faster kernel
    width = pieces.shape[1]
    causal = torch.ones(width, width, dtype=torch.bool).tril()
    allowed = ((pieces[:, :, None] == pieces[:, None, :]) & causal)[:, None]
    if attention == "sdpa":
        return allowed
    return torch.zeros(allowed.shape).masked_fill(~allowed, torch.finfo(torch.float32).min)


def lay_out(corpus: EncodedCorpus, *, block_size: int, packing: bool, pieces: IntArray | None = None) -> Rows:
    """Put pieces into rows: best-fit decreasing into rows of ``block_size``, or one piece to a row.

    With ``pieces`` only those are laid out, as if there were no others.
    """
    chosen = np.arange(len(corpus)) if pieces is None else pieces
    lengths = corpus.lengths[chosen]
    if not packing:
        return Rows(corpus, [[piece] for piece in chosen.tolist()], lengths, packed=False)
    rows: list[list[int]] = []
    used: list[int] = []
    # Rows with room, fullest first: (room left, row). A heap per room size keeps this O(pieces * block).
    room: list[list[int]] = [[] for _ in range(block_size + 1)]
    for number in np.argsort(-lengths, kind="stable"):
        length = int(lengths[number])
        fitting = next((left for left in range(length, block_size + 1) if room[left]), None)
        if fitting is None:
            row = len(rows)
            rows.append([])
            used.append(0)
        else:
            row = heapq.heappop(room[fitting])
        rows[row].append(int(chosen[number]))
        used[row] += length
        if used[row] < block_size:
            heapq.heappush(room[block_size - used[row]], row)
    return Rows(corpus, rows, np.asarray(used, dtype=np.int64), packed=True)
