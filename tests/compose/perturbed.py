"""Programs of the examples that hand out one internal value more."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

import programs
import torch
from session import RecordingEngine, Script, outputs_of
from torch import Tensor

from specc.compiler.algorithms import names, needs
from specc.compiler.config import Config, LoadedConfig, load_config, load_text
from specc.compiler.driver.build import Build
from specc.compiler.driver.compile import start_module
from specc.compiler.ir.core import Module, Value, entry_of, is_state, on_nodes
from specc.compiler.ir.interpret import interpret
from specc.compiler.pass_manager.manager import run_passes
from specc.compiler.pass_manager.pass_base import Context
from specc.compiler.passes.pipeline import FRONT
from specc.compiler.passes.select_compaction import SelectCompaction
from specc.runtime.backends.cpu import ReferenceBackend
from specc.runtime.batch import Batch
from specc.runtime.step import Step


def _load(path: Path) -> LoadedConfig:
    return load_config(path, names(), needs).shapes()[0]


PROBE = "probe"
"""The name of the output."""
CPU = torch.device("cpu")
SMALL = {"vocab_size": 512, "hidden_size": 64, "num_layers": 2, "num_kv_heads": 2, "head_dim": 16, "max_requests": 12}
"""Sizes that a program has when it runs, in place of those that stand in its file."""
NOT_HERE = ("random-qwen3-chain", "eagle3-tree-sharded", "eagle-chain-head")
"""Examples whose models are made by a script, where another has the same program; of ranks that wait for others; and of
products, whose last bits are each side's own."""


EXAMPLES = {
    path.stem: partial(_load, path) for path in sorted(programs.EXAMPLES.glob("*.yaml")) if path.stem not in NOT_HERE
}
"""What loads every example at its deepest, by the name of its file."""


@cache
def small(name: str) -> LoadedConfig:
    """An example at its deepest, of which a CPU runs a step at once: where its file has sizes, they are small."""
    path = programs.EXAMPLES / f"{name}.yaml"
    text = path.read_text(encoding="utf-8")
    for key, size in SMALL.items():
        text = re.sub(rf"{key}: \d+", f"{key}: {size}", text)
    text = re.sub(r", buckets: \[.*?\]", "", text)  # of one shape
    text = re.sub(r"buckets: .*", "buckets: [1, 4, 6]", text)
    return load_text(text, path, names(), needs).shapes()[0]


class Probe(NamedTuple):
    """An internal value: its name, before compaction if it has a row per node, when all passes of the front have run
    if not."""

    name: str
    nodes: bool


def internal(module: Module) -> Iterator[Value]:
    """Every tensor that an op or a forward makes and that is there to the end of its entry.

    What an op in place replaces is not: no legal module reads it afterwards.
    """
    replaced = {op.overwritten for op in module.ops()}
    for op in module.ops():
        yield from (value for value in op.results if not is_state(value) and value not in replaced)


def probes(loaded: LoadedConfig) -> list[Probe]:
    """All internal values of a program."""
    collected: list[Probe] = []
    front(
        loaded,
        lambda module, nodes: collected.extend(Probe(v.name, nodes) for v in internal(module) if on_nodes(v) == nodes),
    )
    return collected


def front(loaded: LoadedConfig, look: Callable[[Module, bool], object] = lambda module, nodes: None) -> Module:
    """The module before any kernel is formed; ``look`` sees it before compaction (True) and at the end (False)."""
    module, ctx = start_module(loaded), Context(loaded)
    for step in FRONT:
        if step is SelectCompaction:
            look(module, True)
        run_passes(module, [step.of(loaded)], ctx)
    look(module, False)
    return module


def handing_out(loaded: LoadedConfig, probe: Probe) -> Module:
    """The module before any kernel is formed, with an output more.

    As any output of every node, it is then what lies along the accepted path.
    """

    def hand_out(module: Module, nodes: bool) -> None:
        if nodes == probe.nodes:
            (value,) = [value for value in internal(module) if value.name == probe.name]
            assert value.source is not None
            prefix = "prefill." if entry_of(value.source.phase) == "prefill" else ""
            module.outputs[prefix + PROBE] = value

    return front(loaded, hand_out)


def run(build: Build, todo: Script) -> list[dict[str, Tensor]]:
    """Outputs of a program on the CPU backend: of a prefill, then of every step of the script."""
    config = build.loaded.config
    engine, plan = RecordingEngine(config, todo), build.plan
    tables = todo.tables(plan.tables())
    step = Step(plan, ReferenceBackend(), CPU, engine, todo.table, engine.kv, tables, poison=0x5A)
    todo.sample(step)
    lengths, outputs = dict(todo.prompts), list[dict[str, Tensor]]()
    for index, batch in enumerate([list(todo.prompts), *todo.batches]):
        rows = [row for row in batch if row]
        prompts = todo.prompt_tokens(rows) if "prompt_tokens" in build.module.inputs and not index else None
        request = Batch(rows, [lengths[row] for row in rows], prompts)
        result = step.decode(request) if index else step.prefill(request)
        outputs.append({name: tensor.clone() for name, tensor in result.outputs.items()})
        if index:
            lengths |= dict(zip(rows, outputs[-1]["new_seq_lens"].tolist(), strict=True))
    return outputs


def meaning(module: Module, config: Config, todo: Script) -> list[dict[str, Tensor]]:
    """The same outputs, by the interpreter of modules."""
    engine = RecordingEngine(config, todo)
    pools = todo.pools(module, config.pool_rows)
    lengths, outputs = dict(todo.prompts), list[dict[str, Tensor]]()
    for index, batch in enumerate([list(todo.prompts), *todo.batches]):
        rows, entry = [row for row in batch if row], "step" if index else "prefill"
        inputs = {
            "req_pool_indices": torch.tensor(rows),
            "seq_lens": torch.tensor([lengths[row] for row in rows]),
            "req_to_token": todo.table,
            "prompt_tokens": torch.tensor(todo.prompt_tokens(() if index else rows), dtype=torch.int64),
            **todo.tables(module.inputs),
        }
        values = interpret(module, entry, inputs, pools, engine.interpreted(), len(rows), engine.kv)
        outputs.append(outputs_of(module, entry, values))
        if index:
            lengths |= dict(zip(rows, outputs[-1]["new_seq_lens"].tolist(), strict=True))
    return outputs
