"""Order and learning rate."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.recipes import TrainingSection
from tacit.training.encoding import lay_out
from tacit.training.schedule import Schedule
from tests.training.test_encoding import pieces_of


@settings(deadline=None)
@given(st.integers(1, 90), st.integers(1, 9), st.integers(1, 4), st.booleans())
def test_an_epoch_sees_every_row_once(rows: int, batch: int, accumulate: int, packing: bool) -> None:
    layout = lay_out(pieces_of([16] * rows), block_size=16, packing=packing)
    settings_ = TrainingSection(epochs=2, batch_size=batch, accumulate=accumulate)
    schedule = Schedule(layout, settings_, seed=5)
    for epoch in range(2):
        steps = range(epoch * schedule.steps_per_epoch, (epoch + 1) * schedule.steps_per_epoch)
        batches = [group for step in steps for group in schedule.batches_of(step)]
        assert sorted(np.concatenate(batches).tolist()) == list(range(rows))
        assert max(len(group) for group in batches) <= batch
    assert schedule.steps == 2 * schedule.steps_per_epoch


def test_epochs_differ_and_seeds_differ() -> None:
    layout = lay_out(pieces_of([16] * 50), block_size=16, packing=True)
    schedule = Schedule(layout, TrainingSection(epochs=2, batch_size=50), seed=1)
    orders = [schedule.batches_of(step)[0].tolist() for step in range(2)]
    assert orders[0] != orders[1]
    other = Schedule(layout, TrainingSection(epochs=2, batch_size=50), seed=2)
    assert other.batches_of(0)[0].tolist() != orders[0]


def test_unpacked_batches_hold_rows_of_like_length() -> None:
    lengths = np.random.default_rng(0).integers(1, 100, 640).tolist()
    layout = lay_out(pieces_of(lengths), block_size=100, packing=False)
    schedule = Schedule(layout, TrainingSection(epochs=1, batch_size=20), seed=1)
    batches = [group for step in range(schedule.steps) for group in schedule.batches_of(step)]
    padded = sum(int(layout.lengths[group].max()) * len(group) for group in batches)
    assert layout.lengths.sum() / padded > 0.9


def test_the_rate_warms_up_and_decays_linearly() -> None:
    layout = lay_out(pieces_of([16] * 100), block_size=16, packing=True)
    schedule = Schedule(
        layout, TrainingSection(epochs=1, batch_size=1, learning_rate=1.0, warmup=0.2), seed=0
    )
    rates = [schedule.learning_rate(step) for step in range(100)]
    assert rates[0] == pytest.approx(1 / 20)
    assert rates[19] == rates[20] == 1.0
    assert rates[60] == pytest.approx(0.5)
    assert rates[99] == pytest.approx(1 / 80)
    flat = Schedule(layout, TrainingSection(epochs=1, batch_size=1, learning_rate=1.0, warmup=0), seed=0)
    assert flat.learning_rate(0) == 1.0


def test_max_steps_cuts_and_never_stretches() -> None:
    layout = lay_out(pieces_of([16] * 10), block_size=16, packing=True)
    assert Schedule(layout, TrainingSection(epochs=3, batch_size=1, max_steps=4), seed=0).steps == 4
    assert Schedule(layout, TrainingSection(epochs=3, batch_size=1, max_steps=99), seed=0).steps == 30
