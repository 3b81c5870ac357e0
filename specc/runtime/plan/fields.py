"""Who has a part in carried fields, and how far rows of the engine's are apart. Imports the standard library only."""

from __future__ import annotations

from .nodes import Launch
from .plan import Carried, Plan

STATE_POINT = "state_point"
"""The field i32 of which snapshot is a request's recurrent state, where the program says it."""


def own(plan: Plan) -> dict[str, Carried]:
    """The fields that move with a request: none that the engine writes from step to step, nor where its state is."""
    return {n: field for n, field in plan.carry.items() if n != STATE_POINT and field.written_by != "engine"}


def row_stride(plan: Plan, value: str) -> int:
    """Elements from row to row of a value that a forward returns or the engine hands over, at least a row's length."""
    buffer = plan.buffers[plan.values[value].buffer]
    return buffer.strides[-2] if len(buffer.strides) > 1 else 1


def told_strides(plan: Plan, field: str) -> bool:
    """Whether a field has rows T[P, S], and every launch that is given them is told how far apart they are."""
    name = f"relay.{field}"
    launches = [node for node in plan.nodes() if isinstance(node, Launch)]
    kinds = [{argument.kind for argument in node.args if argument.target == name} for node in launches]
    return len(plan.buffers[name].shape) == 2 and all("row_stride" in strides for strides in kinds if strides)
