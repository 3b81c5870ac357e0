"""The story of a configuration as one JSON document (docs/explain.md)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from specc.compiler.driver.summary import written_totals
from specc.compiler.explain.program import PlacedNode, captured, rows, steps
from specc.compiler.explain.shapes import records
from specc.compiler.explain.story import Story
from specc.compiler.passes.form_kernels import REFERENCE_LAUNCHES
from specc.runtime.plan.nodes import Collective, External, Launch, Reference
from specc.runtime.plan.plan import Plan

FORMAT = 2
"""Raised when a field changes its meaning or goes."""

KV = ("page_size", "first_draft_position", "verify_window", "branch_room", "window", "reserve")
"""What is told of KV slots, in tokens."""


def document(story: Story) -> dict[str, Any]:
    """All of a story, JSON-ready."""
    plan, carry = story.plan, rows(story.plan)
    return {
        "format": FORMAT,
        "specc": plan.specc,
        "name": plan.name,
        "algorithm": plan.algorithm,
        "summary": story.summary,
        "form": story.form,
        "shape": str(story.shape),
        "shapes": [str(shape) for shape in story.shapes],
        "settings": _records(story.settings),
        "models": _records(story.models),
        "passes": _records(story.passes),
        "captures": _records(captured(plan)),
        "carry": [asdict(row) | {"place": story.places[row.name]} for row in carry],
        "carry_bytes": sum(row.bytes for row in carry),
        "phases": _phases(plan),
        "totals": written_totals(plan.totals),
        **(records(story.of_shapes) if story.of_shapes is not None else {"by_shape": [], "by_bucket": []}),
        "kv": {name: getattr(plan.kv, name) for name in KV},
    }


def _records(records: Iterable[Any]) -> list[dict[str, Any]]:
    return [asdict(record) for record in records]


def _phases(plan: Plan) -> list[dict[str, Any]]:
    nodes: dict[str, list[dict[str, Any]]] = {}
    for step in steps(plan):
        nodes.setdefault(step.phase.name, []).append(_node(plan, step))
    return [{"name": phase.name, "entry": phase.entry, "nodes": nodes[phase.name]} for phase in plan.phases]


def _node(plan: Plan, step: PlacedNode) -> dict[str, Any]:
    node = step.node
    content: dict[str, Any] = {"name": node.name, "kind": node.kind, "graph": step.graph}
    if isinstance(node, Launch):
        content |= {"family": plan.kernels[node.kernel].family, "ops": [call.op for call in node.ops]}
        return content | {"grid": node.grid[plan.buckets[-1]], "bytes": step.bytes}
    if isinstance(node, Reference):
        return content | {"op": node.ops[-1].op, "launches": REFERENCE_LAUNCHES, "bytes": step.bytes}
    if isinstance(node, Collective):
        return content | {"ranks": plan.ranks, "bytes": step.bytes}
    called = isinstance(node, External)
    return content | {"operands": node.operands if called else {}, "capture": node.capture if called else None}
