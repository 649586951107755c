"""tacit: language models that keep what they read to themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from tacit.corpus import Partition, UserCorpus
    from tacit.evaluation import measure_losses
    from tacit.mechanisms import Certified, SubMix
    from tacit.models.ensemble import load_ensemble
    from tacit.models.loading import PublicModel, load_public_model
    from tacit.prediction import PrivatePredictor
    from tacit.privacy import Guarantee
    from tacit.recipes import Recipe, load_recipe
    from tacit.runs import Run
    from tacit.statistics import Estimate
    from tacit.training import finetune, train_ensemble

# Where each name lives. Nothing is imported before it is used: `import tacit` stays light, and the parts
# that never touch a model do not pay for torch.
_HOMES = {
    "Certified": "tacit.mechanisms",
    "Estimate": "tacit.statistics",
    "Guarantee": "tacit.privacy",
    "Partition": "tacit.corpus",
    "PrivatePredictor": "tacit.prediction",
    "PublicModel": "tacit.models.loading",
    "Recipe": "tacit.recipes",
    "Run": "tacit.runs",
    "SubMix": "tacit.mechanisms",
    "UserCorpus": "tacit.corpus",
    "finetune": "tacit.training",
    "load_ensemble": "tacit.models.ensemble",
    "load_public_model": "tacit.models.loading",
    "load_recipe": "tacit.recipes",
    "measure_losses": "tacit.evaluation",
    "train_ensemble": "tacit.training",
}

__all__ = [  # noqa: RUF022 - in the order in which they are met
    "UserCorpus",
    "Partition",
    "PublicModel",
    "load_public_model",
    "Recipe",
    "load_recipe",
    "finetune",
    "train_ensemble",
    "Run",
    "SubMix",
    "Certified",
    "load_ensemble",
    "PrivatePredictor",
    "Guarantee",
    "measure_losses",
    "Estimate",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'tacit' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
