"""Both sides of a server in turns: first their texts, then their times."""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from specc.compiler.support.diagnostics import Diagnostic, DiagnosticError
from specc.lab.measure.serving.client import TimedText, all_of, connected
from specc.lab.measure.serving.endpoint import MeasuredServer, meet, no_other_side, of_answers
from specc.lab.measure.serving.figures import BESIDE, SWITCHED, BatchFigures, Served, Texts, Turn
from specc.lab.measure.serving.questions import Prompts
from specc.lab.measure.serving.texts import compare

LEAST_REQUESTS = 8
"""Requests of a turn by default."""


@dataclass(frozen=True)
class ServingLoad:
    """How a server is measured.

    Attributes:
        batches: numbers of clients, ascending.
        turns: of each side in each batch, three or more.
        requests: of a turn; None are two of each client, and at least `LEAST_REQUESTS`.
        model: as the servers name it; None is their first one.
        chat: whether prompts are messages of a chat.
        silence_s: how long a server may say nothing.

    """

    batches: tuple[int, ...]
    turns: int
    requests: int | None = None
    model: str | None = None
    chat: bool = False
    silence_s: float = 120.0

    def asked(self, clients: int) -> int:
        """How many requests a turn has."""
        return self.requests or max(LEAST_REQUESTS, 2 * clients)


@dataclass
class Side:
    """One of the two things that are compared: a server, whose program is on or off where it can be switched.

    Attributes:
        server: that is asked.
        on: what its program is switched to; None where it is not switched.
        texts: its answers to all prompts.
        turns: those that were timed, by number of clients.

    """

    server: MeasuredServer
    on: bool | None
    texts: tuple[TimedText, ...] = ()
    turns: dict[int, list[Turn]] = field(default_factory=lambda: defaultdict(list))

    async def ask(self, prompts: Prompts, numbers: Sequence[int], clients: int) -> Turn:
        """One turn: the prompts of these numbers, by so many clients."""
        if self.on is not None:
            await self.server.switch(self.on)
        before = await self.server.counts()
        begin = time.perf_counter()
        asked = [prompts.listed[number % len(prompts.listed)] for number in numbers]
        answers = await all_of(self.server.client, asked, clients, whole=prompts.made_up)
        seconds = time.perf_counter() - begin
        counts = await self.server.counted_since(before)
        counted = of_answers(answers)
        if counted.verifications:
            counts = replace(counts, verifications=counted.verifications, accepted=counted.accepted)
        return Turn(clients, seconds, tuple(answers), counts)


@dataclass(frozen=True)
class ServerMeasurement:
    """Both sides are asked the same; ``on_turn`` is told after every turn what it was."""

    wanted: ServingLoad
    prompts: Prompts
    on_turn: Callable[[str], None]

    async def write(self, side: Side) -> None:
        """Ask a side for all texts."""
        every = range(len(self.prompts.listed))
        side.texts = (await side.ask(self.prompts, every, max(self.wanted.batches))).answers
        self.on_turn("asked for all texts")

    async def compare(self, mine: Side, other: Side) -> Texts:
        """Compare the texts of both sides, while the other one answers. DiagnosticError where they differ."""
        return await compare(other.server.client, self.prompts, mine.texts, other.texts)

    async def time(self, *sides: Side) -> None:
        """Time sides in turns: the first one is first in one turn of each, the last one in the next."""
        for clients in self.wanted.batches:
            requests = self.wanted.asked(clients)
            for number in range(self.wanted.turns):
                numbers = range(number * requests, (number + 1) * requests)
                for side in sides if number % 2 == 0 else sides[::-1]:
                    side.turns[clients].append(await side.ask(self.prompts, numbers, clients))
                    self.on_turn(f"timed {clients} clients")

    async def in_turns(self, sides: tuple[Side, Side], how: str) -> tuple[Served, list[Diagnostic]]:
        """Compare the texts of two sides that both answer, then time them. Programs that were switched are on again."""
        try:
            for side in sides:
                await self.write(side)
            texts = await self.compare(*sides)
            await self.time(*sides)
        except BaseException:
            with suppress(DiagnosticError):  # what has failed first is what is told
                await _on_again(sides)
            raise
        await _on_again(sides)
        return self.figures(sides, texts, how)

    def figures(self, sides: tuple[Side, Side], texts: Texts, how: str) -> tuple[Served, list[Diagnostic]]:
        """What was measured, and why that may not be what it seems."""
        mine, other = sides
        served = Served(
            mine.server.program,
            mine.server.client.model,
            how,
            (mine.server.address, other.server.address),
            (mine.server.engine, other.server.engine),
            self.prompts.about,
            statistics.median(text.prompt_tokens for text in mine.texts),
            self.wanted.turns,
            texts,
            tuple(
                BatchFigures.of(clients, self.wanted.asked(clients), mine.turns[clients], other.turns[clients])
                for clients in self.wanted.batches
            ),
        )
        return served, list(_doubts(served))


async def measure(urls: Sequence[str], measurement: ServerMeasurement) -> tuple[Served, list[Diagnostic]]:
    """Compare servers that run: one with the program and one without it, or one whose program is switched off and on.

    Raises DiagnosticError where a server does not answer as it must, there is no other side, or texts differ.
    """
    wanted = measurement.wanted
    async with connected(urls, chat=wanted.chat, silence_s=wanted.silence_s) as clients:
        servers = [await meet(client, wanted.model) for client in clients]
        if len(servers) == 1:
            return await measurement.in_turns(switched(servers[0]), SWITCHED)
        first, second = servers
        sides = Side(first, True if first.switchable else None), Side(second, False if second.switchable else None)
        return await measurement.in_turns(sides, BESIDE)


def switched(server: MeasuredServer) -> tuple[Side, Side]:
    """Both sides of a server whose program is switched. DiagnosticError where it cannot be."""
    if not server.switchable:
        named = server.engine or "this server"
        raise no_other_side(server.address, f"{named} has no program that can be switched off and on")
    return Side(server, True), Side(server, False)


async def _on_again(sides: Sequence[Side]) -> None:
    """Leave programs that can be switched as they are when a server starts."""
    for server in {id(side.server): side.server for side in sides}.values():
        if server.switchable:
            await server.switch(True)


def _doubts(served: Served) -> list[Diagnostic]:
    """Why the figures may not be what they seem: a program that ran no steps, or one on the other side."""
    none = [str(batch.clients) for batch in served.batches if batch.program.program_steps == 0]
    some = [str(batch.clients) for batch in served.batches if batch.other.program_steps]
    doubts = list[Diagnostic]()
    if none:
        message = f"the program ran none of the steps in batches of {', '.join(none)}: both sides are the engine's own"
        hint = "the server's log says why steps are left to it, such as a batch beyond the program's largest bucket"
        doubts.append(Diagnostic("serve/program-idle", message, hint=hint, severity="warning"))
    if some:
        message = f"a program ran steps of the other side, too, in batches of {', '.join(some)}"
        doubts.append(Diagnostic("serve/program-idle", message, severity="warning"))
    return doubts
