"""The memory plan: nothing live at the same time overlaps, and what memory held before a program ran never matters."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from typing import Any

import networkx as nx
import pytest
import torch
import yaml
from bound_script import bind, run
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import config_text, load, written
from session import (
    RecordingEngine,
    Script,
    Trace,
    assert_same,
    content,
    defined,
    defined_call,
    interpret_script,
    script,
)
from strategies import configs, to_yaml

from specc.compiler.algorithms import names, needs
from specc.compiler.config import load_text
from specc.compiler.driver.build import Build, build_program
from specc.compiler.ir.ops import OPS
from specc.compiler.ir.text.printer import print_module
from specc.compiler.ir.types import FLOATS
from specc.compiler.kernels import LONE, groups
from specc.compiler.passes import form_kernels
from specc.runtime.batch import Batch
from specc.runtime.plan.files.plan_json import plan_text

KERNELS = sorted({*LONE, *(name.split(".")[0] for name in OPS)} - {"model", "spec"})
"""The families and dialects that may have kernels."""


def build(keys: dict[str, Any]) -> Build:
    """Build a configuration, short of machine code."""
    return build_program(load_text(to_yaml(keys), Path("random.yaml"), names(), needs))


def uses(plan: Any) -> dict[str, tuple[int, int]]:
    """First and last node, counted over both entries, that names each buffer: straight from the plan's nodes."""
    home = {name: value["buffer"] for name, value in plan["values"].items()}
    users: dict[str, list[int]] = {}
    nodes = [node for phase in plan["phases"] for node in phase["nodes"]]
    for position, node in enumerate(nodes, start=1):
        names = {home.get(ssa, ssa) for op in node["ops"] for ssa in (*op["operands"], *op["results"])}
        names |= {argument["target"] for argument in node.get("args", []) if argument["kind"] == "buffer"}
        for name in names:
            users.setdefault(name, []).append(position)
    return {name: (min(positions), max(positions)) for name, positions in users.items()}


@settings(max_examples=25)
@given(configs())
def test_live_buffers_never_overlap(keys: dict[str, Any]) -> None:
    plan = written(build(keys).plan)
    arena = {b["name"]: b for b in plan["buffers"] if b["owner"] == "arena"}
    size = plan["totals"][str(plan["buckets"][-1])]["arena_bytes"]
    touched = uses(plan)
    for buffer in arena.values():
        assert buffer["offset"] % 256 == 0
        assert 0 <= buffer["offset"] <= buffer["offset"] + buffer["bytes"] <= size
        first, last = buffer["lifetime"]
        if buffer["name"] in touched:
            assert first <= touched[buffer["name"]][0], f"{buffer['name']} is used before it lives"
            assert touched[buffer["name"]][1] <= last, f"{buffer['name']} is used after it has died"
    for placed, neighbour in combinations(arena.values(), 2):
        apart = (
            placed["offset"] + placed["bytes"] <= neighbour["offset"]
            or neighbour["offset"] + neighbour["bytes"] <= placed["offset"]
        )
        together = (
            placed["lifetime"][0] <= neighbour["lifetime"][1] and neighbour["lifetime"][0] <= placed["lifetime"][1]
        )
        assert apart or not together, f"{placed['name']} and {neighbour['name']}"


OWNERS = ("target", "draft")


def touched_rows(opcode: str) -> set[str]:
    """KV rows that an op may change, as one buffer per model; a forward that only reads them counts as well."""
    states = {slot.pattern for slot in OPS[opcode].results}
    return {f"rows of {owner}" for owner in OWNERS if f"!kv<{owner}>" in states}


def accesses(plan: Any, node: Any) -> tuple[set[str], set[str]]:
    """Buffers that a node reads, and those it writes: scratch too, and KV rows as one buffer per model."""
    home = {name: value["buffer"] for name, value in plan["values"].items()}
    reads, writes = set[str](), set[str]()
    for op in node["ops"]:
        reads |= {home[name] for name in op["operands"] if name in home}
        writes |= {home[name] for name in op["results"] if name in home}
        if "field" in op["attrs"]:
            (reads if op["op"] == "carry.load" else writes).add(f"relay.{op['attrs']['field']}")
        writes |= touched_rows(op["op"])
    named = {argument["target"] for argument in node.get("args", []) if argument["kind"] == "buffer"}
    return reads, writes | {name for name in named if not name.startswith(("relay.", "kv."))}


@settings(max_examples=15)
@given(configs())
def test_edges_order_every_conflict(keys: dict[str, Any]) -> None:
    """Of two nodes of the graph one waits for the other, if one writes bytes that the other touches."""
    plan = written(build(keys).plan)
    assert len(plan["captures"]) == (2 if is_rotated(keys) else 1)
    buffers = {buffer["name"]: buffer for buffer in plan["buffers"]}
    buffers |= {f"rows of {owner}": {"name": f"rows of {owner}", "owner": "engine"} for owner in OWNERS}
    nodes = {node["name"]: accesses(plan, node) for phase in plan["phases"] for node in phase["nodes"]}
    for handed, at in handed_back(plan).items():
        for reads, _ in nodes.values():
            reads |= at if handed in reads else set()
    for capture in plan["captures"]:
        order = nx.transitive_closure(nx.DiGraph(map(tuple, capture["edges"])))
        for first, second in combinations(capture["nodes"], 2):
            first_accesses, second_accesses = nodes[first], nodes[second]
            pairs = [(w, t) for w in first_accesses[1] for t in second_accesses[0] | second_accesses[1]]
            pairs += [(r, w) for r in first_accesses[0] for w in second_accesses[1]]
            if any(share(buffers[x], buffers[y]) for x, y in pairs):
                assert order.has_edge(first, second), f"{first} and {second}"


def is_rotated(keys: dict[str, Any]) -> bool:
    """Whether a configuration leaves the target to the engine, each half of whose step is a graph then."""
    return "engine" in keys or keys.get("step") == "rotated"


def share(first: Any, second: Any) -> bool:
    """Whether two buffers have a byte in common."""
    if first["name"] == second["name"]:
        return True
    if first["owner"] != "arena" or second["owner"] != "arena":
        return False
    return first["offset"] < second["offset"] + second["bytes"] and second["offset"] < first["offset"] + first["bytes"]


@settings(max_examples=25)
@given(configs())
def test_what_a_forward_may_hand_back_is_kept_until_it_is_read(keys: dict[str, Any]) -> None:
    check_handed_back(keys)


@pytest.mark.parametrize("algorithm", ["EAGLE", "EAGLE3", "FROZEN_KV_MTP"])
@pytest.mark.parametrize("form", [{}, {"topk": 4, "num_draft_tokens": 12}], ids=["chain", "tree"])
def test_hidden_rows_of_every_draft_are_kept(algorithm: str, form: dict[str, Any]) -> None:
    assert check_handed_back(yaml.safe_load(config_text(algorithm, num_steps=5, **form))) >= 3


def check_handed_back(keys: dict[str, Any]) -> int:
    """Rows that forwards hand over, in the memory of those that they were given, are whole wherever they are read.

    Every forward overwrites its hidden rows and hands their memory back; so does the next one with these. Nothing else
    reads rows after the forward that got them. Returns how many forwards may hand over memory of the arena.
    """
    plan = written(build(keys).plan)
    buffers = {buffer["name"]: buffer for buffer in plan["buffers"]}
    memory, spoilt = handed_back(plan), set[str]()
    for node in (node for phase in plan["phases"] for node in phase["nodes"]):
        reads, writes = accesses(plan, node)
        writes &= buffers.keys()
        written_at = [buffers[name] for name in writes]
        for name, at in memory.items():
            if any(share(buffers[place], written) for place in at for written in written_at):
                spoilt.add(name)
        spoilt -= writes
        assert not spoilt & reads, f"{node['name']} reads what was overwritten"
        if "hidden" in node.get("results", {}):
            spoilt |= hidden_rows(plan, node)
    return sum(bool(at) for at in memory.values())


def hidden_rows(plan: Any, node: Any) -> set[str]:
    """Buffers of what a forward is given of floating point."""
    given = [plan["values"][name] for name in node.get("operands", {}).values() if name in plan["values"]]
    return {value["buffer"] for value in given if value["dtype"] in FLOATS}


def handed_back(plan: Any) -> dict[str, set[str]]:
    """By the buffer of the hidden rows that a forward hands over the arena's buffers that these may lie in."""
    arena = {buffer["name"] for buffer in plan["buffers"] if buffer["owner"] == "arena"}
    memory = dict[str, set[str]]()
    for node in (node for phase in plan["phases"] for node in phase["nodes"]):
        if "hidden" in node.get("results", {}):
            given = hidden_rows(plan, node)
            lies_in = (given & arena).union(*(memory.get(name, ()) for name in given))
            memory[plan["values"][node["results"]["hidden"]]["buffer"]] = lies_in
    return memory


@settings(max_examples=25)
@given(configs())
def test_addresses_are_kept_of_pools_that_kernels_touch(keys: dict[str, Any]) -> None:
    """A table for the target of every tree, for its draft where tails are copied, and for nobody else.

    Only branches that write keys and values have tails; a draft that writes none, and no draft, have no pool.
    """
    plan = written(build(keys).plan)
    tree, pages = keys["topk"] > 1, keys["page_size"] > 1 and keys["num_steps"] > 1
    draft = {} if keys["algorithm"] in ("FROZEN_KV_MTP", "NGRAM") else {"draft": tree and pages}
    assert {owner: pool["bound"] for owner, pool in plan["kv_pools"].items()} == {"target": tree, **draft}
    tables = {b["name"]: b for b in plan["buffers"] if b["name"].startswith("kv.")}
    assert set(tables) == {f"kv.{owner}.pointers" for owner, pool in plan["kv_pools"].items() if pool["bound"]}
    for owner, pool in plan["kv_pools"].items():
        model = keys[owner]
        halves = 1 if model.get("kv_layout") == "mla" else 2
        assert (pool["layers"], pool["buffers"]) == (model["num_layers"], halves)
        if pool["bound"]:
            table = tables[f"kv.{owner}.pointers"]
            assert (table["dtype"], table["shape"], table["init"]) == ("i64", [model["num_layers"] * halves], "zero")


@settings(max_examples=10)
@given(configs())
def test_planning_is_deterministic(keys: dict[str, Any]) -> None:
    first, second = build(keys), build(keys)
    assert print_module(first.module) == print_module(second.module)
    assert plan_text(first.plan) == plan_text(second.plan)
    assert first.generated.sources == second.generated.sources


@pytest.mark.parametrize("key", ["bonus", "health", "predict", "accept_lens", "new_seq_lens"])
def test_outputs_live_to_the_end_of_their_entry(key: str) -> None:
    plan = written(build_program(load()).plan)
    (output,) = [o for o in plan["outputs"] if o["name"] == key and o["entry"] == "step"]
    buffer = plan["values"][output["value"]]["buffer"]
    (placed,) = [b for b in plan["buffers"] if b["name"] == buffer]
    assert placed["lifetime"][1] >= sum(len(phase["nodes"]) for phase in plan["phases"])


def run_plan(built: Build, todo: Script, poison: int) -> Trace:
    """Run a plan through the runtime's reference backend, in memory that starts as garbage."""
    config = built.loaded.config
    engine, trace = RecordingEngine(config, todo), Trace()
    plan, tables = built.plan, todo.tables(built.plan.tables())
    step = bind(plan, engine, todo, tables, poison)
    todo.sample(step)
    reads_prompts = "prompt_tokens" in built.module.inputs
    lengths = dict(todo.prompts)
    for index, batch in enumerate([list(todo.prompts), *todo.batches]):
        rows = [row for row in batch if row]
        prompts = todo.prompt_tokens(rows) if reads_prompts and not index else None
        request = Batch(rows, [lengths[row] for row in rows], prompts)
        outputs = run(step, engine, request, first=not index)
        if index:
            lengths |= dict(zip(rows, outputs["new_seq_lens"].tolist(), strict=True))
        trace.outputs.append(defined(outputs, rows))
        trace.kv.append(content(engine, lengths))
        trace.pools.append({name: pool[1:].clone() for name, pool in step.pools.items()})
    trace.calls = [defined_call(call, config) for call in engine.calls]
    return trace


@settings(max_examples=20)
@given(configs(), st.integers(0, 1 << 16))
def test_poisoned_memory_changes_nothing(keys: dict[str, Any], seed: int) -> None:
    """The runtime on the plan's memory, whatever it held, does what the interpreter does without memory."""
    check_poisoned(build(keys), seed)


@settings(max_examples=20)
@given(configs(), st.sets(st.sampled_from(KERNELS)), st.integers(0, 1 << 16))
def test_whatever_has_no_kernel_runs_as_its_reference(keys: dict[str, Any], left: set[str], seed: int) -> None:
    """With kernels for a part of the ops, or for none, there is a program, and it does what the interpreter does."""
    has_tile, is_long = form_kernels.has_tile, form_kernels.is_long
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(groups, "LONE", {name: LONE[name] for name in LONE if name in left})
        patch.setattr(groups, "REDUCTIONS", {"vocab.argmax": "argmax"} if "vocab" in left else {})
        for name, can in (("has_tile", has_tile), ("is_long", is_long)):
            patch.setattr(
                form_kernels, name, lambda module, op, can=can: op.opcode.split(".")[0] in left and can(module, op)
            )
        built = build(keys)
    kinds = {node.kind for phase in built.plan.phases for node in phase.nodes}
    assert kinds >= ({"external"} if left else {"external", "reference"})
    check_poisoned(built, seed)


def check_poisoned(built: Build, seed: int) -> None:
    """Run the plan in memory that held other things, and compare it with the module."""
    torch.set_num_threads(1)
    todo = script(built.loaded.config, seed)
    wanted = interpret_script(built.module, built.loaded.config, todo)
    for outputs, batch in zip(wanted.outputs[1:], todo.batches, strict=True):
        count = sum(row != 0 for row in batch)
        outputs |= {name: tensor[:count] for name, tensor in outputs.items()}
    wanted.pools = [{name: pool[1:] for name, pool in pools.items()} for pools in wanted.pools]
    for poison in (0xFF, 0x5A):
        assert_same(wanted, run_plan(built, todo, poison), f"poison {poison:#x}")
