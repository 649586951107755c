"""Perplexity of a model on held-out text, with intervals over users.

``perplexity`` is the mean over held-out blocks of exp(mean negative log-likelihood of the block), as in
the SubMix paper: every token of a block is predicted from the start token and the block's earlier
tokens. ``user_perplexity`` is the mean over users of exp(mean negative log-likelihood of all of a user's
tokens): each person counts once. ``bits_per_byte`` compares models with different tokenizers, as long as
these keep the text: a tokenizer that writes one unknown token for any word it does not know makes such words
look cheap, so the share of unknown tokens is told beside it.

In screened text the masks are read and not counted: a model that knows where a secret stood would look
better than one that does not, and a raw text has no masks to predict. Blocks of nothing else are left out.

The numbers are functions of private text. They are for the operator; no guarantee covers them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from tacit.corpus import UserCorpus
from tacit.corpus.corpus_folder import passing_storage
from tacit.errors import InputError, TrainingDiverged
from tacit.models.likelihood import NextTokenLoss
from tacit.models.loading import PublicModel
from tacit.models.tokenizer import PublicTokenizer
from tacit.progress import Progress, Silent
from tacit.statistics import Estimate, FloatArray, bootstrap_over_users
from tacit.training.encoding import EncodedCorpus, encode, lay_out
from tacit.training.next_token import batch_arguments, can_pack, logits_of

_POSITIONS_AT_ONCE = 2048


@dataclass(frozen=True)
class Losses:
    """Negative log-likelihoods of one model on one corpus, summed as far as the statistics need."""

    users: tuple[str, ...]
    block_perplexity_sums: FloatArray  # [users] sum over the user's blocks of exp(mean loss)
    blocks: FloatArray  # [users]
    nats: FloatArray  # [users] total loss
    tokens: FloatArray  # [users]
    text_bytes: FloatArray  # [users]
    unknown_tokens: float
    block_size: int
    masks: int = 0  # tokens of screened text that stand for what was hidden: read, never counted

    def perplexity(self, *, confidence: float = 0.95) -> Estimate:
        """Mean over blocks of the block's perplexity."""
        return _ratio(self.block_perplexity_sums, self.blocks, confidence)

    def user_perplexity(self) -> Estimate:
        """Mean over users of the user's perplexity."""
        return _ratio(self.perplexity_by_user(), np.ones(len(self.users)))

    def bits_per_byte(self, *, confidence: float = 0.95) -> Estimate | None:
        """Bits that the model needs for a byte of text; None where tokens stand for no text at all."""
        if not self.text_bytes.any():
            return None
        return _ratio(self.nats / math.log(2), self.text_bytes, confidence)

    @property
    def unknown_share(self) -> float:
        """Share of tokens that stand for any word which the tokenizer does not know."""
        return self.unknown_tokens / float(self.tokens.sum())

    def perplexity_by_user(self) -> FloatArray:
        """exp(mean loss) over all tokens of each user."""
        return np.exp(self.nats / self.tokens)

    def to_json(self) -> dict[str, Any]:
        """Summary without anything about single users."""
        bits = self.bits_per_byte()
        return {
            "perplexity": self.perplexity().to_json(),
            "user_perplexity": self.user_perplexity().to_json(),
            "bits_per_byte": None if bits is None else bits.to_json(),
            "unknown_share": self.unknown_share,
            "users": len(self.users),
            "blocks": int(self.blocks.sum()),
            "tokens": int(self.tokens.sum()),
            "block_size": self.block_size,
            "masks_not_counted": self.masks,
        }


def perplexity_difference(one: Losses, other: Losses) -> Estimate:
    """perplexity(one) - perplexity(other) on the same blocks; users are resampled for both together."""
    if one.users != other.users or not np.array_equal(one.blocks, other.blocks):
        raise ValueError("The two models were not measured on the same blocks.")
    return _ratio(one.block_perplexity_sums - other.block_perplexity_sums, one.blocks)


def _ratio(numerator: FloatArray, denominator: FloatArray, confidence: float = 0.95) -> Estimate:
    return bootstrap_over_users(
        np.stack([numerator, denominator], axis=1), lambda t: t[..., 0] / t[..., 1], confidence=confidence
    )


def measure_losses(
    public: PublicModel,
    corpus: UserCorpus,
    *,
    block_size: int = 512,
    model: nn.Module | None = None,
    progress: Progress | None = None,
) -> Losses:
    """Teacher-forced losses of a model on every token of a corpus.

    Users whose text has no token (a tokenizer may drop spaces, say) are left out.

    Args:
        public: the public model: tokenizer, start token, and the model itself where ``model`` is None.
        corpus: held-out text.
        block_size: tokens in a block; shortened to the model's context.
        model: a fine-tuned model built on ``public.model``, e.g. with an adapter.
        progress: told of every block.

    Raises:
        TrainingDiverged: no finite perplexity comes of the losses.
    """
    progress = progress or Silent()
    if block_size > public.context_length:
        progress.remark(f"blocks of {public.context_length} tokens: the model's context takes no more")
        block_size = public.context_length
    with passing_storage() as folder:
        encoded = encode(
            corpus,
            public.tokenizer,
            block_size=block_size,
            storage=folder / "tokens.int32",
            progress=progress,
        )
        nats = _nats_by_piece(public, model or public.model, encoded, block_size, progress)
        unknown = int((encoded.tokens == _unknown_token(public.tokenizer, corpus)).sum())
    labels = encoded.labels
    tokens = np.bincount(encoded.piece_user, labels, minlength=len(encoded.users))
    measured = tokens > 0
    if not measured.any():
        raise InputError("The text has nothing but masks to measure on; give text that has more.")

    def by_user(values: FloatArray) -> FloatArray:
        sums = np.bincount(encoded.piece_user, values, minlength=len(encoded.users))
        return sums[measured].astype(np.float64)

    with np.errstate(over="ignore"):  # infinite is told below
        blocks = np.exp(nats / labels.clip(min=1))
    found = Losses(
        users=tuple(user for user, told in zip(encoded.users, measured, strict=True) if told),
        block_perplexity_sums=by_user(np.where(labels > 0, blocks, 0.0)),
        blocks=by_user((labels > 0).astype(np.float64)),
        nats=by_user(nats),
        tokens=tokens[measured].astype(np.float64),
        text_bytes=encoded.user_bytes[measured].astype(np.float64),
        unknown_tokens=unknown,
        block_size=block_size,
        masks=int((encoded.lengths - labels).sum()),
    )
    with np.errstate(over="ignore"):
        perplexities = found.block_perplexity_sums.sum() + found.perplexity_by_user().sum()
    if not np.isfinite(perplexities):
        raise TrainingDiverged(
            "The perplexity of the model on this text is not finite: its training diverged; lower "
            "training.learning_rate and train again."
        )
    return found


def _unknown_token(tokenizer: PublicTokenizer, corpus: UserCorpus) -> int:
    """The token that stands for unknown words, or -1."""
    unknown = tokenizer.tokenizer.unk_token_id
    # Many tokenizers name their end token so without ever using it for words; a chat template writes it.
    ends_texts = corpus.has_control_tokens and unknown in tokenizer.stop_tokens
    return -1 if unknown is None or ends_texts else int(unknown)


@torch.no_grad()
def _nats_by_piece(
    public: PublicModel, model: nn.Module, encoded: EncodedCorpus, block_size: int, progress: Progress
) -> FloatArray:
    losses = NextTokenLoss(model)
    rows = lay_out(encoded, block_size=block_size, packing=can_pack(public))
    arguments = batch_arguments(public)
    nats = np.zeros(len(encoded), dtype=np.float64)
    order = np.argsort(rows.lengths, kind="stable")
    size = max(1, _POSITIONS_AT_ONCE // block_size)
    model.eval()
    progress.phase("measuring perplexity", len(rows))
    for begin in range(0, len(order), size):
        batch = rows.batch(order[begin : begin + size], **arguments)
        per_token = losses.per_token(partial(logits_of, model, batch), batch.labels)
        real = batch.pieces >= 0
        np.add.at(nats, batch.pieces[real].numpy(), per_token.cpu()[real].double().numpy())
        progress.advance(len(batch.rows))
    return nats
