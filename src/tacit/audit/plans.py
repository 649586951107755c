"""What an audit tries, and how sure it has to be."""

from __future__ import annotations

from dataclasses import dataclass, field

from tacit.attacks.author_probe import LEAST_TEXTS
from tacit.attacks.exposure import ExposureSettings
from tacit.attacks.groups import PAPER, GroupPlan
from tacit.audit.completion_findings import RealCanaries
from tacit.audit.membership_findings import PRIMARY
from tacit.audit.transcripts_run import PredictionPlan
from tacit.audit.verdicts import DELTA
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
    against     a Run without protection on the same text: for who pays for the protection, and the control
                that shows whether the same attacks find anything where nothing protects
    real        who picks each user's text for tab completion: an independent model, or (`paper`) ``against``
    real_users  users whose texts are completed, of either side at most
    documents   training and held-out documents that are scored, of each at most
    lines       lines with gold spans that are scored, each with a look-alike; 0 leaves them out
    spans       the corpus's column of gold spans; None: `spans`, if the corpus has it
    donors      documents whose secrets stand in for those of training lines, which tests nothing; None: the
                two sides of the split stand in for each other
    authors     authors among whom a probe tells by a model's states, at most; 0 leaves linkability out
    author_texts  texts of each that it learns from, and on which it is scored, of either at most; of a label
                with few values as many more as make up for them, `authors` times as many in all
    label       the corpus's column that says whose a text is; None: the recipe's, or the user
    groups      how groups of texts are formed, and how many
    primary     the membership score that is looked at first; what decides is fixed beforehand
    preset      the paper's protocol that this plan is, for the record
    delta       at which epsilon is bounded
    """

    manifest: CanaryManifest | None = field(default=None, repr=False)
    words: tuple[str, ...] | None = field(default=None, repr=False)
    answers: AnswerPlan | None = None
    against: Run | None = None
    documents: int = 1000
    lines: int = 1000
    spans: str | None = None
    donors: str | None = None
    authors: int = 50
    author_texts: int = 20
    label: str | None = None
    groups: GroupPlan = PAPER
    real: RealCanaries = "independent"
    real_users: int = 100
    primary: str = PRIMARY
    preset: str | None = None
    delta: float = DELTA
    confidence: float = 0.95
    seed: int = 0
    exposure: ExposureSettings = field(default_factory=lambda: ExposureSettings(seed=0))
    block_size: int = 512

    def __post_init__(self) -> None:
        for name in ("documents", "lines", "real_users"):
            if getattr(self, name) < 0:
                raise InputError(f"Expected {name}={getattr(self, name)} >= 0; 0 leaves them out.")
        if self.authors < 0 or self.authors == 1 or self.author_texts < LEAST_TEXTS:
            raise InputError(
                f"Expected authors={self.authors} to be two or more, or 0 to leave linkability out, and "
                f"author_texts={self.author_texts} >= {LEAST_TEXTS}."
            )
        if self.seed < 0:
            raise InputError(f"Expected seed={self.seed} >= 0, e.g. 0.")
        if not 0 <= self.delta < 1 or not 0.5 < self.confidence < 1:
            raise InputError(
                f"Expected 0 <= delta={self.delta} < 1 and 0.5 < confidence={self.confidence} < 1, "
                "e.g. 1e-5 and 0.95."
            )
