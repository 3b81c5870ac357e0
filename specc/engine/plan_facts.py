"""What the engine needs to know of a program, read from its plan (docs/plan.md) and from nowhere else."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

DTYPES: dict[str, torch.dtype] = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
"""The plan's names of the dtypes that a model can have."""

DRAFT_CALLBACKS = ("draft", "extend", "prefill_draft")


@dataclass(frozen=True)
class PlanFacts:
    """The sizes and conventions that an engine has to follow.

    rows: P, rows of the request table, the padding row included. max_batch: the largest bucket. reserve:
    slots to hold per request beyond its committed tokens. shifted: the draft sees token p+1 at position p.
    reads_hidden: some draft forward reads hidden states. models: the plan's record of each role.
    """

    rows: int
    max_batch: int
    page_size: int
    reserve: int
    shifted: bool
    reads_hidden: bool
    models: Mapping[str, Mapping[str, Any]]

    @classmethod
    def read(cls, plan: object) -> PlanFacts:
        """Read a plan, which is plan.json's mapping or an object with the same names as attributes."""
        kv = get(plan, "kv")
        return cls(
            rows=int(get(get(plan, "dims"), "P")),
            max_batch=max(int(bucket) for bucket in get(plan, "buckets")),
            page_size=int(get(kv, "page_size")),
            reserve=max(int(get(kv, "reserve")), int(get(kv, "window"))),
            shifted=get(kv, "draft_positions") == "shifted",
            reads_hidden=any("hidden" in operands for operands in _draft_operands(plan)),
            models={role: get(get(plan, "models"), role) for role in ("target", "draft")},
        )


def get(record: object, name: str) -> Any:
    """Return a field of a mapping or of an object; raises KeyError or AttributeError when it is absent."""
    return record[name] if isinstance(record, Mapping) else getattr(record, name)


def _draft_operands(plan: object) -> Iterator[Mapping[str, str]]:
    """Yield the operands of every node that calls one of the draft's forwards."""
    for phase in get(plan, "phases"):
        for node in get(phase, "nodes"):
            fields = node if isinstance(node, Mapping) else vars(node)
            if fields.get("callback") in DRAFT_CALLBACKS:
                yield fields["operands"]
