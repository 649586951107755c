"""All experiments, by name, in the order in which a reader meets them."""

from __future__ import annotations

from typing import Final

from tacit.errors import InputError
from tacit.experiments.crt_amplification import AMPLIFICATION
from tacit.experiments.experiment import Experiment

EXPERIMENTS: Final[tuple[Experiment, ...]] = (AMPLIFICATION,)


def experiment_called(name: str) -> Experiment:
    """The experiment of a name; others are refused with the names there are."""
    for one in EXPERIMENTS:
        if one.name == name:
            return one
    known = ", ".join(one.name for one in EXPERIMENTS)
    raise InputError(f"There is no experiment '{name}'; there are {known}.")
