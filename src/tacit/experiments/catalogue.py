"""All experiments, by name, in the order in which a reader meets them."""

from __future__ import annotations

from typing import Final

from tacit.errors import InputError
from tacit.experiments.crt_amplification import AMPLIFICATION
from tacit.experiments.crt_attacks import ATTACKS
from tacit.experiments.crt_frontier import FRONTIER
from tacit.experiments.experiment import Experiment
from tacit.experiments.overview import OVERVIEW
from tacit.experiments.reg_disparity import DISPARITY
from tacit.experiments.reg_exposure import EXPOSURE
from tacit.experiments.reg_overhead import OVERHEAD
from tacit.experiments.reg_tab import TAB
from tacit.experiments.submix_budget import BUDGET
from tacit.experiments.submix_certified import CERTIFIED_MIXING
from tacit.experiments.submix_extraction import EXTRACTION
from tacit.experiments.submix_order import ORDER
from tacit.experiments.submix_parts import PARTS
from tacit.experiments.submix_tradeoff import TRADEOFF

EXPERIMENTS: Final[tuple[Experiment, ...]] = (
    OVERVIEW,
    TRADEOFF,
    BUDGET,
    PARTS,
    ORDER,
    CERTIFIED_MIXING,
    EXTRACTION,
    FRONTIER,
    ATTACKS,
    AMPLIFICATION,
    EXPOSURE,
    TAB,
    DISPARITY,
    OVERHEAD,
)


def experiment_called(name: str) -> Experiment:
    """The experiment of a name; others are refused with the names there are."""
    for one in EXPERIMENTS:
        if one.name == name:
            return one
    known = ", ".join(one.name for one in EXPERIMENTS)
    raise InputError(f"There is no experiment '{name}'; there are {known}.")
