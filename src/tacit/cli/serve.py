"""`tacit serve`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tacit.cli import console
from tacit.cli.console import JsonFlag
from tacit.cli.ledger import AnchorOption, LedgerOption
from tacit.errors import LedgerUnavailable, MissingExtra
from tacit.ledger import Access, default_ledger
from tacit.ledger.terms import check_name
from tacit.runs import Run

if TYPE_CHECKING:
    from tacit.serving.server import Listening
    from tacit.serving.service import Service


def serve(
    run_folder: Annotated[Path, typer.Argument(metavar="RUN", help="An ensemble's Run.", show_default=False)],
    queries: Annotated[
        int, typer.Option(help="Tokens the budget is meant for: the price of one follows from it.")
    ] = 1024,
    target: Annotated[
        float | None,
        typer.Option(
            help="Price per token in nats (SubMix: distance of the halves); default: epsilon/queries.",
            show_default=False,
        ),
    ] = None,
    guard: Annotated[
        float | None,
        typer.Option(
            help="submix-guarded: no answer costs a part more; default: 16 times the price, at most the "
            "budget.",
            show_default=False,
        ),
    ] = None,
    cap: Annotated[
        float | None, typer.Option(help="No part weighs more than this.", show_default=False)
    ] = None,
    on_exhausted: Annotated[
        str,
        typer.Option(
            help="When a certified budget is used up: public (the public model answers) or error (429)."
        ),
    ] = "public",
    name: Annotated[
        str | None,
        typer.Option(help="What clients call the model; default: the Run's folder.", show_default=False),
    ] = None,
    host: Annotated[str, typer.Option(help="Where clients connect.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0 takes a free one.")] = 8000,
    admin_host: Annotated[
        str, typer.Option(help="Where the operator connects; elsewhere than here needs TACIT_ADMIN_PASSWORD.")
    ] = "127.0.0.1",
    admin_port: Annotated[int, typer.Option(help="0 takes a free one.")] = 8001,
    slots: Annotated[int, typer.Option(help="Texts that are written at the same time.")] = 8,
    waiting: Annotated[int, typer.Option(help="Texts that may wait for a slot.")] = 64,
    context: Annotated[int, typer.Option(help="Tokens of question and answer together.")] = 1024,
    default_tokens: Annotated[int, typer.Option(help="Length of an answer that names none.")] = 64,
    most_tokens: Annotated[int, typer.Option(help="Longest answer.")] = 256,
    most_choices: Annotated[int, typer.Option(help="Answers per request.")] = 4,
    drain: Annotated[float, typer.Option(help="Seconds to finish answers after SIGTERM.")] = 30.0,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    dtype: Annotated[
        str,
        typer.Option(
            help="Of the models: fp32, bf16 (coarser, faster where the processor has it) or auto. "
            "The guarantee is the same."
        ),
    ] = "fp32",
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="Run Python code that comes with the model.")
    ] = False,
    ledger: LedgerOption = None,
    anchor: AnchorOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Answer over HTTP as OpenAI's clients expect, from a budget that the ledger keeps.

    Needs an account (`tacit ledger init`) and a key (`tacit keys create`). SIGTERM and Ctrl-C finish what is
    being answered and end with exit code 0.

    Examples:

        tacit ledger init runs/submix --epsilon 2 --mechanism submix-guarded

        tacit keys create me

        tacit serve runs/submix --queries 10000
    """
    try:
        import fastapi  # noqa: F401
        import prometheus_client  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError:
        raise MissingExtra("tacit serve", "serve") from None
    from tacit.models.process import apart, keep_freed_memory, wait_briefly

    wait_briefly()
    from tacit.models.ensemble import load_ensemble
    from tacit.models.loading import dtype_named
    from tacit.prediction.accounts import Account, model_of, remember_account
    from tacit.serving.books import Books
    from tacit.serving.logs import log_to_stderr
    from tacit.serving.server import Address
    from tacit.serving.server import serve as run_server
    from tacit.serving.service import Service
    from tacit.serving.settings import Settings

    settings = Settings(
        queries=queries,
        target=target,
        guard=guard,
        cap=cap,
        on_exhausted=on_exhausted,  # type: ignore[arg-type]
        slots=slots,
        waiting=waiting,
        context=context,
        default_tokens=default_tokens,
        most_tokens=most_tokens,
        most_choices=most_choices,
    )
    keep_freed_memory()
    run = Run.open(run_folder)
    called = run.folder.resolve().name if name is None else name
    check_name("A model", called)
    books = Books(ledger or default_ledger(), anchor, model_of(run), settings)
    try:
        with books.using() as book:
            remember_account(run, Account(books.account.id, book.store.name))
        with console.progress() as progress:
            progress.phase("loading", None)

            def loaded() -> Service:
                ensemble = load_ensemble(
                    run,
                    dtype=dtype_named(dtype, device),
                    device=device,
                    trust_remote_code=trust_remote_code,
                )
                return Service(called, ensemble, books, settings)

            service = apart(loaded)
    except BaseException:
        books.close()
        raise
    log_to_stderr()
    try:
        run_server(
            service,
            Address(host, port),
            Address(admin_host, admin_port),
            password=os.environ.get("TACIT_ADMIN_PASSWORD") or None,
            drain_seconds=drain,
            announce=lambda found: _announce(service, found, as_json=as_json),
        )
    except LedgerUnavailable as problem:
        # Threads that wait for the ledger would keep the process for as long as it does not answer.
        console.say(f"tacit: {problem}")
        sys.stdout.flush()
        os._exit(problem.exit_code)


def _announce(service: Service, found: Listening, *, as_json: bool) -> None:
    account, choice = service.books.account, service.books.choice
    content = {
        "model": service.name,
        "url": f"{found.public}/v1",
        "admin": found.admin,
        "mechanism": account.mechanism,
        "price": choice.target,
        "guard": choice.guard,
        "guarantee": None if service.guarantee is None else str(service.guarantee),
    }
    if as_json:
        console.show_json(content)
        return
    console.show(content, as_json=False, title="Serving")
    with service.books.using() as ledger:
        has_key = any(key.revoked is None for key in Access(ledger).every_key())
    if not has_key:
        url = f"{found.admin}/admin/keys"
        console.say(
            "There is no key yet, and none can be made by `tacit keys` while the ledger is in use: "
            f"""curl {url} -H 'content-type: application/json' -d '{{"tenant": "me"}}'"""
        )
