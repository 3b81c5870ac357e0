"""Words of a command line: what no shell could hand over is refused, and what is said of one steers no terminal.

Help is typer's plain one, with headings between options.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import typer
from typer.core import TyperCommand, TyperGroup

from specc.compiler.support.render import printable

COMMANDS = "specc.commands"
"""The group of entry points of commands: modules with a function or a typer app of that name, and ``EXAMPLES``."""
_USAGE_ERROR = cast("type[Exception]", typer.BadParameter.__mro__[1])
"""What typer has no public name for: every error in a command line."""


class _Words:
    """What is common to `CommandGroup` and `Command`."""

    def make_context(self, info_name: str | None, args: list[str], *rest: Any, **more: Any) -> Any:
        """As typer; a usage error for a word that is none."""
        with _legible():
            _require_words(args)
            return super().make_context(info_name, args, *rest, **more)  # pyright: ignore[reportAttributeAccessIssue]

    def invoke(self, ctx: Any) -> Any:
        """As typer, which reads the words of a group's commands here."""
        with _legible():
            return super().invoke(ctx)  # pyright: ignore[reportAttributeAccessIssue]


class CommandGroup(_Words, TyperGroup):
    """A command line that begins with the name of a command."""


class Command(_Words, TyperCommand):
    """A command line of one command, in whose help options stand under the headings that they name."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """As typer with rich, without rich: arguments, the headings in order, options that name none."""
        parts: dict[str, list[tuple[str, str]]] = {"Arguments": []}
        for param in self.get_params(ctx):
            usual = "Arguments" if param.param_type_name == "argument" else "Options"
            record = param.get_help_record(ctx)
            if record is not None:
                parts.setdefault(getattr(param, "rich_help_panel", None) or usual, []).append(record)
        parts["Options"] = parts.pop("Options", [])
        for heading, records in parts.items():
            if records:
                with formatter.section(heading):
                    formatter.write_dl(records)


@contextmanager
def _legible() -> Iterator[None]:
    """Let usage errors through with what cannot be seen escaped, line by line."""
    try:
        yield
    except _USAGE_ERROR as error:
        message: Any = getattr(error, "message", None)
        if isinstance(message, str):
            error.message = "\n".join(map(printable, message.split("\n")))  # pyright: ignore[reportAttributeAccessIssue]
        raise


def _require_words(args: Sequence[str]) -> None:
    """A usage error for a NUL and for half of a character: no path or text has them, and no shell hands them over."""
    for word in args:
        try:
            whole = b"\0" not in os.fsencode(word)
        except UnicodeEncodeError:
            whole = False
        if not whole:
            raise typer.BadParameter(f"{word[:60]!r} has a NUL or half of a character", param_hint="the command line")
