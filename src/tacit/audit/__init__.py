"""From scores to claims: what an attack's success proves, how sure that is, and what it says of a guarantee.

NumPy and SciPy only. Every procedure here has a false-alarm rate of at most its level on null data; the tests
simulate or enumerate it.
"""

from tacit.audit.bounds import EpsilonLowerBound, exposure_bound, one_run_bound, separation_bound
from tacit.audit.gaussian import gaussian_one_run_bound
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
    "ChosenAccuracy",
    "CoinScores",
    "EpsilonLowerBound",
    "RocCurve",
    "TprAtFpr",
    "auc",
    "chosen_accuracy",
    "cluster_auc",
    "exposure_bound",
    "gaussian_one_run_bound",
    "group_auc",
    "multi_split_bound",
    "one_run_bound",
    "preregistered_bound",
    "roc_curve",
    "separation_bound",
    "separation_p_value",
    "split_bound",
    "tpr_at_fpr",
]
