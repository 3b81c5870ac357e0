"""prepare: relay gather, slots, positions, the verify inputs known before drafting, and sentinels of padding rows."""

from __future__ import annotations

from collections.abc import Iterable

from specc.ir.core import Module, Op, Value, tensor_type
from specc.kernels.base import Arguments, Cluster, Family, Spec, in_order, maybe, only

_COVERS = frozenset({"health.clear", "carry.load", "kv.positions", "kv.slots", "tree.repeat", "chain.start"})
_FIELDS = frozenset({"bonus", "topk_index", "hidden", "seq_lens"})
_BLOCK_W = 1024


class Prepare(Family):
    """All of the prepare phase of a chain in one launch."""

    stem = "prepare"

    def candidates(self, module: Module) -> Iterable[Cluster]:
        """The whole phase, if it holds what a chain's does."""
        ops = in_order(module, module.phases["prepare"])
        fields = {op.attrs["field"] for op in ops if op.opcode == "carry.load"}
        if ops and all(op.opcode in _COVERS for op in ops) and fields <= _FIELDS and maybe(ops, "chain.start"):
            yield ops

    def spec(self, module: Module, name: str, cluster: Cluster) -> Spec:
        """See docs/kernels.md for the order of arguments."""
        shape = _Shape(module, cluster)
        constants = [("N", shape.nodes)]
        constants += [("A", shape.nodes)] if shape.extend_slots else []
        if shape.draft_slots:
            forwards, offset = module.size("D"), int(shape.draft_slots.attrs["offset"])
            constants += [("FORWARDS", forwards), ("DRAFT_OFFSET", offset)]
        if shape.extend_slots:
            constants.append(("EXTEND_OFFSET", int(shape.extend_slots.attrs["offset"])))
        constants += [("MAX_B", module.size("B"))] if shape.draft_slots else []
        constants += [("W", shape.width), ("BLOCK_W", _BLOCK_W)] if shape.hidden else []
        flags = {
            "relay_seq_lens": shape.seq_lens_load is not None,
            "hidden": shape.hidden is not None,
            "draft": shape.draft_slots is not None,
            "extend_window": shape.extend_slots is not None,
        }
        tiles = (
            f"one program per request; hidden rows in chunks of {_BLOCK_W}"
            if shape.hidden
            else "one program per request"
        )
        return Spec(self.stem, flags, tuple(constants), tuple(_arguments(module, shape).found), (), 1, 1, tiles)

    def grid(self, module: Module, cluster: Cluster, batch: int) -> tuple[int, int, int]:
        """One program per request and chunk of its hidden row."""
        shape = _Shape(module, cluster)
        return batch, -(-shape.width // _BLOCK_W) if shape.hidden else 1, 1


class _Shape:
    """The roles that the ops of a cluster play."""

    def __init__(self, module: Module, cluster: Cluster) -> None:
        loads = {str(op.attrs["field"]): op for op in cluster if op.opcode == "carry.load"}
        self.health = only(cluster, "health.clear")
        self.start = only(cluster, "chain.start")
        self.seq_lens_load = loads.get("seq_lens")
        self.hidden = maybe(cluster, "tree.repeat")
        positions = [op for op in cluster if op.opcode == "kv.positions"]
        slots = [op for op in cluster if op.opcode == "kv.slots"]
        self.draft_positions = _first(positions, axis="K")
        self.draft_slots = _first(slots, axis="D")
        self.verify_positions, self.verify_slots = (
            _first(positions, axis="A", offset=0),
            _first(slots, axis="A", offset=0),
        )
        self.extend_positions, self.extend_slots = (
            _first(positions, axis="A", offset=1),
            _first(slots, axis="A", offset=1),
        )
        self.first_token = loads["topk_index"].result
        self.nodes = module.size("A")
        self.width = int(tensor_type(self.hidden.result).shape[-1]) if self.hidden else 0

    def lens(self) -> Value:
        """The lengths of the requests."""
        assert self.verify_positions is not None
        return self.verify_positions.operands[0]


def _first(ops: list[Op], **attrs: str | int) -> Op | None:
    found = [op for op in ops if all(op.attrs.get(key) == value for key, value in attrs.items())]
    return found[0] if found else None


def _arguments(module: Module, shape: _Shape) -> Arguments:
    assert shape.verify_slots is not None
    assert shape.verify_positions is not None
    table, rows, _ = shape.verify_slots.operands
    arguments = Arguments()
    arguments.value("rows_ptr", rows)
    if shape.seq_lens_load is not None:
        arguments.relay(module, "seq_lens")
    else:
        arguments.value("seq_lens_ptr", shape.lens())
    arguments.input("req_to_token_ptr", table)
    arguments.stride("req_to_token_stride", table)
    arguments.relay(module, "bonus")
    arguments.relay(module, "topk_index")
    if shape.hidden is not None:
        arguments.relay(module, "hidden")
    if shape.seq_lens_load is not None:
        arguments.value("out_seq_lens_ptr", shape.lens())
    arguments.value("health_ptr", shape.health.result)
    arguments.value("tokens_ptr", shape.start.result)
    _draft_arguments(arguments, shape)
    arguments.value("verify_positions_ptr", shape.verify_positions.result)
    arguments.value("verify_slots_ptr", shape.verify_slots.result)
    if shape.extend_slots is not None and shape.extend_positions is not None:
        arguments.value("extend_positions_ptr", shape.extend_positions.result)
        arguments.value("extend_slots_ptr", shape.extend_slots.result)
    return arguments


def _draft_arguments(arguments: Arguments, shape: _Shape) -> None:
    if shape.draft_slots is not None and shape.draft_positions is not None:
        arguments.value("draft_tokens_ptr", shape.first_token)
        arguments.value("draft_positions_ptr", shape.draft_positions.result)
        arguments.value("draft_slots_ptr", shape.draft_slots.result)
    if shape.hidden is not None:
        arguments.value("draft_hidden_ptr", shape.hidden.result)


FAMILY = Prepare()
