"""prepare: what a step begins with, in one launch: the carry, positions and slots, what is known before drafting."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

from specc.ir.core import Module, Op, Value, tensor_type
from specc.kernels.base import (
    ROW_BLOCK,
    Arguments,
    Cluster,
    Family,
    Flag,
    Spec,
    in_order,
    is_narrow,
    leaves,
    maybe,
    read_in_place,
    row_elements,
)

_LENGTHS = {"kv.admit": 2, "kv.positions": 0, "kv.slots": 2, "kv.branch_slots": 2}
"""The ops that depend on lengths, and which operand these are."""

_PLACES = ("kv.positions", "kv.slots", "kv.branch_slots")
"""Those of them that follow from lengths with room."""

_ROWS = {"carry.load": 0, "health.clear": 0, "kv.admit": 1}
"""The ops that know which rows are padding, and which operand says so."""

_CHAINS = ("chain.start", "chain.join")
_OF_LOADS = ("tree.repeat", "tree.root")


class Prepare(Family):
    """All of the prepare phase in one launch, but for what moves keys and values."""

    stem = "prepare"

    def candidates(self, module: Module) -> Iterable[Cluster]:
        """What the phase makes of the carry, of the committed lengths and of the slot table."""
        ops = module.phases["prepare"]
        loads = [op for op in ops if op.opcode == "carry.load" and not read_in_place(module, op)]
        loaded = {load.result for load in loads}
        admits = [op for op in ops if op.opcode == "kv.admit" and (_lens(op) in loaded or _lens(op).source not in ops)]
        placed = [op for admit in admits[:1] for op in ops if op.opcode in _PLACES and _lens(op) is admit.results[1]]
        made = [op for op in ops if op.opcode in (*_OF_LOADS, *_CHAINS) and loaded.issuperset(op.operands)]
        cluster = [*loads, *admits[:1], *placed]
        cluster += [op for op in made if op.opcode in _OF_LOADS] + [op for op in made if op.opcode in _CHAINS][:1]
        for clear in [op for op in ops if op.opcode == "health.clear"][:1]:
            cluster += [clear, *(op for op in module.users(clear.result) if _tells(op, admits[:1]))]
        kept = any(leaves(module, admit.out("full"), cluster) for admit in admits[:1])  # it has no place in memory
        if any(op.opcode in _ROWS for op in cluster) and not kept:
            yield in_order(module, cluster)

    def spec(self, module: Module, name: str, cluster: Cluster) -> Spec:
        """See docs/kernels.md for the order of arguments."""
        shape = _Shape(module, cluster)
        tiles = "one program per request"
        tiles += f"; long rows in chunks of {ROW_BLOCK}" if shape.wide else ""
        arguments = _arguments(module, shape, cluster)
        return Spec(self.stem, shape.flags(), _constants(module, shape), tuple(arguments.found), (), 1, 1, tiles)

    def grid(self, module: Module, cluster: Cluster, batch: int) -> tuple[int, int, int]:
        """One program per request, and one per chunk of every long row that it writes."""
        shape = _Shape(module, cluster)
        rows = [row_elements(module, field) for field in (*shape.kept(shape.wide), *shape.repeats)]
        return batch, 1 + sum(-(-row // ROW_BLOCK) for row in rows), 1


class _Shape:
    """The roles that the ops of a cluster play: ops by the field they read or, of slots and positions, by result."""

    def __init__(self, module: Module, cluster: Cluster) -> None:
        self.loads = {str(op.attrs["field"]): op for op in cluster if op.opcode == "carry.load"}
        fields = {load.result: field for field, load in self.loads.items()}
        told = maybe(cluster, "health.raise")
        self.bit = 1 << int(told.attrs["bit"]) if told is not None else 0
        self.health = told or maybe(cluster, "health.clear")
        self.repeats = {fields[op.operands[0]]: op for op in cluster if op.opcode == "tree.repeat"}
        self.roots = {fields[op.operands[0]]: op for op in cluster if op.opcode == "tree.root"}
        self.chain = next((op for op in cluster if op.opcode in _CHAINS), None)
        self.chain_fields = [fields[value] for value in self.chain.operands] if self.chain is not None else []
        self.places = {op.result.name: op for op in cluster if op.opcode == "kv.positions"}
        slots = {op.result.name: op for op in cluster if op.opcode in ("kv.slots", "kv.branch_slots")}
        self.windows = {name: op for name, op in slots.items() if op.attrs.get("axis", "D") != "D"}
        self.runs = {name: op for name, op in slots.items() if name not in self.windows}
        self.admit = maybe(cluster, "kv.admit")
        lens = _lens(self.admit) if self.admit is not None else None
        self.length = [fields[lens]] if lens in fields else []
        self.given = lens if lens not in fields else None
        admitted = dict(zip(("rows", "seq_lens"), self.admit.results[:2], strict=True)) if self.admit else {}
        self.admitted = {name: value for name, value in admitted.items() if leaves(module, value, cluster)}
        self.scalars = [field for field in self.loads if len(module.carries[field].type.shape) == 1]
        rows = [field for field in self.loads if field not in self.scalars]
        short = {field for field in rows if is_narrow(module, field) and field not in self.repeats}
        self.vectors = [field for field in rows if field in short.union(self.chain_fields)]
        self.wide = [field for field in rows if field not in self.vectors]
        self.stored = {field for field, load in self.loads.items() if leaves(module, load.result, cluster)}

    def kept(self, fields: list[str]) -> list[str]:
        """Those of fields whose values are in memory for others."""
        return [field for field in fields if field in self.stored]

    def flags(self) -> dict[str, Flag]:
        """What the template asks for."""
        names = {"scalars": self.scalars, "vectors": self.vectors, "wide": self.wide}
        names |= {f"kept_{kind}": self.kept(fields) for kind, fields in names.items()}
        names |= {"length": self.length, "chain_root": self.chain_fields[:1], "chain_drafts": self.chain_fields[1:]}
        names |= {"repeated": list(self.repeats), "roots": list(self.roots)}
        names |= {"places": list(self.places), "windows": list(self.windows), "runs": list(self.runs)}
        names["admitted"] = list(self.admitted)
        flags: dict[str, Flag] = {name: tuple(found) for name, found in names.items()}
        flags |= {"health": self.health is not None, "given": self.given is not None}
        return flags | {"admit": self.admit is not None}


def _lens(op: Op) -> Value:
    return op.operands[_LENGTHS[op.opcode]]


def _tells(op: Op, admits: list[Op]) -> bool:
    """Whether an op raises the health bit of requests that have not been admitted."""
    return op.opcode == "health.raise" and any(op.operands[1] is admit.results[2] for admit in admits)


def _arguments(module: Module, shape: _Shape, cluster: Cluster) -> Arguments:
    arguments = Arguments()
    arguments.value("rows_ptr", next(op.operands[_ROWS[op.opcode]] for op in cluster if op.opcode in _ROWS))
    if shape.given is not None:
        arguments.value("seq_lens_ptr", shape.given)
    if shape.admit is not None:
        table = shape.admit.operands[0]
        arguments.input("req_to_token_ptr", table)
        arguments.stride("req_to_token_stride", table)
        arguments.size("columns", table, axis=1)
    for field in (*shape.scalars, *shape.vectors, *shape.wide):
        arguments.relay(module, field)
    if shape.health is not None:
        arguments.value("health_ptr", shape.health.result)
    for name, value in shape.admitted.items():
        arguments.value(f"admitted_{name}_ptr", value)
    for field in (*shape.kept(shape.scalars), *shape.kept(shape.vectors), *shape.kept(shape.wide)):
        arguments.value(f"out_{field}_ptr", shape.loads[field].result)
    for field, op in shape.roots.items():
        arguments.value(f"root_{field}_ptr", op.result)
    if shape.chain is not None:
        arguments.value("tokens_ptr", shape.chain.result)
    for name, op in (shape.places | shape.windows | shape.runs).items():
        arguments.value(f"kv_{name}_ptr", op.result)
    for field, op in shape.repeats.items():
        arguments.value(f"copies_{field}_ptr", op.result)
    return arguments


def _constants(module: Module, shape: _Shape) -> tuple[tuple[str, int], ...]:
    found = [("A", module.size("A"))] if shape.chain is not None else []
    found += [("K", module.size("K"))] if shape.runs or shape.repeats else []
    found += [("FORWARDS", module.size("D")), ("MAX_B", module.size("B"))] if shape.runs else []
    if shape.admit is not None:
        found += [("WINDOW", int(shape.admit.attrs["window"])), ("LONGEST", int(shape.admit.attrs["longest"]))]
        found.append(("HEALTH_BIT", shape.bit))
    for name, op in (shape.places | shape.windows).items():
        found.append((f"OFFSET_{name}", int(op.attrs["offset"])))
        found += [(f"STRIDE_{name}", int(op.attrs["stride"]))] if name in shape.places else []
        found.append((f"SIZE_{name}", prod(tensor_type(op.result).sizes(module.dims)[1:])))
    for name, op in shape.runs.items():
        found.append((f"OFFSET_{name}", int(op.attrs["offset"])))
        # A chain's only branch starts at the offset, wherever that is in its page.
        found += [(f"PAGE_{name}", int(op.attrs.get("page", 1))), (f"ROOM_{name}", int(op.attrs.get("room", 0)))]
    found += [(f"W_{field}", row_elements(module, field)) for field in (*shape.vectors, *shape.wide)]
    return (*found, *((("BLOCK_W", ROW_BLOCK),) if shape.wide else ()))


FAMILY = Prepare()
