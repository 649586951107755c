"""How good a model is on text it has not seen."""

from tacit.evaluation.perplexity import Losses, measure_losses, perplexity_difference

__all__ = ["Losses", "measure_losses", "perplexity_difference"]
