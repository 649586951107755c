"""From scores to claims: what an attack's success proves, how sure that is, and what it says of a guarantee.

NumPy and SciPy only. Every procedure here has a false-alarm rate of at most its level on null data; the tests
simulate or enumerate it.
"""

from tacit.audit.bounds import EpsilonLowerBound, Neighbours, exposure_bound, one_run_bound, separation_bound
from tacit.audit.gaussian import gaussian_one_run_bound
from tacit.audit.multiple import AdjustedAttack, holm
from tacit.audit.nulls import (
    ExposureBand,
    Memorisation,
    exposure,
    exposure_band,
    exposure_p_value,
    memorisation,
)
from tacit.audit.resampling import cluster_auc, group_auc
from tacit.audit.roc import (
    ChosenAccuracy,
    RocCurve,
    TprAtFpr,
    auc,
    chosen_accuracy,
    roc_curve,
    separation_p_value,
    tpr_at_fpr,
)
from tacit.audit.thresholds import CoinScores, multi_split_bound, preregistered_bound, split_bound

__all__ = [
    "AdjustedAttack",
    "ChosenAccuracy",
    "CoinScores",
    "EpsilonLowerBound",
    "ExposureBand",
    "Memorisation",
    "Neighbours",
    "RocCurve",
    "TprAtFpr",
    "auc",
    "chosen_accuracy",
    "cluster_auc",
    "exposure",
    "exposure_band",
    "exposure_bound",
    "exposure_p_value",
    "gaussian_one_run_bound",
    "group_auc",
    "holm",
    "memorisation",
    "multi_split_bound",
    "one_run_bound",
    "preregistered_bound",
    "roc_curve",
    "separation_bound",
    "separation_p_value",
    "split_bound",
    "tpr_at_fpr",
]
