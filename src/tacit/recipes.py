"""Recipes: everything that decides what a Run is, in one YAML file.

A recipe is read, overridden by dotted ``key=value`` arguments, validated as a whole and saved in the
Run. An unknown key is an error, not a default: a misspelt privacy setting must never be ignored.

Sections keep apart what the data are (`corpus`, `held_out`), what is trained (`model`, `adapter`,
`ensemble`), how (`training`) and what only changes speed or memory (`performance`): the last may be changed
without changing the result.
"""

from __future__ import annotations

import difflib
import re
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_core import ErrorDetails

from tacit.errors import RecipeError

DEFAULT_MODEL = "smollm2-135m-instruct"


def _number(value: Any) -> Any:
    if isinstance(value, bool):  # which Python would take for 0 or 1
        raise ValueError("expected a number")
    return value


# Strict, so that true is no number and 1 is not true. Reals may be spelt as text: YAML reads 5e-4 as such.
Whole = Annotated[int, Field(strict=True)]
Real = Annotated[float, BeforeValidator(_number)]
Flag = Annotated[bool, Field(strict=True)]
# Upper bounds are far beyond use: they turn a slip of the keyboard into a sentence instead of a crash.
Share = Annotated[Real, Field(gt=0, lt=1)]
Count = Annotated[Whole, Field(ge=1, le=10**9)]
Tokens = Annotated[Whole, Field(ge=2, le=2**20)]
Name = Annotated[str, Field(min_length=1, pattern=r"^[^\x00]*$")]


class Section(BaseModel):
    """A part of a recipe: frozen, and with no key that is not declared."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class ModelSection(Section):
    """The public model: what everybody could have without the private text."""

    name: Name = DEFAULT_MODEL
    revision: Name | None = None
    dtype: Literal["auto", "fp32", "bf16"] = "auto"
    start_token: Annotated[Whole, Field(ge=0)] | None = None
    trust_remote_code: Flag = False


class CorpusSection(Section):
    """Whose text is whose. Columns are named, never guessed."""

    path: Name
    format: Literal["auto", "jsonl", "csv", "parquet", "text", "datasets"] = "auto"
    user: Name | None = None
    text: Name | None = None
    messages: Name | None = None
    chat: Literal["template", "plain"] = "template"
    document: Literal["file", "paragraph", "line"] = "file"
    config: Name | None = None
    split: Name | None = None
    revision: Name | None = None
    blocks: Tokens | None = None
    skip_bad: Flag = False
    public: Flag = False


class HeldOutSection(Section):
    """Which text is kept for measuring, never for training."""

    share: Share = 0.2
    by: Literal["user", "within"] = "user"
    seed: Whole = 0


class AdapterSection(Section):
    """Which weights may change. Layers below `trunk_layers` stay the public model's."""

    kind: Literal["lora", "top", "full"] = "lora"
    rank: Annotated[Whole, Field(ge=1, le=4096)] = 16
    alpha: Annotated[Real, Field(gt=0)] = 32.0
    dropout: Annotated[Real, Field(ge=0, lt=1)] = 0.0
    targets: Annotated[tuple[Name, ...], Field(min_length=1)] | None = None
    trunk_layers: Annotated[Whole, Field(ge=0)] = 0

    @model_validator(mode="after")
    def _full_has_no_trunk(self) -> Self:
        if self.kind == "full" and self.trunk_layers:
            raise ValueError(
                "kind 'full' trains every layer, so trunk_layers must be 0; kind 'top' keeps a trunk"
            )
        if self.kind == "top" and not self.trunk_layers:
            raise ValueError("kind 'top' needs trunk_layers of at least 1; kind 'full' trains every layer")
        return self

    @model_validator(mode="after")
    def _only_lora_has_low_rank_settings(self) -> Self:
        # By value, not by what was written: the recipe in a Run has every key.
        for name in ("rank", "alpha", "dropout", "targets"):
            if self.kind != "lora" and getattr(self, name) != type(self).model_fields[name].default:
                raise ValueError(
                    f"'{name}' belongs to kind 'lora' and would be ignored by kind '{self.kind}'; remove "
                    f"adapter.{name}"
                )
        return self


class EarlyStopSection(Section):
    """Stop when the loss on *public* text stops falling; private text would steer what is released."""

    public_text: Name
    patience: Count = 2
    every: Count = 50


class TrainingSection(Section):
    """The optimisation: AdamW, linear warm-up, linear decay, clipping of the whole gradient.

    `submix` takes `max_steps` steps whatever `epochs` says: its length must not depend on private text.
    """

    epochs: Count = 3
    max_steps: Count | None = None
    block_size: Tokens = 256
    batch_size: Count = 8
    accumulate: Count = 1
    learning_rate: Annotated[Real, Field(gt=0, le=1)] = 5e-4
    weight_decay: Annotated[Real, Field(ge=0)] = 0.0
    warmup: Annotated[Real, Field(ge=0, le=1)] = 0.1
    clip: Annotated[Real, Field(gt=0)] = 1.0
    seed: Annotated[Whole, Field(ge=0, lt=2**63)] | None = None
    early_stop: EarlyStopSection | None = None


class EnsembleSection(Section):
    """The members of `method: submix`: two per part, or one where the mechanism needs no halves."""

    parts: Annotated[Whole, Field(ge=1, le=10_000)] = 8
    halves: Flag = True
    assign: Literal["hash", "balanced"] = "hash"
    key: Name | None = None
    joint: Literal["auto", True, False] = "auto"

    @field_validator("joint", mode="before")
    @classmethod
    def _one_is_not_true(cls, value: Any) -> Any:
        return value if isinstance(value, bool | str) else repr(value)


class PerformanceSection(Section):
    """What changes time and memory, and nothing about the result but for rounding."""

    device: Annotated[str, Field(pattern=r"^(auto|cpu|cuda(:[0-9]{1,2})?)$")] = "auto"
    trunk_cache: Literal["memory", "disk", "off"] = "memory"
    threads: Annotated[Whole, Field(ge=1, le=1024)] | None = None
    checkpoint_every: Count = 100

    @field_validator("trunk_cache", mode="before")
    @classmethod
    def _off_is_a_word(cls, value: Any) -> Any:
        return "off" if value is False else value  # YAML reads a bare off as false


class Recipe(Section):
    """A whole recipe for `tacit train`."""

    method: Literal["finetune", "submix"] = "finetune"
    output: Name
    model: ModelSection = ModelSection()
    corpus: CorpusSection
    held_out: HeldOutSection | None = HeldOutSection()
    adapter: AdapterSection = AdapterSection()
    training: TrainingSection = TrainingSection()
    ensemble: EnsembleSection | None = None
    performance: PerformanceSection = PerformanceSection()

    @model_validator(mode="before")
    @classmethod
    def _an_ensemble_has_defaults(cls, content: Any) -> Any:
        if not isinstance(content, dict) or content.get("method") != "submix":
            return content
        return content | {"ensemble": {}} if content.get("ensemble") is None else content

    @model_validator(mode="after")
    def _sections_fit_the_method(self) -> Self:
        if self.ensemble is None:
            return self
        if self.method != "submix":
            raise ValueError(
                f"the section 'ensemble' is for method 'submix', not '{self.method}'; remove it or set "
                "method=submix"
            )
        # How long a member learns, and on what shapes, must not depend on what any part holds.
        if self.training.max_steps is None:
            raise ValueError(
                "method 'submix' needs 'training.max_steps', the public number of steps that every member "
                "takes; give for example training.max_steps=200"
            )
        if self.training.early_stop is not None:
            raise ValueError(
                "with method 'submix' every member takes training.max_steps steps; remove "
                "'training.early_stop'"
            )
        if self.ensemble.joint is True:
            self._refuse_what_cannot_be_joint()
        return self

    def _refuse_what_cannot_be_joint(self) -> None:
        if self.adapter.kind != "lora":
            raise ValueError(
                f"members of adapter.kind '{self.adapter.kind}' share no layer and are trained one by one; "
                "set ensemble.joint=false, or adapter.kind=lora"
            )
        if self.adapter.dropout:
            raise ValueError(
                f"adapter.dropout={self.adapter.dropout:g} is not possible for members trained jointly; set "
                "ensemble.joint=false, or adapter.dropout=0"
            )

    def to_json(self) -> dict[str, Any]:
        """JSON form, as saved in a Run."""
        return self.model_dump(mode="json")


class _RepeatedKey(Exception):
    """Of two values for one key, YAML would drop the first in silence."""


class _Loader(yaml.SafeLoader):
    """YAML whose whole numbers are decimal. Plain YAML reads 010 as eight and 1:30 as ninety."""


_INT = "tag:yaml.org,2002:int"
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != _INT]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(_INT, re.compile(r"^[-+]?(0|[1-9][0-9]*)$"), list("-+0123456789"))


def _read_yaml(text: str) -> Any:
    """What YAML says, where every key is there once."""
    _refuse_repeated_keys(yaml.compose(text, _Loader))
    return yaml.load(text, _Loader)  # noqa: S506 - a safe loader, but for how it reads whole numbers


def _refuse_repeated_keys(node: yaml.Node | None) -> None:
    if isinstance(node, yaml.SequenceNode):
        for item in node.value:
            _refuse_repeated_keys(item)
    if not isinstance(node, yaml.MappingNode):
        return
    seen = set()
    for key, value in node.value:
        if isinstance(key, yaml.ScalarNode):
            if key.value in seen:
                raise _RepeatedKey(f"line {key.start_mark.line + 1}: '{key.value}' is there twice")
            seen.add(key.value)
        _refuse_repeated_keys(value)


def load_recipe(path: Path, overrides: Sequence[str] = ()) -> Recipe:
    """Read a YAML recipe and apply ``section.key=value`` overrides, in order."""
    return parse_recipe(read_mapping(path), overrides, origin=str(path))


def read_mapping(
    path: Path, kind: str = "recipe", example: str = "'corpus:' and 'output:'"
) -> dict[str, Any]:
    """A YAML file that holds a mapping; ``kind`` says in a refusal what it should have been."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as problem:
        raise RecipeError(
            f"{path}: cannot be read ({problem.strerror}); give the path of a YAML {kind}."
        ) from None
    except UnicodeDecodeError:
        raise RecipeError(f"{path}: is not UTF-8 text; give the path of a YAML {kind}.") from None
    try:
        content = _read_yaml(text)
    except _RepeatedKey as problem:
        raise RecipeError(f"{path}, {problem}; remove one of the two.") from None
    except (yaml.YAMLError, ValueError, RecursionError) as problem:
        # A ValueError is an impossible date or number.
        mark = getattr(problem, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark is not None else ""
        raise RecipeError(f"{path}{where}: is not valid YAML; check indentation and quotes there.") from None
    if not isinstance(content, dict):
        raise RecipeError(f"{path}: expected a mapping of {kind} keys, such as {example}.")
    return content


def parse_recipe(content: dict[str, Any], overrides: Sequence[str] = (), *, origin: str = "recipe") -> Recipe:
    """Validate a recipe given as a mapping."""
    merged: dict[str, Any] = dict(content)
    for override in overrides:
        merged = _with_override(merged, override)
    try:
        return Recipe.model_validate(merged)
    except ValidationError as problem:
        raise RecipeError(first_problem(problem, origin, Recipe)) from None


def _with_override(content: dict[str, Any], override: str) -> dict[str, Any]:
    key, equals, value = override.partition("=")
    names = key.split(".")
    if not equals or not all(names):
        raise RecipeError(f"Override '{override}': expected section.key=value, e.g. training.epochs=2.")
    try:
        parsed: Any = _read_yaml(value)
    except _RepeatedKey as problem:
        raise RecipeError(f"Override '{key}', {problem}; remove one of the two.") from None
    except (yaml.YAMLError, ValueError, RecursionError):
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


def first_problem(problem: ValidationError, origin: str, root: type[BaseModel], kind: str = "recipe") -> str:
    """One sentence for the first thing wrong in what should have been a ``root``, with the remedy."""
    error = problem.errors(include_url=False)[0]
    path = [str(step) for step in error["loc"]]
    if not path:  # what is wrong lies between sections
        return f"{origin}: {expected(error)}."
    key = ".".join(path)
    if error["type"] in ("extra_forbidden", "invalid_key"):
        known = _keys_at(root, path[:-1])
        close = difflib.get_close_matches(path[-1], known, n=1)
        remedy = f"did you mean '{close[0]}'?" if close else f"known keys here: {', '.join(known)}."
        return f"{origin}: unknown key '{key}'; {remedy}"
    if error["type"] == "missing":
        return f"{origin}: '{key}' is required; add it to the {kind} or give {key}=VALUE."
    simple = isinstance(error["input"], str | int | float)
    shown = f"={textwrap.shorten(repr(error['input']), 60, placeholder='...')}" if simple else ""
    return f"{origin}: '{key}'{shown} cannot be used: {expected(error)}."


def expected(error: ErrorDetails) -> str:
    """What a field of a section would take, for the end of a sentence."""
    kind, context = error["type"], error.get("ctx", {})
    if kind == "value_error":
        return str(context["error"])
    if kind == "string_type" and isinstance(error["input"], bool):
        return "expected text, and YAML reads yes, no, on and off as true and false; put it in quotes"
    if kind == "literal_error" and error["loc"][-1:] == ("joint",):
        return "expected auto, true or false"
    if kind == "string_pattern_mismatch" and error["loc"][-1:] == ("device",):
        return "expected auto, cpu, cuda or cuda:N"
    for beginning, words in _EXPECTED.items():
        if kind.startswith(beginning):
            return "expected " + words.format(**context)
    return "expected another kind of value"


# By the beginning of pydantic's name for the problem, the longer of two beginnings first.
_EXPECTED = {
    "int_from_float": "a whole number",
    "int": "a whole number",
    "float": "a number",
    "finite_number": "a finite number",
    "bool": "true or false",
    "string_pattern_mismatch": "text without a null character",
    "string_too_short": "a text that is not empty",
    "string": "text",
    "literal_error": "{expected}",
    "greater_than_equal": "a number of at least {ge}",
    "greater_than": "a number above {gt}",
    "less_than_equal": "a number of at most {le}",
    "less_than": "a number below {lt}",
    "too_short": "a list that is not empty",
    "tuple_type": "a list, e.g. [q_proj, v_proj]",
    "model": "a section of keys, e.g. {{key: value}}",
    "dict": "a section of keys, e.g. {{key: value}}",
}


def _keys_at(root: type[BaseModel], path: Sequence[str]) -> list[str]:
    section = root
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
