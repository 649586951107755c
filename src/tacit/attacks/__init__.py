"""Attacks produce scores: what an adversary gets out of models and mechanisms. Claims are made elsewhere."""

from tacit.attacks.code_tree import CodeTree
from tacit.attacks.codes import PROMPT, Codes
from tacit.attacks.extraction import AnalyticRate, SampledHits, analytic_hit_rate, pmf_of, sample_hits
from tacit.attacks.extraction_rows import ExtractionReport, ExtractionRow, judged
from tacit.attacks.memorising import MemorisingPlan
from tacit.attacks.places import Place, Places
from tacit.attacks.remembered import RememberingChoice

__all__ = [
    "PROMPT",
    "AnalyticRate",
    "CodeTree",
    "Codes",
    "ExtractionReport",
    "ExtractionRow",
    "MemorisingPlan",
    "Place",
    "Places",
    "RememberingChoice",
    "SampledHits",
    "analytic_hit_rate",
    "judged",
    "pmf_of",
    "sample_hits",
]
