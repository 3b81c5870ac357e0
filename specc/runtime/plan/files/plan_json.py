"""`plan.json`: the text of a `Plan`, and the plan of a text, with all that types do not say of it checked."""

from __future__ import annotations

import json
from importlib.resources.abc import Traversable
from typing import Any

from ...dtypes import DTYPES
from ...errors import DamagedWheelError, PlanError
from ..halves import runs
from ..nodes import KINDS, OUTSIDE, Argument, Collective, Node, Reference
from ..plan import BATCH_AXIS, FORMAT, PROMPT, RAGGED_AXIS, RANK_AXIS, Plan, kv_pointers
from ..shape import Shape
from ..typed import from_json, read_json, to_json
from .manifest import PLAN, Manifest, read_packaged

STEP_AXES = ("B", "P", "S", "A", "N", "V")
"""Axes whose size the runtime itself asks for."""


def plan_text(plan: Plan) -> str:
    """The canonical text of a plan: keys sorted, a record (a buffer, a kernel, a node) a line, a final newline."""
    return _lines({"format": FORMAT} | to_json(plan), 2, "") + "\n"


def _lines(value: Any, levels: int, margin: str) -> str:
    """The JSON of a value, whose items have lines of their own for some levels. A phase's nodes are records, too."""
    levels = 2 if isinstance(value, dict) and "nodes" in value else levels
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    if not levels or not any(isinstance(item, dict | list) for item in items):
        return json.dumps(value, sort_keys=True, allow_nan=False)
    inner = margin + "  "
    if isinstance(value, dict):
        texts = [f"{json.dumps(key)}: {_lines(value[key], levels - 1, inner)}" for key in sorted(value)]
        return "{\n" + ",\n".join(inner + text for text in texts) + f"\n{margin}}}"
    return "[\n" + ",\n".join(inner + _lines(item, levels - 1, inner) for item in value) + f"\n{margin}]"


def load_plan(root: Traversable, file: str = PLAN) -> Plan:
    """A plan in the package folder `root`, by default that of the deepest program.

    DamagedWheelError when it is missing or not JSON, PlanError as below.
    """
    text = read_packaged(root, file)
    try:
        data = read_json(text)
    except ValueError as error:
        raise DamagedWheelError(f"{file}: {error}") from error
    return read_plan(data)


def load_plans(root: Traversable, manifest: Manifest) -> dict[Shape, Plan]:
    """All plans in the package folder `root` by shape, the deepest first. Raises as `load_plan`."""
    plans = {plan.shape: plan for plan in (load_plan(root, file) for file in manifest.plans.values())}
    return {shape: plans[shape] for shape in sorted(plans, reverse=True)}


def read_plan(data: Any) -> Plan:
    """The plan in parsed JSON. Raises PlanError on another format, a missing key, a wrong type or a dangling name."""
    form = data.get("format") if isinstance(data, dict) else None
    if form != FORMAT:
        raise PlanError(f"plan format {form!r:.80}, this runtime reads format {FORMAT}")
    try:
        plan = from_json(Plan, {key: value for key, value in data.items() if key != "format"}, "the plan")
    except TypeError as error:
        raise PlanError(f"malformed plan: {error}") from error
    _check(plan)
    return plan


def _check(plan: Plan) -> None:
    """Names must resolve; sizes and offsets are checked where memory is allocated."""
    if not plan.buckets or list(plan.buckets) != sorted({max(bucket, 1) for bucket in plan.buckets}):
        raise PlanError(f"buckets must be positive and ascend, got {list(plan.buckets)}")
    if plan.buckets[-1] != plan.dims.get("B"):
        raise PlanError(f"the largest bucket is {plan.buckets[-1]}, axis B has {plan.dims.get('B')}")
    _check_fields(plan)
    for name, value in plan.values.items():
        if value.buffer not in plan.buffers and name not in plan.inputs:
            raise PlanError(f"value {name!r} is in the unknown buffer {value.buffer!r}")
    for field in plan.carry:
        if f"relay.{field}" not in plan.buffers:
            raise PlanError(f"carried field {field!r} has no buffer relay.{field}")
    for owner, pool in plan.kv_pools.items():
        table = plan.buffers.get(kv_pointers(owner))
        if pool.bound and (table is None or table.shape != (pool.layers * pool.buffers,)):
            raise PlanError(f"the KV buffers of {owner!r} are bound, and {kv_pointers(owner)} has no room for them")
    for table in plan.tables().values():
        if RAGGED_AXIS in table.axes:
            raise PlanError(f"table {table.name!r} has the axis of a prefill's tokens, which only {PROMPT} has")
        if table.limit and (table.limit not in plan.dims or len(table.axes) != 1 or not table.dtype.startswith("i")):
            raise PlanError(f"table {table.name!r} cannot have entries of the axis {table.limit!r}")
    for output in plan.outputs:
        if output.value not in plan.values and output.value not in plan.inputs:
            raise PlanError(f"output {output.name!r} is the unknown value {output.value!r}")
    for node in plan.nodes():
        _check_node(plan, node)
    _check_segments(plan)


def _check_fields(plan: Plan) -> None:
    """What a type alone does not say: known dtypes, room for arena buffers, the sizes that every step needs."""
    named = [*plan.values.items(), *plan.buffers.items(), *plan.inputs.items(), *plan.carry.items()]
    for name, field in named:
        if field.dtype not in DTYPES:
            raise PlanError(f"{name!r} is of the unknown dtype {field.dtype!r}")
    for carried in plan.carry.values():
        if carried.limit is not None and (size := carried.limit.removeprefix("-")).isdecimal():
            plan.size(size)
    for buffer in plan.buffers.values():
        if buffer.owner != "arena":
            continue
        if buffer.offset is None or len(buffer.shape) != len(buffer.strides):
            raise PlanError(f"malformed plan: buffer {buffer.name!r} has no offset, or not a stride for every axis")
        if buffer.offset + buffer.bytes > plan.memory.arena:
            raise PlanError(f"buffer {buffer.name!r} ends behind the arena")
        for axis, size in zip(buffer.axes, buffer.shape, strict=False):
            if axis in plan.dims and plan.dims[axis] != size:
                raise PlanError(f"buffer {buffer.name!r} has {size} along {axis}, which is {plan.dims[axis]} long")
    computed = [node for node in plan.nodes() if not isinstance(node, OUTSIDE)]
    calls = [call for node in computed for call in node.ops]
    for field in sorted({str(call.attrs["field"]) for call in calls if "field" in call.attrs} - plan.carry.keys()):
        raise PlanError(f"an op is on the field {field!r}, which the plan does not carry")
    for axis in STEP_AXES:
        plan.size(axis)


def _check_segments(plan: Plan) -> None:
    """They must be the runs of nodes between forwards, so that every other node is in one, and in order."""
    wanted = runs(plan, lambda node: isinstance(node, OUTSIDE))
    given = [segment.nodes for segment in plan.segments]
    if wanted != given:
        raise PlanError(f"segments are {given}, the step's nodes between forwards {wanted}")


def _check_node(plan: Plan, node: Node) -> None:
    if isinstance(node, OUTSIDE):
        named = [*getattr(node, "operands", {}).values(), *node.results.values()]
        unknown = [name for name in named if name not in plan.values and name not in plan.inputs]
        if unknown:
            raise PlanError(f"node {node.name!r} names unknown values: {', '.join(unknown)}")
        return
    known = plan.values.keys() | plan.inputs.keys()
    for call in node.ops:
        if unknown := sorted(set(call.operands) - known):
            raise PlanError(f"{call.op} of node {node.name!r} reads {', '.join(unknown)}, which nothing has made")
        known |= set(call.results)
    if isinstance(node, Collective):
        _check_collective(plan, node)
    if isinstance(node, Collective | Reference):
        return
    if node.kernel not in plan.kernels:
        raise PlanError(f"node {node.name!r} launches the unknown kernel {node.kernel!r}")
    for argument in node.args:
        _check_argument(argument)
    wanted = [name for name, _ in plan.kernels[node.kernel].arguments]
    given = [argument.name for argument in node.args]
    if wanted != given:
        raise PlanError(f"node {node.name!r} passes {given}, kernel {node.kernel!r} takes {wanted}")
    for owner in [argument.target for argument in node.args if argument.kind == "slot_stride"]:
        if owner not in plan.kv_pools or not plan.kv_pools[owner].bound:
            raise PlanError(f"node {node.name!r} reads KV buffers of {owner!r}, which are not bound")
    for buffer in [argument.target for argument in node.args if argument.kind == "row_stride"]:
        if buffer not in plan.buffers or not plan.buffers[buffer].shape:
            raise PlanError(f"node {node.name!r} reads rows of the unknown buffer {buffer!r}")
    missing = [bucket for bucket in plan.buckets if bucket not in node.grid]
    if missing:
        raise PlanError(f"node {node.name!r} has no grid for bucket {missing[0]}")


def _check_collective(plan: Plan, node: Collective) -> None:
    """It gathers one value, which every rank has one part of, and both are in memory that no forward owns."""
    named = [(*call.operands, *call.results) for call in node.ops]
    homes = [plan.home(name) for pair in named for name in pair]
    if [len(pair) for pair in named] != [2] or any(home is None or home.owner != "arena" for home in homes):
        raise PlanError(f"collective {node.name!r} does not gather one value of the arena into another")
    record, records = (plan.values[name].axes for name in named[0])
    if record[:2] != ("1", BATCH_AXIS) or records != (RANK_AXIS, *record[1:]):
        raise PlanError(f"collective {node.name!r} gathers {list(record)} into {list(records)}")


def _check_argument(argument: Argument) -> None:
    if argument.kind not in KINDS:
        known = f"{', '.join(KINDS[:-1])} or {KINDS[-1]}"
        raise PlanError(f"argument {argument.name!r} is of the kind {argument.kind!r:.80}, which is not {known}")
    literal = argument.kind == "literal"
    if (argument.literal is not None, argument.target != "") != (literal, not literal):
        mismatch = f"has the target {argument.target!r:.80} and the literal {argument.literal}"
        raise PlanError(f"argument {argument.name!r} is of the kind {argument.kind}, and {mismatch}")
