"""A group of commands that stands for the one called `run` where none is named."""

from __future__ import annotations

from typing import Any

from typer.core import TyperGroup


class RunByDefault(TyperGroup):
    """`tacit audit RUN` is `tacit audit run RUN`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put the command's name in front of what is no command."""
        if args and args[0] not in self.commands and not args[0].startswith("-"):
            args = ["run", *args]
        return super().parse_args(ctx, args)
