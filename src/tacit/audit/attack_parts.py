"""What ``audit.json`` holds of attacks: exposure, membership, extraction, private answers."""

from __future__ import annotations

import math
from typing import Literal

from pydantic import Field

from tacit.audit.file_parts import Bound, Candidates, Count, Measured, Part, Share
from tacit.audit.verdicts import Verdict


class Null(Part):
    """What exposure is where nothing was memorised: of one canary, and of the largest."""

    mean: float
    limit: float  # exceeded by chance as rarely as ``confidence`` says
    largest_mean: float
    largest_limit: float
    confidence: Share = 0.95


class Tested(Part):
    """How surprising something is where nothing leaks: alone, and corrected for all that was tried."""

    p_value: Share | None = None
    adjusted: Share | None = None


class ExposureRow(Part):
    """One canary."""

    id: str
    inserted: bool
    repetitions: Count
    exposure: Measured
    public: Measured | None = None
    method: str
    rank: tuple[int, int]  # among all candidates
    alone: tuple[int, int] | None = None  # without the other inserted secrets: what exposure is of
    raw_exposure: Measured | None = None  # of the rank among all
    positions: Count = 0


class ExposureLevel(Part):
    """All canaries that were inserted equally often."""

    repetitions: Count
    canaries: Count
    mean: Measured
    largest: float
    null_largest_limit: float


class ExposureOfControl(Part):
    """The same canaries in a model without protection."""

    mean: Measured | None = None
    largest: float | None = None
    p_value: Share | None = None


class Exposure(Part):
    """The ranks of canaries among all candidates."""

    candidates: Candidates
    score: str
    canaries: Count
    null: Null
    rows: tuple[ExposureRow, ...]
    per_repetition: tuple[ExposureLevel, ...] = ()
    together: Tested = Tested()
    largest: Tested = Tested()
    mean: Measured | None = None  # over inserted canaries, and of the same in the public model
    public_mean: Measured | None = None
    control: ExposureOfControl | None = None
    positions: Count = 0
    queries: Count = 0  # of a mechanism: answers that a client would have had to pay for
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
    measured_fpr: Measured | None = None  # what the threshold gave on other non-members
    why: str | None = None


class Attack(Part):
    """One membership score."""

    name: str
    auc: Measured
    p_value: Share | None = None
    adjusted: Share | None = None
    accuracy: Measured | None = None
    accuracy_chance: Share | None = None  # of who always gives the commoner answer
    accuracy_at_median: Measured | None = None
    tpr: tuple[TprAtFpr, ...] = ()


class Roc(Part):
    """The curve of one attack."""

    attack: str
    points: tuple[tuple[Share, Share], ...]


class GroupAttack(Part):
    """One score of groups."""

    name: str
    auc: Measured
    accuracy_at_median: Measured
    p_value: Share | None = None
    adjusted: Share | None = None


class GroupAttacks(Part):
    """Groups of texts, all members or none, that were told apart by sums."""

    groups: Count
    size: Count
    members: Count
    non_members: Count
    secrets: tuple[Count, Count]
    attacks: tuple[GroupAttack, ...] = Field(min_length=1)
    primary: str | None = None

    @property
    def chosen(self) -> GroupAttack:
        """The score that was named beforehand."""
        return next((attack for attack in self.attacks if attack.name == self.primary), self.attacks[0])


class MembershipSet(Part):
    """Members and non-members, and how well they were told apart."""

    name: str
    what: str
    members: Count
    non_members: Count
    secrets: Count | None = None  # where several texts are about one
    flagged: bool
    blind: Blind | None = None
    attacks: tuple[Attack, ...] = Field(min_length=1)
    roc: Roc | None = None
    groups: GroupAttacks | None = None
    groups_why: str | None = None

    @property
    def primary(self) -> Attack:
        """The attack that was named before any score was seen; the interval of the best of many is none."""
        name = None if self.roc is None else self.roc.attack
        return next((attack for attack in self.attacks if attack.name == name), self.attacks[0])

    @property
    def tested(self) -> bool:
        """Whether chance decided who is a member; else what was measured describes, and tests nothing."""
        return any(attack.p_value is not None for attack in self.attacks)

    def above_chance(self, level: float) -> list[Attack]:
        """Attacks whose p-values, corrected for all that was tried, are at most the level."""
        return [one for one in self.attacks if one.adjusted is not None and one.adjusted <= level]


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


class RealTab(Part):
    """Each user's strangest text, beside those of users who were held out."""

    source: str
    users: Count
    accuracy: Measured
    attainable: Share | None = None
    public: Measured | None = None
    others: Measured | None = None
    other_users: Count = 0
    p_value: Share | None = None
    adjusted: Share | None = None


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
    p_value: Share | None = None
    adjusted: Share | None = None
    verdict: str

    def judged(self, level: float) -> str:
        """The verdict; by the corrected p-value where the headline looks at this row."""
        if self.adjusted is None:
            return self.verdict
        return "extracts" if self.adjusted <= level else "none"


class Extraction(Part):
    """What generations give away."""

    tab: Tab | None = None
    tab_real: RealTab | None = None
    tries: Tries | None = None
    codes: tuple[CodeRow, ...] | None = None


class Realised(Part):
    """What answers cost by their distributions, against what was charged."""

    excess: Count  # queries that cost a part more than it was charged
    largest_excess: float
    queries: Count
    verdict: Verdict
    statement: str


class RatioRow(Part):
    """The best possible attack on one part's presence, as an epsilon or as a divergence in nats."""

    part: int
    measure: Literal["epsilon", "divergence"] = "epsilon"
    transcripts: Count
    queries: Count | None = None  # in one transcript
    auc: Measured
    epsilon_lower: Bound
    claimed_epsilon: Bound | None = None
    delta: Share | None = None
    verdict: Verdict


class BlackBox(Part):
    """An attack from outside, with the meter running."""

    url: str = ""
    created: str = ""
    generations: Count
    hits_inserted: Count
    hits_twins: Count
    chance: Share | None = None
    p_value: Share | None = None
    p_claim: Share | None = None
    queries_used: Count = 0
    booked: Count | None = None
    ended: str = "complete"
    verdict: Verdict = "inconclusive"
    reason: str = ""
    secret_rate: Measured | None = None
    twin_rate: Measured | None = None
    control: str = ""


class Prediction(Part):
    """Attacks on private answers."""

    queries: Count
    parts: Count
    realised: Realised | None = None
    likelihood_ratio: tuple[RatioRow, ...] = ()
    black_box: BlackBox | None = None
