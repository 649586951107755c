"""Exposure: how far up a planted secret stands among all that it could have been.

`driver.measure_exposure` is the whole of it for models and mechanisms; `remote.extract_by_sampling` is what
is left where an API gives samples only.
"""

from tacit.attacks.exposure.candidates import CandidateTree, CandidateTrie, candidate_trie
from tacit.attacks.exposure.driver import (
    ExposureSettings,
    GroupExposure,
    MechanismTarget,
    measure_exposure,
    measure_exposures,
    rank_group,
)
from tacit.attacks.exposure.ensembles import MechanismScorer
from tacit.attacks.exposure.packed import enumerate_all, obeys_tree_mask
from tacit.attacks.exposure.ranking import Rank, Rule, branch_and_bound, ranks, walk
from tacit.attacks.exposure.remote import CanaryExtraction, RemoteReport, extract_by_sampling
from tacit.attacks.exposure.report import CanaryExposure, ExposureReport
from tacit.attacks.exposure.sampled import sampled_ranks
from tacit.attacks.exposure.states import ModelScorer, Scorer
from tacit.attacks.exposure.symbols import SymbolTree

__all__ = [
    "CanaryExposure",
    "CanaryExtraction",
    "CandidateTree",
    "CandidateTrie",
    "ExposureReport",
    "ExposureSettings",
    "GroupExposure",
    "MechanismScorer",
    "MechanismTarget",
    "ModelScorer",
    "Rank",
    "RemoteReport",
    "Rule",
    "Scorer",
    "SymbolTree",
    "branch_and_bound",
    "candidate_trie",
    "enumerate_all",
    "extract_by_sampling",
    "measure_exposure",
    "measure_exposures",
    "obeys_tree_mask",
    "rank_group",
    "ranks",
    "sampled_ranks",
    "walk",
]
