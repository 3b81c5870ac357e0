"""What the engine needs to know of a program, read from its plan (docs/plan.md) and from nowhere else."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

DTYPES: dict[str, torch.dtype] = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
"""The plan's names of the dtypes that a model can have."""

DRAFT_CALLBACKS = ("draft", "extend", "prefill_draft")


FORWARD_RESULTS = {"logits", "hidden"}


@dataclass(frozen=True)
class PlanFacts:
    """The sizes and conventions that an engine has to follow.

    rows: P, rows of the request table, the padding row included. max_batch: the largest bucket. branches: K,
    drafted side by side; 1 for a chain. branch_room: positions that a branch may write. reach: positions beyond a
    request's committed tokens that its forwards may be at. reserve: slots to hold there, never fewer than that.
    shifted: the draft sees token p+1 at position p. reads_hidden: some draft forward reads hidden states.
    mask_mode: how the target is told the tree, None if it is not. mask_context: the most committed tokens that
    such a mask has room for, None without limit. extras: what the program wants of the target besides logits and
    hidden states. models: the plan's record of each role.
    """

    rows: int
    max_batch: int
    page_size: int
    branches: int
    branch_room: int
    reach: int
    reserve: int
    shifted: bool
    reads_hidden: bool
    mask_mode: str | None
    mask_context: int | None
    extras: tuple[str, ...]
    models: Mapping[str, Mapping[str, Any]]

    @classmethod
    def read(cls, plan: object) -> PlanFacts:
        """Read a plan, which is plan.json's mapping or an object with the same names as attributes."""
        kv, dims = get(plan, "kv"), get(plan, "dims")
        shifted = get(kv, "draft_positions") == "shifted"
        mask = _attrs(plan, "tree.mask")
        nodes = int(dims["N"])
        return cls(
            rows=int(dims["P"]),
            max_batch=max(int(bucket) for bucket in get(plan, "buckets")),
            page_size=int(get(kv, "page_size")),
            branches=int(dims["K"]),
            branch_room=int(get(kv, "branch_room")),
            reach=max(nodes, int(dims["A"]) + (not shifted)),
            reserve=max(int(get(kv, "reserve")), int(get(kv, "window"))),
            shifted=shifted,
            reads_hidden=any("hidden" in get(node, "operands") for node in _calls(plan, *DRAFT_CALLBACKS)),
            mask_mode=str(mask["mode"]) if mask else None,
            mask_context=int(mask["width"]) // nodes - nodes if mask.get("mode") == "full" else None,
            extras=tuple(
                sorted({name for node in _calls(plan, "target") for name in get(node, "results")} - FORWARD_RESULTS)
            ),
            models={role: get(get(plan, "models"), role) for role in ("target", "draft")},
        )


def get(record: object, name: str) -> Any:
    """Return a field of a mapping or of an object; raises KeyError or AttributeError when it is absent."""
    return record[name] if isinstance(record, Mapping) else getattr(record, name)


def _nodes(plan: object) -> Iterator[Any]:
    """Yield every node of every phase."""
    for phase in get(plan, "phases"):
        yield from get(phase, "nodes")


def _calls(plan: object, *callbacks: str) -> Iterator[Any]:
    """Yield every node that calls one of these forwards."""
    for node in _nodes(plan):
        fields = node if isinstance(node, Mapping) else vars(node)
        if fields.get("callback") in callbacks:
            yield node


def _attrs(plan: object, opcode: str) -> Mapping[str, Any]:
    """Return the attributes of the first op of a kind in any launch; empty if there is none."""
    for node in _nodes(plan):
        fields = node if isinstance(node, Mapping) else vars(node)
        for call in fields.get("ops", ()):
            if get(call, "op") == opcode:
                return get(call, "attrs")
    return {}
