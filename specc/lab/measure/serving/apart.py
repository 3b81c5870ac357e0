"""A server that is started twice by one command line, with its program and without it: one after the other."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from specc.compiler.support.diagnostics import Diagnostic, DiagnosticError, Note
from specc.lab.measure.serving.client import connected
from specc.lab.measure.serving.endpoint import MeasuredServer, meet
from specc.lab.measure.serving.figures import APART, SWITCHED, Served
from specc.lab.measure.serving.process import Running, ServerCommand, started
from specc.lab.measure.serving.turns import ServerMeasurement, Side, switched

WITHOUT = {"SPECC_PROGRAM": "none"}
"""The variable that says to every program's plugin which one runs, and its word for none."""


async def measure_command(command: ServerCommand, measurement: ServerMeasurement) -> tuple[Served, list[Diagnostic]]:
    """Start a server with the program that is installed, and measure it with that and without it.

    A program that can be switched is, in that server. Otherwise the server is stopped and started without it; the texts
    of both are compared before the second one is timed. None of a server is left in the end.

    Raises DiagnosticError as `measure`, ``serve/not-running`` as `started`, and ``serve/no-program`` where the server
    has none.
    """
    async with _served(command, {}, measurement) as (running, server):
        server.program = server.program or running.program()
        if server.program is None:
            raise _no_program(running)
        if server.switchable:
            return await measurement.in_turns(switched(server), SWITCHED)
        mine = Side(server, None)
        await measurement.write(mine)
        await measurement.time(mine)
    measurement.on_turn("starting it without the program")
    async with _served(command, WITHOUT, measurement) as (_, server):
        other = Side(server, None)
        await measurement.write(other)
        texts = await measurement.compare(mine, other)
        await measurement.time(other)
    return measurement.figures((mine, other), texts, APART)


@asynccontextmanager
async def _served(
    command: ServerCommand, settings: Mapping[str, str], measurement: ServerMeasurement
) -> AsyncIterator[tuple[Running, MeasuredServer]]:
    """A server that runs until the block ends, and what it says of itself."""
    wanted = measurement.wanted
    asked = connected([command.url], chat=wanted.chat, silence_s=wanted.silence_s)
    async with started(command, settings) as running, asked as [client]:
        yield running, await meet(client, wanted.model)


def _no_program(running: Running) -> DiagnosticError:
    """The server has nothing to be compared with, and what its log says of programs."""
    notes = tuple(Note(f"its log: {line}") for line in running.lines("specc: "))
    message = f"the server of '{running.command}' runs no program"
    hint = "install a wheel that was built for this server; of one that is installed the log says why it does not run"
    return DiagnosticError(Diagnostic("serve/no-program", message, hint=hint, notes=notes))
