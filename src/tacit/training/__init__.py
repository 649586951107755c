"""How models learn from private text."""

from tacit.training.ensemble import train_ensemble
from tacit.training.ensemble_plan import EnsemblePlan, plan_ensemble
from tacit.training.finetune import finetune
from tacit.training.plan import TrainingPlan, plan_training

__all__ = ["EnsemblePlan", "TrainingPlan", "finetune", "plan_ensemble", "plan_training", "train_ensemble"]
