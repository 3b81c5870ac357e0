"""What becomes of a configuration: loaded, compiled to a plan in which everything fits, or a diagnostic."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

from specc.compiler import algorithms
from specc.compiler.config import LoadedConfig, load_text
from specc.compiler.config.load import MAX_BYTES
from specc.compiler.driver.build import build_program
from specc.compiler.support.diagnostics import DiagnosticError
from specc.runtime.plan.files.plan_json import plan_text, read_plan
from specc.runtime.plan.nodes import OF_TENSORS, Launch
from specc.runtime.plan.plan import Buffer, Plan

from .outcome import RIGHT, diagnosed, expect


def judge(made: str, compiled: float, rng: random.Random, *, legal: bool = True) -> str:
    """The outcome of a text no longer than a file may be; ``legal`` is False when the schema alone forbids it."""
    made = made[: MAX_BYTES >> 2]

    def load() -> LoadedConfig:
        loaded = load_text(made, Path("fuzzed.yaml"), algorithms.names(), algorithms.needs)
        expect(legal, "the schema forbids it, and it loads")
        return loaded

    return outcome(load, compiled, rng)


def outcome(load: Callable[[], LoadedConfig], compiled: float, rng: random.Random, *, located: bool = True) -> str:
    """Load, perhaps compile, and look at what came of it."""
    try:
        loaded = load()
        if rng.random() >= compiled:
            return "loaded"
        built = build_program(loaded)
    except DiagnosticError as error:
        return diagnosed(error, located=located)
    for shape in built.shapes:
        check_plan(shape.plan)
    return f"{RIGHT} (compiled)"


def check_plan(plan: Plan) -> None:
    """It round-trips, every argument resolves, and no two buffers that live at once share a byte."""
    text = plan_text(plan)
    again = read_plan(json.loads(text))
    expect(again == plan and plan_text(again) == text, "plan.json does not round-trip")
    named = plan.buffers.keys() | plan.values.keys() | plan.inputs.keys()
    for phase in plan.phases:
        for node in phase.nodes:
            for argument in node.args if isinstance(node, Launch) else ():
                known = argument.kind not in OF_TENSORS or argument.target in named
                expect(known, f"{node.name}: {argument} names nothing")
    placed = [(b.offset, b.offset + b.bytes, b) for b in plan.buffers.values() if b.offset is not None and b.bytes]
    live: list[tuple[int, Buffer]] = []
    for start, end, buffer in sorted(placed, key=lambda place: place[0]):
        expect(buffer.owner == "arena", f"{buffer.name} is the engine's, and in the arena")
        expect(start % 256 == 0, f"{buffer.name} is at {start}")
        expect(end <= plan.memory.arena, f"{buffer.name} ends behind the arena")
        live = [(stop, neighbour) for stop, neighbour in live if stop > start]
        for _, neighbour in live:
            apart = neighbour.lifetime[1] < buffer.lifetime[0] or buffer.lifetime[1] < neighbour.lifetime[0]
            expect(apart, f"{buffer.name} and {neighbour.name} live at once in the same memory")
        live.append((end, buffer))
