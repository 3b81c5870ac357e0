"""What `help` shows of a generated package: its forwards and its results, with the sizes of its program."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from specc.runtime.plan.nodes import External, Given
from specc.runtime.plan.outputs import PROPOSE, spelled, typed_outputs
from specc.runtime.plan.plan import PROMPT, TABLE, Plan
from specc.runtime.plan.recurrent.state_tables import CommittedStates, StateTensor

WIDTH = 100
HELD = "\0"
"""Stands for a blank at which no line is broken: those inside of shapes."""
STEP_AXIS = "D"
"""The axis of a draft's forwards, of which a call gets its own."""


def wanted(plan: Plan) -> dict[str, Any]:
    """What pages say of the engine's side: KV buffers that are changed, states, tables, prompts, sampling, its name."""
    return {
        "moved": sorted(owner for owner, pool in plan.kv_pools.items() if pool.bound),
        "states": pool.op if (pool := CommittedStates.of(plan)) is not None else "",
        "parts": _parts(plan),
        "tables": list(plan.tables()),
        "prompts": PROMPT in plan.inputs,
        "samples": plan.samples,
        "engine": plan.engine,
    }


def _parts(plan: Plan) -> list[str]:
    """What `state_pools` has of each layer, a line for each part; none of states of any size."""

    def spelt(tensor: StateTensor, before: str) -> str:
        return f"{tensor.name} {tensor.dtype}[{before}, {', '.join(map(str, tensor.shape))}]"

    pool = CommittedStates.of(plan)
    parts = pool.parts if pool is not None else ()
    return [", ".join([spelt(part, "rows"), *(spelt(r, "requests, N") for r in part.records)]) for part in parts]


def package_page(package: str, plans: Mapping[str, Plan]) -> dict[str, Any]:
    """The fields of a package's own text; `plans` by file, that of the most steps first."""
    plan = next(iter(plans.values()))
    fields = {
        "package": package,
        "summary": f"{plan.name}: {plan.summary}",
        "shapes": [str(shape) for shape in sorted(shape_plan.shape for shape_plan in plans.values())],
        "bound": ", ".join(
            ["callbacks", plan.table]
            + ["kv_pools"] * bool(wanted(plan)["moved"])
            + ["state_pools=state_pools"] * bool(wanted(plan)["states"])
            + ["tables=tables"] * bool(plan.tables())
        ),
        "holds": plan.table,
        "held": "the KV slot of every position" if plan.table == TABLE else "the blocks of KV slots",
        "table": spelled(plan, plan.inputs[plan.table]),
        "table_types": [f"`{name}` {spelled(plan, table)}" for name, table in plan.tables().items()],
        "forwards": list(dict.fromkeys([*_forwards(plan, "prefill"), *_forwards(plan, "step")])),
        "given": list(_given(plan)),
        "calls": "`prefill`, `commit` and `propose`" if plan.rotated else "`prefill` and `decode`",
        "decoded": _outputs(plan, "step"),
        "proposed": _outputs(plan, PROPOSE),
        "prefilled": _outputs(plan, "prefill"),
        **wanted(plan),
    }
    return {name: _quoted(value) for name, value in fields.items()}


def _forwards(plan: Plan, entry: str) -> Iterator[str]:
    """The calls of an entry, those that are alike once, each as lines."""
    steps: dict[str, list[str]] = {}
    for node in plan.externals(entry):
        steps.setdefault(_call(plan, node), []).append("" if node.step is None else str(node.step))
    for text, numbers in steps.items():
        yield _lines(text.replace("step=", f"step={'|'.join(numbers)}"))


def _given(plan: Plan) -> Iterator[str]:
    """What the engine hands over of its own forward of the target, in a rotated step."""
    for node in plan.nodes("step"):
        if isinstance(node, Given):
            yield from (_lines(f"{name}={_type(plan, value)}") for name, value in node.results.items())


def _call(plan: Plan, node: External) -> str:
    """`draft(step=, tokens=i64[b, 1], capture='null') -> Forward(logits=f32[b, 1, 2048])`."""
    given = [] if node.step is None else ["step="]
    given += [f"{name}={_operand(plan, node, value)}" for name, value in node.operands.items()]
    given += [] if node.capture is None else [f"capture={node.capture!r}"]
    returned = ", ".join(f"{name}={_type(plan, value)}" for name, value in node.results.items())
    return f"{node.callback}({', '.join(given)})" + (f" -> {returned}" if returned else "")


def _operand(plan: Plan, node: External, name: str) -> str:
    """What a call is given; of a value with an entry for every forward of the draft, its own."""
    value = plan.values.get(name)
    if node.step is None or value is None or value.axes[:1] != (STEP_AXIS,):
        return _type(plan, name)
    return spelled(plan, replace(value, axes=value.axes[1:])).replace(" ", HELD)


def _type(plan: Plan, name: str) -> str:
    return spelled(plan, plan.values.get(name) or plan.inputs[name]).replace(" ", HELD)


def _outputs(plan: Plan, entry: str) -> list[str]:
    """A line or more for every output of an entry."""
    return [
        _lines(f"{name}: {type_.replace(' ', HELD)}" + (f", {meaning}" if meaning else ""))
        for name, type_, meaning in typed_outputs(plan, entry)
    ]


def _lines(text: str) -> str:
    return textwrap.fill(
        text, WIDTH, initial_indent=" " * 4, subsequent_indent=" " * 8, break_long_words=False, break_on_hyphens=False
    ).replace(HELD, " ")


def _quoted(value: Any) -> Any:
    """Text that stands in a docstring as it is."""
    if isinstance(value, str):
        return value.replace("\\", "\\\\").replace('"', '\\"')
    return [_quoted(item) for item in value] if isinstance(value, list) else value
