"""The papers' experiments, end to end: run one, and its tables, figures and findings are made from JSON.

experiment.py   what an experiment is: settings fixed beforehand, stages, a conclusion
stages.py       stages that are done once and shared by whoever needs the same
results.py      result.json: tables, charts, findings, provenance
plots.py        a chart as SVG          pages.py    results as Markdown, docs/results.md
catalogue.py    all experiments by name; one file for each, named after it
"""

from tacit.experiments.catalogue import EXPERIMENTS, experiment_called
from tacit.experiments.experiment import Experiment, PlannedStage
from tacit.experiments.pages import page_of_all, results_in
from tacit.experiments.results import Result, Scale
from tacit.experiments.stages import Workshop

__all__ = [
    "EXPERIMENTS",
    "Experiment",
    "PlannedStage",
    "Result",
    "Scale",
    "Workshop",
    "experiment_called",
    "page_of_all",
    "results_in",
]
