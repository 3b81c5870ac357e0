"""A server tells of itself: its model, its program, and what it has counted since it began."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Awaitable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, zip_longest
from typing import Any, TypeVar

from specc.compiler.support.diagnostics import Diagnostic, DiagnosticError
from specc.lab.measure.serving.answers import Field
from specc.lab.measure.serving.client import MOST_POSITIONS, Client, TimedText

T = TypeVar("T")
SWITCH, STATE, METRICS = "/set_internal_state", "/server_info", "/metrics"
"""Paths at which a program is switched, told of, and measured; not all servers have them."""
DRAFTS, BY_POSITION = ":spec_decode_num_drafts_total", ":spec_decode_num_accepted_tokens_per_pos_total"
"""Ends of the names of an engine's counters: verifications, and accepted drafts by position."""
STEPS, ACTIVE = "specc:decode_steps_total", "specc:program_active"
READ, NAME = (DRAFTS, BY_POSITION, STEPS, ACTIVE), re.compile("[{ \t]")
"""Ends of the names of all metrics that are read, and what is behind a name."""
LONGEST_LINE = 1 << 11
"""Characters of a metric: the parser takes time by the square of them."""


@dataclass(frozen=True)
class ServerCounts:
    """Counters of a server. ``served`` and ``left`` are decode steps of its program, and those left to the engine.

    Attributes:
        verifications: of the drafts of one request each.
        accepted: drafts that these accepted, by their position, from 0; engines count those behind a text's end, too.
        served: None where the server does not tell, or has no program.
        left: as served.

    """

    verifications: int = 0
    accepted: tuple[int, ...] = ()
    served: int | None = None
    left: int | None = None

    def plus(self, other: ServerCounts, sign: int = 1) -> ServerCounts:
        """Both together."""
        pairs = zip_longest(self.accepted, other.accepted, fillvalue=0)
        served, left = (
            None if count is None and more is None else (count or 0) + sign * (more or 0)
            for count, more in ((self.served, other.served), (self.left, other.left))
        )
        accepted = tuple(count + sign * more for count, more in pairs)
        return ServerCounts(self.verifications + sign * other.verifications, accepted, served, left)

    def since(self, before: ServerCounts) -> ServerCounts:
        """What was counted between two times."""
        return self.plus(before, -1)

    @property
    def is_possible(self) -> bool:
        """Whether nothing was taken off, and no position accepted more drafts than were verified."""
        least = min(self.verifications, *self.accepted, self.served or 0, self.left or 0)
        return least >= 0 and max(self.accepted, default=0) <= self.verifications

    @property
    def accept_length(self) -> float | None:
        """Tokens a verification, the one after the accepted drafts included; None without verifications."""
        return 1 + sum(self.accepted) / self.verifications if self.verifications > 0 else None

    @property
    def by_position(self) -> tuple[float, ...]:
        """Which part of the verifications accepted the draft at each position."""
        return tuple(count / self.verifications for count in self.accepted) if self.verifications > 0 else ()


def of_answers(answers: Sequence[TimedText]) -> ServerCounts:
    """What the answers of a server say of their verifications themselves."""
    by_count = [sum(counts) for counts in zip_longest(*(answer.accepted for answer in answers), fillvalue=0)]
    at_least = [*accumulate(reversed(by_count))][::-1]
    return ServerCounts(sum(by_count), tuple(at_least[1:]))


@dataclass
class MeasuredServer:
    """A server, and what it said when it was met.

    Attributes:
        client: that asks it.
        engine: as it names itself.
        program: the program's name, None where it does not tell, or has none.
        switchable: whether the program can be switched.
        metrics: whether it has any.

    """

    client: Client
    engine: str
    program: str | None
    switchable: bool
    metrics: bool

    @property
    def address(self) -> str:
        """Where it is."""
        return self.client.url

    async def switch(self, on: bool) -> None:
        """Have the program run the decode steps, or the engine. DiagnosticError where that is refused."""
        answer = await self.client.get(SWITCH, {"server_args": {f"specc:{'on' if on else 'off'}": 1}})
        done = [rank.flag() for rank in (answer.items() if isinstance(answer.value, list) else [answer])]
        state = _program(await self.client.get(STATE))
        if not done or not all(done) or state is None or state.at("on").flag() is not on:
            raise no_other_side(self.address, f"its program could not be switched {'on' if on else 'off'}")

    async def counts(self) -> ServerCounts:
        """The counters of now."""
        text = await self.client.text(METRICS) if self.metrics else ""
        now = counted(self.address, samples_of(text))
        if not self.switchable:
            return now
        if (state := _program(await self.client.get(STATE))) is None:
            self.client.broken(f"{STATE} does not say how many steps its program ran")
        left = [reason.count() for reason in state.at("left").entries().values()]
        return replace(now, served=state.at("served").count(), left=sum(left))

    async def counted_since(self, before: ServerCounts) -> ServerCounts:
        """What was counted since then."""
        counts = (await self.counts()).since(before)
        if not counts.is_possible:
            self.client.broken(f"what {METRICS} or {STATE} counts has become less, or is more than can be")
        return counts


def no_other_side(address: str, why: str) -> DiagnosticError:
    """There is one side alone."""
    hint = "--against gives the address of the same server without the program"
    return DiagnosticError(Diagnostic("serve/no-other-side", f"{address}: {why}", hint=hint))


async def meet(client: Client, model: str | None) -> MeasuredServer:
    """Ask a server who it is. It must serve the model of that name, or have a first one.

    Raises DiagnosticError where it does not answer, or has no such model.
    """
    listed = (await client.get("/v1/models")).at("data").items()
    models = {model.at("id").text(): by.text() if (by := model.get("owned_by")) else "" for model in listed}
    if not models or (model is not None and model not in models):
        wanted = "no model" if model is None else f"no model {model[:60]!r}"
        raise DiagnosticError(
            Diagnostic("serve/no-model", f"{client.url} serves {wanted}, but {[name[:60] for name in models][:8]}")
        )
    client.model = model or next(iter(models))
    answer, text = await _if_there(client.get(STATE)), await _if_there(client.text(METRICS))
    state = _program(answer) if answer else None
    active = [
        sample.labels.get("program") for sample in samples_of(text or "") if sample.name == ACTIVE and sample.value
    ]
    program = state.at("program").text() if state else next(iter(active), None)
    return MeasuredServer(client, models[client.model], program, state is not None, text is not None)


async def _if_there(answer: Awaitable[T]) -> T | None:
    """What a server answers; None where it has no such path."""
    try:
        return await answer
    except DiagnosticError:
        return None


def counted(server: str, samples: Iterable[Any]) -> ServerCounts:
    """What samples of a server's metrics say; those of several engines behind one address are added up.

    Raises DiagnosticError for counters that are none.
    """
    drafts, positions, steps = 0, Counter[int](), Counter[bool]()
    for sample in samples:
        name = f"{sample.name} of {METRICS}"
        value = Field(server, name, int(sample.value) if sample.value % 1 == 0 else sample.value)
        if sample.name.endswith(DRAFTS):
            drafts += value.count()
        elif sample.name.endswith(BY_POSITION):
            place = sample.labels.get("position", "")
            number = int(place) if place.isascii() and place.isdecimal() and len(place) < 8 else place
            positions[Field(server, f"position of {name}", number).count(MOST_POSITIONS - 1)] += value.count()
        elif sample.name == STEPS:
            steps[sample.labels.get("by") == "program"] += value.count()
    accepted = tuple(positions[place] for place in range(max(positions, default=-1) + 1))
    return ServerCounts(drafts, accepted, *((steps[True], steps[False]) if steps else (None, None)))


def samples_of(text: str) -> list[Any]:
    """The samples of metrics that are read here; none of what are no metrics."""
    from prometheus_client.parser import text_string_to_metric_families

    lines = [line for line in text.splitlines() if NAME.split(line, 1)[0].endswith(READ)]
    try:
        if any(len(line) > LONGEST_LINE for line in lines):
            return []
        return [sample for family in text_string_to_metric_families("\n".join(lines)) for sample in family.samples]
    except (ValueError, KeyError, IndexError):
        return []


def _program(info: Field) -> Field | None:
    """What a server's answer about itself says of a program; None without one."""
    states = info.get("internal_states")
    first = states.items()[:1] if states else []
    return first[0].get("specc") if first else None
