"""How often the discriminator is right: as recomputed, beside chance, alike after a kill, for owners."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tacit.progress import Silent
from tacit.training import plan_training, train_regularised
from tacit.training.author_guesses import AuthorGuesses
from tacit.training.authors import Authors
from tacit.training.finetune import task_for
from tacit.training.preparation import prepare
from tacit.training.regularised import authors_for, by_author, regulariser_for, schedule_for
from tacit.training.regularisers import Adversary, Sequences
from tests.training.private_runs import KillAt, Killed, Listener, write_documents
from tests.training.test_regularised import DOCUMENTS, recipe_for


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """One author wrote more than the others."""
    more = [("user-0", f"Once more, {turn} lamps.") for turn in range(3)]
    return write_documents(tmp_path / "private.jsonl", [*DOCUMENTS, *more])


def told_of(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "private" / "training.json").read_text())["discriminator"]
    return found


def test_guesses_are_counted_before_the_discriminators_own_step(
    tiny_model: Path, corpus: Path, tmp_path: Path
) -> None:
    recipe = recipe_for(
        tiny_model, corpus, tmp_path / "run", "adversarial", regularisation={"discriminator_rate": 0.05}
    )
    prepared = prepare(recipe, tmp_path, Silent())
    authors = authors_for(prepared)
    prepared = by_author(prepared, authors)
    task, schedule = task_for(prepared), schedule_for(prepared, authors, 1)
    adversary = regulariser_for(prepared, task, authors, schedule)
    assert isinstance(adversary, Adversary)
    task.model.eval()  # a second pass sees what the first one saw
    optimiser = torch.optim.SGD([one for one in task.model.parameters() if one.requires_grad], lr=0.01)
    right = [[0, 0] for _ in range(recipe.training.epochs)]
    for step in range(schedule.steps):
        adversary.begin(step)
        for rows in schedule.batches_of(step):
            batch = task.make_batch(rows)
            with torch.no_grad():
                own = Sequences(batch, task.states_of(batch), authors)
                guessed = adversary.discriminator(own.states).argmax(dim=1)
            counts = right[step // schedule.steps_per_epoch]
            counts[0] += int((guessed == own.authors).sum())
            counts[1] += len(guessed)
            adversary.objective(batch).backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        optimiser.zero_grad()
        adversary.finish()
    found = adversary.guesses.to_json()
    assert [[one["right"], one["sequences"]] for one in found["epochs"]] == right
    assert found["accuracy"] == right[-1][0] / right[-1][1]
    assert right[0][1] == right[1][1] == len(prepared.encoded)
    assert found["one_of_all_authors"] == 0.2
    assert found["most_frequent_author"] == pytest.approx(
        np.bincount(authors.of_piece).max() / len(authors.of_piece)
    )


def test_a_killed_run_counts_on_and_only_the_owner_reads_it(
    tiny_lstm: Path, corpus: Path, tmp_path: Path
) -> None:
    listener = Listener()
    whole = train_regularised(
        recipe_for(tiny_lstm, corpus, tmp_path / "whole", "adversarial"), progress=listener
    )
    recipe = recipe_for(tiny_lstm, corpus, tmp_path / "killed", "adversarial")
    with pytest.raises(Killed):
        train_regularised(recipe, progress=KillAt(5))
    resumed = train_regularised(recipe, resume=True)
    told = told_of(whole.folder)
    assert told_of(resumed.folder) == told
    assert len(told["epochs"]) == 2
    assert any("the discriminator named" in remark for remark in listener.remarks)
    assert (whole.folder / "private" / "training.json").stat().st_mode & 0o077 == 0
    assert "most_frequent_author" not in (whole.folder / "run.json").read_text()


def test_methods_without_a_discriminator_have_nothing_to_tell(
    tiny_lstm: Path, corpus: Path, tmp_path: Path
) -> None:
    run = train_regularised(recipe_for(tiny_lstm, corpus, tmp_path / "run", "triplet"))
    told = json.loads((run.folder / "private" / "training.json").read_text())
    assert "discriminator" not in told
    assert told["discriminator_parameters"] == 0


def test_an_epoch_without_a_guess_has_no_accuracy() -> None:
    authors = Authors(np.array([0, 1, 1]), np.array([0, 1, 1]), np.array([True, True, False]))
    guesses = AuthorGuesses(authors, steps_per_epoch=2)
    assert guesses.to_json()["accuracy"] is None
    assert "nothing" in str(guesses)
    assert guesses.to_json()["most_frequent_author"] == 0.5  # of what teaches
    guesses.add(3, torch.eye(2), torch.tensor([0, 0]))
    assert guesses.to_json()["epochs"] == [{"right": 0, "sequences": 0}, {"right": 1, "sequences": 2}]
    assert guesses.accuracy == 0.5


@pytest.mark.parametrize("method", ["adversarial", "triplet"])
def test_a_plan_counts_the_discriminator(
    tiny_transformer: Path, corpus: Path, tmp_path: Path, method: str
) -> None:
    recipe = recipe_for(tiny_transformer, corpus, tmp_path / "run", method)
    plan = plan_training(recipe)
    assert plan.authors == 5
    expected = (64 + 1) * 16 + (16 + 1) * 5 if method == "adversarial" else None
    assert plan.discriminator_parameters == expected
    if expected is not None:
        run = train_regularised(recipe)
        told = json.loads((run.folder / "private" / "training.json").read_text())
        assert told["discriminator_parameters"] == expected
