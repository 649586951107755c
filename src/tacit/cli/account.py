"""`tacit account`: every conversion between statements of privacy, as a calculator."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import typer

from tacit import privacy
from tacit.cli import console
from tacit.cli.console import JsonFlag
from tacit.errors import InputError

app = typer.Typer(
    no_args_is_help=True,
    help="Privacy losses in other words, and what training by DP-SGD or CRT reveals. Needs no data.",
)

Order = Annotated[float, typer.Option(help="Renyi order, above 1; 'inf' for pure DP.")]


def _loss(value: float) -> float:
    """Zero is legal arithmetic (NaN and less than zero are refused there), and no mechanism's loss."""
    if value == 0:
        raise InputError("--epsilon 0: nothing is revealed and nothing is to convert; give a loss above 0.")
    return value


Epsilon = Annotated[float, typer.Option(help="Privacy loss in nats, above 0.", callback=_loss)]

ANY_CORPUS = "Valid for bounds that hold for every corpus (certified, individual, DP-SGD), not for ROP."


class Formula(StrEnum):
    """How RDP becomes DP."""

    tight = "tight"
    mironov = "mironov"


class Theorem(StrEnum):
    """How a part becomes a user."""

    better = "better"
    paper = "paper"


class Kind(StrEnum):
    """What kind of loss a group multiplies."""

    rdp = "rdp"
    zcdp = "zcdp"
    pure = "pure"


@app.command()
def dp(
    order: Order,
    epsilon: Epsilon,
    delta: Annotated[float, typer.Option(help="Failure probability.")] = 1e-5,
    formula: Annotated[Formula, typer.Option(help="Which published conversion.")] = Formula.tight,
    as_json: JsonFlag = False,
) -> None:
    """(order, epsilon)-RDP as (epsilon, delta)-DP.

    Example:

        tacit account dp --order 2 --epsilon 2 --delta 1e-5
    """
    converted = privacy.rdp_to_dp(order=order, epsilon=epsilon, delta=delta, formula=formula.value)
    _show({"epsilon": converted, "delta": delta, "formula": formula.value}, as_json=as_json)


@app.command()
def user(
    order: Order,
    epsilon: Epsilon,
    theorem: Annotated[
        Theorem, typer.Option(help="'paper' is SubMix's C.1, order above 2.")
    ] = Theorem.better,
    as_json: JsonFlag = False,
) -> None:
    """From one part removed to one user's text replaced.

    Example:

        tacit account user --order 4 --epsilon 1
    """
    bound = privacy.part_to_user(order=order, epsilon=epsilon, theorem=theorem.value)
    _show({"order": bound.order, "epsilon": bound.epsilon, "theorem": theorem.value}, as_json=as_json)


@app.command()
def group(
    size: Annotated[int, typer.Option(help="How many change together.")],
    epsilon: Annotated[
        float, typer.Option(help="Privacy loss in nats, above 0; rho for zCDP.", callback=_loss)
    ],
    kind: Annotated[Kind, typer.Option(help="What the loss is.")] = Kind.rdp,
    order: Annotated[float | None, typer.Option(help="Renyi order (rdp only).")] = None,
    as_json: JsonFlag = False,
) -> None:
    """The loss of a group of parts or users.

    Example:

        tacit account group --kind rdp --order 8 --epsilon 0.5 --size 4
    """
    if kind is Kind.rdp:
        if order is None:
            raise InputError("--order is needed for rdp; give the Renyi order that the loss was measured at.")
        bound = privacy.rdp_group(order=order, epsilon=epsilon, size=size)
        _show({"order": bound.order, "epsilon": bound.epsilon, "size": size}, as_json=as_json)
        return
    if order is not None:
        raise InputError(f"--order means nothing for {kind.value}; leave it out.")
    if kind is Kind.zcdp:
        _show({"rho": privacy.zcdp_group(rho=epsilon, size=size), "size": size}, as_json=as_json)
    else:
        _show({"epsilon": privacy.pure_group(epsilon=epsilon, size=size), "size": size}, as_json=as_json)


@app.command()
def stopping(
    order: Order,
    epsilon: Epsilon,
    queries: Annotated[int, typer.Option(help="Answers the service is to give.")],
    expansion: Annotated[float, typer.Option(help="The paper's C: stop within C times the queries.")],
    as_json: JsonFlag = False,
) -> None:
    """SubMix's random stopping (C.3): the price, in the one direction in which it holds.

    Example:

        tacit account stopping --order 2 --epsilon 2 --queries 1000 --expansion 10
    """
    stop = privacy.random_stopping(order=order, epsilon=epsilon, queries=queries, expansion=expansion)
    content = {
        "order": stop.order,
        "epsilon": stop.epsilon,
        "expected_public_share": stop.public_share,
        "holds": stop.direction,
    }
    console.show(content, as_json=as_json)


@app.command()
def extraction(
    order: Order,
    epsilon: Epsilon,
    candidates: Annotated[float, typer.Option(help="Equally likely values of the secret.")],
    as_json: JsonFlag = False,
) -> None:
    """How likely a secret of one part is guessed at most.

    Example:

        tacit account extraction --order 2 --epsilon 2 --candidates 1e5
    """
    certificate = privacy.extraction_certificate(order=order, epsilon=epsilon, candidates=candidates)
    content = {
        "guessed_at_most": certificate.bound,
        "hoelder": certificate.hoelder,
        "fano": certificate.fano,
        "chance": certificate.chance,
    }
    _show(content, as_json=as_json)


@app.command()
def divergence(
    first: Annotated[str, typer.Argument(help="A pmf as numbers with commas, e.g. 0.5,0.5.")],
    second: Annotated[str, typer.Argument(help="Another pmf of the same length.")],
    order: Annotated[
        float, typer.Option(help="Renyi order, at least 1; 'inf' for the largest log-ratio.")
    ] = 2.0,
    as_json: JsonFlag = False,
) -> None:
    """Renyi divergences between two distributions, in both directions.

    Example:

        tacit account divergence 0.5,0.5 0.4,0.6 --order 2
    """
    p, q = _numbers(first), _numbers(second)
    if len(p) != len(q):
        raise InputError(f"the pmfs have {len(p)} and {len(q)} outcomes; give the same number.")
    content = {
        "order": order,
        "first_from_second": float(privacy.renyi_divergence(p, q, order)),
        "second_from_first": float(privacy.renyi_divergence(q, p, order)),
        "symmetric": float(privacy.symmetric_renyi_divergence(p, q, order)),
    }
    console.show(content, as_json=as_json)


def _numbers(text: str) -> list[float]:
    try:
        return [float(number) for number in text.split(",")]
    except ValueError:
        raise InputError("a pmf is numbers with commas between them, e.g. 0.5,0.5.") from None


def _show(content: dict[str, Any], *, as_json: bool) -> None:
    console.show(content | {"note": ANY_CORPUS}, as_json=as_json)
