"""`tacit account dpsgd` and `tacit account crt`: what training reveals, before anything is trained."""

from __future__ import annotations

import math
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from tacit import privacy
from tacit.cli import console
from tacit.cli.console import JsonFlag
from tacit.errors import InputError
from tacit.files import read_json, write_json
from tacit.privacy.gaussian import ASYMPTOTIC, UNAMPLIFIED

Rate = Annotated[
    float | None,
    typer.Option(help="Probability with which each example is in a batch: expected batch / examples."),
]
Steps = Annotated[int | None, typer.Option(help="Steps, empty batches included.")]
Examples = Annotated[int | None, typer.Option(help="Training examples; with --batch, instead of a rate.")]
Batch = Annotated[float | None, typer.Option(help="Expected batch.")]
Epochs = Annotated[float | None, typer.Option(help="Passes over the examples; with --examples, for --steps.")]
Delta = Annotated[float, typer.Option(help="Failure probability, well below one over the examples.")]


class Neighbours(StrEnum):
    """Which corpora are compared."""

    replaced = "replace-one"
    removed = "add-remove"


def dpsgd(
    sampling_rate: Rate = None,
    noise_multiplier: Annotated[
        float | None, typer.Option(help="Standard deviation of the noise, in clipping bounds.")
    ] = None,
    steps: Steps = None,
    examples: Examples = None,
    batch: Batch = None,
    epochs: Epochs = None,
    delta: Delta = 1e-5,
    epsilon: Annotated[
        float | None, typer.Option(help="Find the noise multiplier for this epsilon instead.")
    ] = None,
    adjacency: Annotated[
        Neighbours, typer.Option(help="Neighbours that --epsilon and --curve are for.")
    ] = Neighbours.replaced,
    group: Annotated[int, typer.Option(help="How many examples differ together.")] = 1,
    order: Annotated[
        float | None, typer.Option(help="Also the Renyi divergence at this order, as a ledger books it.")
    ] = None,
    curve: Annotated[Path | None, typer.Option(help="Write the whole curve to this JSON file.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """What DP-SGD reveals of one example, added, removed or replaced; or the noise that an epsilon takes.

    Examples:

        tacit account dpsgd --sampling-rate 0.0256 --noise-multiplier 1 --steps 391 --delta 8e-5

        tacit account dpsgd --examples 10000 --batch 256 --epochs 10 --epsilon 4 --delta 8e-5 --order 8
    """
    rate, taken = _schedule(sampling_rate, steps, examples, batch, epochs)
    noise = _noise(noise_multiplier, epsilon, delta, rate, taken, adjacency)
    process = privacy.DpSgdProcess(rate, noise, taken)
    curves = {one: privacy.dpsgd_curve(process, one.value, group=group) for one in Neighbours}
    passes = math.ceil(rate * taken)
    shown: dict[str, Any] = {
        "sampling_rate": rate,
        "noise_multiplier": noise,
        "steps": taken,
        "delta": delta,
        "epsilon_replace_one": curves[Neighbours.replaced].epsilon_at(delta),
        "epsilon_add_remove": curves[Neighbours.removed].epsilon_at(delta),
    }
    if group != 1:
        shown["group"] = group
    else:
        limit = privacy.gaussian_dp_mu(process)
        shown |= {
            "if_shuffled_replace_one": privacy.shuffled_epsilon(
                noise_multiplier=noise, epochs=passes, delta=delta
            ),
            "if_shuffled_add_remove": privacy.shuffled_epsilon(
                noise_multiplier=noise, epochs=passes, delta=delta, adjacency="add-remove"
            ),
            "gaussian_dp_mu": limit.mu,
            "asymptotic_add_remove": limit.epsilon_at(delta),
        }
    if order is not None:
        shown |= {"order": order, "renyi_replace_one": privacy.rdp_at(process, order, group=group)}
    if curve is not None:
        write_json(curve, curves[adjacency].to_json())
        shown["curve"] = str(curve)
    console.show(shown | _notes(shown), as_json=as_json)


def crt(
    noise_multiplier: Annotated[
        float, typer.Option(help="Standard deviation of the noise on private steps, in clipping bounds.")
    ],
    sampling_rate: Rate = None,
    steps: Steps = None,
    batch: Batch = None,
    epochs: Epochs = None,
    delta: Delta = 1e-5,
    calibration: Annotated[
        Path | None, typer.Option(help="What tacit corpus calibrate wrote: gamma and delta2.")
    ] = None,
    gamma: Annotated[float | None, typer.Option(help="Miss rate of the redaction policy, assumed.")] = None,
    delta2: Annotated[
        float | None,
        typer.Option(help="Miss rate of the conservative policy, assumed; without one, all is private."),
    ] = None,
    misses: Annotated[int | None, typer.Option(help="Of --labelled secrets, missed by redaction.")] = None,
    left_public: Annotated[
        int | None, typer.Option(help="Of --labelled secrets, in data points left public.")
    ] = None,
    labelled: Annotated[int | None, typer.Option(help="Labelled secrets, drawn like all others.")] = None,
    confidence: Annotated[float, typer.Option(help="Of each bound from --labelled.")] = 0.95,
    private_points: Annotated[int | None, typer.Option(help="Private data points.")] = None,
    bare_points: Annotated[int, typer.Option(help="Of these, those that are nothing but a mask.")] = 0,
    secret_points: Annotated[int, typer.Option(help="Data points that masking one secret changes.")] = 1,
    group: Annotated[
        list[str] | None,
        typer.Option(help="NAME=N: a group of secrets, and the data points that masking it changes."),
    ] = None,
    uniform: Annotated[int | None, typer.Option(help="Data points that masking all secrets changes.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """The confidentiality certificate of CRT: each secret, a random one, groups, all of them.

    Examples:

        tacit account crt --private-points 900 --batch 30 --epochs 5 --noise-multiplier 2 --gamma 0.1

        tacit account crt --sampling-rate 0.1 --steps 99 --noise-multiplier 4 --misses 3 --labelled 500
    """
    rate, taken = _schedule(sampling_rate, steps, private_points, batch, epochs, called="--private-points")
    first, second = _rates(calibration, gamma, delta2, misses, left_public, labelled, confidence)
    certificate = privacy.certify(
        privacy.DpSgdProcess(rate, noise_multiplier, taken),
        delta=delta,
        gamma=first,
        delta2=second,
        private_points=private_points,
        bare_points=bare_points,
        secret_points=secret_points,
        groups=dict(_named(one) for one in group or ()),
        uniform_points=uniform,
    )
    if as_json:
        console.show_json(certificate.to_json() | {"guarantee": certificate.guarantee.to_json()})
    else:
        console.out.print(str(certificate), markup=False)


def _schedule(
    rate: float | None,
    steps: int | None,
    examples: int | None,
    batch: float | None,
    epochs: float | None,
    called: str = "--examples",
) -> tuple[float, int]:
    """The sampling rate and the steps, given as such or as a batch of so many examples and epochs."""
    if rate is None:
        if examples is None or batch is None:
            raise InputError(f"give --sampling-rate, or {called} and --batch, from which it follows.")
        if examples == 0 and batch > 0 and called == "--private-points":
            return 0.0, 0  # nothing is private, and nothing is sampled
        if examples < 1 or not 0 < batch <= examples:
            raise InputError(
                f"--batch {batch:g} of {called} {examples}: an expected batch is above 0 and at most all."
            )
        rate = batch / examples
    elif batch is not None:
        raise InputError("--batch says what --sampling-rate says; give one of them.")
    if steps is None:
        if epochs is None:
            raise InputError("give --steps, or --epochs, from which they follow.")
        if not (0 <= epochs < math.inf and rate > 0):
            raise InputError(f"--epochs {epochs:g}: a finite number of at least 0, at a rate above 0.")
        steps = math.ceil(epochs / rate - 1e-9)
    elif epochs is not None:
        raise InputError("--epochs says what --steps says; give one of them.")
    return rate, steps


def _noise(
    given: float | None, epsilon: float | None, delta: float, rate: float, steps: int, adjacency: Neighbours
) -> float:
    if (given is None) == (epsilon is None):
        raise InputError("give either --noise-multiplier, or --epsilon to find it.")
    if given is not None:
        return given
    assert epsilon is not None  # noqa: S101 - one of them was given
    return privacy.calibrate_noise(epsilon, delta, sampling_rate=rate, steps=steps, adjacency=adjacency.value)


def _rates(
    calibration: Path | None,
    gamma: float | None,
    delta2: float | None,
    misses: int | None,
    left_public: int | None,
    labelled: int | None,
    confidence: float,
) -> tuple[privacy.MissRate, privacy.MissRate | None]:
    if sum(one is not None for one in (calibration, gamma, misses)) != 1:
        raise InputError(
            "give one of --calibration, --gamma, or --misses with --labelled: how often pi misses."
        )
    if calibration is not None:
        if (delta2, left_public, labelled) != (None, None, None):
            raise InputError("--calibration has both miss rates in it; give no other.")
        return privacy.calibrated_rates(read_json(calibration, "run tacit corpus calibrate again"))
    if gamma is not None:
        if left_public is not None or labelled is not None:
            raise InputError("--gamma is assumed, --labelled measures; give one of them.")
        second = None if delta2 is None else privacy.MissRate.assumed(delta2)
        return privacy.MissRate.assumed(gamma), second
    if labelled is None or misses is None:
        raise InputError("--misses needs --labelled: how many secrets were labelled.")
    if delta2 is not None:
        raise InputError("--delta2 is assumed, --labelled measures; give --left-public instead.")
    first = privacy.MissRate.measured(misses, labelled, confidence=confidence)
    if left_public is None:
        return first, None
    return first, privacy.MissRate.measured(left_public, labelled, confidence=confidence)


def _named(text: str) -> tuple[str, int]:
    name, _, points = text.rpartition("=")
    if not name or not points.isdigit():
        raise InputError(f"--group {text!r}: give a name and a number of data points, e.g. customer=3.")
    return name, int(points)


def _notes(shown: dict[str, Any]) -> dict[str, str]:
    notes = {
        "note": (
            "Upper bounds for Poisson-sampled batches, of the larger direction. Name the neighbours beside "
            "every epsilon."
        )
    }
    if "if_shuffled_replace_one" in shown:
        notes |= {"if_shuffled": UNAMPLIFIED, "asymptotic": ASYMPTOTIC}
    return notes
