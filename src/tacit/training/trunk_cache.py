"""The trunk's hidden states for every row, computed once.

The states are a function of the public trunk and of private text: a disk cache is readable by its owner
only and lives in the Run's private folder until training ends.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from tacit.errors import EnvironmentProblem
from tacit.files import PRIVATE_FILE_MODE
from tacit.progress import Progress
from tacit.training.encoding import Batch, IntArray, Rows

_POSITIONS_AT_ONCE = 4096
_SHARE_OF_FREE_MEMORY = 0.8


class TrunkCache:
    """Hidden states entering the first trained layer, by row."""

    def __init__(self, states: Tensor, starts: IntArray) -> None:
        self._states = states
        self._starts = starts

    @classmethod
    def compute(
        cls,
        trunk: Callable[[Batch], Tensor],
        rows: Rows,
        make_batch: Callable[[IntArray], Batch],
        *,
        where: Literal["memory", "disk"],
        folder: Path,
        progress: Progress,
    ) -> TrunkCache:
        """Run the trunk over all rows.

        Rows are grouped by length in an order that depends on the rows alone. A resumed run therefore
        computes the same states bit for bit, although it may begin in the middle of an epoch.
        """
        starts = np.concatenate([[0], np.cumsum(rows.lengths)])
        order = np.argsort(rows.lengths, kind="stable")
        size = max(1, _POSITIONS_AT_ONCE // int(rows.lengths.max()))
        progress.phase("running the frozen trunk once", len(rows))
        states: Tensor | None = None
        for begin in range(0, len(order), size):
            batch = make_batch(order[begin : begin + size])
            hidden = trunk(batch)
            if states is None:
                shape = (int(starts[-1]), hidden.shape[-1])
                states = _allocate(shape, hidden.dtype, where, folder / "trunk.states", progress)
            for line, row in enumerate(batch.rows):
                states[starts[row] : starts[row + 1]] = hidden[line, : rows.lengths[row]]
            progress.advance(len(batch.rows))
        assert states is not None, "rows are never empty"  # noqa: S101
        return cls(states, starts)

    def states_for(self, batch: Batch) -> Tensor:
        """Hidden states in the layout of ``batch``; zero where it is padded."""
        width = batch.labels.shape[1]
        hidden = self._states.new_zeros(len(batch.rows), width, self._states.shape[-1])
        for line, row in enumerate(batch.rows):
            stored = self._states[self._starts[row] : self._starts[row + 1]]
            hidden[line, : len(stored)] = stored
        return hidden.to(batch.labels.device)


def _allocate(
    shape: tuple[int, int], dtype: torch.dtype, where: str, path: Path, progress: Progress
) -> Tensor:
    size = shape[0] * shape[1] * dtype.itemsize
    if where == "memory":
        if fits_in_memory(size):
            return torch.empty(shape, dtype=dtype)
        progress.remark(
            f"the trunk's states take {size / 2**30:.1f} GiB, more than the free memory: kept on disk instead"
        )
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, PRIVATE_FILE_MODE)
    try:
        # Claimed now: a full disk found out by writing to mapped memory would kill the process.
        os.posix_fallocate(descriptor, 0, size)
    except OSError:
        raise EnvironmentProblem(
            f"The trunk's states take {size / 2**30:.1f} GiB, which {path.parent} has no room for; "
            "set performance.trunk_cache=off or free disk space."
        ) from None
    finally:
        os.close(descriptor)
    flat = torch.from_file(str(path), shared=True, size=shape[0] * shape[1], dtype=dtype)
    return flat.view(shape)


def fits_in_memory(size: int) -> bool:
    """Whether this much can be held while leaving room for training itself."""
    return size <= _SHARE_OF_FREE_MEMORY * _free_memory()


def _free_memory() -> float:
    """Bytes that the machine and the container still have; infinite where neither says."""
    free = [math.inf]
    with contextlib.suppress(OSError, ValueError):
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        free += [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    with contextlib.suppress(OSError, ValueError):  # ValueError: "max", where there is no limit
        group = Path("/sys/fs/cgroup")
        limit, used = (int((group / name).read_text()) for name in ("memory.max", "memory.current"))
        free.append(limit - used)
    return min(free)
