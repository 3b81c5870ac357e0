"""What plans that are written by hand, as `plan.json` would hold them, are made of; no kernel is behind them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import torch

from specc import adapters, runtime
from specc.runtime.backends.cpu import ReferenceBackend
from specc.runtime.plan.manifest import Manifest
from specc.runtime.plan.plan import FORMAT, Plan
from specc.runtime.program import Program

Json = dict[str, Any]
ITEMSIZE = {"i1": 1, "u8": 1, "i32": 4, "i64": 8, "f16": 2, "bf16": 2, "f32": 4}
ALIGN = 256


@dataclass
class Builder:
    """Collects buffers, values and nodes of a plan."""

    dims: dict[str, int]
    overlap: bool
    buffers: list[Json] = field(default_factory=list)
    values: dict[str, Json] = field(default_factory=dict)
    kernels: dict[str, Json] = field(default_factory=dict)
    cursor: int = 0

    def sizes(self, axes: list[str]) -> list[int]:
        return [int(axis) if axis.isdecimal() else self.dims.get(axis, 0) for axis in axes]

    def arena(self, name: str, dtype: str, axes: list[str], *, init: str = "none", at: int | None = None) -> str:
        shape = self.sizes(axes)
        strides, count = [], 1
        for size in reversed(shape):
            strides.insert(0, count)
            count *= size
        offset = self.cursor if at is None else at
        self.buffers.append(
            {
                "name": name,
                "dtype": dtype,
                "axes": axes,
                "shape": shape,
                "strides": strides,
                "owner": "arena",
                "offset": offset,
                "bytes": count * ITEMSIZE[dtype],
                "lifetime": [0, 99],
                "init": init,
                "alignment": 16,
            }
        )
        end = offset + count * ITEMSIZE[dtype]
        self.cursor = max(self.cursor, -(-end // ALIGN) * ALIGN)
        return name

    def offset(self, name: str) -> int:
        return next(b["offset"] for b in self.buffers if b["name"] == name)

    def value(self, name: str, dtype: str, axes: list[str], buffer: str | None = None, **where: Any) -> str:
        """A value in its own new buffer, or in `buffer`."""
        home = buffer or self.arena(f"buf.{name}", dtype, axes, **where)
        self.values[name] = {"buffer": home, "dtype": dtype, "axes": axes}
        return name

    def engine(self, name: str, dtype: str, axes: list[str]) -> str:
        """A value that a forward returns."""
        buffer = {
            "name": f"engine.{name}",
            "dtype": dtype,
            "axes": axes,
            "shape": self.sizes(axes),
            "strides": [],
        }
        buffer |= {"owner": "engine", "offset": None, "bytes": 0, "lifetime": [0, 99], "init": "none"}
        self.buffers.append(buffer | {"alignment": 16})
        self.values[name] = {"buffer": f"engine.{name}", "dtype": dtype, "axes": axes}
        return name

    def launch(self, kernel: str, *ops: Json, name: str | None = None, args: tuple[Json, ...] = ()) -> Json:
        given = [_argument(**arg) for arg in args]
        types = {"value": "*i64", "buffer": "*i64", "input": "*i64", "literal": "i32"}
        arguments = [[arg["name"], types.get(arg["kind"], "i64")] for arg in given]
        self.kernels[kernel] = {
            "family": kernel,
            "function": kernel,
            "source": f"kernels/{kernel}.py",
            "flags": {},
            "constants": {},
            "arguments": arguments,
            "aligned": [],
            "num_warps": 4,
            "num_stages": 1,
        }
        grid = {str(bucket): [bucket, 2, 1] for bucket in self.buckets}
        node = {"name": name or kernel, "kind": "launch", "kernel": kernel, "ops": list(ops)}
        return node | {"args": given, "grid": grid}

    @property
    def buckets(self) -> list[int]:
        return [bucket for bucket in (1, 2, 4, 8) if bucket <= self.dims["B"]]


def _argument(name: str, axis: int = 0, **bound: Any) -> Json:
    """An argument, and what is bound to it: a kind and its target, or ``literal`` and a number."""
    ((kind, target),) = bound.items()
    said = {"literal": target} if kind == "literal" else {"target": target}
    return {"name": name, "kind": kind, **said, **({"axis": axis} if axis else {})}


def by_torch(plan: Json, *names: str) -> Json:
    """The plan, whose launches of these names are references instead."""
    nodes = [node for phase in plan["phases"] for node in phase["nodes"]]
    for node in nodes:
        if node["name"] in names:
            kernel = node.pop("kernel")
            node["kind"] = "reference"
            del node["args"], node["grid"]
            if all(other.get("kernel") != kernel for other in nodes):
                del plan["kernels"][kernel]
    return plan


def op(name: str, operands: str, results: str = "", **attrs: Any) -> Json:
    """One op call; operands and results are blank separated."""
    return {"op": name, "operands": operands.split(), "results": results.split(), "attrs": attrs}


def external(name: str, callback: str, capture: str, results: Json, step: int | None = None, **operands: str) -> Json:
    node = {
        "name": name,
        "kind": "external",
        "callback": callback,
        "step": step,
        "capture": capture,
        "ops": [],
    }
    return node | {"operands": operands, "results": results}


INPUTS = (
    ("req_pool_indices", "i64", ["B"], "arena"),
    ("seq_lens", "i64", ["B"], "arena"),
    ("req_to_token", "i32", ["P", "C"], "engine"),
)


def plan_of(
    b: Builder,
    phases: Mapping[str, list[Json]],
    *,
    kv: Json,
    outputs: Iterable[tuple[str, str, str]],
    inputs: Iterable[tuple[str, str, list[str], str]] = INPUTS,
    **said: Any,
) -> Json:
    """A whole plan of what was built; ``kv`` and ``said`` are what is not the same in all of them.

    ``outputs`` are names, values and entries, ``inputs`` names, dtypes, axes and owners.
    """
    listed = [
        {"name": name, "entry": "prefill" if name == "prefill" else "step", "nodes": nodes}
        for name, nodes in phases.items()
    ]
    usual = {"page_size": 1, "verify_window": b.dims["N"], "longest": None}
    usual |= {"first_draft_position": 0, "branch_room": 0}
    plan = {
        "format": FORMAT,
        "specc": "0.0.0",
        "dims": b.dims,
        "kv": usual | kv,
        "models": {},
        "serving": {"reach": b.dims["N"], "lookahead": 0, "settled": True, "reads_hidden": False},
        "options": {},
        "disaggregation": False,
        "inputs": [dict(zip(("name", "dtype", "axes", "owner"), item, strict=True)) for item in inputs],
        "outputs": [dict(zip(("name", "value", "entry"), item, strict=True)) for item in outputs],
        "values": b.values,
        "buffers": b.buffers,
        "kernels": b.kernels,
        "ops": {},
        "phases": listed,
        "buckets": b.buckets,
        "totals": {},
        **graphs_of(listed),
        **memory_of(b),
        **said,
    }
    return json.loads(json.dumps(plan))


def graphs_of(phases: list[Json]) -> Json:
    """What is captured: the step, or the launches between its forwards; without dependencies."""
    nodes = [node for phase in phases if phase["entry"] == "step" for node in phase["nodes"]]
    names = [phase["name"] for phase in phases if phase["entry"] == "step"]
    runs: list[list[str]] = [[]]
    for node in nodes:
        if node["kind"] == "external":
            runs.append([])
        else:
            runs[-1].append(node["name"])
    return {
        "captures": [_graph("step", names, [node["name"] for node in nodes])],
        "segments": [_graph(run[0], [], run) for run in runs if run],
    }


def _graph(name: str, phases: list[str], nodes: list[str]) -> Json:
    return {"name": name, "entry": "step", "phases": phases, "nodes": nodes, "edges": []}


def memory_of(b: Builder) -> Json:
    """The bytes of the arena, which has no scratch."""
    arena = [buffer for buffer in b.buffers if buffer["owner"] == "arena"]
    relay = sum(buffer["bytes"] for buffer in arena if buffer["name"].startswith("relay."))
    end = max(buffer["offset"] + buffer["bytes"] for buffer in arena)
    return {"memory": {"arena": end, "relay": relay, "scratch": 0}}


def kv_pool(*, bound: bool, layers: int = 1, buffers: int = 2, row_bytes: int = 16, dtype: str = "float32") -> Json:
    """What the plan says of one model's KV buffers."""
    return {"layers": layers, "buffers": buffers, "row_bytes": row_bytes, "dtype": dtype, "bound": bound}


def program_of(plan: Plan) -> Program:
    """A program on the reference backend, of a wheel without any file."""
    manifest = Manifest(plan.name, "0", "0", plan.specc, None, 3, torch.__version__, (), {}, (), {}, {})
    return Program((plan,), manifest, torch.device("cpu"), ReferenceBackend())


def package_of(plan: Plan, name: str) -> ModuleType:
    """The package of a wheel with that program, of this name: with the adapters, which import it, and without files."""
    made = ModuleType(name)
    made.__path__ = [*adapters.__path__]  # type: ignore[attr-defined]
    vars(made).update({name: getattr(runtime, name) for name in ("Batch", "Carry", "Forward", "Sampling", "faults")})
    vars(made).update(plan=plan, load=lambda device: program_of(plan), __version__="0.1.0+p1")
    return made
