"""How often the discriminator names the author right while it learns, epoch by epoch, and what chance gives.

A guess is counted before the discriminator's own step on that state, so that it is never one that it has just
been told. It is no measure of what a state gives away: the model has learnt against this one discriminator,
and at a low accuracy it may have been the discriminator that was weak. With batches of few authors it may lie
below chance, perhaps since it has just learnt other authors than those it is asked about. The measure is a
fresh probe on the finished model (`tacit audit`). Both are functions of private text, and for the operator
alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor

from tacit.training.authors import Authors


class AuthorGuesses:
    """Counts over the steps of a training run; a killed run goes on from what its checkpoint holds."""

    def __init__(self, authors: Authors, steps_per_epoch: int) -> None:
        of_sequences = authors.of_piece[authors.teaches]
        self._uniform = 1 / authors.count
        self._most_frequent = float(np.bincount(of_sequences).max() / len(of_sequences))
        self._steps_per_epoch = steps_per_epoch
        self._counts: list[list[int]] = []  # of each epoch: right, and all

    def add(self, step: int, logits_NM: Tensor, authors_N: Tensor) -> None:
        """The guesses of a 0-based step."""
        epoch = step // self._steps_per_epoch
        while len(self._counts) <= epoch:  # an epoch may have no sequence that teaches anything
            self._counts.append([0, 0])
        self._counts[epoch][0] += int((logits_NM.detach().argmax(dim=1) == authors_N).sum())
        self._counts[epoch][1] += len(authors_N)

    @property
    def seen(self) -> dict[str, Any]:
        """What a checkpoint holds."""
        return {"guesses": [list(one) for one in self._counts]}

    def go_on_from(self, seen: Mapping[str, Any]) -> None:
        """Count on from a checkpoint."""
        self._counts = [list(one) for one in seen.get("guesses", ())]

    @property
    def accuracy(self) -> float | None:
        """Of the last epoch, as far as it went; None where nothing was guessed."""
        right, count = self._counts[-1] if self._counts else (0, 0)
        return right / count if count else None

    def to_json(self) -> dict[str, Any]:
        """Accuracy of the last epoch and of each, the share of the largest author, and one over all."""
        return {
            "accuracy": self.accuracy,
            "most_frequent_author": self._most_frequent,
            "one_of_all_authors": self._uniform,
            "epochs": [{"right": right, "sequences": count} for right, count in self._counts],
        }

    def __str__(self) -> str:
        """One line for who watches the training."""
        if self.accuracy is None:
            return "the discriminator had nothing to guess"
        return (
            f"the discriminator named {self.accuracy:.1%} of the last epoch's authors right; the most "
            f"frequent author wrote {self._most_frequent:.1%}, one of all is {self._uniform:.1%}"
        )
