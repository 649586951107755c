"""What a guarantee means, in sentences for somebody who has never heard of epsilon."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from tacit.report.words import number, percent

HEADLINES: Mapping[str, str] = {
    "none": "No guarantee",
    "public": "Public text: nobody to protect",
    "empirical": "No formal guarantee; only attacks can tell",
    "rop": "A guarantee for this corpus only, not differential privacy",
    "rdp": "Differential privacy (Renyi)",
    "dp": "Differential privacy",
    "confidentiality": "Confidentiality of secrets",
}


def measure_of(kind: str) -> str:
    """What a claim's number is of a guarantee of this kind: what holds for one corpus has no epsilon."""
    return "divergence" if kind == "rop" else "epsilon"


def in_words(guarantee: Mapping[str, Any]) -> list[str]:
    """What is promised, and what that is worth at most."""
    kind, unit = guarantee["kind"], guarantee["unit"]
    order, epsilon, delta = (_float(guarantee.get(name)) for name in ("order", "epsilon", "delta"))
    if kind in ("dp", "confidentiality") and epsilon == math.inf:
        return [f"Nothing is promised after all. {guarantee.get('caveat', '')}".strip()]
    if kind == "confidentiality":
        other = "a mask" if _compares(guarantee, "<MASK>") else "another secret"
        found = [
            f"Whatever an attacker does, what a secret says makes any outcome at most e^{number(epsilon)} "
            f"times as likely as {other} in its place{_but_for(delta)}.",
            "This protects secrets in the text, not the text around them, and not that there was a secret.",
        ]
        if "about: a random secret" in guarantee.get("assumptions", ()):
            found.append(
                "It is an average over secrets like those whose miss rates were measured or assumed: one "
                "that both screening policies miss is not protected."
            )
        return found
    if kind == "none":
        return [
            "Nothing is promised: the weights may hold any training text, and may repeat it word for word."
        ]
    if kind == "public":
        return ["The text was declared public, so that there is nobody whose secret could leak."]
    if kind == "empirical":
        return [
            "Nothing is proven. The method is meant to make leaks rarer; only attacks can tell whether it "
            "did, and one that was not tried may succeed."
        ]
    if kind == "rop":
        return [
            f"All answers together stay within Renyi divergence {number(epsilon)} (order {number(order)}) of "
            f"those of a neighbouring ensemble without one {unit}.",
            "This was measured on this corpus and this partition and is true of no other. It is not "
            "differential privacy.",
        ]
    if kind == "rdp":
        return [
            f"Whatever is asked, all answers together stay within Renyi divergence {number(epsilon)} (order "
            f"{number(order)}) of those that would have been given without one {unit}'s text.",
            "This is true of every corpus and of every attacker, whatever they know already.",
        ]
    other = ""
    if _compares(guarantee, "(add-remove)"):
        other = " as without it"
    elif _compares(guarantee, "(replace-one)"):
        other = " as another in its place"
    return [
        f"Whatever an attacker does, one {unit}'s text makes any outcome at most e^{number(epsilon)} times "
        f"as likely{other}{_but_for(delta)}.",
        "This is true of every corpus and of every attacker, whatever they know already.",
    ]


def _compares(guarantee: Mapping[str, Any], words: str) -> bool:
    """Whether its neighbours are named by these words."""
    return any(one.startswith("neighbours:") and words in one for one in guarantee.get("assumptions", ()))


def _but_for(delta: float | None) -> str:
    return f", but for a chance of {percent(delta) if delta >= 1e-4 else number(delta)}" if delta else ""


def _float(value: Any) -> float | None:
    return None if value is None else float(value)  # infinity is written as text
