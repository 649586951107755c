"""What ``audit.json`` and ``service_audit.json`` hold, as far as anybody reads them again.

A section that is null or absent was not measured. Keys that nobody knows are left alone; one that is
needed and not found is an :class:`InputError` that names it, never a blank in a report.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Final, Literal, TypeVar

from pydantic import BaseModel, Field, ValidationError, field_validator

from tacit.audit.attack_parts import BlackBox, Exposure, Extraction, Membership, Prediction
from tacit.audit.certificate_part import CertificatePart
from tacit.audit.file_parts import Bound, Confidence, Count, Measured, Part, Share
from tacit.audit.linkability_parts import Linkability
from tacit.audit.verdicts import Verdict
from tacit.errors import InputError
from tacit.privacy import AsymptoticMu
from tacit.statistics import Estimate

FORMAT: Final = 2  # of both files


class GaussianPart(Part):
    """What DP-SGD tends to, as other tools print it, with the label that says what it is not."""

    mu: Bound
    label: str

    def __str__(self) -> str:
        return str(AsymptoticMu(self.mu, self.label))


class RunPart(Part):
    """Which Run was audited."""

    name: str = ""
    method: str
    public_model: str
    family: str
    weights_fingerprint: str
    seeded: bool = False
    gaussian_dp: GaussianPart | None = None


class GuaranteePart(Part):
    """The claim of the Run, as :meth:`tacit.privacy.Guarantee.to_json` writes it."""

    kind: Literal["none", "public", "empirical", "rop", "rdp", "dp", "confidentiality"]
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


class AttemptPart(Part):
    """One attack against chance."""

    attack: str
    measured: Measured
    chance: float
    p_value: Share
    named: bool
    adjusted: Share


class JudgedAttempt(AttemptPart):
    """One that the headline looks at."""

    leaks: bool


class VerdictPart(Part):
    """The audit in one line, and every attack that it looks at."""

    line: str
    leaks: bool | None
    confidence: Confidence = 0.95
    attacks: tuple[JudgedAttempt, ...] = ()

    @property
    def level(self) -> float:
        """At which corrected p-values are leaks."""
        return 1 - self.confidence


class Claim(Part):
    """One claim and what became of it."""

    claim: str
    verdict: Verdict
    reason: str
    claimed_epsilon: Bound | None = None
    measured_epsilon: Bound | None = None
    detectable_epsilon: Bound | None = None
    delta: Share | None = None
    confidence: Confidence | None = None
    method: str | None = None
    control_epsilon: Bound | None = None
    tier: Literal["main", "service"] = "main"
    p_claim: Share | None = None  # at most how likely what was seen is if a whole curve holds
    gaussian_mu: Annotated[float, Field(ge=0)] | None = None
    gaussian_limit: Annotated[float, Field(ge=0)] | None = None


class Utility(Part):
    """Perplexity of the Run, of the public model and of a model without protection."""

    run: Measured
    public: Measured | None = None
    unmitigated: Measured | None = None
    text: str = ""

    @field_validator("run", "public", "unmitigated")
    @classmethod
    def _positive(cls, perplexity: Estimate | None) -> Estimate | None:
        if perplexity is not None and not perplexity.value > 0:
            raise ValueError("a perplexity is above 0")
        return perplexity


class Disparity(Part):
    """Who pays for protection: the change of perplexity per user."""

    against: str
    baseline: Literal["run", "public"] = "run"
    users: Count
    compared: Count = 5
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
    gaussian_mu: str | None = None
    standing: str = ""
    perplexity: Measured | None = None
    exposure_max: float | None = None
    exposure_mean: Measured | None = None
    auc: Measured | None = None
    tab: Measured | None = None
    linkability: Measured | None = None
    linkability_chance: Share | None = None
    disparity_gap: Measured | None = None
    comparable: bool
    why: str | None = None


class MethodRow(Part):
    """One method at the perplexity that all are compared at."""

    method: str
    runs: tuple[str, ...]
    perplexity: float
    exposure_mean: Measured | None = None
    auc: Measured | None = None
    tab: Measured | None = None
    linkability: Measured | None = None
    disparity_gap: Measured | None = None
    how: str = ""
    why: str = ""


class Provenance(Part):
    """What was used, so that somebody else can do it again."""

    versions: dict[str, str] = Field(default_factory=dict)
    manifest_commitment: str | None = None
    seeds: Any = None
    settings: dict[str, Any] = Field(default_factory=dict)
    processor: str | None = None
    seconds: float | None = None


class Audit(Part):
    """The whole file."""

    format: Literal[2]
    created: str
    run: RunPart
    guarantee: GuaranteePart
    mechanism: MechanismPart | None = None
    verdict: VerdictPart
    claims: tuple[Claim, ...] = ()
    certificate: CertificatePart | None = None
    utility: Utility | None = None
    exposure: Exposure | None = None
    membership: Membership | None = None
    extraction: Extraction | None = None
    prediction: Prediction | None = None
    linkability: Linkability | None = None
    disparity: Disparity | None = None
    compare: tuple[ComparisonRow, ...] | None = None
    not_covered: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    provenance: Provenance = Provenance()

    @property
    def promises(self) -> bool:
        """Whether anything is claimed that could be contradicted."""
        finite = self.guarantee.epsilon != math.inf
        return self.guarantee.kind in ("rop", "rdp", "dp", "confidentiality") and finite

    @property
    def word(self) -> Verdict:
        """What became of what is promised: contradicted by any claim, supported where all from inside are."""
        if any(claim.verdict == "contradicted" for claim in self.claims):
            return "contradicted"
        inside = {claim.verdict for claim in self.claims if claim.tier == "main"}
        verdicts = inside or {claim.verdict for claim in self.claims}
        return "supported" if self.promises and verdicts == {"supported"} else "inconclusive"


class TermsPart(Part):
    """What a service says that it answers by; nothing where it does not say."""

    mechanism: str | None
    order: float | None
    epsilon: Bound | None
    queries: Count | None


class ServiceAudit(Part):
    """What was kept of the audit of a service."""

    format: Literal[2]
    created: str
    url: str
    manifest_commitment: str
    terms: TermsPart
    section: BlackBox
    claim: Claim
    attempt: AttemptPart


_Model = TypeVar("_Model", bound=BaseModel)


def parse(model: type[_Model], content: Any, *, origin: str, remedy: str = "audit again") -> _Model:
    """Read a part; what is missing or wrong is named in one sentence, without its value."""
    try:
        return model.model_validate(content)
    except ValidationError as problem:
        error = problem.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, error["loc"])) or "content"
        wrong = "is missing" if error["type"] == "missing" else "cannot be used"
        raise InputError(
            f"{origin}: '{where}' {wrong}; {remedy} with this version of tacit (format {FORMAT})."
        ) from None


def parse_audit(content: Any, *, origin: str = "audit.json") -> Audit:
    """Read ``audit.json``."""
    return parse(Audit, content, origin=origin)
