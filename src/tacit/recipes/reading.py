"""From YAML and overrides to a recipe, and one sentence for whatever is wrong with it."""

from __future__ import annotations

import difflib
import re
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from tacit.errors import RecipeError
from tacit.recipes.recipe import Recipe


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
    if kind == "literal_error" and error["loc"][-1:] in (("joint",), ("screened",)):
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
    return [field.alias or name for name, field in section.model_fields.items()]


def _types_of(annotation: Any) -> list[type]:
    if isinstance(annotation, type):
        return [annotation]
    return [kind for inner in getattr(annotation, "__args__", ()) for kind in _types_of(inner)]
