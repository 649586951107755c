"""Recipes: everything that decides what a Run is, in one YAML file.

A recipe is read, overridden by dotted ``key=value`` arguments, validated as a whole and saved in the
Run. An unknown key is an error, not a default: a misspelt privacy setting must never be ignored.

Sections keep apart what the data are (`corpus`, `held_out`), what is trained (`model`, `adapter`), how
(`training`) and what only changes speed or memory (`performance`): the last may be changed without
changing the result.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from tacit.errors import RecipeError

DEFAULT_MODEL = "smollm2-135m-instruct"

Share = Annotated[float, Field(gt=0, lt=1)]
Count = Annotated[int, Field(ge=1)]


class Section(BaseModel):
    """A part of a recipe: frozen, and with no key that is not declared."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class ModelSection(Section):
    """The public model: what everybody could have without the private text."""

    name: str = DEFAULT_MODEL
    revision: str | None = None
    dtype: Literal["auto", "fp32", "bf16"] = "auto"
    start_token: Annotated[int, Field(ge=0)] | None = None
    trust_remote_code: bool = False


class CorpusSection(Section):
    """Whose text is whose. Columns are named, never guessed."""

    path: str
    format: Literal["auto", "jsonl", "csv", "parquet", "text", "datasets"] = "auto"
    user: str | None = None
    text: str | None = None
    messages: str | None = None
    chat: Literal["template", "plain"] = "template"
    document: Literal["file", "paragraph", "line"] = "file"
    config: str | None = None
    split: str | None = None
    revision: str | None = None
    blocks: Annotated[int, Field(ge=2)] | None = None
    skip_bad: bool = False
    public: bool = False


class HeldOutSection(Section):
    """Which text is kept for measuring, never for training."""

    share: Share = 0.2
    by: Literal["user", "within"] = "user"
    seed: int = 0


class AdapterSection(Section):
    """Which weights may change. Layers below `trunk_layers` stay the public model's."""

    kind: Literal["lora", "top", "full"] = "lora"
    rank: Count = 16
    alpha: Annotated[float, Field(gt=0)] = 32.0
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    targets: tuple[str, ...] | None = None
    trunk_layers: Annotated[int, Field(ge=0)] = 0

    @model_validator(mode="after")
    def _full_has_no_trunk(self) -> Self:
        if self.kind == "full" and self.trunk_layers:
            raise ValueError(
                "kind 'full' trains every layer, so trunk_layers must be 0; kind 'top' keeps a trunk"
            )
        if self.kind == "top" and not self.trunk_layers:
            raise ValueError("kind 'top' needs trunk_layers of at least 1; kind 'full' trains every layer")
        return self


class EarlyStopSection(Section):
    """Stop when the loss on *public* text stops falling; private text would steer what is released."""

    public_text: str
    patience: Count = 2
    every: Count = 50


class TrainingSection(Section):
    """The optimisation: AdamW, linear warm-up, linear decay, clipping of the whole gradient."""

    epochs: Count = 3
    max_steps: Count | None = None
    block_size: Annotated[int, Field(ge=2)] = 256
    batch_size: Count = 8
    accumulate: Count = 1
    learning_rate: Annotated[float, Field(gt=0)] = 5e-4
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    warmup: Annotated[float, Field(ge=0, le=1)] = 0.1
    clip: Annotated[float, Field(gt=0)] = 1.0
    seed: Annotated[int, Field(ge=0, lt=2**63)] | None = None
    early_stop: EarlyStopSection | None = None


class PerformanceSection(Section):
    """What changes time and memory, and nothing about the result."""

    trunk_cache: Literal["memory", "disk", "off"] = "memory"
    threads: Count | None = None
    checkpoint_every: Count = 100


class Recipe(Section):
    """A whole recipe for `tacit train`."""

    method: Literal["finetune"] = "finetune"
    output: Annotated[str, Field(min_length=1)]
    model: ModelSection = ModelSection()
    corpus: CorpusSection
    held_out: HeldOutSection | None = HeldOutSection()
    adapter: AdapterSection = AdapterSection()
    training: TrainingSection = TrainingSection()
    performance: PerformanceSection = PerformanceSection()

    def to_json(self) -> dict[str, Any]:
        """JSON form, as saved in a Run."""
        return self.model_dump(mode="json")


def load_recipe(path: Path, overrides: Sequence[str] = ()) -> Recipe:
    """Read a YAML recipe and apply ``section.key=value`` overrides, in order."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as problem:
        raise RecipeError(
            f"{path}: cannot be read ({problem.strerror}); give the path of a YAML recipe."
        ) from None
    except UnicodeDecodeError:
        raise RecipeError(f"{path}: is not UTF-8 text; give the path of a YAML recipe.") from None
    try:
        content = yaml.safe_load(text)
    except yaml.YAMLError as problem:
        mark = getattr(problem, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark is not None else ""
        raise RecipeError(f"{path}{where}: is not valid YAML; check indentation and quotes there.") from None
    if not isinstance(content, dict):
        raise RecipeError(f"{path}: expected a mapping of recipe keys, such as 'corpus:' and 'output:'.")
    return parse_recipe(content, overrides, origin=str(path))


def parse_recipe(content: dict[str, Any], overrides: Sequence[str] = (), *, origin: str = "recipe") -> Recipe:
    """Validate a recipe given as a mapping."""
    merged: dict[str, Any] = dict(content)
    for override in overrides:
        merged = _with_override(merged, override)
    try:
        return Recipe.model_validate(merged)
    except ValidationError as problem:
        raise RecipeError(_first_problem(problem, origin)) from None


def _with_override(content: dict[str, Any], override: str) -> dict[str, Any]:
    key, equals, value = override.partition("=")
    names = key.split(".")
    if not equals or not all(names):
        raise RecipeError(f"Override '{override}': expected section.key=value, e.g. training.epochs=2.")
    try:
        parsed: Any = yaml.safe_load(value)
    except yaml.YAMLError:
        raise RecipeError(f"Override '{key}': the value is not valid YAML; put it in quotes.") from None
    for name in reversed(names):
        parsed = {name: parsed}
    return _merged(content, parsed)


def _merged(base: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    result = dict(base)
    for key, value in change.items():
        below = result.get(key)
        result[key] = _merged(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return result


def _first_problem(problem: ValidationError, origin: str) -> str:
    """One sentence for the first thing wrong, with the remedy."""
    error = problem.errors(include_url=False)[0]
    path = [str(step) for step in error["loc"]]
    key = ".".join(path)
    if error["type"] == "extra_forbidden":
        known = _keys_at(path[:-1])
        close = difflib.get_close_matches(path[-1], known, n=1)
        remedy = f"did you mean '{close[0]}'?" if close else f"known keys here: {', '.join(known)}."
        return f"{origin}: unknown key '{key}'; {remedy}"
    if error["type"] == "missing":
        return f"{origin}: '{key}' is required; add it to the recipe or give {key}=VALUE."
    reason = error["msg"].removeprefix("Value error, ")
    reason = reason[0].lower() + reason[1:]
    shown = "" if isinstance(error["input"], dict | BaseModel) else f"={error['input']!r}"
    return f"{origin}: '{key}'{shown} cannot be used: {reason}."


def _keys_at(path: Sequence[str]) -> list[str]:
    section: type[BaseModel] = Recipe
    for name in path:
        field = section.model_fields.get(name)
        found = [t for t in _types_of(field.annotation) if issubclass(t, BaseModel)] if field else []
        if not found:
            return []
        section = found[0]
    return list(section.model_fields)


def _types_of(annotation: Any) -> list[type]:
    if isinstance(annotation, type):
        return [annotation]
    return [kind for inner in getattr(annotation, "__args__", ()) for kind in _types_of(inner)]
