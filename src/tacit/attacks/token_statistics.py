"""What a model says of every token of some texts, teacher-forced: one forward pass for all scores.

Every token of a text is predicted once, the first from the start token. A text longer than the model's
context is cut as training cuts it: into as few and as equal pieces as possible, each behind its own start
token. Pieces run sorted by length, as many at a time as a budget of positions allows, padded on the right:
in a causal model nothing that counts can see the padding. What is kept is a handful of float64 numbers per
token; predictions over the vocabulary are never held for more than a bounded number of rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from tacit.errors import InputError, ModelError
from tacit.models.likelihood import NO_LABEL, NextTokenLoss
from tacit.models.loading import PublicModel
from tacit.models.tokenizer import PublicTokenizer
from tacit.models.trained import TrainedModel
from tacit.progress import Progress, Silent
from tacit.statistics import FloatArray

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
LanguageModel = PublicModel | TrainedModel

DEFAULT_POSITIONS = 2048  # positions, padding included, that run at a time


def public_of(model: LanguageModel) -> PublicModel:
    """The public model behind a model: its tokenizer, its start token and its context are the model's own."""
    return model.public if isinstance(model, TrainedModel) else model


@dataclass(frozen=True, repr=False)
class EncodedTexts:
    """Texts as token ids, in pieces that fit the model.

    pieces      token ids of each piece, in the order of the texts
    starts      text i has the pieces starts[i] to starts[i + 1]
    """

    pieces: Sequence[Sequence[int]]
    starts: IntArray
    start_token: int

    def __len__(self) -> int:
        """Number of texts."""
        return len(self.starts) - 1

    @property
    def lengths(self) -> IntArray:
        """Tokens in each piece."""
        return np.array([len(piece) for piece in self.pieces], dtype=np.int64)

    @property
    def token_starts(self) -> IntArray:
        """Text i has the tokens token_starts[i] to token_starts[i + 1] of all tokens in order."""
        ends: IntArray = np.concatenate([[0], np.cumsum(self.lengths)])
        return ends[self.starts]


@dataclass(frozen=True, repr=False)
class TokenStatistics:
    """What one model says of every token of some texts, all texts one behind the other; see `TokenLaws`."""

    starts: IntArray  # text i has the tokens starts[i] to starts[i + 1]
    losses: FloatArray
    means: FloatArray
    variances: FloatArray
    likeliest: BoolArray

    def __len__(self) -> int:
        """Number of texts."""
        return len(self.starts) - 1

    @property
    def tokens(self) -> IntArray:
        """Tokens in each text."""
        return np.diff(self.starts)

    def of(self, text: int) -> slice:
        """Where a text's tokens are."""
        return slice(int(self.starts[text]), int(self.starts[text + 1]))

    @property
    def mean_losses(self) -> FloatArray:
        """Mean loss of each text in nats: the logarithm of its perplexity."""
        return np.add.reduceat(self.losses, self.starts[:-1]) / self.tokens


def encode_texts(
    texts: Sequence[str], tokenizer: PublicTokenizer, context: int, *, control_tokens: bool = False
) -> EncodedTexts:
    """Encode texts for a model that reads ``context`` tokens, the start token included.

    ``control_tokens`` is for what a chat template wrote, as in `PublicTokenizer.encode`.
    """
    if not texts:
        raise InputError("There are no texts to score; give at least one.")
    pieces: list[Sequence[int]] = []
    starts = [0]
    for number, ids in enumerate(tokenizer.encode(texts, control_tokens=control_tokens)):
        if not ids:
            raise InputError(f"Text {number} has no token, so that it has no score; leave it out.")
        pieces.extend(_cut(ids, context))
        starts.append(len(pieces))
    return EncodedTexts(pieces, np.array(starts, dtype=np.int64), tokenizer.start_token)


def _cut(ids: Sequence[int], context: int) -> Iterator[Sequence[int]]:
    count = math.ceil(len(ids) / context)
    for number in range(count):
        yield ids[len(ids) * number // count : len(ids) * (number + 1) // count]


def token_statistics(
    encoded: EncodedTexts,
    model: LanguageModel,
    *,
    positions: int = DEFAULT_POSITIONS,
    progress: Progress | None = None,
) -> TokenStatistics:
    """Run a model over texts, once."""
    progress = progress or Silent()
    total = int(encoded.lengths.sum())
    numbers, likeliest = np.zeros((3, total)), np.zeros(total, dtype=np.bool_)
    laws = NextTokenLoss(model.model)
    progress.phase("scoring texts", len(encoded.pieces))
    for batch in batches(encoded, positions):
        found = laws.laws(partial(run, model.model, batch), batch.labels.to(_device(model.model)))
        real = batch.labels != NO_LABEL
        numbers[:, batch.places] = torch.stack([found.losses, found.means, found.variances]).cpu()[:, real]
        likeliest[batch.places] = found.likeliest.cpu()[real]
        progress.advance(len(batch.labels))
    return statistics_from(encoded, numbers, likeliest)


def statistics_from(encoded: EncodedTexts, numbers: FloatArray, likeliest: BoolArray) -> TokenStatistics:
    """Statistics from [3, tokens] losses, means and variances; what is not finite is refused."""
    if not np.isfinite(numbers).all():
        raise ModelError("The model's predictions are not finite numbers; it is damaged.")
    losses, means, variances = numbers
    return TokenStatistics(encoded.token_starts, losses, means, variances, likeliest)


@dataclass(frozen=True, repr=False)
class TextBatch:
    """Some pieces side by side: inputs and labels [rows, width], and each label's place among all tokens."""

    inputs: Tensor
    labels: Tensor
    places: IntArray


def batches(
    encoded: EncodedTexts, positions: int, count_from: Callable[[int], int] = lambda piece: 0
) -> Iterator[TextBatch]:
    """All pieces, similar lengths together; a batch has at most ``positions`` positions, or one piece.

    Tokens before ``count_from(piece)`` of a piece are read and have no label.
    """
    if positions < 1:
        raise InputError(f"Expected positions={positions} >= 1, e.g. {DEFAULT_POSITIONS}.")
    lengths = encoded.lengths
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    # The longest first: where memory is short, that shows at once and not at the end.
    order = np.argsort(-lengths, kind="stable")
    begin = 0
    while begin < len(order):
        width = int(lengths[order[begin]])
        rows = order[begin : begin + max(1, positions // width)]
        begin += len(rows)
        inputs = np.full((len(rows), width), encoded.start_token, dtype=np.int64)
        labels = np.full((len(rows), width), NO_LABEL, dtype=np.int64)
        places: list[IntArray] = []
        for line, piece in enumerate(rows):
            ids, first = encoded.pieces[piece], count_from(int(piece))
            inputs[line, 1 : len(ids)] = ids[:-1]
            labels[line, first : len(ids)] = ids[first:]
            places.append(np.arange(offsets[piece] + first, offsets[piece + 1]))
        yield TextBatch(torch.from_numpy(inputs), torch.from_numpy(labels), np.concatenate(places))


def run(model: nn.Module, batch: TextBatch) -> Tensor:
    """The model's logits for a batch, without dropout; its mode is left as it was."""
    was_training = model.training
    model.eval()
    try:
        logits: Tensor = model(input_ids=batch.inputs.to(_device(model)), use_cache=False).logits
    finally:
        model.train(was_training)
    return logits


def _device(model: nn.Module) -> torch.device:
    return next(model.parameters()).device
