"""What ``audit.json`` holds, as far as a report shows it.

A section that is null or absent was not measured. Keys that a report does not know are left alone; one that
it needs and does not find is an :class:`InputError` that names it, never a blank in the report.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainValidator, ValidationError

from tacit.errors import InputError
from tacit.statistics import Estimate

Verdict = Literal["supported", "contradicted", "inconclusive"]
FORMAT = 1


def _estimate(content: Any) -> Estimate:
    if isinstance(content, Estimate):
        return content
    try:
        return Estimate.from_json(content)
    except (KeyError, TypeError):
        raise ValueError("expected value, low, high, confidence and method") from None


def _bits_of_a_text(content: Any) -> Any:
    # A count of candidates is text: 40000 ** 5 is more than other readers' numbers hold.
    return content if isinstance(content, int | str) and not isinstance(content, bool) else repr(content)


Measured = Annotated[Estimate, PlainValidator(_estimate)]
Share = Annotated[float, Field(ge=0, le=1)]
Bound = Annotated[float, Field(ge=0, allow_inf_nan=True)]  # an infinite epsilon is written as "inf"
Count = Annotated[int, Field(ge=0)]
Candidates = Annotated[int, BeforeValidator(_bits_of_a_text), Field(ge=1)]


class Part(BaseModel):
    """A part of the file: frozen, and open to keys of later versions."""

    model_config = ConfigDict(extra="ignore", frozen=True, allow_inf_nan=False)


class RunPart(Part):
    """Which Run was audited."""

    name: str = ""
    method: str
    public_model: str
    family: str
    weights_fingerprint: str
    seeded: bool = False


class GuaranteePart(Part):
    """The claim of the Run, as :meth:`tacit.privacy.Guarantee.to_json` writes it."""

    kind: Literal["none", "public", "empirical", "rop", "rdp", "dp"]
    unit: str
    statement: str
    assumptions: tuple[str, ...] = ()
    caveat: str = ""
    outside: tuple[str, ...] = ()
    order: Bound | None = None
    epsilon: Bound | None = None
    delta: Share | None = None
    group: int = 1


class MechanismPart(Part):
    """Through what the model answers."""

    name: str
    order: float | None = None
    epsilon: Bound | None = None
    queries: int | None = None
    target: float | None = None
    parts: int | None = None


class VerdictPart(Part):
    """The audit in one line."""

    line: str
    leaks: bool | None


class Claim(Part):
    """One claim and what became of it."""

    claim: str
    verdict: Verdict
    reason: str
    claimed_epsilon: Bound | None = None
    measured_epsilon: Bound | None = None
    detectable_epsilon: Bound | None = None
    delta: Share | None = None
    confidence: Share | None = None
    method: str | None = None


class Utility(Part):
    """Perplexity of the Run, of the public model and of a model without protection."""

    run: Measured
    public: Measured | None = None
    unmitigated: Measured | None = None
    text: str = ""


class Null(Part):
    """What exposure is where nothing was memorised: of one canary, and of the largest."""

    mean: float
    p95: float
    max_mean: float
    max_p95: float


class ExposureRow(Part):
    """One canary."""

    id: str
    inserted: bool
    repetitions: Count
    exposure: Measured
    public: Measured | None = None
    method: str
    rank: tuple[int, int]
    positions: Count = 0


class ExposureLevel(Part):
    """All canaries that were inserted equally often."""

    repetitions: Count
    canaries: Count
    mean: Measured
    largest: float
    null_largest_p95: float


class Exposure(Part):
    """The ranks of canaries among all candidates."""

    candidates: Candidates
    score: str
    canaries: Count
    null: Null
    rows: tuple[ExposureRow, ...]
    per_repetition: tuple[ExposureLevel, ...] = ()
    p_value: Share | None = None
    positions: Count = 0
    seconds: float | None = None

    @property
    def bits(self) -> float:
        """The most that exposure can be."""
        return math.log2(self.candidates)


class Blind(Part):
    """An attacker that never sees the model."""

    auc: Measured
    p_value: Share | None = None
    separates: bool


class TprAtFpr(Part):
    """Members found at a rate of false alarms; null with a reason where too few negatives can tell."""

    fpr: Share
    tpr: Measured | None = None
    why: str | None = None


class Attack(Part):
    """One membership score."""

    name: str
    auc: Measured
    p_value: Share | None = None
    holm: Share | None = None
    accuracy: Measured | None = None
    tpr: tuple[TprAtFpr, ...] = ()


class Roc(Part):
    """The curve of one attack."""

    attack: str
    points: tuple[tuple[Share, Share], ...]


class MembershipSet(Part):
    """Members and non-members, and how well they were told apart."""

    name: str
    what: str
    members: Count
    non_members: Count
    flagged: bool
    blind: Blind | None = None
    attacks: tuple[Attack, ...] = Field(min_length=1)
    roc: Roc | None = None

    @property
    def best(self) -> Attack:
        """The attack with the largest area under its curve."""
        return max(self.attacks, key=lambda attack: attack.auc.value)


class Membership(Part):
    """Every set."""

    sets: tuple[MembershipSet, ...] = Field(min_length=1)


class TabLevel(Part):
    """Canaries that were inserted equally often."""

    repetitions: Count
    accuracy: Measured


class Tab(Part):
    """How many secrets greedy completion gives away."""

    accuracy: Measured
    attainable: Share | None = None
    public: Measured | None = None
    per_repetition: tuple[TabLevel, ...] = ()


class Within(Part):
    """Secrets that appear within so many tries."""

    tries: Count
    share: Measured


class TriesRow(Part):
    """How many generations until a secret appears with chance ``p``."""

    p: Share
    median_tries: Bound | None = None
    within: tuple[Within, ...] = ()


class Tries(Part):
    """(n, p)-extraction."""

    rows: tuple[TriesRow, ...]


class CodeRow(Part):
    """Random codes that appeared in generations."""

    name: str
    epsilon: Bound | None = None
    rate: Measured
    chance: Share
    verdict: str


class Extraction(Part):
    """What generations give away."""

    tab: Tab | None = None
    tries: Tries | None = None
    codes: tuple[CodeRow, ...] | None = None


class Realised(Part):
    """What answers cost by their distributions, against what was charged."""

    excess: float
    largest_excess: float
    queries: Count
    verdict: Verdict
    statement: str


class RatioRow(Part):
    """The best possible attack on one part's presence."""

    part: int
    transcripts: Count
    auc: Measured
    epsilon_lower: Bound
    claimed_epsilon: Bound | None = None
    delta: Share | None = None
    verdict: Verdict


class BlackBox(Part):
    """An attack from outside, with the meter running."""

    generations: Count
    hits_inserted: Count
    hits_twins: Count
    p_value: Share | None = None
    queries_used: Count = 0


class Prediction(Part):
    """Attacks on private answers."""

    queries: Count
    parts: Count
    realised: Realised | None = None
    likelihood_ratio: tuple[RatioRow, ...] = ()
    black_box: BlackBox | None = None


class Disparity(Part):
    """Who pays for protection: the change of perplexity per user."""

    against: str
    users: Count
    mean: Measured
    top: Measured
    bottom: Measured
    gap: Measured
    slope: Measured | None = None  # none where all wrote as much
    points: tuple[tuple[Annotated[float, Field(gt=0)], float], ...] = ()
    caveats: tuple[str, ...] = ()


class ComparisonRow(Part):
    """One Run beside others."""

    name: str
    method: str
    guarantee: str
    perplexity: Measured
    exposure_max: float | None = None
    exposure_mean: Measured | None = None
    auc: Measured | None = None
    tab: Measured | None = None
    disparity_gap: Measured | None = None
    comparable: bool
    why: str | None = None


class Provenance(Part):
    """What was used, so that somebody else can do it again."""

    versions: dict[str, str] = {}
    manifest_commitment: str | None = None
    seeds: Any = None
    settings: dict[str, Any] = {}
    processor: str | None = None
    seconds: float | None = None


class Audit(Part):
    """The whole file."""

    format: Literal[1]
    created: str
    run: RunPart
    guarantee: GuaranteePart
    mechanism: MechanismPart | None = None
    verdict: VerdictPart
    claims: tuple[Claim, ...] = ()
    utility: Utility | None = None
    exposure: Exposure | None = None
    membership: Membership | None = None
    extraction: Extraction | None = None
    prediction: Prediction | None = None
    disparity: Disparity | None = None
    compare: tuple[ComparisonRow, ...] | None = None
    not_covered: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    provenance: Provenance = Provenance()


_Model = TypeVar("_Model", bound=BaseModel)


def parse(model: type[_Model], content: Any, *, origin: str) -> _Model:
    """Read a part; what is missing or wrong is named in one sentence, without its value."""
    try:
        return model.model_validate(content)
    except ValidationError as problem:
        error = problem.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, error["loc"])) or "content"
        wrong = "is missing" if error["type"] == "missing" else "cannot be used"
        raise InputError(
            f"{origin}: '{where}' {wrong}; audit again with this version of tacit (format {FORMAT})."
        ) from None


def parse_audit(content: Any) -> Audit:
    """Read ``audit.json``."""
    return parse(Audit, content, origin="audit.json")
