"""What each method of the overview promises, in words and numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from tacit.experiments.experiment import Settings
from tacit.experiments.overview_ground import CERTIFIED, CRT, DP_SGD, MASKED, SUBMIX, UNMITIGATED
from tacit.experiments.reg_levels import Level
from tacit.privacy.guarantee import DELTA, Guarantee
from tacit.report.words import number, percent

METHODS: Final = {
    UNMITIGATED: "unmitigated",
    MASKED: "masked text",
    "adversarial": "adversarial",
    "triplet": "triplet",
    DP_SGD: "DP-SGD",
    CRT: "CRT",
    SUBMIX: "SubMix, guarded",
    CERTIFIED: "certified mixing",
}
_EMPIRICAL: Final = "empirical, no guarantee"


def promise(settings: Settings, method: str, dial: float | None, run: Mapping[str, Any] | None) -> str:
    """At a place of the dial; without one, the kind of promise."""
    prediction = settings["prediction"]
    if method == UNMITIGATED:
        return "none"
    if method == MASKED:
        return f"none: {percent(settings['policy']['miss_rate'])} of secrets are missed"
    if method in (DP_SGD, CRT):
        numbers = "" if run is None else _epsilon(run["guarantee"])
        unit = "one turn" if method == DP_SGD else "what one secret says"
        kind = "DP" if method == DP_SGD else "confidentiality"
        return f"{numbers}{kind} of {unit}, weights and all"
    if method == SUBMIX:
        numbers = "" if dial is None else f"order {prediction['order']:g}, epsilon {number(dial)}, "
        return f"{numbers}for this corpus only, not DP; a part, {_answers(prediction)}"
    if method == CERTIFIED:
        numbers = "" if dial is None else f"({number(_converted(prediction, dial))}, {DELTA:g})-"
        return f"{numbers}DP of a part's text, {_answers(prediction)}"
    return _EMPIRICAL


def weakest(settings: Settings, level: Level, method: str) -> tuple[float | None, Mapping[str, Any] | None]:
    """The dial and the Run that promise less, of all between which a method's leakage was interpolated."""
    ends = [
        end
        for between in level.methods[method]
        for end in (between.left, between.right)
        if end.get("dial") is not None
    ]
    values = settings["methods"].get(method, {}).get("values", settings["prediction"]["epsilons"])
    last = max(ends, key=lambda end: values.index(end["dial"]), default=None)
    return (None, None) if last is None else (float(last["dial"]), last)


def _epsilon(guarantee: Mapping[str, Any]) -> str:
    epsilon, delta = float(guarantee["epsilon"]), float(guarantee["delta"])
    return f"({number(epsilon)}, {delta:g})-"


def _answers(prediction: Mapping[str, Any]) -> str:
    return f"{prediction['queries']:,} answers"


def _converted(prediction: Mapping[str, Any], epsilon: float) -> float:
    found = Guarantee.certified(order=prediction["order"], epsilon=epsilon).to_dp(DELTA).epsilon
    return math.inf if found is None else float(found)
