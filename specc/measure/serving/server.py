"""What a server says of itself: its model, its program, and what it has counted since it began."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

from specc.measure.serving.client import Answer, Client
from specc.support.diagnostics import Diagnostic, DiagnosticError

SWITCH, STATE = "/set_internal_state", "/server_info"
"""Paths of SGLang's: where its program is switched, and where it tells of it."""
DRAFTS = "vllm:spec_decode_num_drafts_total"
BY_POSITION = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
STEPS = "specc:decode_steps_total"


@dataclass(frozen=True)
class Counts:
    """Counters of a server. ``served`` and ``left`` are decode steps of its program, and those left to the engine.

    Attributes:
        verifications: of the drafts of one request each.
        accepted: drafts that these accepted, by their position, from 0.
        served: None where the server does not tell, or has no program.
        left: as served.

    """

    verifications: int = 0
    accepted: tuple[int, ...] = ()
    served: int | None = None
    left: int | None = None

    def plus(self, other: Counts, sign: int = 1) -> Counts:
        """Both together."""
        pairs = zip_longest(self.accepted, other.accepted, fillvalue=0)
        served, left = (
            None if one is None and more is None else (one or 0) + sign * (more or 0)
            for one, more in ((self.served, other.served), (self.left, other.left))
        )
        accepted = tuple(one + sign * more for one, more in pairs)
        return Counts(self.verifications + sign * other.verifications, accepted, served, left)

    def since(self, before: Counts) -> Counts:
        """What was counted between two times."""
        return self.plus(before, -1)

    @property
    def accept_length(self) -> float | None:
        """Tokens a verification, the one after the accepted drafts included; None without verifications."""
        return 1 + sum(self.accepted) / self.verifications if self.verifications > 0 else None

    @property
    def by_position(self) -> tuple[float, ...]:
        """By position, which part of the verifications accepted the draft that stands there."""
        return tuple(count / self.verifications for count in self.accepted) if self.verifications > 0 else ()


def of_answers(answers: Sequence[Answer]) -> Counts:
    """What the answers of a server say of their verifications themselves."""
    most = max((len(one.accepted) for one in answers), default=0)
    by_count = [sum(one.accepted[k] for one in answers if k < len(one.accepted)) for k in range(most)]
    return Counts(sum(by_count), tuple(sum(by_count[k:]) for k in range(1, most)))


@dataclass
class Server:
    """A server, and what it said when it was met."""

    client: Client
    model: str
    engine: str
    program: str | None = None
    switchable: bool = False
    metrics: bool = field(default=True, repr=False)

    @property
    def address(self) -> str:
        """Where it is."""
        return self.client.url

    async def switch(self, on: bool) -> None:
        """Have the program run the decode steps, or the engine. DiagnosticError where that is refused."""
        answer = await self.client.get(SWITCH, {"server_args": {"specc": int(on)}})
        done = answer if isinstance(answer, list) else [answer]
        state = _program(await self.client.get(STATE))
        if not done or not all(one is True for one in done) or state is None or state.get("on") is not on:
            raise no_other_side(self.address, f"its program could not be switched {'on' if on else 'off'}")

    async def counts(self) -> Counts:
        """Of now."""
        found = counted(await self.client.text("/metrics")) if self.metrics else Counts()
        if not self.switchable:
            return found
        state = _program(await self.client.get(STATE)) or {}
        left = state.get("left")
        served = int(state.get("served") or 0)
        return Counts(0, (), served, sum(left.values()) if isinstance(left, dict) else 0)


def no_other_side(address: str, why: str) -> DiagnosticError:
    """There is one side alone."""
    hint = "--against gives the address of the same server without the program"
    return DiagnosticError(Diagnostic("serve/no-other-side", f"{address}: {why}", hint=hint))


async def meet(client: Client, model: str | None) -> Server:
    """Ask a server who it is. It must serve the model of that name, or have a first one.

    Raises DiagnosticError where it does not answer, or has no such model.
    """
    listed = await client.get("/v1/models")
    try:
        models = {str(one["id"]): str(one.get("owned_by", "")) for one in listed["data"]}
    except (KeyError, TypeError, AttributeError):
        client.broken("/v1/models lists no models")
    if not models or (model is not None and model not in models):
        wanted = "no model" if model is None else f"no model {model[:60]!r}"
        raise DiagnosticError(Diagnostic("serve/no-model", f"{client.url} serves {wanted}, but {list(models)[:8]}"))
    client.model = model or next(iter(models))
    found = Server(client, client.model, models[client.model])
    if found.engine == "sglang":
        state = _program(await client.get(STATE))
        found.program, found.switchable = (state or {}).get("program"), state is not None
        found.metrics = False  # answers say what they took, and SGLang has metrics only where it is asked to
    else:
        found.metrics, found.program = await _with_metrics(client)
    return found


async def _with_metrics(client: Client) -> tuple[bool, str | None]:
    """Whether a server has metrics, and the program that they name."""
    try:
        samples = _samples(await client.text("/metrics"))
    except DiagnosticError:
        return False, None
    active = [one for one in samples if one.name == "specc:program_active" and one.value]
    return True, active[0].labels.get("program") if active else None


def counted(text: str) -> Counts:
    """What metrics in Prometheus' format say; those of several engines behind one address are added up."""
    total, positions, steps = {DRAFTS: 0}, dict[int, int](), dict[bool, int]()
    for one in _samples(text):
        if one.name in total:
            total[one.name] += int(one.value)
        elif one.name == BY_POSITION:
            place = int(one.labels["position"])
            positions[place] = positions.get(place, 0) + int(one.value)
        elif one.name == STEPS:
            ours = one.labels.get("by") == "program"
            steps[ours] = steps.get(ours, 0) + int(one.value)
    accepted = tuple(positions.get(place, 0) for place in range(max(positions, default=-1) + 1))
    told = (steps.get(True, 0), steps.get(False, 0)) if steps else (None, None)
    return Counts(total[DRAFTS], accepted, *told)


def _samples(text: str) -> list[Any]:
    """All samples of metrics; none of what are no metrics."""
    from prometheus_client.parser import text_string_to_metric_families

    try:
        return [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    except (ValueError, KeyError, IndexError):
        return []


def _program(info: Any) -> Mapping[str, Any] | None:
    """What SGLang's answer about itself says of a program; None without one."""
    states = info.get("internal_states") if isinstance(info, dict) else None
    first = states[0] if isinstance(states, list) and states else None
    found = first.get("specc") if isinstance(first, dict) else None
    return found if isinstance(found, dict) else None
