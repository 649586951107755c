"""Early stopping: the loss on public text, which `preparation` has read and checked."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tacit.progress import Progress
from tacit.recipes import EarlyStopSection
from tacit.training.encoding import Batch, Rows, encode, lay_out
from tacit.training.next_token import NextTokenTask
from tacit.training.preparation import Prepared

_ROWS_AT_ONCE = 8


@dataclass(frozen=True)
class PublicCheck:
    """The rows of the public text, and when to give up."""

    settings: EarlyStopSection
    task: NextTokenTask
    rows: Rows

    def loss(self) -> float:
        """Mean loss per token on the public text, as the model is now."""
        return self.task.mean_loss_of(self._batches())

    def _batches(self) -> Iterator[Batch]:
        # One at a time: their masks together can be larger than the model.
        for begin in range(0, len(self.rows), _ROWS_AT_ONCE):
            group = np.arange(begin, min(begin + _ROWS_AT_ONCE, len(self.rows)))
            yield self.task.batch_of(self.rows, group)


def public_check_for(
    prepared: Prepared, task: NextTokenTask, storage: Path, progress: Progress
) -> PublicCheck | None:
    """The check that the recipe asks for, if any."""
    settings = prepared.recipe.training.early_stop
    if settings is None or prepared.public_text is None:
        return None
    block_size = prepared.recipe.training.block_size
    encoded = encode(
        prepared.public_text,
        prepared.public.tokenizer,
        block_size=block_size,
        storage=storage / "public.int32",
        progress=progress,
    )
    return PublicCheck(settings, task, lay_out(encoded, block_size=block_size, packing=prepared.rows.packed))
