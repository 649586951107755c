"""The papers' own set-ups, as plans.

``crt``: Confidentially Redacted Training, A.5. Canaries are ranked by perplexity; 1,000 lines with secrets
and 1,000 look-alikes are told apart by perplexity, and 2,000 groups of 20 of them by its sum. The paper's are
training lines alone, which donors give; without donors lines are of both sides of the split, to be a test.
The paper takes the median of the scored texts themselves for a threshold: what that gives stands beside the
accuracy at a threshold that was chosen on other texts.

``regularisation``: privacy regularisation. Tab completion of each user's strangest training text, picked by
the model without mitigation, and who pays: the five users with most and with fewest samples, against that
model. It needs that Run (--against).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final, Literal

from tacit.attacks.groups import PAPER
from tacit.audit.membership_sets import DEFAULT_COLUMN
from tacit.audit.plans import AuditPlan
from tacit.errors import InputError

Preset = Literal["crt", "regularisation"]
CRT_LINES: Final = 1000


def as_in_the_paper(plan: AuditPlan, preset: Preset) -> AuditPlan:
    """The plan with what a paper fixes; everything else stays."""
    if preset == "crt":
        return replace(
            plan,
            preset=preset,
            exposure=replace(plan.exposure, score="perplexity"),
            lines=CRT_LINES,
            spans=plan.spans or DEFAULT_COLUMN,
            groups=PAPER,
            primary="perplexity",
        )
    if plan.against is None:
        raise InputError(
            "The preset 'regularisation' compares with a model without mitigation; give its Run (--against)."
        )
    return replace(plan, preset=preset, real="paper")
