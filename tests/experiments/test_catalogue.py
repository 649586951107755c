"""Every experiment of the catalogue: known by its name, and an hour at most at scale small."""

from __future__ import annotations

from pathlib import Path

import pytest

from tacit.experiments import EXPERIMENTS, Experiment, Workshop, experiment_called

MINUTES = 60


@pytest.mark.parametrize("experiment", EXPERIMENTS, ids=lambda one: one.name)
def test_small_is_planned_for_an_hour_at_most(experiment: Experiment, tmp_path: Path) -> None:
    planned = experiment.planned(Workshop(tmp_path), "small")
    assert sum(stage.minutes for stage in planned) <= MINUTES
    assert all(stage.minutes > 0 for stage in planned)
    assert len({stage.name for stage in planned}) == len(planned)
    assert not list(tmp_path.iterdir()), "a plan writes nothing"


def test_names_are_unique_and_found() -> None:
    names = [one.name for one in EXPERIMENTS]
    assert len(set(names)) == len(names)
    assert all(experiment_called(one.name) is one for one in EXPERIMENTS)
