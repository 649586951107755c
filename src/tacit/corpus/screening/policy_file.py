"""Policies as YAML: what is looked for, and from which score on.

    redact: 0.5            # pi: text with this score is masked
    conservative: 0.1      # pi_c: a data point with this score is private; left out: everything is
    scorers:
      - patterns
      - embedded
      - {kind: gazetteer, files: [staff.txt], label: NAME, ignore_case: true}

An unknown key is an error, as in recipes: a misspelt setting of privacy must never be ignored. Files are
found from the folder of the policy.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import Field, ValidationError

from tacit.corpus.screening.gold_spans import GoldSpans
from tacit.corpus.screening.patterns import PatternScorer
from tacit.corpus.screening.phrases import Gazetteer
from tacit.corpus.screening.policy import Policy
from tacit.corpus.screening.regexes import RegexScorer
from tacit.corpus.screening.scores import Scorer
from tacit.corpus.screening.tagger import CONSERVATIVE, REDACT
from tacit.corpus.screening.tagger_rules import PAPER_CONSERVATIVE, PAPER_REDACT, Rule
from tacit.errors import InputError, RecipeError
from tacit.recipes import first_problem, read_mapping
from tacit.recipes.fields import Flag, Name, Real, Section, Whole

Threshold = Annotated[Real, Field(gt=0, le=1)]
MissRate = Annotated[Real, Field(ge=0, le=1)]
Names = Annotated[tuple[Name, ...], Field(min_length=1)]

Preset = Literal["default", "patterns", "paper", "spans"]


class PatternsSection(Section):
    """Numbers and addresses that their form gives away."""

    kind: Literal["patterns"] = "patterns"
    entities: Names | None = None

    def build(self, _: Path) -> Scorer:
        """The scorer."""
        return PatternScorer() if self.entities is None else PatternScorer(self.entities)


class EmbeddedSection(Section):
    """The tagger that comes with tacit: names, places, organisations, addresses."""

    kind: Literal["embedded"] = "embedded"

    def build(self, _: Path) -> Scorer:
        """The scorer."""
        from tacit.corpus.screening.tagger import EmbeddedTagger

        return EmbeddedTagger()


class HuggingFaceSection(Section):
    """A token classifier by hub id or folder; ``rule: paper`` scores as CRT's authors did."""

    kind: Literal["huggingface"]
    model: Name
    revision: Name | None = None
    rule: Rule = "probability"
    batch_size: Annotated[Whole, Field(ge=1, le=4096)] = 32

    def build(self, folder: Path) -> Scorer:
        """The scorer."""
        from tacit.corpus.screening.token_classifier import TokenClassifier

        beside = folder / self.model
        model = str(beside) if beside.is_dir() else self.model
        return TokenClassifier(model, revision=self.revision, rule=self.rule, batch_size=self.batch_size)


class PresidioSection(Section):
    """Presidio: over a spaCy model in a folder, as a configuration of its own says, or with patterns only."""

    kind: Literal["presidio"]
    model: Name | None = None
    configuration: Name | None = None
    language: Name = "en"
    entities: Names | None = None

    def build(self, folder: Path) -> Scorer:
        """The scorer."""
        from tacit.corpus.screening.presidio import PresidioScorer

        if self.configuration is not None:
            if self.model is not None:
                raise RecipeError("Give Presidio a 'model' or a 'configuration', not both.")
            path = folder / self.configuration
            return PresidioScorer.from_configuration(path, language=self.language, entities=self.entities)
        model = None if self.model is None else folder / self.model
        return PresidioScorer.with_model(model, language=self.language, entities=self.entities)


class GazetteerSection(Section):
    """Words and phrases from files, one per line."""

    kind: Literal["gazetteer"]
    files: Names
    label: Name = "LISTED"
    ignore_case: Flag = False

    def build(self, folder: Path) -> Scorer:
        """The scorer."""
        files = [folder / name for name in self.files]
        return Gazetteer.read(files, self.label, ignore_case=self.ignore_case)


class RegexSection(Section):
    """Expressions by label; where one has a group named ``secret``, that group is what is found."""

    kind: Literal["regex"]
    expressions: Annotated[dict[Name, Name], Field(min_length=1)]
    score: Threshold = 1.0

    def build(self, _: Path) -> Scorer:
        """The scorer."""
        return RegexScorer(self.expressions, self.score)


class SpansSection(Section):
    """The corpus' own spans, with a share of them missed on purpose."""

    kind: Literal["spans"]
    column: Name = "spans"
    labels: Names | None = None
    miss_rate: MissRate = 0.0
    conservative_miss_rate: MissRate = 0.0
    seed: Whole = 0

    def gold(self) -> GoldSpans:
        """The spans' own rule, which is no scorer: it does not look at the text."""
        return GoldSpans(self.column, self.labels, self.miss_rate, self.conservative_miss_rate, self.seed)


ScorerSection = (
    PatternsSection
    | EmbeddedSection
    | HuggingFaceSection
    | PresidioSection
    | GazetteerSection
    | RegexSection
    | SpansSection
)
_KINDS: Mapping[str, type[Section]] = {
    get_args(section.model_fields["kind"].annotation)[0]: section for section in get_args(ScorerSection)
}


class PolicySection(Section):
    """A whole policy; ``scorers`` are names or sections with a ``kind``."""

    redact: Threshold
    conservative: Threshold | None = None
    scorers: Annotated[tuple[Any, ...], Field(min_length=1)]
    placeholders: Flag = False
    max_rounds: Annotated[Whole, Field(ge=1, le=100)] = 8


_PRESETS: Mapping[str, Mapping[str, Any]] = {
    "default": {"redact": REDACT, "conservative": CONSERVATIVE, "scorers": ["patterns", "embedded"]},
    "patterns": {"redact": 0.5, "conservative": 0.5, "scorers": ["patterns"]},
    "paper": {"redact": PAPER_REDACT, "conservative": PAPER_CONSERVATIVE, "scorers": ["patterns"]},
    "spans": {"redact": 0.5, "conservative": 0.5, "scorers": ["spans"]},
}


def preset(name: str, *, tagger: str | None = None) -> dict[str, Any]:
    """A policy by name, as the mapping that its YAML would be.

    ``paper`` needs a ``tagger``, a Hugging Face token classifier, which it reads by the paper's rule.
    """
    if name not in _PRESETS:
        raise RecipeError(
            f"There is no policy file or preset '{name}'; presets are {', '.join(_PRESETS)}, files are YAML."
        )
    content = dict(_PRESETS[name])
    if (name == "paper") != (tagger is not None):
        need = "needs a tagger: name" if tagger is None else "has no place for a tagger: leave out"
        raise RecipeError(f"The preset '{name}' {need} --tagger, a Hugging Face token classifier.")
    if tagger is not None:
        content["scorers"] = [*content["scorers"], {"kind": "huggingface", "model": tagger, "rule": "paper"}]
    return content


def load_policy(path: Path, changes: Mapping[str, Any] | None = None) -> Policy:
    """Read a policy file; ``changes`` replace keys of it."""
    content = read_mapping(path, "policy", "'redact:' and 'scorers:'")
    return parse_policy(content | dict(changes or {}), origin=str(path), folder=path.parent)


def parse_policy(content: Mapping[str, Any], *, origin: str = "policy", folder: Path | None = None) -> Policy:
    """Validate a policy given as a mapping, and make its scorers."""
    if "redact" not in content:
        raise RecipeError(
            f"{origin}: the policy has no threshold; add 'redact', the score from which on text is masked, "
            "e.g. redact: 0.5."
        )
    try:
        section = PolicySection.model_validate(dict(content))
    except ValidationError as problem:
        raise RecipeError(first_problem(problem, origin, PolicySection, "policy")) from None
    parts = [
        _scorer_section(item, f"{origin}, scorer {number}") for number, item in enumerate(section.scorers, 1)
    ]
    spans = [part for part in parts if isinstance(part, SpansSection)]
    if len(spans) > 1:
        raise RecipeError(f"{origin}: there are {len(spans)} scorers of kind 'spans'; one is possible.")
    try:
        return Policy(
            scorers=tuple(
                part.build(folder or Path()) for part in parts if not isinstance(part, SpansSection)
            ),
            redact=section.redact,
            conservative=section.conservative,
            gold=spans[0].gold() if spans else None,
            placeholders=section.placeholders,
            max_rounds=section.max_rounds,
        )
    except InputError as problem:
        raise type(problem)(f"{origin}: {problem}") from None


def _scorer_section(item: Any, origin: str) -> ScorerSection:
    content = {"kind": item} if isinstance(item, str) else item
    if not isinstance(content, Mapping):
        raise RecipeError(f"{origin}: expected a name or a section with a 'kind'.")
    kind = content.get("kind")
    if not isinstance(kind, str) or kind not in _KINDS:
        close = difflib.get_close_matches(str(kind), _KINDS, n=1)
        remedy = f"did you mean '{close[0]}'?" if close else f"known kinds: {', '.join(_KINDS)}."
        raise RecipeError(f"{origin}: unknown kind '{str(kind)[:40]}'; {remedy}")
    try:
        section = _KINDS[kind].model_validate(dict(content))
    except ValidationError as problem:
        raise RecipeError(first_problem(problem, origin, _KINDS[kind], "scorer")) from None
    assert isinstance(section, ScorerSection)  # noqa: S101 - _KINDS holds nothing else
    return section


def chosen_policy(
    name: str,
    *,
    tagger: str | None = None,
    changes: Mapping[str, Any] | None = None,
    spans: Sequence[Any] = (),
) -> Policy:
    """The policy that a command line names: a file or a preset, with keys changed and spans added."""
    path = Path(name)
    is_file = path.suffix in (".yaml", ".yml") or path.exists()
    content = (
        read_mapping(path, "policy", "'redact:' and 'scorers:'") if is_file else preset(name, tagger=tagger)
    )
    if is_file and tagger is not None:
        raise RecipeError("--tagger belongs to the preset 'paper'; name it in the policy file instead.")
    if spans:
        others = [item for item in content.get("scorers", ()) if item != "spans"]
        content["scorers"] = [*others, *spans]
    return parse_policy(content | dict(changes or {}), origin=name, folder=path.parent if is_file else Path())
