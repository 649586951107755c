"""How good a model is on text it has not seen."""

from tacit.evaluation.perplexity import Losses, measure_losses, perplexity_difference
from tacit.evaluation.report import EvaluationReport, evaluate_public_model, evaluate_run

__all__ = [
    "EvaluationReport",
    "Losses",
    "evaluate_public_model",
    "evaluate_run",
    "measure_losses",
    "perplexity_difference",
]
