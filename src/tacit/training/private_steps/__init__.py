"""DP-SGD steps: Poisson samples, clipped per-example gradients, noise, and the account of it all."""

from tacit.training.private_steps.choice import Choice, StepPerformance
from tacit.training.private_steps.examples import Examples, token_batch
from tacit.training.private_steps.objective import NextTokenObjective, Objective
from tacit.training.private_steps.settings import PrivateAccount, StepPrivacy
from tacit.training.private_steps.trainer import PrivateTrainer, PublicSteps

__all__ = [
    "Choice",
    "Examples",
    "NextTokenObjective",
    "Objective",
    "PrivateAccount",
    "PrivateTrainer",
    "PublicSteps",
    "StepPerformance",
    "StepPrivacy",
    "token_batch",
]
