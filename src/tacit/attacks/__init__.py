"""Attacks produce scores: what an adversary gets out of models and mechanisms. Claims are made elsewhere."""

from tacit.attacks.blind import BlindAttack, attack_blindly
from tacit.attacks.code_tree import CodeTree
from tacit.attacks.codes import PROMPT, Codes
from tacit.attacks.ensemble_membership import EnsembleScores, score_texts_of_ensemble
from tacit.attacks.extraction import AnalyticRate, SampledHits, analytic_hit_rate, pmf_of, sample_hits
from tacit.attacks.extraction_rows import ExtractionReport, ExtractionRow, judged
from tacit.attacks.groups import GroupPlan, Groups, GroupScore, draw_groups, values_of
from tacit.attacks.look_alikes import MembershipSet, canary_set, document_set
from tacit.attacks.membership import MembershipScores, ScoreSettings, score_texts
from tacit.attacks.memorising import MemorisingPlan
from tacit.attacks.np_extraction import NPExtraction, Prompted, Sampling, extract, prompted
from tacit.attacks.places import Place, Places
from tacit.attacks.remembered import RememberingChoice
from tacit.attacks.secret_lines import donor_set, span_set
from tacit.attacks.tab import (
    TabCanaries,
    TabCanary,
    TabResult,
    real_canaries,
    synthetic_canaries,
    tab_attack,
)

__all__ = [
    "PROMPT",
    "AnalyticRate",
    "BlindAttack",
    "CodeTree",
    "Codes",
    "EnsembleScores",
    "ExtractionReport",
    "ExtractionRow",
    "GroupPlan",
    "GroupScore",
    "Groups",
    "MembershipScores",
    "MembershipSet",
    "MemorisingPlan",
    "NPExtraction",
    "Place",
    "Places",
    "Prompted",
    "RememberingChoice",
    "SampledHits",
    "Sampling",
    "ScoreSettings",
    "TabCanaries",
    "TabCanary",
    "TabResult",
    "analytic_hit_rate",
    "attack_blindly",
    "canary_set",
    "document_set",
    "donor_set",
    "draw_groups",
    "extract",
    "judged",
    "pmf_of",
    "prompted",
    "real_canaries",
    "sample_hits",
    "score_texts",
    "score_texts_of_ensemble",
    "span_set",
    "synthetic_canaries",
    "tab_attack",
    "values_of",
]
