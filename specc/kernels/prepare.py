"""prepare: relay gather, slots, positions, the verify inputs known before drafting, and sentinels of padding rows."""

from __future__ import annotations

from collections.abc import Iterable

from specc.ir.core import Module, Op, tensor_type
from specc.kernels.base import Arguments, Cluster, Family, Spec, in_order, maybe, only

_COVERS = frozenset(
    {"health.clear", "carry.load", "kv.positions", "kv.slots", "kv.branch_slots", "tree.repeat", "chain.start"}
)
_ELSEWHERE = frozenset({"kv.duplicate_tail"})
_FIELDS = frozenset({"bonus", "topk_p", "topk_index", "hidden", "seq_lens"})
_BLOCK_W = 1024


class Prepare(Family):
    """All of the prepare phase in one launch, but for what moves keys and values."""

    stem = "prepare"

    def candidates(self, module: Module) -> Iterable[Cluster]:
        """The whole phase, if it holds what a chain's or a tree's does."""
        ops = in_order(module, [op for op in module.phases["prepare"] if op.opcode not in _ELSEWHERE])
        fields = {op.attrs["field"] for op in ops if op.opcode == "carry.load"}
        known = all(op.opcode in _COVERS for op in ops) and {"bonus", "topk_index"} <= fields <= _FIELDS
        # A chain starts the verify inputs and has no probabilities; a tree selects its nodes after drafting.
        if known and bool(maybe(ops, "chain.start")) != ("topk_p" in fields):
            yield ops

    def spec(self, module: Module, name: str, cluster: Cluster) -> Spec:
        """See docs/kernels.md for the order of arguments."""
        shape = _Shape(module, cluster)
        constants = [("N", shape.nodes), ("K", module.size("K"))]
        if shape.draft_slots:
            attrs = shape.draft_slots.attrs
            constants += [("FORWARDS", module.size("D")), ("DRAFT_OFFSET", int(attrs["offset"]))]
            # A chain's only branch starts at the offset, wherever that is in its page.
            constants += [("PAGE", int(attrs.get("page", 1))), ("ROOM", int(attrs.get("room", 0)))]
            constants.append(("MAX_B", module.size("B")))
        if shape.extend_slots:
            constants += [("A", module.size("A")), ("EXTEND_OFFSET", int(shape.extend_slots.attrs["offset"]))]
        constants += [("W", shape.width), ("BLOCK_W", _BLOCK_W)] if shape.hidden else []
        flags = {
            "tree": shape.start is None,
            "relay_seq_lens": shape.seq_lens_load is not None,
            "hidden": shape.hidden is not None,
            "draft": shape.draft_slots is not None,
            "extend_window": shape.extend_slots is not None,
        }
        tiles = "one program per request"
        tiles += f"; hidden rows in chunks of {_BLOCK_W}" if shape.hidden else ""
        return Spec(self.stem, flags, tuple(constants), tuple(_arguments(module, shape).found), (), 1, 1, tiles)

    def grid(self, module: Module, cluster: Cluster, batch: int) -> tuple[int, int, int]:
        """One program per request and chunk of its hidden row."""
        shape = _Shape(module, cluster)
        return batch, -(-shape.width // _BLOCK_W) if shape.hidden else 1, 1


class _Shape:
    """The roles that the ops of a cluster play; a chain has its nodes along the path, and no more than one branch."""

    def __init__(self, module: Module, cluster: Cluster) -> None:
        self.loads = {str(op.attrs["field"]): op for op in cluster if op.opcode == "carry.load"}
        self.health = only(cluster, "health.clear")
        self.start = maybe(cluster, "chain.start")
        self.seq_lens_load = self.loads.get("seq_lens")
        self.hidden = maybe(cluster, "tree.repeat")
        positions = [op for op in cluster if op.opcode == "kv.positions"]
        slots = [op for op in cluster if op.opcode == "kv.slots"]
        self.draft_positions = _first(positions, axis="K")
        self.draft_slots = maybe(cluster, "kv.branch_slots") or _first(slots, axis="D")
        nodes = "N" if self.start is None else "A"
        verify, self.verify_slots = _first(positions, axis=nodes, offset=0), _first(slots, axis=nodes, offset=0)
        self.verify_positions = verify
        # In a chain rows to extend at offset 0 are the verify window.
        extends = [
            op for op in (*positions, *slots) if op.attrs["axis"] == "A" and op not in (verify, self.verify_slots)
        ]
        self.extend_positions = maybe(extends, "kv.positions")
        self.extend_slots = maybe(extends, "kv.slots")
        self.nodes = module.size(nodes)
        self.width = int(tensor_type(self.hidden.result).shape[-1]) if self.hidden else 0


def _first(ops: list[Op], **attrs: str | int) -> Op | None:
    found = [op for op in ops if all(op.attrs.get(key) == value for key, value in attrs.items())]
    return found[0] if found else None


def _arguments(module: Module, shape: _Shape) -> Arguments:
    assert shape.verify_slots is not None
    table, rows, lens = shape.verify_slots.operands
    arguments = Arguments()
    arguments.value("rows_ptr", rows)
    if shape.seq_lens_load is not None:
        arguments.relay(module, "seq_lens")
    else:
        arguments.value("seq_lens_ptr", lens)
    arguments.input("req_to_token_ptr", table)
    arguments.stride("req_to_token_stride", table)
    for field in ("bonus", "topk_index", "topk_p", "hidden"):
        if field in shape.loads:
            arguments.relay(module, field)
    if shape.seq_lens_load is not None:
        arguments.value("out_seq_lens_ptr", lens)
    arguments.value("health_ptr", shape.health.result)
    if shape.start is not None:
        arguments.value("tokens_ptr", shape.start.result)
    else:
        for field in ("bonus", "topk_p", "topk_index"):
            arguments.value(f"{field}_ptr", shape.loads[field].result)
    _draft_arguments(arguments, shape)
    if shape.verify_positions is not None:
        arguments.value("verify_positions_ptr", shape.verify_positions.result)
    arguments.value("verify_slots_ptr", shape.verify_slots.result)
    if shape.extend_slots is not None and shape.extend_positions is not None:
        arguments.value("extend_positions_ptr", shape.extend_positions.result)
        arguments.value("extend_slots_ptr", shape.extend_slots.result)
    return arguments


def _draft_arguments(arguments: Arguments, shape: _Shape) -> None:
    if shape.draft_slots is not None and shape.draft_positions is not None:
        if shape.start is not None:
            arguments.value("draft_tokens_ptr", shape.loads["topk_index"].result)
        arguments.value("draft_positions_ptr", shape.draft_positions.result)
        arguments.value("draft_slots_ptr", shape.draft_slots.result)
    if shape.hidden is not None:
        arguments.value("draft_hidden_ptr", shape.hidden.result)


FAMILY = Prepare()
