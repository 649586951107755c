"""Linkability: how well a fresh probe names the author of a text from the state that a model ends it in.

It describes, and is no leak. Models that never saw any of the text separate authors, too, because authors
write differently; so the public model stands beside the Run, and what training changed is the difference. It
is what regularised training works on (Mireshghallah et al. 2021), as a proxy: a model whose states hide their
author may still repeat training text, and one whose states tell it may repeat none. So it is not among the
attempts that the headline looks at.

What holds:

* ``p_value`` is exact. The probe never sees the scored texts' authors. If states told nothing about authors,
  every order of these among the scored texts would be as likely, whatever the probe names; orders are drawn,
  and the p-value is the share of those (the true one counted) with as many hits. It is not corrected for
  anything: it describes one model.
* ``accuracy`` is the share of scored texts whose author is named. Texts of one author are alike: intervals
  resample authors, not texts (with fewer than twenty authors Hoeffding's, which are wide and hold). They are
  about other texts by such authors, for this probe, and for as many authors: among more, accuracy is lower.
  Where a label is named, which has few values, they resample the users whose texts are scored.
* A difference is of the same texts, author by author (or user by user).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from tacit.attacks.author_probe import NamedAuthors, ProbeSettings, name_authors
from tacit.attacks.last_states import last_states
from tacit.attacks.token_statistics import BoolArray, IntArray, LanguageModel
from tacit.audit.linkability_sets import LinkabilitySet
from tacit.progress import Progress
from tacit.statistics import Estimate, FloatArray, bounded_mean

FIRST: Final = 5
_DRAWS: Final = 9999
_CELLS: Final = 4_000_000  # of one block of drawn orders: bounds memory


@dataclass(frozen=True)
class People:
    """Whose each scored text is, and what they are called: who is resampled."""

    codes: IntArray = field(repr=False)
    called: str

    @classmethod
    def of(cls, found: LinkabilitySet) -> People:
        """Authors; users where a label is named, of which there may be two."""
        if found.label is None:
            return cls(found.scored.authors, "authors")
        return cls(found.scored.users, "users")

    def share_of(self, right: BoolArray, *, confidence: float) -> Estimate:
        """The share of texts that are right."""
        return self.mean_of(right.astype(np.float64), least=0.0, confidence=confidence)

    def mean_of(self, values: FloatArray, *, least: float, confidence: float) -> Estimate:
        """The mean over texts; those of one are drawn together."""
        counts = np.bincount(self.codes)
        there = counts > 0
        means = np.bincount(self.codes, values)[there] / counts[there]
        return bounded_mean(
            means, least=least, most=1.0, of=self.called, weights=counts[there], confidence=confidence
        )


@dataclass(frozen=True)
class ModelLinkability:
    """What a probe finds in one model's states."""

    accuracy: Estimate
    among_first: Estimate | None  # whether the author is among the first five; None for five authors or fewer
    p_value: float
    probe: str
    right: BoolArray = field(repr=False)  # of each scored text

    @classmethod
    def of(
        cls, named: NamedAuthors, found: LinkabilitySet, *, confidence: float, seed: int
    ) -> ModelLinkability:
        """Judge what the probe named against who wrote the texts."""
        authors, people = found.scored.authors, People.of(found)
        right = named.named == authors
        return cls(
            accuracy=people.share_of(right, confidence=confidence),
            among_first=people.share_of(named.among(FIRST, authors), confidence=confidence)
            if found.authors > FIRST
            else None,
            p_value=order_p_value(named.named, authors, seed=seed),
            probe=named.probe,
            right=right,
        )

    def to_json(self) -> dict[str, Any]:
        """JSON form, without what was said of single texts."""
        return {
            "accuracy": self.accuracy.to_json(),
            "among_first": None if self.among_first is None else self.among_first.to_json(),
            "p_value": self.p_value,
            "probe": self.probe,
        }


@dataclass(frozen=True)
class LinkabilityFinding:
    """A Run's states beside the public model's, and beside those of a model without protection."""

    found: LinkabilitySet
    run: ModelLinkability
    public: ModelLinkability
    control: ModelLinkability | None
    confidence: float

    def to_json(self) -> dict[str, Any]:
        """The section of `audit.json`."""
        scored = self.found.scored.authors
        return {
            "what": self.found.what,
            "label": self.found.label,
            "unseen": self.found.unseen,
            "authors": self.found.authors,
            "learnt": len(self.found.learnt),
            "scored": len(scored),
            "chance": {
                "one_of_all": 1 / self.found.authors,
                "most_frequent": float(np.bincount(scored).max() / len(scored)),
            },
            "run": self.run.to_json(),
            "public": self.public.to_json(),
            "control": None if self.control is None else self.control.to_json(),
            "above_public": self._above(self.public).to_json(),
            "above_control": None if self.control is None else self._above(self.control).to_json(),
        }

    def _above(self, other: ModelLinkability) -> Estimate:
        difference = self.run.right.astype(np.float64) - other.right
        return People.of(self.found).mean_of(difference, least=-1.0, confidence=self.confidence)


def measure_linkability(
    found: LinkabilitySet,
    run: LanguageModel,
    public: LanguageModel,
    control: LanguageModel | None = None,
    *,
    settings: ProbeSettings | None = None,
    confidence: float = 0.95,
    seed: int = 0,
    progress: Progress | None = None,
) -> LinkabilityFinding:
    """Probe each model's states of the same texts."""
    probe = replace(settings or ProbeSettings(), seed=seed)

    def probed(model: LanguageModel) -> ModelLinkability:
        both = last_states([*found.learnt.sequences, *found.scored.sequences], model, progress=progress)
        learnt, scored = np.split(both, [len(found.learnt)])
        named = name_authors(learnt, found.learnt.authors, scored, settings=probe)
        return ModelLinkability.of(named, found, confidence=confidence, seed=seed)

    beside = None if control is None else probed(control)
    return LinkabilityFinding(found, probed(run), probed(public), beside, confidence)


def order_p_value(named: IntArray, authors: IntArray, *, seed: int, draws: int = _DRAWS) -> float:
    """How likely so many hits are if the authors stood in any order; exact, by drawing orders."""
    rng = np.random.default_rng(seed)
    hits = int((named == authors).sum())
    rows = max(1, _CELLS // len(authors))
    as_many = 0
    for begin in range(0, draws, rows):
        orders = np.tile(authors, (min(rows, draws - begin), 1))
        as_many += int(((rng.permuted(orders, axis=1) == named).sum(axis=1) >= hits).sum())
    return (1 + as_many) / (1 + draws)


def guesses_in_training(told: Mapping[str, Any]) -> dict[str, Any] | None:
    """What adversarial training recorded of its own discriminator; None for any other training."""
    found = told.get("discriminator")
    names = ("accuracy", "most_frequent_author", "one_of_all_authors")
    if not isinstance(found, Mapping) or any(found.get(name) is None for name in names):
        return None
    return {name: found[name] for name in names}
