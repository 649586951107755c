"""Which recipes a frontier is made of: everything stays, and one key takes several values.

A value is known by what the recipe makes of it: 0.1, 0.10 and 1e-1 are one value, and would be one Run.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from tacit.errors import InputError
from tacit.recipes import PRIVATE_METHODS, REGULARISED_METHODS, Recipe, load_recipe
from tacit.training.building import from_any_folder

# From no protection to more than is usual; finer where the perplexity of a tiny model began to move.
# A weight of triplets counts for more: their distances are relative.
LAMBDAS: Final = {
    "adversarial": ("0", "0.1", "1", "3", "10"),
    "triplet": ("0", "0.01", "0.03", "0.1", "0.3"),
}
EPSILONS: Final = ("1", "2", "4", "8", "16")
NOISES: Final = ("0.3", "0.5", "1", "2")
_SHORTER: Final = (
    8,
    4,
    2,
    1,
)  # a model without protection at a higher perplexity is one that learned for less

_ONE_TEXT = "the Runs of a frontier are of one method and one text, or nothing could be compared"
_FIXED: Final = {
    "method": _ONE_TEXT + "; tune each method by itself and give the folders to tacit compare",
    "model": "the Runs of a frontier start from one public model; tune each model and compare the folders",
    "corpus": _ONE_TEXT + "; vary another key, e.g. training.epochs",
    "held_out": _ONE_TEXT + "; vary another key, e.g. training.epochs",
    "output": "every Run has its own folder in --output; vary another key, e.g. training.epochs",
    "performance": "it changes no result; vary another key, e.g. training.epochs",
}
# What a Run's folder or speed is called decides nothing about what it is.
BESIDE_THE_POINT: Final = ("output", "performance")


@dataclass(frozen=True)
class Point:
    """One value: the recipe that has it, and the name of its Run in the folder."""

    value: Any
    name: str
    recipe: Recipe = field(repr=False)

    @property
    def folder(self) -> Path:
        """Where its Run is, or will be."""
        return Path(self.recipe.output)


@dataclass(frozen=True)
class Sweep:
    """A key of a recipe and the values that it takes, one Run for each, all in one folder."""

    key: str
    folder: Path
    points: tuple[Point, ...]
    pinned: dict[str, Any] = field(repr=False)  # the recipe but for the key: what all Runs share
    _read: Callable[[str], Recipe] = field(repr=False)

    @property
    def method(self) -> str:
        """The method whose frontier this is."""
        return self.points[0].recipe.method

    def with_values(self, values: Iterable[Any]) -> Sweep:
        """The same sweep with those of ``values`` too that it does not have yet."""
        known = {_canonical(point.value) for point in self.points}
        more = [value for value in values if _canonical(value) not in known]
        added = (_point(self._read, self.key, json.dumps(value), self.folder) for value in more)
        return replace(self, points=_in_order((*self.points, *added)))


def sweep_of(path: Path, overrides: Sequence[str], over: str | None, output: Path | None) -> Sweep:
    """The sweep that ``--over KEY=V1,V2,...`` asks for; without it, over what the method is tuned by.

    Runs are put into ``output``; by default beside the output of the recipe, under a name that says the key.
    """

    def read(override: str) -> Recipe:
        return from_any_folder(load_recipe(path, [*overrides, override]))

    key, texts = _usual(load_recipe(path, overrides)) if over is None else _parsed(over)
    if (section := key.partition(".")[0]) in _FIXED:
        raise InputError(f"--over cannot vary '{key}': {_FIXED[section]}.")
    first = read(f"{key}={texts[0]}")
    _require_frontier(first)
    folder = (output or Path(f"{first.output}-over-{key.rpartition('.')[2]}")).absolute()
    points = tuple(_point(read, key, text, folder) for text in texts)
    _refuse_repeated(points, texts)
    return Sweep(key, folder, _in_order(points), _pinned(first, key), read)


def _parsed(over: str) -> tuple[str, tuple[str, ...]]:
    key, equals, values = over.partition("=")
    texts = tuple(text.strip() for text in _split(values))
    if not key or not equals or not all(texts):
        raise InputError(
            f"Expected --over KEY=V1,V2,... instead of '{over}', e.g. --over regularisation.lambda=0,0.1,1."
        )
    return key, texts


def _split(values: str) -> list[str]:
    """The values between commas, but for commas within brackets: a value may be a list."""
    return re.split(r",(?![^\[{]*[\]}])", values)


def _usual(recipe: Recipe) -> tuple[str, tuple[str, ...]]:
    """What the method is tuned by, where nobody says."""
    if recipe.method in REGULARISED_METHODS:
        return "regularisation.lambda", LAMBDAS[recipe.method]
    if recipe.method in PRIVATE_METHODS and recipe.privacy is not None:
        calibrated = recipe.privacy.epsilon is not None
        return ("privacy.epsilon", EPSILONS) if calibrated else ("privacy.noise_multiplier", NOISES)
    steps, epochs = recipe.training.max_steps, recipe.training.epochs
    key, longest = ("training.epochs", epochs) if steps is None else ("training.max_steps", steps)
    return key, tuple(dict.fromkeys(str(max(1, longest // part)) for part in _SHORTER))


def _require_frontier(recipe: Recipe) -> None:
    """Refuse what has no frontier of Runs, before anything is trained."""
    if recipe.method == "submix":
        raise InputError(
            "An ensemble is protected when it answers, by its budget: train it once, and look at budgets "
            "with tacit evaluate RUN --mechanism NAME --epsilon E --queries N."
        )
    if recipe.held_out is None:
        raise InputError(
            "A frontier is told over the perplexity of held-out text, and the recipe holds none out; set for "
            "example held_out.share=0.2."
        )


def _point(read: Callable[[str], Recipe], key: str, text: str, folder: Path) -> Point:
    recipe = read(f"{key}={text}")
    value = _value_at(recipe.to_json(), key)
    name = f"{key.rpartition('.')[2]}-{_written(value)}"
    return Point(value, name, recipe.model_copy(update={"output": str(folder / name)}))


def _value_at(content: Any, key: str) -> Any:
    for step in key.split("."):
        content = content[step]
    return content


def _written(value: Any) -> str:
    """A value as a folder's name has it."""
    if isinstance(value, float) and float(short := f"{value:g}") == value:
        return short
    text = value if isinstance(value, str) else json.dumps(value)
    return re.sub(r"[^\w.+-]+", "_", text).strip("_")[:60]


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def _refuse_repeated(points: Sequence[Point], texts: Sequence[str]) -> None:
    seen: dict[str, str] = {}
    for point, text in zip(points, texts, strict=True):
        if (other := seen.setdefault(point.name, text)) is not text:
            raise InputError(
                f"--over has '{other}' and '{text}', which are one Run ({point.name}); remove one of the two."
            )


def _in_order(points: Iterable[Point]) -> tuple[Point, ...]:
    """Numbers by size, so that an added value comes where it belongs; anything else as it was given."""
    found = tuple(points)
    if all(isinstance(point.value, int | float) for point in found):
        return tuple(sorted(found, key=lambda point: float(point.value)))
    return found


def _pinned(recipe: Recipe, key: str) -> dict[str, Any]:
    content = {name: part for name, part in recipe.to_json().items() if name not in BESIDE_THE_POINT}
    *sections, last = key.split(".")
    _value_at(content, ".".join(sections)).pop(last) if sections else content.pop(last)
    return content
