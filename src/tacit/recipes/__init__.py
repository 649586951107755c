"""Recipes: everything that decides what a Run is, in one YAML file.

A recipe is read, overridden by dotted ``key=value`` arguments, validated as a whole and saved in the
Run. An unknown key is an error, not a default: a misspelt privacy setting must never be ignored.

Sections keep apart what the data are (`corpus`, `held_out`), what is trained (`model`, `adapter`,
`ensemble`), how (`training`, `regularisation`), what is promised (`privacy`, `confidentiality`) and what only
changes speed or memory (`performance`): the last may be changed without changing the result.
"""

from tacit.recipes.fields import DEFAULT_MODEL, Section
from tacit.recipes.private import (
    Adjacency,
    ConfidentialitySection,
    PrivacySection,
    PublicPhaseSection,
    SelectiveSection,
)
from tacit.recipes.reading import expected, first_problem, load_recipe, parse_recipe, read_mapping
from tacit.recipes.recipe import PRIVATE_METHODS, REGULARISED_METHODS, Method, Recipe
from tacit.recipes.regularised import RegularisationSection
from tacit.recipes.sections import (
    AdapterSection,
    CorpusSection,
    EarlyStopSection,
    EnsembleSection,
    HeldOutSection,
    ModelSection,
    PerformanceSection,
    TrainingSection,
)

__all__ = [
    "DEFAULT_MODEL",
    "PRIVATE_METHODS",
    "REGULARISED_METHODS",
    "AdapterSection",
    "Adjacency",
    "ConfidentialitySection",
    "CorpusSection",
    "EarlyStopSection",
    "EnsembleSection",
    "HeldOutSection",
    "Method",
    "ModelSection",
    "PerformanceSection",
    "PrivacySection",
    "PublicPhaseSection",
    "Recipe",
    "RegularisationSection",
    "Section",
    "SelectiveSection",
    "TrainingSection",
    "expected",
    "first_problem",
    "load_recipe",
    "parse_recipe",
    "read_mapping",
]
