"""Both sides of a server in turns: first their texts, then their times."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from specc.measure.results.ratios import Ratio
from specc.measure.serving.client import Answer, all_of, connected
from specc.measure.serving.endpoint import Server, meet, no_other_side, of_answers
from specc.measure.serving.figures import BatchFigures, Served, SideFigures, Turn
from specc.measure.serving.questions import Prompts
from specc.measure.serving.texts import compare
from specc.support.diagnostics import Diagnostic, DiagnosticError

LEAST_REQUESTS = 8
"""Requests of a turn by default."""


@dataclass(frozen=True)
class Wanted:
    """What is measured, and how.

    Attributes:
        url: the server with the program.
        against: the server without it; None has the program of ``url`` switched off and on.
        batches: numbers of clients, ascending.
        turns: of each side in each batch, three or more.
        requests: of a turn; None are two of each client, and at least `LEAST_REQUESTS`.
        model: as the servers name it; None is their first one.
        chat: whether prompts are messages of a chat.
        silence_s: how long a server may say nothing.

    """

    url: str
    against: str | None
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
    """One of the two things that are compared: a server, whose program is on or off where it can be switched."""

    server: Server
    on: bool | None

    async def ask(self, prompts: Prompts, numbers: Sequence[int], clients: int) -> Turn:
        """One turn: the prompts of these numbers, by so many clients."""
        if self.on is not None:
            await self.server.switch(self.on)
        before = await self.server.counts()
        begin = time.perf_counter()
        asked = [prompts.listed[number % len(prompts.listed)] for number in numbers]
        answers = await all_of(self.server.client, asked, clients, whole=prompts.made_up)
        seconds = time.perf_counter() - begin
        counts = (await self.server.counts()).since(before)
        counted = of_answers(answers)
        if counted.verifications:
            counts = replace(counts, verifications=counted.verifications, accepted=counted.accepted)
        return Turn(clients, seconds, tuple(answers), counts)


async def measure(wanted: Wanted, prompts: Prompts, on_turn: Callable[[str], None]) -> tuple[Served, list[Diagnostic]]:
    """Compare the texts of both sides, then time them; ``on_turn`` is told after every turn what it was.

    Programs that can be switched are on in the end.

    Raises DiagnosticError where a server does not answer as it must, there is no other side, or texts differ.
    """
    urls = [wanted.url] if wanted.against is None else [wanted.url, wanted.against]
    async with connected(urls, chat=wanted.chat, silence_s=wanted.silence_s) as clients:
        servers = [await meet(client, wanted.model) for client in clients]
        sides = _sides(servers)
        try:
            served = await _both(sides, wanted, prompts, on_turn)
        except BaseException:
            with suppress(DiagnosticError):  # what has failed first is what is told
                await _on_again(servers)
            raise
        await _on_again(servers)
        return served


async def _on_again(servers: Sequence[Server]) -> None:
    """Leave programs that can be switched as they are when a server starts."""
    for server in servers:
        if server.switchable:
            await server.switch(True)


def _sides(servers: Sequence[Server]) -> tuple[Side, Side]:
    """The side with the program, then the other one."""
    first = servers[0]
    if len(servers) > 1:
        second = servers[1]
        return Side(first, True if first.switchable else None), Side(second, False if second.switchable else None)
    if not first.switchable:
        named = first.engine or "this server"
        raise no_other_side(first.address, f"{named} has no program that can be switched off and on")
    return Side(first, True), Side(first, False)


async def _both(
    sides: tuple[Side, Side], wanted: Wanted, prompts: Prompts, on_turn: Callable[[str], None]
) -> tuple[Served, list[Diagnostic]]:
    every, most = range(len(prompts.listed)), max(wanted.batches)
    texts = list[Sequence[Answer]]()
    for side in sides:
        texts.append((await side.ask(prompts, every, most)).answers)
        on_turn("asked for all texts")
    compared = await compare(sides[1].server.client, prompts, *texts)
    batches = [await _batch(sides, clients, wanted, prompts, on_turn) for clients in wanted.batches]
    mine, other = (side.server for side in sides)
    served = Served(
        mine.program,
        mine.client.model,
        (mine.address, other.address),
        (mine.engine, other.engine),
        prompts.about,
        statistics.median(one.prompt_tokens for one in texts[0]),
        wanted.turns,
        compared,
        tuple(batches),
    )
    return served, list(_doubts(served))


async def _batch(
    sides: tuple[Side, Side], clients: int, wanted: Wanted, prompts: Prompts, on_turn: Callable[[str], None]
) -> BatchFigures:
    """All turns with so many clients: program first in one pair of turns, the other side first in the next."""
    requests, turns = wanted.asked(clients), ([], [])
    for number in range(wanted.turns):
        numbers = range(number * requests, (number + 1) * requests)
        for which in (0, 1) if number % 2 == 0 else (1, 0):
            turns[which].append(await sides[which].ask(prompts, numbers, clients))
            on_turn(f"timed {clients} clients")
    ours, theirs = ([turn.tokens_per_s for turn in side] for side in turns)
    return BatchFigures(clients, requests, SideFigures.of(turns[0]), SideFigures.of(turns[1]), Ratio.of(ours, theirs))


def _doubts(served: Served) -> list[Diagnostic]:
    """Why the figures may not be what they seem: a program that ran no steps, or one on the other side."""
    none = [str(one.clients) for one in served.batches if one.program.program_steps == 0]
    some = [str(one.clients) for one in served.batches if one.other.program_steps]
    doubts = list[Diagnostic]()
    if none:
        message = f"the program ran none of the steps in batches of {', '.join(none)}: both sides are the engine's own"
        hint = "the server's log says why steps are left to it, such as a batch beyond the program's largest bucket"
        doubts.append(Diagnostic("serve/program-idle", message, hint=hint, severity="warning"))
    if some:
        message = f"a program ran steps of the other side, too, in batches of {', '.join(some)}"
        doubts.append(Diagnostic("serve/program-idle", message, severity="warning"))
    return doubts
