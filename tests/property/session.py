"""Running a module for a prefill and a few steps, and what of it must not depend on passes."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from fake_engine import TORCH, Call, FakeEngine
from torch import Tensor

from specc.config import Config
from specc.ir.core import Module, entry_of
from specc.ir.interpret import interpret

DTYPES = {"i1": torch.bool, "i32": torch.int32, "i64": torch.int64, "f32": torch.float32}
DTYPES |= {"bf16": TORCH["bfloat16"], "f16": TORCH["float16"]}


@dataclass
class Script:
    """What the scheduler does: prompts by pool row, then batches of pool rows; 0 is a padding row."""

    prompts: dict[int, int]
    batches: list[list[int]]
    table: Tensor


def script(config: Config, seed: int, steps: int = 3) -> Script:
    """A random scenario: batches of some of the requests in any order, padded like a bucket is."""
    rng = random.Random(seed)
    rows = rng.sample(range(1, config.pool_rows), rng.randint(1, min(config.max_batch, config.pool_rows - 1)))
    batches = []
    for _ in range(steps):
        chosen = rng.sample(rows, rng.randint(1, len(rows)))
        size = next(bucket for bucket in config.buckets if bucket >= len(chosen))
        batches.append(chosen + [0] * (size - len(chosen)))
    longest = 6 + (steps + 1) * (config.path_slots + 1)
    slots = rng.sample(range(1, 4 * longest * config.pool_rows), longest * config.pool_rows)
    table = torch.tensor(slots, dtype=torch.int32).view(config.pool_rows, longest)
    return Script({row: rng.randint(1, 5) for row in rows}, batches, table)


@dataclass
class Trace:
    """What can be seen from outside: outputs of every run, pools after it, and calls of forwards."""

    outputs: list[dict[str, Tensor]] = field(default_factory=list)
    pools: list[dict[str, Tensor]] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)


def interpret_script(module: Module, config: Config, todo: Script) -> Trace:
    """Run a module by the reference semantics."""
    engine, trace = FakeEngine(config), Trace()
    pools = {
        name: torch.zeros((config.pool_rows, *carry.type.sizes(module.dims)[1:]), dtype=DTYPES[carry.type.dtype])
        for name, carry in module.carries.items()
    }
    lengths = dict(todo.prompts) | {0: 0}
    for entry, rows in [("prefill", list(todo.prompts)), *[("step", batch) for batch in todo.batches]]:
        inputs = {
            "req_pool_indices": torch.tensor(rows),
            "seq_lens": torch.tensor([lengths[row] for row in rows]),
            "req_to_token": todo.table,
        }
        values = interpret(module, entry, inputs, pools, engine.interpreted(), len(rows))
        outputs = outputs_of(module, entry, values)
        if entry == "step":
            lengths |= dict(zip(rows, outputs["new_seq_lens"].tolist(), strict=True)) | {0: 0}
        trace.outputs.append(defined(outputs, rows))
        trace.pools.append({name: pool.clone() for name, pool in pools.items()})
    trace.calls = [defined_call(call) for call in engine.calls]
    return trace


def outputs_of(module: Module, entry: str, values: dict[str, Tensor]) -> dict[str, Tensor]:
    """Outputs of one entry by bare name."""
    prefix = "prefill." if entry == "prefill" else ""
    names = [name for name in module.outputs if name.startswith("prefill.") == bool(prefix)]
    assert all(entry_of(v.source.phase) == entry for n, v in module.outputs.items() if n in names and v.source)
    return {name.removeprefix(prefix): values[module.outputs[name].name] for name in names}


def defined(outputs: dict[str, Tensor], rows: Sequence[int]) -> dict[str, Tensor]:
    """Outputs without what is unspecified: hidden states past the accepted length, and those of padding rows."""
    outputs = dict(outputs)
    if "hidden_states" in outputs:
        hidden = outputs["hidden_states"]
        columns = torch.arange(hidden.shape[1])
        kept = columns < outputs["accept_lens"][:, None]
        outputs["hidden_states"] = torch.where(kept[..., None], hidden, 0)
    assert all(len(tensor) == len(rows) for tensor in outputs.values())
    return outputs


def defined_call(call: Call) -> Call:
    """Operands of a forward without the hidden rows of extend that nobody accepted."""
    name, step, operands = call
    if name == "extend" and "hidden" in operands:
        hidden = operands["hidden"]
        last = operands["select"] % hidden.shape[1]
        kept = (torch.arange(hidden.shape[1]) <= last[:, None]) & (operands["rows"] != 0)[:, None]
        operands = operands | {"hidden": torch.where(kept[..., None], hidden, 0)}
    return name, step, operands


def assert_same(one: Trace, other: Trace, what: str) -> None:
    """Everything that both traces have is equal; what ``other`` lacks must be pools only."""
    assert len(one.outputs) == len(other.outputs)
    for index, (mine, theirs) in enumerate(zip(one.outputs, other.outputs, strict=True)):
        assert mine.keys() == theirs.keys()
        for name in mine:
            assert torch.equal(mine[name], theirs[name]), f"{what}: output {name} of run {index}"
    for index, (before, after) in enumerate(zip(one.pools, other.pools, strict=True)):
        for name in before.keys() & after.keys():
            assert torch.equal(before[name], after[name]), f"{what}: pool {name} after run {index}"
    assert [call[:2] for call in one.calls] == [call[:2] for call in other.calls], what
    for (name, step, mine), (_, _, theirs) in zip(one.calls, other.calls, strict=True):
        assert mine.keys() == theirs.keys(), f"{what}: operands of {name}"
        for operand in mine:
            assert torch.equal(mine[operand], theirs[operand]), f"{what}: {operand} of {name} {step}"
