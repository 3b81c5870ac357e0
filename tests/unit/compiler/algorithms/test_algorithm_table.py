"""One table of all algorithms: which forward hands over which hidden states, who reads them, and what is carried.

Wherever an algorithm allows it the two models differ in width and dtype, so that a size taken from the wrong one shows.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from programs import compile_to, load
from widths import reads

from specc.compiler.algorithms import names, needs
from specc.compiler.driver.build import build_program
from specc.compiler.ir.analysis.liveness import hidden_result
from specc.compiler.ir.core import Module, entry_of
from specc.compiler.ir.declarations import KvPool
from specc.compiler.ir.nodes import is_external, node_of
from specc.compiler.ir.ops import OPS
from specc.runtime.plan.plan import Plan

TREE = {"topk": 2, "num_draft_tokens": 6}
NARROW = {"hidden_size": 32, "dtype": "float16"}
"""A draft of another width and dtype than its target's 64 elements of f32."""


@dataclass(frozen=True)
class Row:
    """What holds of an algorithm with three steps.

    Attributes:
        hands_over: capture mode of every forward of a step, and of prefill, in order.
        reads: type of the hidden rows that a forward reads.
        carry: fields and their types, in a chain.
        tree: fields that a tree carries besides.
        pools: models whose KV buffers the engine keeps.
        target, draft, keys: what the configuration says besides the defaults.

    """

    hands_over: dict[str, str]
    reads: dict[str, str]
    carry: dict[str, str]
    tree: dict[str, str] = field(default_factory=dict)
    pools: tuple[str, ...] = ("target", "draft")
    target: dict[str, Any] = field(default_factory=dict)
    draft: dict[str, Any] = field(default_factory=dict)
    keys: dict[str, Any] = field(default_factory=dict)

    def load(self, algorithm: str, **keys: Any) -> Any:
        """The configuration."""
        drafts = {"draft": self.draft} if needs(algorithm).draft else {}
        return load(algorithm, target=self.target, **drafts, **self.keys, **keys)


RECURRENT = ("prefill_target", "prefill_draft", "draft_0", "draft_1", "target", "extend")
LENGTHS = {"seq_lens": "i64[B]"}
BONUS = {"bonus": "i32[B]"}

TABLE = {
    "STANDALONE": Row(
        dict.fromkeys(RECURRENT, "null"),
        reads={},
        carry=BONUS | {"topk_index": "i64[B, K]"} | LENGTHS,
        tree={"topk_p": "f32[B, K]"},
        draft=NARROW,
    ),
    "EAGLE": Row(
        dict(zip(RECURRENT, ("full", "last", "last", "null", "full", "last"), strict=True)),
        reads={
            "prefill_draft": "f32[T, 256]",
            "draft_0": "f32[B, K, 256]",
            "draft_1": "f32[B, K, 256]",
            "extend": "f32[B, A, 256]",
        },
        carry=BONUS | {"topk_index": "i64[B, K]", "hidden": "f32[B, 256]"} | LENGTHS,
        tree={"topk_p": "f32[B, K]"},
        target={"hc_mult": 4, "hidden_source": "hc_residual"},
        draft={"hidden_size": 256},
    ),
    "EAGLE3": Row(
        dict(zip(RECURRENT, ("full", "last", "last", "null", "full", "last"), strict=True)),
        reads={
            "prefill_draft": "f32[T, 128]",
            "draft_0": "f16[B, K, 32]",
            "draft_1": "f16[B, K, 32]",
            "extend": "f32[B, A, 128]",
        },
        carry=BONUS | {"topk_index": "i64[B, K]", "hidden": "f16[B, 32]"} | LENGTHS,
        tree={"topk_p": "f32[B, K]"},
        draft=NARROW | {"target_hidden_size": 64},
    ),
    "FROZEN_KV_MTP": Row(
        {"prefill_target": "last", "assist_0": "last", "assist_1": "last", "assist_2": "null", "target": "full"},
        reads={"assist_0": "f32[B, 64]", "assist_1": "f32[B, K, 64]", "assist_2": "f32[B, K, 64]"},
        carry=BONUS | {"hidden": "f32[B, 64]"} | LENGTHS,
        pools=("target",),
        draft={"hidden_size": 32, "target_hidden_size": 64},
    ),
    "MULTI_LAYER_EAGLE": Row(
        {
            "prefill_target": "full",
            **{f"prefill_module_{module}": "null" for module in range(3)},
            "target": "full",
            **{f"extend_module_{module}": "null" for module in range(3)},
        },
        reads={
            **{f"prefill_module_{module}": "f32[T, 256]" for module in range(3)},
            **{f"extend_module_{module}": "f32[B, A, 256]" for module in range(3)},
        },
        carry=BONUS | {"topk_index": "i64[B, S]"} | LENGTHS,
        target={"hc_mult": 4, "hidden_source": "hc_residual"},
        draft={"hidden_size": 256},
    ),
    "DFLASH": Row(
        {"prefill_target": "full", "prefill_inject": "null", "block": "null", "target": "full", "inject": "null"},
        reads={"prefill_inject": "f32[T, 128]", "inject": "f32[B, A, 128]"},
        carry=BONUS | LENGTHS,
        draft=NARROW | {"target_hidden_size": 64},
    ),
    "DSPARK": Row(
        {"prefill_target": "full", "prefill_inject": "null", "block": "null", "target": "full", "inject": "null"},
        reads={"prefill_inject": "f32[T, 128]", "inject": "f32[B, A, 128]"},
        carry=BONUS | LENGTHS,
        draft=NARROW | {"target_hidden_size": 64},
    ),
    "DFLASH2": Row(
        {"prefill_target": "full", "prefill_inject": "null", "block": "full", "target": "full", "inject": "null"},
        reads={"prefill_inject": "f32[T, 128]", "inject": "f32[B, A, 128]"},
        carry=BONUS | LENGTHS,
        draft=NARROW | {"target_hidden_size": 64},
    ),
    "NGRAM": Row(
        {"prefill_target": "null", "target": "null"},
        reads={},
        carry={"text": "i32[B, 100]"} | LENGTHS,
        pools=("target",),
        keys={"options": {"window": 100}},
    ),
}
SHAPES = [(name, shape) for name in names() for shape in ("chain", *(["tree"] if needs(name).trees else []))]


def program(algorithm: str, shape: str, **keys: Any) -> Module:
    """The program after the front passes."""
    return compile_to("cse", TABLE[algorithm].load(algorithm, **((TREE if shape == "tree" else {}) | keys)))


def hands_over(module: Module) -> dict[str, str]:
    """Capture mode of every forward, in order."""
    return {node_of(op): str(op.attrs["capture"]) for op in module.ops() if is_external(op)}


def test_every_algorithm_has_a_row() -> None:
    assert tuple(TABLE) == names()


@pytest.mark.parametrize(("algorithm", "shape"), SHAPES)
def test_what_forwards_hand_over(algorithm: str, shape: str) -> None:
    """The forwards of a program in order, and of each of them no more than somebody reads."""
    module = program(algorithm, shape)
    assert list(hands_over(module).items()) == list(TABLE[algorithm].hands_over.items())
    for op in (op for op in module.ops() if is_external(op)):
        result = hidden_result(op)
        assert (result is None) == (op.attrs["capture"] == "null")
        assert result is None or module.users(result), f"nobody reads what {node_of(op)} hands over"


@pytest.mark.parametrize(("algorithm", "shape"), SHAPES)
def test_what_forwards_read(algorithm: str, shape: str) -> None:
    assert reads(program(algorithm, shape)) == TABLE[algorithm].reads


@pytest.mark.parametrize(("algorithm", "shape"), SHAPES)
@pytest.mark.parametrize("overlap", [True, False])
def test_what_is_carried(algorithm: str, shape: str, overlap: bool) -> None:
    """Nothing but these fields, each loaded in a step, and stored by it and by prefill."""
    module, row = program(algorithm, shape, overlap=overlap), TABLE[algorithm]
    wanted = row.carry | (row.tree if shape == "tree" else {})
    wanted = {name: type_ for name, type_ in wanted.items() if overlap or name != "seq_lens"}
    assert {name: str(carry.type) for name, carry in module.carries.items()} == wanted
    for name in wanted:
        touching = [op for op in module.ops() if op.attrs.get("field") == name]
        assert {entry_of(op.phase) for op in touching if OPS[op.opcode].effect == "carry"} == {"prefill", "step"}
        assert [op.opcode for op in touching].count("carry.load") == 1


@pytest.mark.parametrize(("algorithm", "shape"), SHAPES)
def test_whose_keys_and_values_are_kept(algorithm: str, shape: str) -> None:
    module = program(algorithm, shape)
    assert tuple(pool.name for pool in module.decls_of(KvPool)) == TABLE[algorithm].pools


ONE_STEP = {
    "STANDALONE": {"prefill_target": "null", "prefill_draft": "null", "target": "null", "extend": "null"},
    "EAGLE": {"prefill_target": "full", "prefill_draft": "null", "target": "full", "extend": "null"},
    "EAGLE3": {"prefill_target": "full", "prefill_draft": "null", "target": "full", "extend": "null"},
    "FROZEN_KV_MTP": {"prefill_target": "last", "assist_0": "null", "target": "full"},
    "MULTI_LAYER_EAGLE": {
        "prefill_target": "full",
        "prefill_module_0": "null",
        "target": "full",
        "extend_module_0": "null",
    },
    "DFLASH": TABLE["DFLASH"].hands_over,
    "DSPARK": TABLE["DSPARK"].hands_over,
    "DFLASH2": TABLE["DFLASH2"].hands_over,
    "NGRAM": TABLE["NGRAM"].hands_over,
}


@pytest.mark.parametrize(("algorithm", "shape"), SHAPES)
def test_one_step(algorithm: str, shape: str) -> None:
    """With one step no forward of a draft follows extend, so nobody reads its rows; an assistant still reads one."""
    module = program(algorithm, shape, num_steps=1, **({"num_draft_tokens": 3} if shape == "tree" else {}))
    assert hands_over(module) == ONE_STEP[algorithm]
    assert ("hidden" in module.carries) == (algorithm == "FROZEN_KV_MTP")


@pytest.mark.parametrize(("algorithm", "shape"), SHAPES)
def test_asking_for_hidden_states(algorithm: str, shape: str) -> None:
    """As an output they come from the target's verification, and change nothing else."""
    plain, asked = (hands_over(program(algorithm, shape, **keys)) for keys in ({}, {"outputs": ["hidden_states"]}))
    assert asked == plain | {"target": "full"}


# --- what the plan says of it -----------------------------------------------------------------------------------------

CALLBACKS = {
    "STANDALONE": {"prefill_target", "prefill_draft", "draft", "target", "extend"},
    "EAGLE": {"prefill_target", "prefill_draft", "draft", "target", "extend"},
    "EAGLE3": {"prefill_target", "prefill_draft", "draft", "target", "extend"},
    "FROZEN_KV_MTP": {"prefill_target", "assist", "target"},
    "MULTI_LAYER_EAGLE": {"prefill_target", "prefill_module", "target", "extend_module"},
    "DFLASH": {"prefill_target", "prefill_inject", "block", "target", "inject"},
    "DSPARK": {"prefill_target", "prefill_inject", "block", "target", "inject"},
    "DFLASH2": {"prefill_target", "prefill_inject", "block", "target", "inject"},
    "NGRAM": {"prefill_target", "target"},
}
"""The engine's forwards that a program calls, and no others."""

RECORD = {
    "STANDALONE": (4 + 8 + 8, 4 + 2 * (8 + 4) + 8),
    "EAGLE": (4 + 8 + 256 * 4 + 8, 4 + 2 * (8 + 4) + 256 * 4 + 8),
    "EAGLE3": (4 + 8 + 32 * 2 + 8, 4 + 2 * (8 + 4) + 32 * 2 + 8),
    "FROZEN_KV_MTP": (4 + 64 * 4 + 8, 4 + 64 * 4 + 8),
    "MULTI_LAYER_EAGLE": (4 + 3 * 8 + 8, 0),
    "DFLASH": (4 + 8, 4 + 8),
    "DSPARK": (4 + 8, 4 + 8),
    "DFLASH2": (4 + 8, 0),
    "NGRAM": (100 * 4 + 8, 100 * 4 + 8),
}
"""Bytes that one request has in the pools, of a chain and of a tree: bonus, tokens (and scores), row, text, length."""

HIDDEN = {
    "STANDALONE": (0, 0),
    "EAGLE": ((5 + 4 + 4 + 16 + 4) * 1024, (5 + 2 * 8 + 8 + 24 + 16 + 4) * 1024),
    "EAGLE3": ((5 + 4 + 4 + 4) * 64 + 16 * 512, (5 + 2 * 8 + 8 + 4) * 64 + (24 + 16) * 512),
    "FROZEN_KV_MTP": ((5 + 4 + 4 + 4 + 4 + 16) * 256, (5 + 4 + 4 + 8 + 8 + 8 + 24) * 256),
    "MULTI_LAYER_EAGLE": (16 * 1024, 0),
    "DFLASH": (16 * 512, (24 + 16) * 512),
    "DSPARK": (16 * 512, (24 + 16) * 512),
    "DFLASH2": (16 * 512 + 4 * 3 * 24 * 2, 0),
    "NGRAM": (0, 0),
}
"""Bytes of hidden states in a step of four requests, with five pool rows: counted by hand, row by row.

In order: the pool; what it is loaded to (a frontier, per branch); what each forward of the draft hands over, and the
frontier that is picked of it; the target's rows, per node; of a tree those of the path; extend's.
"""


@pytest.fixture(scope="module")
def plans() -> dict[tuple[str, str], Plan]:
    """Plans of all programs."""
    return {
        (name, shape): build_program(TABLE[name].load(name, **(TREE if shape == "tree" else {}))).plan
        for name, shape in SHAPES
    }


@pytest.mark.parametrize(("algorithm", "shape"), SHAPES)
def test_the_plan(plans: dict[tuple[str, str], Plan], algorithm: str, shape: str) -> None:
    """Forwards, pools and carry of plan.json, and bytes of a request's record."""
    plan, row = plans[algorithm, shape], TABLE[algorithm]
    assert set(plan.callbacks()) == CALLBACKS[algorithm]
    assert {node.name: node.capture for node in plan.externals()} == row.hands_over
    assert tuple(plan.kv_pools) == row.pools
    fields = {name: f"{field.dtype}[{', '.join(field.axes)}]" for name, field in plan.carry.items()}
    assert fields == row.carry | (row.tree if shape == "tree" else {})
    pools = {name: buffer for name, buffer in plan.buffers.items() if name.startswith("relay.")}
    assert pools.keys() == {f"relay.{name}" for name in fields}
    assert sum(buffer.bytes for buffer in pools.values()) == 5 * RECORD[algorithm][shape == "tree"]


@pytest.mark.parametrize(("algorithm", "shape"), SHAPES)
def test_bytes_of_hidden_states(plans: dict[tuple[str, str], Plan], algorithm: str, shape: str) -> None:
    assert plans[algorithm, shape].totals[4].hidden_state_bytes == HIDDEN[algorithm][shape == "tree"]
