"""`tacit keys`: who may ask the service, and for how many tokens."""

from __future__ import annotations

from typing import Annotated

import typer

from tacit.cli import console
from tacit.cli.console import JsonFlag
from tacit.cli.ledger import AnchorOption, LedgerOption, open_ledger
from tacit.errors import InputError
from tacit.ledger import Access

app = typer.Typer(no_args_is_help=True, help="API keys and token quotas; keys are kept as hashes only.")


@app.command()
def create(
    tenant: Annotated[str, typer.Argument(help="Whose key.", show_default=False)],
    tokens: Annotated[
        int | None,
        typer.Option(help="Tokens that the tenant may use in all; default: no limit.", show_default=False),
    ] = None,
    ledger: LedgerOption = None,
    anchor: AnchorOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Make a key. It is shown this once.

    Example:

        tacit keys create acme --tokens 100000
    """
    with open_ledger(ledger, anchor) as book:
        key, made = Access(book).create_key(tenant, tokens_most=tokens)
    console.show({"key": key, "id": made.id, "tenant": tenant}, as_json=as_json)


@app.command()
def quota(
    tenant: Annotated[str, typer.Argument(help="Whose quota.", show_default=False)],
    tokens: Annotated[
        int | None,
        typer.Option(help="Tokens that the tenant may use in all, those used included.", show_default=False),
    ] = None,
    unlimited: Annotated[bool, typer.Option("--unlimited", help="Take the limit away.")] = False,
    ledger: LedgerOption = None,
    anchor: AnchorOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Change how many tokens a tenant may use.

    Example:

        tacit keys quota acme --tokens 200000
    """
    if (tokens is None) != unlimited:
        raise InputError("A quota is --tokens N, or --unlimited: give one of them.")
    with open_ledger(ledger, anchor) as book:
        access = Access(book)
        access.change_quota(tenant, tokens)
        found = access.tenant(tenant)
    console.show(vars(found), as_json=as_json)


@app.command()
def revoke(
    key_id: Annotated[str, typer.Argument(help="The id that `tacit keys list` shows.", show_default=False)],
    ledger: LedgerOption = None,
    anchor: AnchorOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Make a key open nothing.

    Example:

        tacit keys revoke 3f9a1c2b
    """
    with open_ledger(ledger, anchor) as book:
        Access(book).revoke_key(key_id)
    console.show({"revoked": key_id}, as_json=as_json)


@app.command(name="list")
def list_keys(ledger: LedgerOption = None, anchor: AnchorOption = None, as_json: JsonFlag = False) -> None:
    """All keys, and what their tenants have used.

    Example:

        tacit keys list
    """
    with open_ledger(ledger, anchor) as book:
        access = Access(book)
        tenants = {tenant.name: tenant for tenant in access.tenants()}
        rows = [
            {
                "id": key.id,
                "tenant": key.tenant,
                "created": key.created,
                "revoked": key.revoked,
                "tokens_used": tenants[key.tenant].tokens_used,
                "tokens_most": tenants[key.tenant].tokens_most,
            }
            for key in access.every_key()
        ]
    console.show_rows(rows, as_json=as_json, name="keys")
