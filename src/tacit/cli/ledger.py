"""`tacit ledger`: what may still be revealed about a set of people, and what has been."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from tacit import ledger as ledgers
from tacit.cli import console
from tacit.cli.console import JsonFlag
from tacit.errors import InputError
from tacit.files import read_json
from tacit.privacy import DpSgdProcess, rdp_at
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
        help="The note against rollback, best on another disk; default: in TACIT_ANCHORS, or beside "
        "the file.",
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
    mechanism: Annotated[
        str,
        typer.Option(
            help="What will answer, for good: certified or individual (RDP); submix-guarded or submix "
            "(instance-specific; for Runs with two models per part)."
        ),
    ] = "certified",
    domain: Annotated[
        str | None,
        typer.Option(help="A name for these people; default: the Run's folder.", show_default=False),
    ] = None,
    ledger: LedgerOption = None,
    anchor: AnchorOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Open an account for the people of a Run, with a budget that is never given back.

    Refused where any of them has one in this ledger already. They are known by their ids, of which the ledger
    keeps keyed hashes.

    Example:

        tacit ledger init runs/submix --epsilon 2
    """
    served = [known for known, rule in ledgers.RULES.items() if rule.served]
    if mechanism not in served:
        raise InputError(
            f"mechanism={mechanism!r}: tacit serve answers by {', '.join(served)}, and a domain keeps its "
            "mechanism for good; choose one of them."
        )
    opened, model = _opened(run)
    name = domain or model.name
    account = ledgers.Domain(name, order, model.parts, model.partition, epsilon, mechanism, model.unit)
    account.check_first(model)  # before a ledger is made for it
    with open_ledger(ledger, anchor, create=True) as book:
        book.create(account, model)
        _tell_run(opened, name, book)
        where = {"domain": name, "ledger": book.store.name, "anchor": str(book.anchor.path)}
        _show_account(book, account, where, as_json=as_json)


@app.command()
def attach(
    run: RunArgument,
    domain: DomainOption = None,
    repartition: Annotated[
        bool,
        typer.Option(
            "--repartition",
            help="The same people in other parts: every part takes over the most that any has spent, and "
            "ensembles of the old parts answer no more.",
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
    opened, model = _opened(run)
    with open_ledger(ledger, anchor) as book:
        name = ledgers.only_domain(book, domain)
        book.attach(name, model, repartition=repartition)
        _tell_run(opened, name, book)
        _show_account(book, book.domain(name), {"domain": name}, as_json=as_json)


@app.command()
def book(
    note: Annotated[str, typer.Option(help="What was released.")],
    epsilon: Annotated[
        float | None,
        typer.Option(
            help="Renyi bound at the domain's order, for one user's text replaced; not the epsilon of an "
            "(epsilon, delta) statement.",
            show_default=False,
        ),
    ] = None,
    run: Annotated[
        Path | None,
        typer.Option(
            help="Instead: a Run of method dpsgd with privacy.unit=user about the same people, whose bound "
            "is computed.",
            show_default=False,
        ),
    ] = None,
    domain: DomainOption = None,
    ledger: LedgerOption = None,
    anchor: AnchorOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Charge something else that was released about the same people, such as weights by DP-SGD.

    Example:

        tacit ledger book --epsilon 0.3 --note "DP-SGD weights v1"
    """
    if (epsilon is None) == (run is None):
        raise InputError(
            "Give either --epsilon, the Renyi bound itself, or --run, which it is computed from."
        )
    with open_ledger(ledger, anchor) as account:
        name = ledgers.only_domain(account, domain)
        charge = epsilon
        if run is not None:
            trained = Run.open(run)
            charge = _bound_of(trained, account.domain(name).order)
            note = "; outside its guarantee: ".join([note, *trained.manifest.guarantee.get("outside", ())])
            console.say(f"That {run} was trained on people of domain {name} is your word; nothing checks it.")
        assert charge is not None  # noqa: S101 - one of the two was given
        account.book_training(name, charge, note)
        console.show(_status(account, name), as_json=as_json)


def _bound_of(run: Run, order: float) -> float:
    """What a Run's weights cost a user whose text is replaced, at one Renyi order."""
    recorded = read_json(run.folder / "privacy.json", "restore it or train again")
    if run.manifest.method != "dpsgd" or run.manifest.guarantee.get("unit") != "user":
        raise InputError(
            f"{run.folder} promises nothing per user, which a ledger's budget is for; train with "
            "method=dpsgd and privacy.unit=user, or give --epsilon."
        )
    if not run.manifest.may_be_released:
        raise InputError(
            f"{run.folder} says of itself that its weights may not be released, so that no charge covers "
            "them; train without training.seed and with noise."
        )
    return rdp_at(DpSgdProcess.from_json(recorded["dpsgd"]["process"]), order, "replace-one")


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
    """What was booked for a set of people, and what it adds up to.

    That is what tacit serve answered and what tacit ledger book was told. What was released without the
    ledger, such as answers of tacit generate, is not in it.

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
        "also released": "; ".join(f"{one.note} (epsilon {one.epsilon:g})" for one in found.training) or None,
        "used by the worst part": f"{found.balance.worst:.2%}",
        "stopped": found.balance.stopped,
        "new anchors": found.new_anchors,
        "guarantee": "none" if guarantee is None else str(guarantee),
    }
    if guarantee is not None and guarantee.kind == "rdp":
        shown["as (epsilon, delta)"] = guarantee.to_dp(1e-5).numbers
    console.show(_terms(found.domain) | shown, as_json=False, title=f"Domain {found.domain.id}")
    for caveat in found.caveats:
        console.say(caveat)
    console.say(f"Covers: {ledgers.COVERS}")
    console.say("Terms and guarantee may be published; spending, STOP and who answered may not.")


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
    """Copy the ledger to a new file. Where it is older than its anchor it is refused: it gives budget back.

    Example:

        tacit ledger backup ledger-copy.db
    """
    with open_ledger(ledger, anchor) as account:
        account.store.backup(output)
    console.show({"backup": str(output)}, as_json=as_json)


@app.command(name="new-anchor")
def new_anchor(ledger: LedgerOption = None, anchor: AnchorOption = None, as_json: JsonFlag = False) -> None:
    """Begin a new anchor where it is lost. Only for the newest ledger: its entries say so ever after.

    Example:

        tacit ledger new-anchor
    """
    url = ledger or ledgers.default_ledger()
    with ledgers.Ledger.open(url, anchor=anchor, new_anchor=True) as account:
        console.show({"anchor": str(account.anchor.path)}, as_json=as_json)


@app.command()
def path(ledger: LedgerOption = None, as_json: JsonFlag = False) -> None:
    """Where the ledger is.

    Example:

        tacit ledger path
    """
    console.show({"ledger": ledgers.place_of(ledger or ledgers.default_ledger())}, as_json=as_json)


def _opened(folder: Path) -> tuple[Run, ledgers.Model]:
    from tacit.prediction.accounts import model_of

    run = Run.open(folder)
    return run, model_of(run)


def _tell_run(run: Run, domain: str, book: ledgers.Ledger) -> None:
    """Let the Run remember its account: tacit generate answers from it too, and books nothing."""
    from tacit.prediction.accounts import Account, remember_account

    if not remember_account(run, Account(domain, book.store.name)):
        console.say(
            f"{run.folder} cannot be written, so that tacit generate will not say that this account does not "
            "know of its answers."
        )


def _show_account(
    book: ledgers.Ledger, account: ledgers.Domain, where: dict[str, Any], *, as_json: bool
) -> None:
    unknown = book.unknown_people(account.id)
    if as_json:
        console.show_json(where | _terms(account) | {"people_unknown_against": unknown})
        return
    console.show(where | _terms(account), as_json=False)
    if unknown:
        console.say(
            f"Nobody can say whether some of these people have a budget in {', '.join(unknown)} too: Runs of "
            "blocks name no people, and a ledger of an older tacit kept none. Attach a Run of users to its "
            "own domain again, and its people are known from then on."
        )


def _terms(domain: ledgers.Domain) -> dict[str, Any]:
    return {
        "order": domain.order,
        "epsilon": domain.epsilon,
        "parts": domain.parts,
        "mechanism": domain.mechanism,
        "neighbours": domain.rule.neighbours,
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
