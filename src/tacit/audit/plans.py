"""What an audit tries, and how sure it has to be."""

from __future__ import annotations

from dataclasses import dataclass, field

from tacit.attacks.exposure import ExposureSettings
from tacit.audit.transcripts_run import PredictionPlan
from tacit.corpus.canaries import CanaryManifest
from tacit.errors import InputError
from tacit.mechanisms.choice import MechanismChoice
from tacit.prediction import Budget
from tacit.runs import Run


@dataclass(frozen=True)
class AnswerPlan:
    """Under which mechanism and budget an ensemble is audited."""

    choice: MechanismChoice
    budget: Budget
    prediction: PredictionPlan


@dataclass(frozen=True)
class AuditPlan:
    """What to try, and how sure to be.

    manifest    the canaries that were planted into the Run's corpus; None leaves out what needs them
    words       the list that word canaries were drawn from
    answers     for ensembles: the mechanism and budget that answers carry
    against     an unmitigated Run on the same text, for who pays for the protection
    documents   training and held-out documents that are scored, of each at most
    delta       at which epsilon is bounded
    """

    manifest: CanaryManifest | None = field(default=None, repr=False)
    words: tuple[str, ...] | None = field(default=None, repr=False)
    answers: AnswerPlan | None = None
    against: Run | None = None
    documents: int = 1000
    delta: float = 1e-5
    confidence: float = 0.95
    seed: int = 0
    exposure: ExposureSettings = field(default_factory=lambda: ExposureSettings(seed=0))
    block_size: int = 512

    def __post_init__(self) -> None:
        if self.documents < 0:
            raise InputError(f"Expected documents={self.documents} >= 0; 0 leaves them out.")
        if not 0 <= self.delta < 1 or not 0.5 < self.confidence < 1:
            raise InputError(
                f"Expected 0 <= delta={self.delta} < 1 and 0.5 < confidence={self.confidence} < 1, "
                "e.g. 1e-5 and 0.95."
            )
