"""A server tells of itself: its model, its program, and what it has counted since it began."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any, TypeVar

from specc.measure.serving.client import Client, TimedText
from specc.support.diagnostics import Diagnostic, DiagnosticError

T = TypeVar("T")
SWITCH, STATE, METRICS = "/set_internal_state", "/server_info", "/metrics"
"""Paths at which a program is switched, told of, and measured; not all servers have them."""
DRAFTS, BY_POSITION = ":spec_decode_num_drafts_total", ":spec_decode_num_accepted_tokens_per_pos_total"
"""Ends of the names of an engine's counters: verifications, and accepted drafts by position."""
MOST_POSITIONS = 1024
STEPS, ACTIVE = "specc:decode_steps_total", "specc:program_active"


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
    def accept_length(self) -> float | None:
        """Tokens a verification, the one after the accepted drafts included; None without verifications."""
        return 1 + sum(self.accepted) / self.verifications if self.verifications > 0 else None

    @property
    def by_position(self) -> tuple[float, ...]:
        """Which part of the verifications accepted the draft at each position."""
        return tuple(count / self.verifications for count in self.accepted) if self.verifications > 0 else ()


def of_answers(answers: Sequence[TimedText]) -> ServerCounts:
    """What the answers of a server say of their verifications themselves."""
    most = max((len(answer.accepted) for answer in answers), default=0)
    by_count = [sum(answer.accepted[k] for answer in answers if k < len(answer.accepted)) for k in range(most)]
    return ServerCounts(sum(by_count), tuple(sum(by_count[k:]) for k in range(1, most)))


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
        done = answer if isinstance(answer, list) else [answer]
        state = _program(await self.client.get(STATE))
        if not done or not all(answer is True for answer in done) or state is None or state.get("on") is not on:
            raise no_other_side(self.address, f"its program could not be switched {'on' if on else 'off'}")

    async def counts(self) -> ServerCounts:
        """The counters of now."""
        try:
            now = counted(samples_of(await self.client.text(METRICS))) if self.metrics else ServerCounts()
        except (KeyError, ValueError, OverflowError) as error:
            self.client.broken(f"{METRICS} has a counter that is none: {error}")
        if not self.switchable:
            return now
        state = _program(await self.client.get(STATE)) or {}
        try:
            return replace(now, served=int(state["served"]), left=sum(state["left"].values()))
        except (KeyError, TypeError, ValueError, AttributeError):
            self.client.broken(f"{STATE} does not say how many steps its program ran")


def no_other_side(address: str, why: str) -> DiagnosticError:
    """There is one side alone."""
    hint = "--against gives the address of the same server without the program"
    return DiagnosticError(Diagnostic("serve/no-other-side", f"{address}: {why}", hint=hint))


async def meet(client: Client, model: str | None) -> MeasuredServer:
    """Ask a server who it is. It must serve the model of that name, or have a first one.

    Raises DiagnosticError where it does not answer, or has no such model.
    """
    listed = await client.get("/v1/models")
    try:
        models = {str(model["id"]): str(model.get("owned_by", "")) for model in listed["data"]}
    except (KeyError, TypeError, AttributeError):
        client.broken("/v1/models lists no models")
    if not models or (model is not None and model not in models):
        wanted = "no model" if model is None else f"no model {model[:60]!r}"
        raise DiagnosticError(
            Diagnostic("serve/no-model", f"{client.url} serves {wanted}, but {[name[:60] for name in models][:8]}")
        )
    client.model = model or next(iter(models))
    state = _program(await _if_there(client.get(STATE)))
    text = await _if_there(client.text(METRICS))
    active = [
        sample.labels.get("program") for sample in samples_of(text or "") if sample.name == ACTIVE and sample.value
    ]
    program = state.get("program") if state else next(iter(active), None)
    return MeasuredServer(client, models[client.model], program, state is not None, text is not None)


async def _if_there(answer: Awaitable[T]) -> T | None:
    """What a server answers; None where it has no such path."""
    try:
        return await answer
    except DiagnosticError:
        return None


def counted(samples: Iterable[Any]) -> ServerCounts:
    """What samples of metrics say; those of several engines behind one address are added up.

    Raises KeyError, ValueError and OverflowError for counters that are none.
    """
    drafts, positions, steps = 0, Counter[int](), Counter[bool]()
    for sample in samples:
        if sample.name.endswith(DRAFTS):
            drafts += int(sample.value)
        elif sample.name.endswith(BY_POSITION):
            if (place := int(sample.labels["position"])) not in range(MOST_POSITIONS):
                raise ValueError(f"position {place}")
            positions[place] += int(sample.value)
        elif sample.name == STEPS:
            steps[sample.labels.get("by") == "program"] += int(sample.value)
    accepted = tuple(positions[place] for place in range(max(positions, default=-1) + 1))
    return ServerCounts(drafts, accepted, *((steps[True], steps[False]) if steps else (None, None)))


def samples_of(text: str) -> list[Any]:
    """All samples of metrics; none of what are no metrics."""
    from prometheus_client.parser import text_string_to_metric_families

    try:
        return [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    except (ValueError, KeyError, IndexError):
        return []


def _program(info: Any) -> Mapping[str, Any] | None:
    """What a server's answer about itself says of a program; None without one."""
    states = info.get("internal_states") if isinstance(info, dict) else None
    first = states[0] if isinstance(states, list) and states else None
    entry = first.get("specc") if isinstance(first, dict) else None
    return entry if isinstance(entry, dict) else None
