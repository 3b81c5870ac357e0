"""Capabilities of the runtime: files that only some programs need, and what these bring.

This module imports the standard library only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from ..errors import LackingError, PlanError
from .draft_head import MADE
from .plan import RANK, Plan


@dataclass(frozen=True)
class Capability:
    """What some programs have and others do without.

    Attributes:
        files: of the runtime, below its folder; what they import comes with them.
        names: public names, and attributes of programs and steps, that are there with them alone.
        key: what in a configuration asks for it.
        needed: whether the program of some plans, one for each shape, has it.

    """

    files: tuple[str, ...]
    names: tuple[str, ...]
    key: str
    needed: Callable[[Sequence[Plan]], bool]


SAMPLING = Capability(
    ("capabilities/sampled.py", "capabilities/sampling.py"),
    ("Sampling", "set_sampling", "first_tokens", "count"),
    "`verify: target_only`, `rejection` or `block`",
    lambda plans: any(plan.samples for plan in plans),
)
RECORDS = Capability(
    ("capabilities/records.py", "state/peer.py", "state/transfer.py"),
    ("RecordField", "RecordLayout", "check_peer", "schema", "schema_digest", "record_layout", "pack", "unpack",
     "build_draft_input"),
    "`disaggregation: true`",
    lambda plans: any(plan.disaggregation for plan in plans),
)  # fmt: skip
RANKS = Capability(
    ("capabilities/collective.py",), ("GroupCollective",),
    "`logits: sharded`, or `draft.head` of several ranks", lambda plans: any(RANK in plan.inputs for plan in plans),
)  # fmt: skip
MOVES = Capability(
    ("capabilities/moving.py",), (), "`topk` above 1",
    lambda plans: any(pool.bound for plan in plans for pool in plan.kv_pools.values()),
)  # fmt: skip
SELECTED, FOLDED, POINTED = (
    Capability((f"capabilities/states/{form}.py",), (), f"`state_form: {form}`", lambda plans, op=f"state.{form}": any(
        call.op == op for plan in plans for node in plan.nodes("step") for call in getattr(node, "ops", ())
    )) for form in ("select", "fold", "point")
)  # fmt: skip
OPS = Capability(
    ("capabilities/brought.py",), (), "an algorithm of a plugin", lambda plans: any(plan.ops for plan in plans)
)
ROTATED = Capability(
    ("rotated.py",), ("RotatedStep", "commit", "propose", "zeros"),
    "`step: rotated`", lambda plans: any(plan.rotated for plan in plans),
)  # fmt: skip
SHAPES = Capability(
    ("capabilities/shape.py", "capabilities/step_times.py"),
    ("AcceptanceShape", "FixedShape", "ShapePolicy", "measure_step_times", "read_step_times", "write_step_times"),
    "several numbers in `num_steps`, or `shapes`", lambda plans: len(plans) > 1,
)  # fmt: skip
BUDGETS = Capability(
    ("capabilities/budgets/confidence.py",), ("ConfidenceShape",), "several shapes, some with a `budget`",
    lambda plans: len(plans) > 1 and any(plan.shape.budget is not None for plan in plans),
)  # fmt: skip
TABLES = Capability(
    ("capabilities/draft_tables.py", "plan/token_map.py"), ("read_listed_tokens",), "`draft.head`",
    lambda plans: any(MADE & plan.inputs.keys() for plan in plans),
)  # fmt: skip
CAPABILITIES = (SAMPLING, RECORDS, RANKS, MOVES, SELECTED, FOLDED, POINTED, OPS, ROTATED, SHAPES, BUDGETS, TABLES)


def lacking(owner: str, name: str) -> AttributeError:
    """What to raise where `owner`, as it is called, has no attribute `name`: a LackingError if others have it."""
    for capability in CAPABILITIES:
        if name in capability.names:
            return LackingError(
                f"{name}: the program was built without it; {capability.key} in its configuration brings it"
            )
    return AttributeError(f"{owner} has no attribute {name!r}")


def check_held(plans: Sequence[Plan], root: Path) -> None:
    """PlanError when a program of these plans needs a file of the runtime that its folder `root` does not have."""
    needed = [file for capability in CAPABILITIES if capability.needed(plans) for file in capability.files]
    if missing := [file for file in needed if not root.joinpath(file).is_file()]:
        raise PlanError(f"the plan needs {', '.join(missing)} of the runtime, which was not built for it")


def absent(self: object, name: str) -> NoReturn:
    """The method `__getattr__` of an object that has the capabilities of its program alone."""
    raise lacking(f"{type(self).__name__!r} object", name)
