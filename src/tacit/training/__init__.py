"""How models learn from private text."""

from tacit.training.crt import train_confidentially
from tacit.training.dpsgd import train_privately
from tacit.training.ensemble import train_ensemble
from tacit.training.ensemble_plan import EnsemblePlan, plan_ensemble
from tacit.training.finetune import finetune
from tacit.training.methods import plan_run, train_run
from tacit.training.plan import TrainingPlan, plan_training
from tacit.training.private_plan import PrivateTrainingPlan, plan_private
from tacit.training.regularised import train_regularised
from tacit.training.selective import train_selectively

__all__ = [
    "EnsemblePlan",
    "PrivateTrainingPlan",
    "TrainingPlan",
    "finetune",
    "plan_ensemble",
    "plan_private",
    "plan_run",
    "plan_training",
    "train_confidentially",
    "train_ensemble",
    "train_privately",
    "train_regularised",
    "train_run",
    "train_selectively",
]
