"""What a member learns when: its own rows, evenly, whatever others hold; and batches of one shape."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.recipes import TrainingSection
from tacit.training.encoding import NO_ROW, lay_out, side_by_side
from tacit.training.ensemble_schedule import MemberSchedule, stream_of
from tests.training.test_encoding import pieces_of


@settings(deadline=None)
@given(st.integers(1, 40), st.integers(1, 9), st.integers(1, 3))
def test_every_row_is_seen_as_often_as_any_other(rows: int, batch: int, accumulate: int) -> None:
    layout = lay_out(pieces_of([16] * rows), block_size=16, packing=True)
    training = TrainingSection(max_steps=25, batch_size=batch, accumulate=accumulate)
    schedule = MemberSchedule(layout, training, seed=3)
    drawn = [schedule.batches_of(step) for step in range(schedule.steps)]
    assert {(len(passes), len(chosen)) for passes in drawn for chosen in passes} == {(accumulate, batch)}
    counts = np.bincount(np.concatenate([chosen for passes in drawn for chosen in passes]), minlength=rows)
    assert counts.max() - counts.min() <= 1
    again = MemberSchedule(layout, training, seed=3)
    for step in (17, 3):  # asked out of order, as a resumed run does
        assert [chosen.tolist() for chosen in again.batches_of(step)] == [c.tolist() for c in drawn[step]]
    assert schedule.tokens_of(0) == 16 * batch * accumulate


def test_a_member_without_text_takes_the_same_steps_on_nothing() -> None:
    nothing = lay_out(pieces_of([5]), block_size=16, packing=True, pieces=np.array([], dtype=np.int64))
    schedule = MemberSchedule(nothing, TrainingSection(max_steps=4, batch_size=3), seed=0)
    assert (len(nothing), schedule.steps, schedule.tokens_of(2)) == (0, 4, 0)
    assert schedule.batches_of(2)[0].tolist() == [NO_ROW] * 3
    batch = nothing.batch(schedule.batches_of(0)[0], attention="sdpa", pad_token=0, width=16)
    assert batch.inputs["input_ids"].shape == (3, 16)
    assert batch.label_count == 0


def test_streams_are_their_members_own() -> None:
    streams = [stream_of(seed, member) for seed in range(20) for member in range(20)]
    assert len(set(streams)) == len(streams)
    assert all(0 <= stream < 2**63 for stream in streams)


@pytest.mark.parametrize("packing", [True, False])
def test_pieces_are_laid_out_as_if_there_were_no_others(packing: bool) -> None:
    corpus = pieces_of([5, 9, 3, 16, 7, 2, 9])
    own = np.array([1, 2, 5, 6])
    rows = lay_out(corpus, block_size=16, packing=packing, pieces=own)
    alone = lay_out(pieces_of([9, 3, 2, 9]), block_size=16, packing=packing)
    assert [list(own[np.array(row)]) for row in alone.pieces] == [list(row) for row in rows.pieces]
    assert rows.lengths.tolist() == alone.lengths.tolist()


def test_a_width_fixes_shapes_and_mask_whatever_the_rows_hold() -> None:
    full = lay_out(pieces_of([16, 16]), block_size=16, packing=True)
    ragged = lay_out(pieces_of([5, 9, 3]), block_size=16, packing=True)
    chosen = np.array([0, NO_ROW])
    fixed = [rows.batch(chosen, attention="sdpa", pad_token=0, width=16) for rows in (full, ragged)]
    assert all(batch.inputs["attention_mask"].shape == (2, 1, 16, 16) for batch in fixed)
    plain = full.batch(np.array([0, 1]), attention="sdpa", pad_token=0)
    assert plain.inputs["attention_mask"] is None
    with_width = full.batch(np.array([0, 1]), attention="sdpa", pad_token=0, width=16)
    assert torch.equal(with_width.inputs["attention_mask"][0, 0], torch.ones(16, 16, dtype=torch.bool).tril())
    joined = side_by_side(fixed)
    assert joined.labels.shape == (4, 16)
    assert joined.inputs["use_cache"] is False
    assert torch.equal(joined.inputs["input_ids"][2:], fixed[1].inputs["input_ids"])
    assert joined.label_count == fixed[0].label_count + fixed[1].label_count
