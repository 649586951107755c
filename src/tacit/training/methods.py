"""Which function trains a method and which one plans it: where a recipe's `method` is looked up, once."""

from __future__ import annotations

from typing import Final, Protocol

from tacit.progress import Progress
from tacit.recipes import PRIVATE_METHODS, Method, Recipe
from tacit.runs import Run
from tacit.training.crt import train_confidentially
from tacit.training.dpsgd import train_privately
from tacit.training.ensemble import train_ensemble
from tacit.training.ensemble_plan import EnsemblePlan, plan_ensemble
from tacit.training.finetune import finetune
from tacit.training.plan import TrainingPlan, plan_training
from tacit.training.private_plan import PrivateTrainingPlan, plan_private
from tacit.training.regularised import train_regularised
from tacit.training.selective import train_selectively


class Trains(Protocol):
    """What trains a Run as a recipe says; with ``resume``, goes on where a killed run stopped."""

    def __call__(self, recipe: Recipe, *, resume: bool = False, progress: Progress | None = None) -> Run:
        """Train."""


_TRAINED_BY: Final[dict[Method, Trains]] = {
    "finetune": finetune,
    "submix": train_ensemble,
    "dpsgd": train_privately,
    "crt": train_confidentially,
    "selective": train_selectively,
    "adversarial": train_regularised,
    "triplet": train_regularised,
}


def train_run(recipe: Recipe, *, resume: bool = False, progress: Progress | None = None) -> Run:
    """Train a Run by the recipe's method; with ``resume``, go on where a killed run stopped."""
    return _TRAINED_BY[recipe.method](recipe, resume=resume, progress=progress)


def plan_run(
    recipe: Recipe, progress: Progress | None = None
) -> TrainingPlan | EnsemblePlan | PrivateTrainingPlan:
    """What training by the recipe's method will be; nothing is trained or written."""
    if recipe.method in PRIVATE_METHODS:
        return plan_private(recipe, progress)
    if recipe.method == "submix":
        return plan_ensemble(recipe, progress)
    return plan_training(recipe, progress)
