"""`tacit ledger`: what may still be revealed about a set of people, and what has been."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from tacit import ledger as ledgers
from tacit.cli import console
from tacit.cli.console import JsonFlag
from tacit.errors import InputError
from tacit.privacy.filter import NANO
from tacit.runs import Run

app = typer.Typer(
    no_args_is_help=True,
    help="The durable record of what was revealed about a set of people. All of it is the operator's alone.",
)

LedgerOption = Annotated[
    str | None,
    typer.Option(
        "--ledger",
        help="A file or a postgresql:// URL; default: TACIT_LEDGER, or a file among your own data.",
        show_default=False,
    ),
]
AnchorOption = Annotated[
    Path | None,
    typer.Option(
        "--anchor",
        help="The note against rollback, best on another disk; default: TACIT_ANCHOR, or beside the file.",
        show_default=False,
    ),
]
DomainOption = Annotated[
    str | None,
    typer.Option("--domain", help="Which set of people; needed where there are several.", show_default=False),
]
RunArgument = Annotated[Path, typer.Argument(help="An ensemble's Run.", show_default=False)]


def open_ledger(url: str | None, anchor: Path | None = None, *, create: bool = False) -> ledgers.Ledger:
    """The ledger that the options name."""
    return ledgers.Ledger.open(url or ledgers.default_ledger(), anchor=anchor, create=create)


@app.command()
def init(
    run: RunArgument,
    epsilon: Annotated[float, typer.Option(help="Budget of every part, in nats at the order.")],
    order: Annotated[float, typer.Option(help="Renyi order.")] = 2.0,
    domain: Annotated[
        str | None,
        typer.Option(help="A name for these people; default: the Run's folder.", show_default=False),
    ] = None,
    unguarded: Annotated[
        bool,
        typer.Option(
            "--unguarded",
            help="For SubMix without guard only, whose charges compare with one part less.",
        ),
    ] = False,
    ledger: LedgerOption = None,
    anchor: AnchorOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Open an account for the people of a Run, with a budget that is never given back.

    Example:

        tacit ledger init runs/submix --epsilon 2
    """
    fingerprint, parts, partition = _identity(run)
    name = domain or run.resolve().name
    with open_ledger(ledger, anchor, create=True) as book:
        if other := book.domain_of(fingerprint):
            raise InputError(f"{run} answers from domain {other} already; a budget is not given twice.")
        neighbours: Any = "removed part" if unguarded else "null part"
        book.create(ledgers.Domain(name, order, parts, partition, epsilon, neighbours))
        book.attach(fingerprint, run.resolve().name, name, partition)
        console.show(
            {"domain": name, "ledger": book.store.name, "anchor": str(book.anchor.path)}
            | _terms(book.domain(name)),
            as_json=as_json,
        )


@app.command()
def attach(
    run: RunArgument,
    domain: DomainOption = None,
    repartition: Annotated[
        bool,
        typer.Option(
            "--repartition",
            help="The same people in other parts: every part takes over the most that any has spent.",
        ),
    ] = False,
    ledger: LedgerOption = None,
    anchor: AnchorOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Let a retrained ensemble answer from the budget of the people it was trained on.

    Example:

        tacit ledger attach runs/again --domain submix --repartition
    """
    fingerprint, parts, partition = _identity(run)
    with open_ledger(ledger, anchor) as book:
        name = ledgers.only_domain(book, domain)
        if repartition and book.domain(name).partition != partition:
            book.repartition(name, parts=parts, partition=partition, note=run.resolve().name)
        book.attach(fingerprint, run.resolve().name, name, partition)
        console.show({"domain": name} | _terms(book.domain(name)), as_json=as_json)


@app.command()
def book(
    epsilon: Annotated[
        float, typer.Option(help="Renyi bound at the domain's order, for one user's text replaced.")
    ],
    note: Annotated[str, typer.Option(help="What was released.")],
    domain: DomainOption = None,
    ledger: LedgerOption = None,
    anchor: AnchorOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Charge something else that was released about the same people, such as weights by DP-SGD.

    Example:

        tacit ledger book --epsilon 0.3 --note "DP-SGD weights v1"
    """
    with open_ledger(ledger, anchor) as account:
        name = ledgers.only_domain(account, domain)
        account.book_training(name, epsilon, note)
        console.show(_status(account, name), as_json=as_json)


@app.command()
def status(ledger: LedgerOption = None, anchor: AnchorOption = None, as_json: JsonFlag = False) -> None:
    """What is left, for every set of people.

    Example:

        tacit ledger status --json
    """
    with open_ledger(ledger, anchor) as account:
        rows = [_status(account, domain.id) for domain in account.domains()]
        if not as_json:
            console.say(f"{account.store.name}: functions of private text, for the operator alone.")
        console.show_rows(rows, as_json=as_json, name="domains")


@app.command()
def statement(
    domain: DomainOption = None,
    ledger: LedgerOption = None,
    anchor: AnchorOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Everything that was released about a set of people, and what it adds up to.

    Example:

        tacit ledger statement --domain submix
    """
    with open_ledger(ledger, anchor) as account:
        found = ledgers.statement(account, ledgers.only_domain(account, domain))
    if as_json:
        console.show_json(found.to_json())
        return
    guarantee = found.guarantee
    shown = {
        "models": ", ".join(found.models) or None,
        "private answers": found.balance.private_answers,
        "public answers": found.balance.public_answers,
        "by mechanism": ", ".join(f"{name}: {count:,}" for name, count in found.answers.items()) or None,
        "also released": "; ".join(f"{one.note} (epsilon {one.epsilon:g})" for one in found.training) or None,
        "used by the worst part": f"{found.balance.worst:.2%}",
        "stopped": found.balance.stopped,
        "guarantee": "none" if guarantee is None else str(guarantee),
    }
    if guarantee is not None and guarantee.kind == "rdp":
        shown["as (epsilon, delta)"] = guarantee.to_dp(1e-5).numbers
    console.show(_terms(found.domain) | shown, as_json=False, title=f"Domain {found.domain.id}")
    for caveat in found.caveats:
        console.say(caveat)
    console.say("Terms and guarantee may be published; counts by mechanism, spending and STOP may not.")


@app.command()
def verify(
    domain: DomainOption = None,
    ledger: LedgerOption = None,
    anchor: AnchorOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Read everything again: every hash, every number, every sum; exit code 4 where something is wrong.

    Example:

        tacit ledger verify
    """
    with open_ledger(ledger, anchor) as account, console.progress() as progress:
        names = [one.id for one in account.domains()] if domain is None else [account.domain(domain).id]
        rows = [
            {"domain": found.domain, "entries": found.entries, "head": found.head, "verified": True}
            for found in (ledgers.verify(account, name, progress) for name in names)
        ]
    console.show_rows(rows, as_json=as_json, name="domains")


@app.command()
def backup(
    output: Annotated[Path, typer.Argument(help="A new file.", show_default=False)],
    ledger: LedgerOption = None,
    anchor: AnchorOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Copy the ledger to a new file. An older copy is refused later, because it would give budget back.

    Example:

        tacit ledger backup ledger-copy.db
    """
    with open_ledger(ledger, anchor) as account:
        account.store.backup(output)
    console.show({"backup": str(output)}, as_json=as_json)


@app.command()
def path(ledger: LedgerOption = None, anchor: AnchorOption = None, as_json: JsonFlag = False) -> None:
    """Where the ledger and its anchor are.

    Example:

        tacit ledger path
    """
    url = ledger or ledgers.default_ledger()
    where = url.rsplit("@", 1)[-1] if "://" in url else url
    content = {"ledger": where, "anchor": str(anchor or ledgers.default_anchor(url))}
    console.show(content, as_json=as_json)


def _identity(folder: Path) -> tuple[str, int, str]:
    """A Run's own mark, its number of parts, and the mark of who is in which part."""
    from tacit.corpus.partition import Partition

    run = Run.open(folder)
    if run.manifest.ensemble is None:
        raise InputError(f"{folder} is no ensemble; only answers of ensembles are charged one by one.")
    partition = Partition.load(folder / "private" / "partition")
    return run.manifest.weights_fingerprint, run.manifest.ensemble.parts, partition.fingerprint


def _terms(domain: ledgers.Domain) -> dict[str, Any]:
    return {
        "order": domain.order,
        "epsilon": domain.epsilon,
        "parts": domain.parts,
        "neighbours": domain.neighbours,
    }


def _status(book: ledgers.Ledger, name: str) -> dict[str, Any]:
    balance = book.balance(name)
    return (
        {"domain": name}
        | _terms(book.domain(name))
        | {
            "worst_part_left": min(balance.left) / NANO,
            "private_answers": balance.private_answers,
            "public_answers": balance.public_answers,
            "stopped": balance.stopped,
            "entries": balance.entries,
        }
    )
