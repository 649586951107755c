"""The papers' set-ups: what they fix, and what they leave."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from tacit.attacks.groups import GroupPlan
from tacit.audit.plans import AuditPlan
from tacit.audit.presets import as_in_the_paper
from tacit.errors import InputError


def test_confidentially_redacted_training() -> None:
    given = AuditPlan(lines=3, groups=GroupPlan(size=4), documents=7, confidence=0.9)
    found = as_in_the_paper(given, "crt")
    assert (found.lines, found.groups.groups, found.groups.size) == (1000, 2000, 20)
    assert (found.groups.members, found.groups.look_alikes) == (1000, 1000)
    assert found.exposure.score == found.primary == "perplexity"
    assert found.spans == "spans"
    assert found.preset == "crt"
    assert (found.documents, found.confidence) == (7, 0.9)
    assert as_in_the_paper(dataclasses.replace(given, spans="marks"), "crt").spans == "marks"


def test_privacy_regularisation_needs_the_model_that_picks() -> None:
    with pytest.raises(InputError, match="--against"):
        as_in_the_paper(AuditPlan(), "regularisation")
    run: Any = object()
    found = as_in_the_paper(AuditPlan(against=run), "regularisation")
    assert (found.real, found.preset, found.against) == ("paper", "regularisation", run)
