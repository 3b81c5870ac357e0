"""What becomes of a configuration: loaded, compiled to a plan in which everything fits, or a diagnostic."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from specc import algorithms
from specc.config import LoadedConfig, load_text
from specc.config.load import MAX_BYTES
from specc.driver.build import build_program
from specc.runtime.plan.plan_json import read_plan
from specc.support.diagnostics import DiagnosticError

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
    for depth in built.depths:
        check_plan(depth.plan)
    return f"{RIGHT} (compiled)"


def check_plan(plan: dict[str, Any]) -> None:
    """It round-trips, every argument resolves, and no two buffers that live at once share a byte."""
    text = json.dumps(plan, allow_nan=False)
    again = read_plan(json.loads(text))
    expect(json.dumps(json.loads(text)) == text, "plan.json does not round-trip")
    buffers = {buffer["name"]: buffer for buffer in plan["buffers"]}
    named = buffers.keys() | plan["values"].keys() | again.inputs.keys()
    last = 0
    for phase in plan["phases"]:
        for node in phase["nodes"]:
            last += 1
            for argument in node.get("args", ()):
                kinds = [kind for kind in ("value", "buffer", "input", "stride", "size") if kind in argument]
                for kind in kinds:
                    expect(argument[kind] in named, f"{node['name']}: {argument} names nothing")
    arena = sorted((b for b in buffers.values() if b["owner"] == "arena" and b["bytes"]), key=lambda b: b["offset"])
    live: list[dict[str, Any]] = []
    for buffer in arena:
        expect(buffer["offset"] % 256 == 0, f"{buffer['name']} is at {buffer['offset']}")
        expect(buffer["offset"] + buffer["bytes"] <= plan["memory"]["arena"], f"{buffer['name']} ends behind the arena")
        live = [other for other in live if other["offset"] + other["bytes"] > buffer["offset"]]
        for other in live:
            apart = other["lifetime"][1] < buffer["lifetime"][0] or buffer["lifetime"][1] < other["lifetime"][0]
            expect(apart, f"{buffer['name']} and {other['name']} live at once in the same memory")
        live.append(buffer)
