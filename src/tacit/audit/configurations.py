"""Which Runs make one frontier: those of one method, set up in one way.

Between two Runs of a frontier leakage is interpolated. That says something of a method only where the two
differ in one key which trades protection for perplexity: how long they learnt, or how strongly they were
protected. Triplets with pairs of two kinds are two methods in that sense, and so is everything else that a
recipe may set otherwise.

    a folder of tacit tune   is a frontier along the key that it varies, any key whose values are numbers
    Runs given one by one    make a frontier where their recipes differ in the length of training alone, or in
                             the strength alone; a lambda of 0 is the control without a privacy loss, and
                             stands for itself

Method, public model and text are compared elsewhere. Speed and seeds say nothing about a configuration.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from tacit.recipes import Recipe

_TOLD_ELSEWHERE: Final = ("method", "corpus", "held_out", "output", "performance")
# Which model it is, its fingerprint says; draws say nothing.
_LEFT_OUT: Final = ("model.name", "model.revision", "training.seed", "ensemble.key")
_LENGTH: Final = ("training.epochs", "training.max_steps")
_LAMBDA: Final = "regularisation.lambda"
_STRENGTH: Final = (_LAMBDA, "privacy.epsilon", "privacy.noise_multiplier")

Settings = Mapping[str, str]


def told_apart(methods: Sequence[str], recipes: Sequence[Recipe], along: Sequence[str | None]) -> list[str]:
    """Of each Run its method, with what sets its configuration apart where the method has several.

    ``along`` has the key that varies in a Run's folder of tacit tune; None for a Run given by itself.
    """
    settings = [_settings(recipe) for recipe in recipes]
    names = list(methods)
    for method in dict.fromkeys(methods):
        groups = _groups([at for at, one in enumerate(methods) if one == method], settings, along)
        shown = [_in_common([settings[at] for at in group]) for group in groups]
        keys = dict.fromkeys(key for one in shown for key in one)
        telling = [key for key in keys if len({one.get(key) for one in shown}) > 1]
        for group, one in zip(groups, shown, strict=True):
            what = ", ".join(_short(key, telling) + one[key] for key in telling if key in one)
            for at in group:
                names[at] = f"{method} ({what})" if what else method
    return names


def _settings(recipe: Recipe) -> Settings:
    """All that decides a Run beside what is told elsewhere, by dotted key, as text."""
    found: dict[str, str] = {}

    def add(prefix: str, content: Mapping[str, Any]) -> None:
        for name, value in content.items():
            if isinstance(value, Mapping):
                add(f"{prefix}{name}.", value)
            else:
                found[prefix + name] = value if isinstance(value, str) else json.dumps(value)

    add("", {name: part for name, part in recipe.to_json().items() if name not in _TOLD_ELSEWHERE})
    for key in _LEFT_OUT:
        found.pop(key, None)
    if recipe.training.max_steps is not None:
        found.pop("training.epochs")  # which would be another length, and is not heeded
    return found


def _groups(
    places: Sequence[int], settings: Sequence[Settings], along: Sequence[str | None]
) -> list[list[int]]:
    """Places of the Runs of each frontier, in order of appearance."""
    alike: dict[Any, list[int]] = {}
    for at in places:
        varied = _varied(settings[at], along[at])
        fixed = frozenset((key, value) for key, value in settings[at].items() if key not in varied)
        alike.setdefault((along[at], fixed), []).append(at)
    groups = []
    for (key, _), group in alike.items():
        by_strength: dict[Any, list[int]] = {}
        for at in group:
            by_strength.setdefault(_of(_STRENGTH, settings[at]), []).append(at)
        lengths = {_of(_LENGTH, settings[at]) for at in group}
        one_by_one = key is None and len(lengths) > 1  # then no Run may differ from another in both
        groups += list(by_strength.values()) if one_by_one else [group]
    return groups


def _varied(settings: Settings, along: str | None) -> tuple[str, ...]:
    """The keys in which another Run of the same frontier may differ."""
    if along is not None:
        return (along,)
    control = float(settings.get(_LAMBDA, "1")) == 0
    return tuple(key for key in (*_LENGTH, *_STRENGTH) if not (control and key == _LAMBDA))


def _of(keys: Sequence[str], settings: Settings) -> tuple[str | None, ...]:
    return tuple(settings.get(key) for key in keys)


def _in_common(settings: Sequence[Settings]) -> dict[str, str]:
    """What a configuration is known by: each key with its value, or that it varies."""
    first = settings[0]
    return {
        key: f"={value}" if all(one.get(key) == value for one in settings) else " varied"
        for key, value in first.items()
    }


def _short(key: str, among: Sequence[str]) -> str:
    """A key without its section, where no other one ends alike: the two phases of CRT have keys in common."""
    last = key.rpartition(".")[2]
    return last if [one.rpartition(".")[2] for one in among].count(last) == 1 else key
