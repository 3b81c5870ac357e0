"""Reading `plan.json`: from parsed JSON to the dataclasses of `plan.py`."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources.abc import Traversable
from itertools import groupby
from typing import Any

from ..dtypes import DTYPES
from ..errors import DamagedWheelError, PlanError
from .manifest import PLAN
from .plan import (
    FORMAT,
    KINDS,
    PROMPT,
    RAGGED_AXIS,
    Argument,
    Buffer,
    Capture,
    External,
    Field,
    Kernel,
    KvPool,
    Launch,
    Node,
    OpCall,
    OpSource,
    Output,
    Phase,
    Plan,
    Reference,
    Value,
)
from .typed import check_types, listed, read_json

Json = Mapping[str, Any]
"""Those of `semantics`, which needs torch."""
KV = {
    "page_size": (int,),
    "window": (int,),
    "reserve": (int,),
    "longest": (int, type(None)),
    "draft_positions": (str,),
    "first_draft_position": (int,),
}
"""What the runtime reads of `kv`, and the types of it."""
STEP_AXES = ("B", "P", "S", "A", "N", "V")
"""Axes whose size the runtime itself asks for."""


def load_plan(root: Traversable, file: str = PLAN) -> Plan:
    """A plan in the package folder `root`, by default that of the deepest program.

    DamagedWheelError when it is missing or not JSON, PlanError as below.
    """
    try:
        data = read_json(root.joinpath(file).read_text(encoding="utf-8"))
    except Exception as error:  # whatever an archive has to say, too
        raise DamagedWheelError(f"{file}: {error}") from error
    return read_plan(data)


def read_plan(data: Json) -> Plan:
    """The plan in `data`. Raises PlanError on another format, a missing key or a dangling name."""
    form = data.get("format") if isinstance(data, Mapping) else None
    if form != FORMAT:
        raise PlanError(f"plan format {form!r:.80}, this runtime reads format {FORMAT}")
    try:
        plan = _plan(data)
        check_types(plan, "the plan")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise PlanError(f"malformed plan: {type(error).__name__}: {error}") from error
    _check(plan)
    return plan


def _plan(data: Json) -> Plan:
    return Plan(
        name=data["name"],
        algorithm=data["algorithm"],
        specc=data["specc"],
        dims={axis: size for axis, size in data["dims"].items() if size is not None},
        kv=data["kv"],
        kv_pools={owner: _kv_pool(owner, item) for owner, item in data["kv_pools"].items()},
        models=data["models"],
        options=data["options"],
        disaggregation=data["disaggregation"],
        inputs={item["name"]: _field(item) for item in listed(data["inputs"])},
        carry={item["name"]: _field(item) for item in listed(data["carry"])},
        outputs=tuple(Output(item["name"], item["value"], item["entry"]) for item in listed(data["outputs"])),
        values={name: Value(v["buffer"], v["dtype"], _axes(v)) for name, v in data["values"].items()},
        buffers={item["name"]: _buffer(item) for item in listed(data["buffers"])},
        kernels={name: _kernel(name, item) for name, item in data["kernels"].items()},
        ops={name: OpSource(item["source"], item["function"]) for name, item in data["ops"].items()},
        phases=tuple(map(_phase, listed(data["phases"]))),
        captures=tuple(_capture(item) for item in listed(data["captures"])),
        segments=tuple(_capture(item) for item in listed(data["segments"])),
        buckets=tuple(sorted(listed(data["buckets"]))),
        memory=data["memory"],
        totals=data["totals"],
    )


def _phase(item: Json) -> Phase:
    return Phase(item["name"], item["entry"], tuple(map(_node, listed(item["nodes"]))))


def _axes(item: Json) -> tuple[str, ...]:
    return tuple(str(axis) for axis in listed(item["axes"]))


def _field(item: Json) -> Field:
    limit = item.get("limit")
    return Field(item["name"], item["dtype"], _axes(item), None if limit is None else str(limit))


def _kv_pool(owner: str, item: Json) -> KvPool:
    sizes = (item[key] for key in ("layers", "buffers", "row_bytes"))
    return KvPool(owner, *sizes, dtype=item["dtype"], bound=item["bound"])


def _buffer(item: Json) -> Buffer:
    arena = item["owner"] == "arena"
    return Buffer(
        name=item["name"],
        dtype=item["dtype"],
        axes=_axes(item),
        shape=listed(item["shape"]),
        strides=listed(item["strides"]),
        owner=item["owner"],
        offset=item["offset"] if arena else None,
        bytes=item["bytes"],
        init=item["init"],
        alignment=item.get("alignment", 16),
    )


def _kernel(name: str, item: Json) -> Kernel:
    return Kernel(
        name=name,
        family=item["family"],
        function=item["function"],
        source=item["source"],
        flags=item["flags"],
        constants=item["constants"],
        arguments=tuple(map(listed, listed(item["arguments"]))),
        aligned=listed(item["aligned"]),
        num_warps=item["num_warps"],
        num_stages=item["num_stages"],
    )


def _ops(item: Json) -> tuple[OpCall, ...]:
    ops = listed(item.get("ops", ()))
    return tuple(OpCall(op["op"], listed(op["operands"]), listed(op["results"]), op["attrs"]) for op in ops)


def _argument(item: Json) -> Argument:
    for kind in KINDS:
        if kind in item:
            if type(item[kind]) is not (int if kind == "literal" else str):
                raise TypeError(f"{kind} of argument {item['name']!r} is {item[kind]!r:.80}")
            return Argument(item["name"], kind, item[kind], item.get("axis", 0))
    raise PlanError(f"argument {item['name']!r} has no binding: {', '.join(KINDS[:-1])} or {KINDS[-1]}")


def _node(item: Json) -> Node:
    if item["kind"] == "launch":
        grid = {int(bucket): listed(g) for bucket, g in item["grid"].items()}
        return Launch(item["name"], item["kernel"], _ops(item), tuple(_argument(a) for a in listed(item["args"])), grid)
    if item["kind"] == "reference":
        return Reference(item["name"], _ops(item))
    if item["kind"] == "external":
        operands, results = item["operands"], item["results"]
        return External(item["name"], item["callback"], item["step"], item["capture"], operands, results)
    raise PlanError(f"node {item['name']!r} is of unknown kind {item['kind']!r}")


def _capture(item: Json) -> Capture:
    edges = tuple(map(listed, listed(item["edges"])))
    return Capture(item["name"], item["entry"], listed(item["phases"]), listed(item["nodes"]), edges)


def _check(plan: Plan) -> None:
    """Names must resolve; sizes and offsets are checked where memory is allocated."""
    if not plan.buckets or plan.buckets[0] < 1:
        raise PlanError(f"buckets must be positive, got {list(plan.buckets)}")
    if plan.buckets[-1] != plan.dims.get("B"):
        raise PlanError(f"the largest bucket is {plan.buckets[-1]}, axis B has {plan.dims.get('B')}")
    _check_fields(plan)
    for name, value in plan.values.items():
        if value.buffer not in plan.buffers and name not in plan.inputs:
            raise PlanError(f"value {name!r} is in the unknown buffer {value.buffer!r}")
    for field in plan.carry:
        if f"relay.{field}" not in plan.buffers:
            raise PlanError(f"carried field {field!r} has no buffer relay.{field}")
    for pool in plan.kv_pools.values():
        table = plan.buffers.get(pool.pointers)
        if pool.bound and (table is None or table.shape != (pool.layers * pool.buffers,)):
            raise PlanError(f"the KV buffers of {pool.owner!r} are bound, and {pool.pointers} has no room for them")
    for table in plan.tables():
        if RAGGED_AXIS in table.axes:
            raise PlanError(f"table {table.name!r} has the axis of a prefill's tokens, which only {PROMPT} has")
    for output in plan.outputs:
        if output.value not in plan.values and output.value not in plan.inputs:
            raise PlanError(f"output {output.name!r} is the unknown value {output.value!r}")
    for phase in plan.phases:
        for node in phase.nodes:
            _check_node(plan, node)
    _check_segments(plan)


def _check_fields(plan: Plan) -> None:
    """What a type alone does not say: known dtypes, room for arena buffers, the sizes that every step needs."""
    named = [*plan.values.items(), *plan.buffers.items(), *plan.inputs.items(), *plan.carry.items()]
    for name, field in named:
        if field.dtype not in DTYPES:
            raise PlanError(f"{name!r} is of the unknown dtype {field.dtype!r}")
    for carried in plan.carry.values():
        if carried.limit is not None and carried.limit.isdecimal():
            plan.size(carried.limit)
    for buffer in plan.buffers.values():
        if buffer.owner != "arena":
            continue
        if buffer.offset is None or len(buffer.shape) != len(buffer.strides):
            raise PlanError(f"malformed plan: buffer {buffer.name!r} has no offset, or not a stride for every axis")
        if buffer.offset + buffer.bytes > plan.memory.get("arena", 0):
            raise PlanError(f"buffer {buffer.name!r} ends behind the arena")
        for axis, size in zip(buffer.axes, buffer.shape, strict=False):
            if axis in plan.dims and plan.dims[axis] != size:
                raise PlanError(f"buffer {buffer.name!r} has {size} along {axis}, which is {plan.dims[axis]} long")
    computed = [node for phase in plan.phases for node in phase.nodes if not isinstance(node, External)]
    calls = [call for node in computed for call in node.ops]
    for field in sorted({str(call.attrs["field"]) for call in calls if "field" in call.attrs} - plan.carry.keys()):
        raise PlanError(f"an op is on the field {field!r}, which the plan does not carry")
    for key, kinds in KV.items():
        if key not in plan.kv or type(plan.kv[key]) not in kinds:
            raise PlanError(f"malformed plan: kv.{key} is {plan.kv.get(key)!r:.80}")
    for axis in STEP_AXES:
        plan.size(axis)


def _check_segments(plan: Plan) -> None:
    """They must be the runs of nodes between forwards, so that every other node is in one, and in order."""
    runs = groupby(plan.nodes("step"), key=lambda node: isinstance(node, External))
    wanted = [tuple(node.name for node in nodes) for forwards, nodes in runs if not forwards]
    given = [segment.nodes for segment in plan.segments]
    if wanted != given:
        raise PlanError(f"segments are {given}, the step's nodes between forwards {wanted}")


def _check_node(plan: Plan, node: Node) -> None:
    if isinstance(node, External):
        named = [*node.operands.values(), *node.results.values()]
        unknown = [name for name in named if name not in plan.values and name not in plan.inputs]
        if unknown:
            raise PlanError(f"node {node.name!r} names unknown values: {', '.join(unknown)}")
        return
    known = plan.values.keys() | plan.inputs.keys()
    for call in node.ops:
        if unknown := sorted(set(call.operands) - known):
            raise PlanError(f"{call.op} of node {node.name!r} reads {', '.join(unknown)}, which nothing has made")
        known |= set(call.results)
    if isinstance(node, Reference):
        return
    if node.kernel not in plan.kernels:
        raise PlanError(f"node {node.name!r} launches the unknown kernel {node.kernel!r}")
    wanted = [name for name, _ in plan.kernels[node.kernel].arguments]
    given = [argument.name for argument in node.args]
    if wanted != given:
        raise PlanError(f"node {node.name!r} passes {given}, kernel {node.kernel!r} takes {wanted}")
    for owner in [argument.target for argument in node.args if argument.kind == "slot_stride"]:
        if owner not in plan.kv_pools or not plan.kv_pools[owner].bound:
            raise PlanError(f"node {node.name!r} reads KV buffers of {owner!r}, which are not bound")
    missing = [bucket for bucket in plan.buckets if bucket not in node.grid]
    if missing:
        raise PlanError(f"node {node.name!r} has no grid for bucket {missing[0]}")
