"""A scenario by a compiled program, whole or rotated, on the fake engine and on poisoned memory."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from fakes.rotated import run_target, write_left
from session import RecordingEngine, Script
from torch import Tensor

from specc.runtime.backends.cpu import ReferenceBackend
from specc.runtime.batch import Batch
from specc.runtime.plan.fields import own
from specc.runtime.plan.nodes import Given
from specc.runtime.plan.plan import Plan
from specc.runtime.rotated import RotatedStep, laid_apart
from specc.runtime.semantics.convention import DTYPES
from specc.runtime.step import Step

SPARE, UNTOUCHED = 3, -9
"""Elements between two rows of a table of the engine's, and what stands there."""


def bind(plan: Plan, engine: RecordingEngine, todo: Script, tables: Mapping[str, Tensor], poison: int) -> Step:
    """A program on the fake engine, in memory that starts as garbage; a rotated one on tables of the engine's."""
    place = ReferenceBackend(), torch.device("cpu"), engine
    if not plan.rotated:
        return Step(plan, *place, todo.table, engine.kv, tables, poison=poison)
    given, carry = todo.inputs(), dict[str, Tensor]()
    for name, carried in plan.carry.items():
        if carried.written_by:
            sizes = [plan.size(axis) for axis in ("P", *carried.axes[1:])]
            wide = [*sizes[:-1], sizes[-1] + SPARE * (carried.axes[1:] == ("S",))]
            carry[name] = torch.full(wide, UNTOUCHED, dtype=DTYPES[carried.dtype])[..., : sizes[-1]].zero_()
    engine_tables = {**tables, **{name: given[name] for name in plan.tables() if name in given}}
    return RotatedStep(plan, *place, given[plan.table], engine.kv, engine_tables, carry=carry, poison=poison)


def run(step: Step, engine: RecordingEngine, batch: Batch, *, first: bool = False) -> dict[str, Tensor]:
    """A prefill, or a step padded to its bucket: its outputs, of both halves, and what the engine writes of them."""
    plan = step._plan
    if not isinstance(step, RotatedStep):
        result = step.prefill(batch) if first else step.decode(batch, at_least=1)
        return {name: tensor.clone() for name, tensor in result.outputs.items()}
    rows, engine_fields = list(batch.req_pool_indices), plan.carry.keys() - own(plan).keys()
    lengths = list(batch.seq_lens or ())
    if first:
        outputs = {name: tensor.clone() for name, tensor in step.prefill(batch).outputs.items()}
        write_left(engine_fields, step.pools, rows, outputs | {"seq_lens": torch.tensor(lengths)})
        outputs.pop("drafts", None)
        return outputs
    more = [0] * (plan.bucket(len(rows)) - len(rows))
    (logits, *_) = [node for node in plan.nodes("step") if isinstance(node, Given)]
    given = run_target(engine, step.pools, rows + more, lengths + more, "full" if step.reads_hidden else "null")
    committed = step.commit(batch, laid_apart(plan, logits.results["logits"], given.logits), at_least=1)
    outputs = {name: tensor.clone() for name, tensor in committed.outputs.items()}
    write_left(engine_fields, step.pools, rows, {"bonus": outputs["bonus"], "seq_lens": outputs["new_seq_lens"]})
    proposed = step.propose(batch, given.hidden if step.reads_hidden else None)
    outputs |= {f"propose.{name}": tensor.clone() for name, tensor in proposed.outputs.items()}
    write_left(engine_fields, step.pools, rows, {"drafts": proposed.drafts})
    for name in plan.carry:
        table = step.pools[name]
        if plan.carry[name].written_by and table.dim() == 2:
            wide = table.as_strided((len(table), table.stride(0)), (table.stride(0), 1))
            assert (wide[:, table.shape[1] :] == UNTOUCHED).all(), f"@{name}: written beside its rows"
    return outputs
