"""What `benchmarks/regularisation.py` trained, at two perplexities: tables, and the paper's claims.

Reads the audits in FOLDER/CORPUS/METHOD/*, prints Markdown and writes FOLDER/summary.json. Between two Runs
of a method everything is interpolated over log(perplexity), as `tacit compare` does; of Runs that trained for
longer than was best for the method's perplexity, and of noise that made it better, nothing is used. The two
perplexities lie a quarter and three quarters of the way through what all methods reach.

Methods are compared on the same canaries: differences of mean exposure, with intervals that resample the
users who carry them. Completions, probe and disparity come as audited; a difference of two disparities goes
from the ends of their intervals, which is wider than it need be. A claim is confirmed or refuted only where
the interval of its difference leaves zero out, at both perplexities. Each is told beside DP-SGD, as the paper
has it, and beside the unmitigated model at the same perplexity, which tells what shorter training alone does.

Run: python benchmarks/regularisation_summary.py FOLDER
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tacit.audit.frontiers import interpolated
from tacit.statistics import Estimate

FloatArray = npt.NDArray[np.float64]
REGULARISED = ("adversarial", "triplet", "triplet second batch")
OTHERS = ("DP-SGD", "unmitigated")
METHODS = ("unmitigated", *REGULARISED, "DP-SGD")
OFTEN = 9  # the paper's claim is about canaries that are repeated more often
RESAMPLES = 4000


@dataclass(frozen=True)
class Point:
    """One audited Run."""

    perplexity: float
    audit: dict[str, Any]

    def canaries(self, value: Callable[[dict[str, Any]], float]) -> dict[str, float]:
        return {row["id"]: value(row) for row in self.audit["exposure"]["rows"]}

    def tab(self, repetitions: int) -> Estimate:
        levels = self.audit["extraction"]["tab"]["per_repetition"]
        found = next(one["accuracy"] for one in levels if one["repetitions"] == repetitions)
        return Estimate.from_json(found)

    def estimate(self, *path: str) -> Estimate | None:
        found: Any = self.audit
        for name in path:
            found = None if found is None else found.get(name)
        return None if found is None else Estimate.from_json(found)


@dataclass(frozen=True)
class Between:
    """A method at a perplexity that lies between two of its Runs."""

    left: Point
    right: Point
    share: float

    def estimate(self, *path: str) -> Estimate | None:
        return interpolated(self.left.estimate(*path), self.right.estimate(*path), self.share)

    def exposures(self) -> dict[str, float]:
        one, other = (end.canaries(lambda row: row["exposure"]["value"]) for end in (self.left, self.right))
        return {name: (1 - self.share) * one[name] + self.share * other[name] for name in one}

    def tab(self, repetitions: int) -> Estimate | None:
        return interpolated(self.left.tab(repetitions), self.right.tab(repetitions), self.share)


def frontier(folder: Path) -> list[Point]:
    """A method's Runs from its highest to its best perplexity; more protection is the higher one."""
    order = json.loads((folder / "tune.json").read_text(encoding="utf-8"))
    points = []
    for run in (one for one in order["runs"] if one["state"] == "audited"):
        audit = json.loads((folder / run["run"] / "audit.json").read_text(encoding="utf-8"))
        points.append(Point(audit["utility"]["run"]["value"], audit))
    best = min(range(len(points)), key=lambda place: points[place].perplexity)
    # Values come in order: protection is fewer epochs than the best number, and more noise.
    kept = points[: best + 1] if order["key"] == "training.epochs" else points[best:]
    return sorted(kept, key=lambda point: -point.perplexity)


def promised(folder: Path) -> list[list[str]]:
    """What DP-SGD's Runs promise: perplexity, noise, epsilon, and the mu that the paper quotes."""
    rows = []
    for run in json.loads((folder / "tune.json").read_text(encoding="utf-8"))["runs"]:
        if run["state"] != "audited":
            continue
        place = folder / run["run"]
        audit = json.loads((place / "audit.json").read_text(encoding="utf-8"))
        told = json.loads((place / "privacy.json").read_text(encoding="utf-8"))
        mu = float(told["dpsgd"]["gaussian_dp"]["mu"])
        epsilon, delta = float(told["epsilon"]), told["delta"]
        perplexity = audit["utility"]["run"]["value"]
        rows.append([f"{perplexity:.1f}", f"{run['value']:g}", f"{epsilon:.4g}", f"{delta:g}", f"{mu:.3g}"])
    return rows


def at(points: list[Point], perplexity: float) -> Between | None:
    for left, right in pairwise(points):
        if right.perplexity <= perplexity <= left.perplexity:
            share = math.log(left.perplexity / perplexity) / math.log(left.perplexity / right.perplexity)
            return Between(left, right, share)
    return None


class Carriers:
    """Canaries by the users who carry them, to be resampled together."""

    def __init__(self, manifest: dict[str, Any]) -> None:
        self.rung = {one["id"]: one["repetitions"] for one in manifest["canaries"]}
        self.user = {one["id"]: one["user"] for one in manifest["canaries"]}
        self.rungs = sorted(set(self.rung.values()))

    def mean(self, values: dict[str, float], rungs: list[int]) -> tuple[float, float, float]:
        """Mean over users of their mean over some rungs, with a bootstrap interval of 95%."""
        users = sorted(set(self.user.values()))
        own = np.array(
            [
                np.mean(
                    [values[name] for name in values if self.user[name] == user and self.rung[name] in rungs]
                )
                for user in users
            ]
        )
        draws = np.random.default_rng(0).integers(0, len(own), (RESAMPLES, len(own)))
        low, high = np.percentile(own[draws].mean(axis=1), [2.5, 97.5])
        return float(own.mean()), float(low), float(high)


def shown(triple: tuple[float, float, float] | Estimate | None, digits: int = 1) -> str:
    if triple is None:
        return "-"
    value, low, high = (triple.value, triple.low, triple.high) if isinstance(triple, Estimate) else triple
    return f"{value:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"


def table(header: list[str], rows: list[list[str]]) -> None:
    print("| " + " | ".join(header) + " |")
    print("|" + "---|" * len(header))
    for row in rows:
        print("| " + " | ".join(row) + " |")
    print()


def summarise(folder: Path) -> dict[str, Any]:
    manifest = json.loads((folder / "canaries.json").read_text(encoding="utf-8"))
    carriers = Carriers(manifest)
    frontiers = {name: frontier(folder / name) for name in METHODS}
    print(f"## {folder.name}\n")
    table(
        ["method", "perplexities of its Runs"],
        [[name, ", ".join(f"{one.perplexity:.1f}" for one in some)] for name, some in frontiers.items()],
    )
    table(
        ["DP-SGD: perplexity", "noise", "epsilon (add-remove)", "delta", "mu (limit, no bound)"],
        promised(folder / "DP-SGD"),
    )
    least = max(some[-1].perplexity for some in frontiers.values())
    most = min(some[0].perplexity for some in frontiers.values())
    content: dict[str, Any] = {"common": [least, most], "levels": []}
    if least >= most:
        print("No perplexity is common to all methods.\n")
        return content
    for name, share in (("high", 0.75), ("low", 0.25)):
        perplexity = least ** (1 - share) * most**share
        content["levels"].append(level(name, perplexity, frontiers, carriers))
    content["claims"] = judge(content["levels"])
    return content


def level(
    name: str, perplexity: float, frontiers: dict[str, list[Point]], carriers: Carriers
) -> dict[str, Any]:
    found = {method: at(points, perplexity) for method, points in frontiers.items()}
    methods = {method: one for method, one in found.items() if one is not None}
    print(f"### {name} perplexity: {perplexity:.1f}\n")
    exposures = {method: one.exposures() for method, one in methods.items()}
    table(
        ["mean exposure, bits", *(f"{rung}x" for rung in carriers.rungs)],
        [
            [method, *(shown(carriers.mean(values, [rung])) for rung in carriers.rungs)]
            for method, values in exposures.items()
        ],
    )
    table(
        ["completed by tab", *(f"{rung}x" for rung in carriers.rungs)],
        [[method, *(shown(one.tab(rung), 2) for rung in carriers.rungs)] for method, one in methods.items()],
    )
    often = [rung for rung in carriers.rungs if rung > OFTEN]
    rows, differences = [], {}
    for method in (*REGULARISED, "DP-SGD"):
        for other in OTHERS:
            if method == other or method not in exposures or other not in exposures:
                continue
            own, against = exposures[method], exposures[other]
            change = {one: own[one] - against[one] for one in own}
            seldom = [rung for rung in carriers.rungs if rung <= OFTEN]
            both = carriers.mean(change, seldom), carriers.mean(change, often)
            differences[f"{method} - {other}"] = {"seldom": both[0], "often": both[1]}
            rows.append([f"{method} - {other}", *(shown(one) for one in both)])
    table(["difference of exposure, bits", f"up to {OFTEN}x", f"more than {OFTEN}x"], rows)
    table(
        ["", "authors named by a fresh probe", "disparity: fewest - most, perplexity"],
        [
            [
                method,
                shown(one.estimate("linkability", "run", "accuracy"), 3),
                shown(one.estimate("disparity", "gap")),
            ]
            for method, one in methods.items()
        ],
    )
    gaps = {method: one.estimate("disparity", "gap") for method, one in methods.items()}
    apart = {
        f"{method} - DP-SGD": _apart(gaps[method], gaps["DP-SGD"])
        for method in REGULARISED
        if method in gaps and "DP-SGD" in gaps
    }
    table(
        ["difference of disparity, perplexity", ""],
        [[pair, shown(found)] for pair, found in apart.items()],
    )
    return {
        "name": name,
        "perplexity": perplexity,
        "tab": {
            method: {rung: _json(one.tab(rung)) for rung in carriers.rungs} for method, one in methods.items()
        },
        "probe": {
            method: _json(one.estimate("linkability", "run", "accuracy")) for method, one in methods.items()
        },
        "disparity": {method: _json(gap) for method, gap in gaps.items()},
        "disparity_differences": apart,
        "exposure": {
            method: {rung: carriers.mean(values, [rung]) for rung in carriers.rungs}
            for method, values in exposures.items()
        },
        "differences": differences,
    }


def _json(estimate: Estimate | None) -> dict[str, Any] | None:
    return None if estimate is None else estimate.to_json()


def _apart(one: Estimate | None, other: Estimate | None) -> tuple[float, float, float] | None:
    if one is None or other is None:
        return None
    return one.value - other.value, one.low - other.high, one.high - other.low


def judge(levels: list[dict[str, Any]]) -> list[list[str]]:
    """The paper's two claims, said plainly, and what is left of the first beside shorter training."""
    often = f"leaks less than {{}} what is repeated more than {OFTEN} times"
    rows = []
    for method in REGULARISED:
        for other in OTHERS:
            found = [level["differences"].get(f"{method} - {other}", {}).get("often") for level in levels]
            rows.append([f"{method} {often.format(other)}", _word(found)])
        gaps = [level["disparity_differences"].get(f"{method} - DP-SGD") for level in levels]
        rows.append([f"{method} is less unfair than DP-SGD to those who wrote little", _word(gaps)])
    table(["claim (one training seed)", "at both perplexities"], rows)
    return rows


def _word(differences: list[Any]) -> str:
    """Confirmed or refuted where all intervals lie on one side of zero."""
    if differences and all(one is not None and one[2] < 0 for one in differences):
        return "confirmed"
    if differences and all(one is not None and one[1] > 0 for one in differences):
        return "refuted"
    return "neither confirmed nor refuted"


def main() -> None:
    folder = Path(sys.argv[1])
    corpora = sorted(one for one in folder.iterdir() if (one / "DP-SGD" / "tune.json").exists())
    content = {one.name: summarise(one) for one in corpora}
    (folder / "summary.json").write_text(json.dumps(content, indent=2), encoding="utf-8")


if __name__ == "__main__":
    main()
