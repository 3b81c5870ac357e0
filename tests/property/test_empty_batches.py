"""Batches without requests, and of padding rows alone, through every phase of every algorithm: they change nothing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from bound_script import bind, run
from programs import compile_to, load
from session import RecordingEngine, Script, interpret_entry, script
from torch import Tensor

from specc.compiler.algorithms import names, needs
from specc.compiler.config import LoadedConfig
from specc.compiler.driver.build import Build, build_program
from specc.compiler.ir.core import Module, is_state, tensor_type
from specc.compiler.ir.types import TensorType
from specc.runtime.batch import Batch
from specc.runtime.rotated import RotatedStep
from specc.runtime.semantics.convention import DTYPES
from specc.runtime.state.carry import Carry
from specc.runtime.step import Step

TREE = {"topk": 2, "num_draft_tokens": 6, "page_size": 4}
SAMPLED = {"verify": "target_only"}
SHAPES = [(name, {}) for name in names()] + [(name, TREE) for name in names() if needs(name).trees]
TABLES = {"bonus": {"dtype": "int64", "written_by": "engine"}, "drafts": {"dtype": "int32"}}
ROTATED = {"step": "rotated", "tables": {"carry": TABLES}}
BLOCKS = {"step": "rotated", "tables": {"slots": "block_table"}, "page_size": 4, "overlap": False}
SHAPES += [*((name, ROTATED) for name in names()), ("EAGLE", BLOCKS), ("NGRAM", BLOCKS)]
SHAPES += [("EAGLE", SAMPLED), ("STANDALONE", TREE | SAMPLED), ("EAGLE", {"verify": "block"})]
SHAPES += [("EAGLE", {"draft": {"head": "fp8"}}), ("EAGLE", {"budget": 2, "verify": "rejection"})]
MODELS: dict[str, dict[str, Any]] = {
    "STANDALONE": {"draft": {"hidden_size": 32}},
    "EAGLE3": {"draft": {"hidden_size": 32, "target_hidden_size": 64}},
    "FROZEN_KV_MTP": {"draft": {"hidden_size": 32, "target_hidden_size": 64}},
    "DFLASH": {"draft": {"hidden_size": 32, "target_hidden_size": 64}},
    "DSPARK": {"draft": {"hidden_size": 32, "target_hidden_size": 64, "markov_rank": 8}},
    "DFLASH2": {"draft": {"hidden_size": 32, "target_hidden_size": 64, "selector_rank": 8}},
    "NGRAM": {"options": {"window": 64, "corpus": "notes.txt"}},
}
"""Models of two widths, wherever an algorithm allows it."""


def configuration(algorithm: str, shape: dict[str, Any]) -> LoadedConfig:
    """A small one."""
    outputs = ["logprobs"] if "budget" in shape else ["accept_index", "logprobs"]
    outputs += [] if "step" in shape else ["hidden_states"]
    return load(algorithm, max_requests=6, outputs=outputs, **MODELS.get(algorithm, {}), **shape)


class Session:
    """A module that runs on the fake engine."""

    def __init__(self, loaded: LoadedConfig, last: str, todo: Script) -> None:
        self.module = compile_to(last, loaded)
        self.todo, self.engine = todo, RecordingEngine(loaded.config, todo)
        self.pools = todo.pools(self.module, loaded.config.pool_rows)

    def run(self, entry: str, rows: list[int], lengths: dict[int, int]) -> dict[str, Tensor]:
        """All values of an entry, by name."""
        return interpret_entry(self.module, entry, self.engine, self.todo, rows, lengths, self.pools)


def check_shapes(module: Module, entry: str, values: dict[str, Tensor], rows: int) -> None:
    """Every value of an entry has the shape and dtype that its type says, whatever the models' widths."""
    sizes = {dim.name: dim.size for dim in module.dims.values() if dim.size is not None} | {"B": rows, "T": 0}
    for value in (value for op in module.ops(entry) for value in op.results if not is_state(value)):
        type_: TensorType = tensor_type(value)
        wanted = tuple(entry if isinstance(entry, int) else sizes[entry] for entry in type_.shape)
        actual = values[value.name]
        assert (tuple(actual.shape), actual.dtype) == (wanted, DTYPES[type_.dtype]), value.name


@pytest.mark.parametrize("last", ["infer-types", "canonicalize"])
@pytest.mark.parametrize(("algorithm", "shape"), SHAPES)
def test_nothing_happens_without_requests(algorithm: str, shape: dict[str, Any], last: str) -> None:
    """Before, between and after real batches; what those give is what they give alone."""
    loaded = configuration(algorithm, shape)
    todo = script(loaded.config, 3)
    busy, alone = (Session(loaded, last, todo) for _ in range(2))
    lengths, rows = dict(todo.prompts) | {0: 0}, list(todo.prompts)
    for turn, entry in enumerate(("prefill", "step", "step")):
        for idle in ([], [0], [0, 0, 0, 0]):
            before = {name: pool.clone() for name, pool in busy.pools.items()}
            kv = held(busy.engine, lengths)
            which = "prefill" if turn == 0 else "step"
            check_shapes(busy.module, which, busy.run(which, idle, lengths), len(idle))
            assert all(torch.equal(before[name][1:], pool[1:]) for name, pool in busy.pools.items())
            assert all(torch.equal(earlier, now) for earlier, now in zip(kv, held(busy.engine, lengths), strict=True))
        busy_values, alone_values = busy.run(entry, rows, lengths), alone.run(entry, rows, lengths)
        for name, value in busy.module.outputs.items():
            if value.name in busy_values:
                assert torch.equal(busy_values[value.name], alone_values[value.name]), name
        if entry == "step":
            lengths |= dict(zip(rows, busy_values[busy.module.outputs["new_seq_lens"].name].tolist(), strict=True))
    assert all(torch.equal(pool[1:], alone.pools[name][1:]) for name, pool in busy.pools.items())


def held(engine: RecordingEngine, lengths: dict[int, int]) -> list[Tensor]:
    """The KV rows of all requests, in all buffers."""
    return [words for row, length in lengths.items() if row for words in engine.content(row, length)]


def step_of(built: Build, todo: Script) -> Step:
    """A program on the fake engine, in memory that starts as garbage."""
    engine = RecordingEngine(built.loaded.config, todo)
    step = bind(built.plan, engine, todo, todo.tables(built.plan.tables()), 0x5A)
    todo.sample(step)
    return step


def state(step: Step) -> list[Tensor]:
    """What a step keeps of all pool rows but the padding row, and what is in all KV slots but the sink."""
    carried = {name: pool[1:].clone() for name, pool in step.pools.items()}
    return [*carried.values(), *(memory.words[:, 1:].clone() for memory in engine_of(step).memory.values())]


def engine_of(step: Step) -> RecordingEngine:
    """The fake engine that a program is bound to."""
    engine = step._callbacks
    assert isinstance(engine, RecordingEngine)
    return engine


def idle_step(step: Step, at_least: int) -> list[Any]:
    """What a step without requests gives, in each of its calls."""
    nobody = Batch([], [])
    if not isinstance(step, RotatedStep):
        return [step.decode(nobody, at_least=at_least)]
    given = step.zeros()
    return [step.commit(nobody, given["logits"], at_least=at_least), step.propose(nobody, given.get("hidden"))]


@pytest.mark.parametrize(("algorithm", "shape"), SHAPES)
def test_the_runtime_idles(algorithm: str, shape: dict[str, Any]) -> None:
    """Batches without requests between real ones, run as padding or not at all, leave all results as they are.

    And the record of no requests fits those of real ones, whichever model a field's width is that of.
    """
    built = build_program(configuration(algorithm, shape))
    todo = script(built.loaded.config, 3)
    busy, alone = (step_of(built, todo) for _ in range(2))
    lengths, rows = dict(todo.prompts), list(todo.prompts)
    reads_prompts = "prompt_tokens" in built.module.inputs
    nobody = Batch([], [], [] if reads_prompts else None)
    for turn in range(4):
        before = state(busy)
        idle = [busy.prefill(nobody, run_idle=run_idle) for run_idle in (False, True)]
        idle += [result for rows_of_others in (0, 1, 3) for result in idle_step(busy, rows_of_others)]
        assert not any(len(value) for result in idle for value in result.outputs.values())
        assert all(torch.equal(now, earlier) for now, earlier in zip(state(busy), before, strict=True))
        prompts = todo.prompt_tokens(rows) if reads_prompts and turn == 0 else None
        batch = Batch(rows, [lengths[row] for row in rows], prompts)
        busy_outputs, alone_outputs = (run(step, engine_of(step), batch, first=not turn) for step in (busy, alone))
        assert busy_outputs.keys() == alone_outputs.keys()
        for name, value in busy_outputs.items():
            assert torch.equal(value, alone_outputs[name]), name
        carried, wanted = busy.read_carry(rows), alone.read_carry(rows)
        merged = Carry.idle(built.plan, torch.device("cpu")).merge(carried)
        for record in (carried, merged):
            assert record.fields.keys() == wanted.fields.keys()
            assert all(torch.equal(field, wanted.fields[name]) for name, field in record.fields.items())
        if turn:
            lengths |= dict(zip(rows, busy_outputs["new_seq_lens"].tolist(), strict=True))
