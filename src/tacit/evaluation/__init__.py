"""How good a model is on text it has not seen, and how much of that private answers keep."""

from tacit.evaluation.mechanism_report import MechanismReport, MechanismRow
from tacit.evaluation.mechanism_settings import Grid, Setting, Sweep
from tacit.evaluation.mechanism_sweep import Measurement, Tuning, evaluate_mechanisms
from tacit.evaluation.perplexity import Losses, measure_losses, perplexity_difference
from tacit.evaluation.report import EvaluationReport, evaluate_public_model, evaluate_run

__all__ = [
    "EvaluationReport",
    "Grid",
    "Losses",
    "Measurement",
    "MechanismReport",
    "MechanismRow",
    "Setting",
    "Sweep",
    "Tuning",
    "evaluate_mechanisms",
    "evaluate_public_model",
    "evaluate_run",
    "measure_losses",
    "perplexity_difference",
]
