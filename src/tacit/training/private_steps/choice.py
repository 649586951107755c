"""Which engine, and how many rows at once: measured on made-up rows.

Never on private ones: how long a step takes depends on them, and a choice that depends on private text is one
more thing that would have to be accounted for. It changes nothing but speed and rounding either way.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import nn

from tacit.errors import ModelError
from tacit.training.encoding import Batch, IntArray
from tacit.training.private_steps.book_keeping.engine import BookKeepingEngine
from tacit.training.private_steps.book_keeping.fastest import fastest_grams
from tacit.training.private_steps.book_keeping.ghost import Grams
from tacit.training.private_steps.clipping import GradientSum
from tacit.training.private_steps.engine import Engine, StepTally
from tacit.training.private_steps.loop_engine import LoopEngine
from tacit.training.private_steps.objective import NextTokenObjective, Objective
from tacit.training.private_steps.settings import StepPrivacy

EngineName = Literal["auto", "book-keeping", "loop"]
_ROUNDS = 4  # of which the first pays for allocation
_LOOP_ROWS = 2
_CLEARLY = 0.95  # of the whole microbatch's time: between sizes that are as fast, noise is a percent or two


@dataclass(frozen=True)
class StepPerformance:
    """What changes time and memory, and nothing about the result but for rounding.

    engine      book-keeping, loop, or auto: whichever is faster on made-up rows
    microbatch  most rows that are computed at once; auto may choose fewer
    width       positions of the made-up rows: a public figure such as the recipe's block size
    """

    engine: EngineName = "auto"
    microbatch: int = 16
    width: int = 128


@dataclass(frozen=True)
class Choice:
    """An engine and the rows that it takes at once."""

    engine: Literal["book-keeping", "loop"]
    microbatch: int


@dataclass(frozen=True)
class Workshop:
    """What an engine is made of, apart from the rows.

    Without ``measures``, nothing is chosen by the clock: a seeded run must be the same to the last bit.
    """

    model: nn.Module
    objective: Objective
    privacy: StepPrivacy
    measures: bool = True
    width: int = 128

    @property
    def parameters(self) -> list[nn.Parameter]:
        """What is trained."""
        return [parameter for parameter in self.model.parameters() if parameter.requires_grad]

    def book_keeping(self, make_batch: Callable[[IntArray], Batch]) -> BookKeepingEngine:
        """The engine, or a `ModelError` that names the layer without a rule."""
        on_cpu = all(parameter.device.type == "cpu" for parameter in self.parameters)
        grams = fastest_grams(self.width) if self.measures and on_cpu else Grams(None, self.width)
        return BookKeepingEngine(self.model, self.objective, make_batch, self.privacy, grams)

    def loop(self, make_batch: Callable[[IntArray], Batch], rows_at_once: int = 1) -> LoopEngine:
        """The engine that takes every model."""
        return LoopEngine(
            self.parameters, self.objective, make_batch, self.privacy, rows_at_once=rows_at_once
        )


def choose(workshop: Workshop, performance: StepPerformance) -> Choice:
    """The engine that the settings name, or the faster one."""
    if performance.engine != "auto":
        return Choice(performance.engine, performance.microbatch)
    made_up = _MadeUp(workshop.model, performance.width)
    try:
        booked = workshop.book_keeping(made_up.batch)
    except ModelError:
        return Choice("loop", performance.microbatch)
    objective = workshop.objective
    if not (workshop.measures and isinstance(objective, NextTokenObjective) and objective.inputs_suffice):
        return Choice("book-keeping", performance.microbatch)
    total = GradientSum(workshop.parameters)
    loop = workshop.loop(made_up.batch)
    candidates: list[tuple[Choice, Engine, int]] = [
        (Choice("book-keeping", rows), booked, rows) for rows in _sizes(performance.microbatch)
    ]
    candidates.append((Choice("loop", performance.microbatch), loop, _LOOP_ROWS))
    seconds: dict[Choice, float] = {}
    try:
        with torch.random.fork_rng(devices=[]):
            for _ in range(_ROUNDS):  # in turn, so that other work on the machine is in everybody's way
                for choice, engine, rows in candidates:
                    found = _seconds_per_row(engine, rows, total)
                    seconds[choice] = min(seconds.get(choice, found), found)
    except ModelError:
        return Choice("loop", performance.microbatch)
    whole = candidates[0][0]
    smaller = {one for one in seconds if one.engine == whole.engine and one != whole}
    if all(seconds[one] >= _CLEARLY * seconds[whole] for one in smaller):
        seconds = {one: took for one, took in seconds.items() if one not in smaller}
    return min(seconds, key=lambda choice: seconds[choice])


def _sizes(most: int) -> Sequence[int]:
    """The whole microbatch, half and a quarter of it: less memory, and sometimes more of it in cache."""
    return sorted({max(1, most // part) for part in (1, 2, 4)}, reverse=True)


def _seconds_per_row(engine: Engine, rows: int, total: GradientSum) -> float:
    # With one thread a step takes as long as it computes, whoever else has the processor in between.
    alone = total.on_cpu and torch.get_num_threads() == 1
    clock = time.process_time if alone else time.perf_counter
    total.clear()
    began = clock()
    engine.add_rows(np.arange(rows), total, StepTally())
    return (clock() - began) / rows


class _MadeUp:
    """Rows of random tokens."""

    def __init__(self, model: nn.Module, width: int) -> None:
        config: Any = getattr(model, "config", None)
        self._vocabulary = int(getattr(config, "vocab_size", 2))
        self._width = min(width, int(getattr(config, "max_position_embeddings", width)))
        self._device = next(model.parameters()).device

    def batch(self, rows: IntArray) -> Batch:
        """So many rows as these."""
        drawn = np.random.default_rng(0).integers(self._vocabulary, size=(len(rows), self._width + 1))
        tokens = torch.from_numpy(drawn).to(self._device)
        inputs = {"input_ids": tokens[:, :-1], "use_cache": False}
        labels = tokens[:, 1:].contiguous()
        return Batch(inputs, labels, torch.zeros(labels.shape, dtype=torch.int64), rows)
