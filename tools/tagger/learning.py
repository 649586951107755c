"""The tagger's network in torch, with the rounding that the shipped one has, and its training.

The forward pass rounds weights and activations as ``tacit.corpus.screening.tagger.network`` does (gradients
pass through the rounding), so that what is learnt is what is shipped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from tacit.corpus.screening.tagger.features import ROWS, WordLists, plain_form, word_rows
from tacit.corpus.screening.tagger.network import DILATIONS, TOP, UNIT
from tacit.corpus.screening.tagger.tokens import split_tokens
from tacit.corpus.screening.tagger.weights import EMBEDDED, FLAGS, LABELS, SHIFT, WIDTH
from tools.tagger.sentences import Example

IGNORED = -1


@dataclass(frozen=True)
class Encoded:
    """One text: word types, whether each token touches the one before, labels (0 public, -1 not learnt)."""

    types: NDArray[np.int32]
    glued: NDArray[np.bool_]
    labels: NDArray[np.int8]


class Types:
    """Numbers word types and knows the rows of each."""

    def __init__(self, lists: WordLists) -> None:
        self._lists = lists
        self._number: dict[str, int] = {}
        self.rows: list[NDArray[np.int64]] = []
        self.weights: list[NDArray[np.float32]] = []
        self.kinds: list[NDArray[np.int8]] = []  # 0 the word and its lists, 1 shape, 2 pieces
        self.forgotten: list[float] = []  # how often the word is hidden in training

    def number(self, word: str) -> int:
        """Return a word's number, a new one where it is new."""
        known = self._number.get(word)
        if known is None:
            known = self._number[word] = len(self.rows)
            rows = word_rows(word, self._lists)
            own, pieces = (rows.word, *rows.lists), rows.pieces
            self.rows.append(np.array((*own, *rows.shape, *pieces), np.int64))
            # Names are new every day, usual words are not: forgotten too often, they are taken for names.
            usual = "common" in self._lists.on(plain_form(word)) or not word[0].isalpha()
            self.forgotten.append(0.03 if usual else 0.25)
            ones = len(own) + len(rows.shape)
            self.weights.append(np.array([1.0] * ones + [1 / max(1, len(pieces))] * len(pieces), np.float32))
            self.kinds.append(np.array([0] * len(own) + [1] * len(rows.shape) + [2] * len(pieces), np.int8))
        return known

    def encode(self, example: Example) -> Encoded:
        """Number an example's tokens and give each the label of the span that it is in."""
        tokens = split_tokens(example.text)
        labels = np.zeros(len(tokens.words), np.int8)
        starts = np.array(tokens.starts)
        for span in example.spans:
            first, last = np.searchsorted(starts, (span.start, span.end))
            if first and tokens.ends[first - 1] > span.start:
                first -= 1
            labels[first:last] = IGNORED if span.label == "?" else 1 + LABELS.index(span.label)
        numbers = np.fromiter(map(self.number, tokens.words), np.int32, len(tokens.words))
        return Encoded(numbers, np.array(tokens.glued(), bool), labels)


def rounded(values: Tensor, unit: float, low: float, high: float) -> Tensor:
    """Round to multiples of 1/unit within bounds; gradients pass through where the bounds do not bite."""
    bounded = values.clamp(low / unit, high / unit)
    return bounded + (torch.round(bounded * unit) / unit - bounded).detach()


class Learner(nn.Module):
    """Embedding table, convolutions and head."""

    def __init__(self, generator: torch.Generator) -> None:
        super().__init__()
        inputs = EMBEDDED + FLAGS
        self.table = nn.Parameter(0.1 * torch.randn(ROWS, EMBEDDED, generator=generator))
        self.kernels, self.biases = nn.ParameterList(), nn.ParameterList()
        for depth in range(len(DILATIONS)):
            fan_in = 3 * (WIDTH if depth else inputs)
            scale = (2 / fan_in) ** 0.5 * (0.5 if depth else 1.0)
            self.kernels.append(nn.Parameter(scale * torch.randn(fan_in, WIDTH, generator=generator)))
            self.biases.append(nn.Parameter(torch.zeros(WIDTH)))
        self.head = nn.Parameter(
            0.02 * torch.randn(len(DILATIONS) * WIDTH, 1 + len(LABELS), generator=generator)
        )
        self.head_bias = nn.Parameter(torch.zeros(1 + len(LABELS)))

    def forward(
        self, rows: Tensor, offsets: Tensor, weights: Tensor, types: Tensor, glued: Tensor, inside: Tensor
    ) -> Tensor:
        """Return logits [texts, tokens, 1 + labels]; the first is that a token is sensitive."""
        unit = 2.0**UNIT
        table = rounded(self.table, unit, -TOP, TOP)
        words = functional.embedding_bag(rows, table, offsets, mode="sum", per_sample_weights=weights)
        words = rounded(words, unit, -TOP, TOP)
        flags = torch.stack((glued, torch.ones_like(glued)), dim=-1) * (TOP / unit)
        hidden = torch.cat((words[types], flags), dim=-1) * inside[..., None]
        seen = []
        for depth, dilation in enumerate(DILATIONS):
            kernel = rounded(self.kernels[depth], 2.0**SHIFT, -TOP, TOP)
            outputs = _convolve(hidden, kernel, dilation) + self.biases[depth]
            if depth:
                outputs = outputs + hidden
            hidden = rounded(outputs, unit, 0, TOP) * inside[..., None]
            seen.append(hidden)
        head = rounded(self.head, 2.0**SHIFT, -TOP, TOP)
        logits: Tensor = torch.cat(seen, dim=-1) @ head + self.head_bias
        return logits


def _convolve(hidden: Tensor, kernel: Tensor, dilation: int) -> Tensor:
    left = functional.pad(hidden, (0, 0, dilation, 0))[:, :-dilation] if hidden.shape[1] else hidden
    right = functional.pad(hidden, (0, 0, 0, dilation))[:, dilation:]
    return torch.cat((left, hidden, right), dim=-1) @ kernel


def loss_of(logits: Tensor, labels: Tensor) -> Tensor:
    """Whether a token is sensitive, and what kind where it is."""
    known = labels != IGNORED
    sensitive = functional.binary_cross_entropy_with_logits(
        logits[..., 0][known], (labels[known] > 0).float()
    )
    positive = labels > 0
    if not positive.any():
        return sensitive
    return sensitive + 0.3 * functional.cross_entropy(logits[..., 1:][positive], labels[positive] - 1)


def make_batches(texts: Sequence[Encoded], rng: Random, tokens: int) -> list[list[int]]:
    """Group texts of like lengths; a batch has about ``tokens`` tokens with its padding."""
    order = list(range(len(texts)))
    rng.shuffle(order)
    batches = []
    for start in range(0, len(order), 8192):
        chunk = sorted(order[start : start + 8192], key=lambda i: len(texts[i].types))
        batch: list[int] = []
        for index in chunk:
            if batch and (len(batch) + 1) * len(texts[index].types) > tokens:
                batches.append(batch)
                batch = []
            batch.append(index)
        batches.append(batch)
    rng.shuffle(batches)
    return batches


def collate(
    texts: Sequence[Encoded], types: Types, rng: np.random.Generator | None
) -> tuple[list[Tensor], Tensor]:
    """Return the learner's inputs and labels; with a generator, words are forgotten at random.

    A forgotten word keeps shape and pieces: a name that was never seen looks like that.
    """
    longest = max(1, max(len(text.types) for text in texts))
    numbers = np.zeros((len(texts), longest), np.int64)
    glued = np.zeros((len(texts), longest), np.float32)
    inside = np.zeros((len(texts), longest), np.float32)
    labels = np.full((len(texts), longest), IGNORED, np.int64)
    for i, text in enumerate(texts):
        length = len(text.types)
        numbers[i, :length], glued[i, :length], inside[i, :length] = text.types, text.glued, 1
        labels[i, :length] = text.labels
    distinct, places = np.unique(numbers, return_inverse=True)
    rows = np.concatenate([types.rows[t] for t in distinct])
    weights = np.concatenate([types.weights[t] for t in distinct])
    sizes = np.array([len(types.rows[t]) for t in distinct])
    if rng is not None:
        kinds = np.concatenate([types.kinds[t] for t in distinct])
        fate = np.repeat(rng.random(len(distinct)), sizes)
        hidden = np.repeat([types.forgotten[t] for t in distinct], sizes)
        weights = weights * ~(((kinds == 0) & (fate < hidden)) | ((kinds == 2) & (fate > 0.95)))
    offsets = np.concatenate(([0], np.cumsum(sizes)[:-1]))
    inputs = (rows, offsets, weights.astype(np.float32), places.reshape(numbers.shape), glued, inside)
    return [torch.from_numpy(array) for array in inputs], torch.from_numpy(labels)


def learn(
    texts: Sequence[Encoded], types: Types, *, epochs: int, seed: int, tokens: int = 6144,
    report: Callable[[int, int, float], None] = lambda step, steps, loss: None,
) -> Learner:  # fmt: skip
    """Train a learner; one thread, one seed: the same weights each time."""
    learner = Learner(torch.Generator().manual_seed(seed))
    rng, noise = Random(seed), np.random.default_rng(seed)
    plan = [batch for _ in range(epochs) for batch in make_batches(texts, rng, tokens)]
    optimiser = torch.optim.AdamW(
        [
            {"params": [learner.table], "lr": 4e-3, "weight_decay": 1e-2},
            {
                "params": [p for name, p in learner.named_parameters() if name != "table"],
                "lr": 2e-3,
                "weight_decay": 1e-2,
            },
        ]
    )
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimiser, max_lr=[4e-3, 2e-3], total_steps=len(plan) + 1, pct_start=0.1, anneal_strategy="cos"
    )
    mean = 0.0
    for step, batch in enumerate(plan):
        inputs, labels = collate([texts[i] for i in batch], types, noise)
        loss = loss_of(learner(*inputs), labels)
        optimiser.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(learner.parameters(), 1.0)
        optimiser.step()
        schedule.step()
        mean = 0.98 * mean + 0.02 * float(loss.detach()) if step else float(loss.detach())
        if step % 50 == 0 or step + 1 == len(plan):
            report(step, len(plan), mean)
    return learner
