"""From scores to claims: what an attack's success proves, how sure that is, and what it says of a guarantee.

The statistics are NumPy and SciPy only. Lower bounds, p-values and verdicts are wrong at most as often as
they say; the tests enumerate or simulate it. Intervals that resample users or secrets, and DeLong's, are
approximate.
"""

from tacit.audit.attempts import Attempt, judged_together
from tacit.audit.bounds import (
    EpsilonLowerBound,
    Neighbours,
    exposure_bound,
    one_run_bound,
    separation_bound,
    strongest,
)
from tacit.audit.disparity import Disparity, measure_disparity
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
from tacit.audit.planning import Design, PlanRow, detectable, plan_audit
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
from tacit.audit.verdicts import Claim, Judgement, Verdict, judge

__all__ = [
    "AdjustedAttack",
    "Attempt",
    "ChosenAccuracy",
    "Claim",
    "CoinScores",
    "Design",
    "Disparity",
    "EpsilonLowerBound",
    "ExposureBand",
    "Judgement",
    "Memorisation",
    "Neighbours",
    "PlanRow",
    "RocCurve",
    "TprAtFpr",
    "Verdict",
    "auc",
    "chosen_accuracy",
    "cluster_auc",
    "detectable",
    "exposure",
    "exposure_band",
    "exposure_bound",
    "exposure_p_value",
    "gaussian_one_run_bound",
    "group_auc",
    "holm",
    "judge",
    "judged_together",
    "measure_disparity",
    "memorisation",
    "multi_split_bound",
    "one_run_bound",
    "plan_audit",
    "preregistered_bound",
    "roc_curve",
    "separation_bound",
    "separation_p_value",
    "split_bound",
    "strongest",
    "tpr_at_fpr",
]
