"""Hand-written plans of a chain step, as `plan.json` would hold them.

`hidden` makes the draft read hidden states (shifted positions), else it is an ordinary language model at its
true positions; `overlap` relays the committed lengths. Some buffers that are never live together share memory.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import torch

from specc.runtime.backends.cpu import ReferenceBackend
from specc.runtime.manifest import Manifest
from specc.runtime.plan import Plan
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
        types = {"value": "*i64", "buffer": "*i64", "input": "*i64"}
        types |= {"stride": "i64", "size": "i64", "slot_stride": "i64", "literal": "i32"}
        arguments = [[a["name"], next(types[kind] for kind in types if kind in a)] for a in args]
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
        return node | {"args": list(args), "grid": grid}

    @property
    def buckets(self) -> list[int]:
        return [bucket for bucket in (1, 2, 4, 8) if bucket <= self.dims["B"]]


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


def chain_plan(
    *,
    hidden: bool = False,
    overlap: bool = False,
    steps: int = 3,
    vocab: int = 32,
    width: int = 4,
    batch: int = 4,
    pool: int = 8,
) -> Json:
    """The plan of a greedy chain: K = 1, N = A = steps + 1."""
    dims = {"B": batch, "K": 1, "S": steps, "D": steps - 1, "N": steps + 1, "A": steps + 1}
    dims |= {"V": vocab, "Vd": vocab, "P": pool, "W": width}
    b = Builder(dims, overlap)
    _declare(b, hidden)
    nodes = {
        "prepare": [_prepare(b, hidden)],
        "draft": _draft(b, hidden),
        "verify": _verify(b, hidden),
        "extend": _extend(b, hidden),
        "prefill": _prefill(b, hidden),
    }
    phases = [{"name": n, "entry": "prefill" if n == "prefill" else "step", "nodes": v} for n, v in nodes.items()]
    return _assemble(b, phases, hidden)


def _assemble(b: Builder, phases: list[Json], hidden: bool) -> Json:
    carry = [
        {"name": "bonus", "dtype": "i32", "axes": ["B"]},
        {"name": "topk_index", "dtype": "i64", "axes": ["B", "K"]},
    ]
    carry += [{"name": "hidden", "dtype": "f32", "axes": ["B", "W"]}] if hidden else []
    carry += [{"name": "seq_lens", "dtype": "i64", "axes": ["B"]}] if b.overlap else []
    outputs = {
        "predict": "predict",
        "accept_lens": "alens",
        "new_seq_lens": "new_lens",
        "bonus": "bonus",
        "health": "h",
    }
    plan = {
        "format": 4,
        "name": "toy_chain",
        "algorithm": "EAGLE" if hidden else "STANDALONE",
        "specc": "0.0.0",
        "dims": b.dims,
        "kv": {
            "page_size": 1,
            "window": b.dims["A"] + 1,
            "verify_window": b.dims["N"],
            "reserve": 2 * b.dims["A"],
            "longest": None,
            "first_draft_position": 0 if hidden else 1,
            "draft_positions": "shifted" if hidden else "true",
        },
        "kv_pools": {owner: kv_pool(bound=False) for owner in ("target", "draft")},
        "models": {},
        "options": {},
        "disaggregation": False,
        "inputs": [
            {"name": "req_pool_indices", "dtype": "i64", "axes": ["B"], "owner": "arena"},
            {"name": "seq_lens", "dtype": "i64", "axes": ["B"], "owner": "arena"},
            {"name": "req_to_token", "dtype": "i32", "axes": ["P", "C"], "owner": "engine"},
        ],
        "carry": carry,
        "outputs": [{"name": name, "value": value, "entry": "step"} for name, value in outputs.items()]
        + [
            {"name": "bonus", "value": "first", "entry": "prefill"},
            {"name": "health", "value": "ph", "entry": "prefill"},
        ],
        "values": b.values,
        "buffers": b.buffers,
        "kernels": b.kernels,
        "ops": {},
        "phases": phases,
        "buckets": b.buckets,
        "totals": {},
        **graphs_of(phases),
        **memory_of(b),
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


def _declare(b: Builder, hidden: bool) -> None:
    """Inputs, pools and everything that several phases share."""
    b.value("req_pool_indices", "i64", ["B"], b.arena("req_pool_indices", "i64", ["B"]))
    b.arena("seq_lens", "i64", ["B"])
    b.arena("relay.bonus", "i32", ["P"], init="zero")
    b.arena("relay.topk_index", "i64", ["P", "K"], init="zero")
    if hidden:
        b.arena("relay.hidden", "f32", ["P", "W"], init="zero")
    if b.overlap:
        b.arena("relay.seq_lens", "i64", ["P"], init="zero")
        b.value("lens", "i64", ["B"])
    b.arena("health", "i32", ["B"])
    b.arena("tokens", "i64", ["B", "A"])
    b.arena("draft_tokens", "i64", ["B", "K"])
    b.arena("draft_positions", "i64", ["B", "K"])
    b.value("dslots", "i64", ["D", "B", "K"])
    b.value("vpos", "i64", ["B", "N"])
    b.value("vslots", "i64", ["B", "N"])
    b.value("epos", "i64", ["B", "A"])
    b.value("eslots", "i64", ["B", "A"])


def lengths(b: Builder) -> str:
    return "lens" if b.overlap else "seq_lens"


def _prepare(b: Builder, hidden: bool) -> Json:
    rows, lens, shift = "req_pool_indices", lengths(b), 0 if hidden else 1
    ops = [
        op("carry.load", rows, "bonus0", field="bonus"),
        op("carry.load", rows, "dtok0", field="topk_index"),
        op("health.clear", rows, "h0"),
        op("chain.start", "bonus0 dtok0", "tokens1"),
        op("kv.positions", lens, "dpos0", axis="K", offset=shift, stride=0),
        op("kv.slots", f"req_to_token {rows} {lens}", "dslots", axis="D", offset=shift),
        op("kv.positions", lens, "vpos", axis="N", offset=0, stride=1),
        op("kv.slots", f"req_to_token {rows} {lens}", "vslots", axis="N", offset=0),
        op("kv.positions", lens, "epos", axis="A", offset=shift, stride=1),
        op("kv.slots", f"req_to_token {rows} {lens}", "eslots", axis="A", offset=shift),
    ]
    if b.overlap:
        ops.insert(0, op("carry.load", rows, "lens", field="seq_lens"))
    if hidden:
        ops += [op("carry.load", rows, "carried", field="hidden"), op("tree.repeat", "carried", "dhidden0")]
        b.value("dhidden0", "f32", ["B", "K", "W"])
    b.value("dtok0", "i64", ["B", "K"], "draft_tokens")
    b.value("dpos0", "i64", ["B", "K"], "draft_positions")
    b.value("tokens1", "i64", ["B", "A"], "tokens")
    b.value("h0", "i32", ["B"], "health")
    args = (
        {"name": "rows_ptr", "value": rows},
        {"name": "req_to_token_ptr", "input": "req_to_token"},
        {"name": "req_to_token_stride", "stride": "req_to_token", "axis": 0},
        {"name": "relay_bonus_ptr", "buffer": "relay.bonus"},
        {"name": "tokens_ptr", "value": "tokens1"},
    )
    return b.launch("prepare", *ops, args=args)


def _draft(b: Builder, hidden: bool) -> list[Json]:
    rows, nodes = "req_pool_indices", []
    for i in range(b.dims["D"]):
        logits = b.engine(f"dlogits{i}", "f32", ["B", "K", "Vd"])
        results, extra = {"logits": logits}, {}
        if hidden:
            extra["hidden"] = f"dhidden{i}"
            results["hidden"] = b.engine(f"dhidden{i + 1}", "f32", ["B", "K", "W"])
        operands = {"tokens": f"dtok{i}", "positions": f"dpos{i}", "slots": "dslots", "rows": rows}
        capture = "last" if hidden else "null"
        call = external(f"draft{i}", "draft", capture, results, i, **operands, seq_lens=lengths(b), **extra)
        ops = [
            op("vocab.argmax", f"{logits} {rows}", f"dtok{i + 1} dbad{i}", dtype="i64"),
            op("health.raise", f"h{i} dbad{i}", f"h{i + 1}", bit=0),
            op("chain.append", f"tokens{i + 1} dtok{i + 1}", f"tokens{i + 2}", column=i + 2),
        ]
        b.value(f"dtok{i + 1}", "i64", ["B", "K"], "draft_tokens")
        b.value(f"h{i + 1}", "i32", ["B"], "health")
        b.value(f"tokens{i + 2}", "i64", ["B", "A"], "tokens")
        if i + 1 < b.dims["D"]:
            ops.append(op("kv.advance", f"dpos{i}", f"dpos{i + 1}"))
            b.value(f"dpos{i + 1}", "i64", ["B", "K"], "draft_positions")
        args = ({"name": "logits_ptr", "value": logits}, {"name": "column", "literal": i + 2})
        nodes += [call, b.launch("draft_step", *ops, name=f"draft_step{i}", args=args)]
    return nodes


def _verify(b: Builder, hidden: bool) -> list[Json]:
    rows, lens, forwards = "req_pool_indices", lengths(b), b.dims["D"]
    results = {"logits": b.engine("tlogits", "f32", ["B", "N", "V"])}
    if hidden:
        results["hidden"] = b.engine("thidden", "f32", ["B", "N", "W"])
    operands = {"tokens": f"tokens{forwards + 1}", "positions": "vpos", "slots": "vslots", "rows": rows}
    call = external("target", "target", "full" if hidden else "null", results, **operands, seq_lens=lens)
    b.value("predict", "i32", ["B", "A"])
    for name, dtype in {"alens": "i32", "new_lens": "i64", "bonus": "i32"}.items():
        b.value(name, dtype, ["B"])
    # what only the draft phase needs makes room for what only extend needs
    b.value("ids", "i64", ["B", "A"], at=b.offset("buf.dslots") if b.dims["D"] * 1 >= b.dims["A"] else None)
    b.value("select", "i64", ["B"], at=b.offset("draft_positions"))
    b.value("h", "i32", ["B"], "health")
    ops = [
        op("vocab.argmax", f"tlogits {rows}", "am tbad", dtype="i32"),
        op("health.raise", f"h{forwards} tbad", "hv", bit=1),
        op("verify.greedy", f"tokens{forwards + 1} am {rows}", "predict aindex alens"),
        op("commit.lengths", f"{lens} alens predict", "new_lens bonus"),
        op("commit.extend_ids", "predict alens", "ids"),
        op("commit.select", "alens", "select"),
    ]
    b.value("hv", "i32", ["B"], "health")
    if b.overlap:
        ops.append(op("relay.publish", f"{rows} new_lens", field="seq_lens"))
    return [call, b.launch("verify_commit", *ops)]


def _extend(b: Builder, hidden: bool) -> list[Json]:
    rows = "req_pool_indices"
    results, extra = {"logits": b.engine("elogits", "f32", ["B", "Vd"])}, {}
    if hidden:
        extra["hidden"] = "thidden"
        results["hidden"] = b.engine("ehidden", "f32", ["B", "W"])
    operands = {"tokens": "ids", "positions": "epos", "slots": "eslots", "select": "select", "accept_lens": "alens"}
    capture = "last" if hidden else "null"
    call = external("extend", "extend", capture, results, **operands, rows=rows, seq_lens=lengths(b), **extra)
    ops = [
        op("vocab.argmax", f"elogits {rows}", "next ebad", dtype="i64"),
        op("health.raise", "hv ebad", "h", bit=2),
        op("carry.store", f"{rows} bonus", field="bonus"),
        op("carry.store", f"{rows} next", field="topk_index"),
    ]
    if hidden:
        ops.append(op("carry.store", f"{rows} ehidden", field="hidden"))
    return [call, b.launch("extend_stash", *ops)]


def _prefill(b: Builder, hidden: bool) -> list[Json]:
    rows, results, extra = "req_pool_indices", {"logits": b.engine("plogits", "f32", ["B", "V"])}, {}
    drafted = {"logits": b.engine("pdlogits", "f32", ["B", "Vd"])}
    if hidden:
        results["hidden"] = b.engine("phidden", "f32", ["T", "W"])
        drafted["hidden"] = b.engine("pdhidden", "f32", ["B", "W"])
        extra["hidden"] = "phidden"
    b.value("first", "i32", ["B"])
    for name in ("ph", "ph0", "ph1"):
        b.value(name, "i32", ["B"], "health")
    argmax = b.launch(
        "row_argmax",
        op("health.clear", rows, "ph0"),
        op("vocab.argmax", f"plogits {rows}", "first pbad", dtype="i32"),
        op("health.raise", "ph0 pbad", "ph1", bit=3),
    )
    ops = [
        op("vocab.argmax", f"pdlogits {rows}", "pnext pdbad", dtype="i64"),
        op("health.raise", "ph1 pdbad", "ph", bit=2),
        op("carry.store", f"{rows} first", field="bonus"),
        op("carry.store", f"{rows} pnext", field="topk_index"),
    ]
    if hidden:
        ops.append(op("carry.store", f"{rows} pdhidden", field="hidden"))
    if b.overlap:
        ops.append(op("carry.store", f"{rows} seq_lens", field="seq_lens"))
    where = {"rows": rows, "seq_lens": "seq_lens"}
    full, last = ("full", "last") if hidden else ("null", "null")
    return [
        external("prefill_target", "prefill_target", full, results, **where),
        argmax,
        external("prefill_draft", "prefill_draft", last, drafted, first="first", **where, **extra),
        b.launch("prefill_stash", *ops),
    ]


def program_of(plan: Plan) -> Program:
    """A program on the reference backend, of a wheel without any file."""
    manifest = Manifest(plan.name, "0", "0", plan.specc, None, 3, torch.__version__, (), {}, (), {})
    return Program((plan,), manifest, torch.device("cpu"), ReferenceBackend())
