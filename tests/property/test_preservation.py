"""Every pass from infer-types to form-kernels preserves what a program computes, by the reference semantics."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import load, passes_to
from session import Trace, assert_same, interpret_script, script
from strategies import configs, to_yaml

from specc.config import LoadedConfig
from specc.config.load import load_text
from specc.driver import start_module
from specc.ir.core import Module
from specc.ir.parser import parse_module
from specc.ir.printer import print_module
from specc.passes.base import Context, Pass
from specc.passes.instruments import CheckEach
from specc.passes.manager import BaseInstrument, run_passes


class Snapshots(BaseInstrument):
    """A copy of the module after each pass from infer-types on."""

    def __init__(self) -> None:
        self.found: dict[str, Module] = {}

    def after(self, module: Module, step: Pass) -> None:
        """Copy, through the text."""
        if "typed" in module.established:
            self.found[step.name] = parse_module(print_module(module))


def stages(loaded: LoadedConfig) -> dict[str, Module]:
    """The module after each pass up to form-kernels."""
    snapshots = Snapshots()
    run_passes(start_module(loaded), passes_to("form-kernels"), Context(loaded), [CheckEach(), snapshots])
    return snapshots.found


@settings(max_examples=30)
@given(configs(), st.integers(0, 1 << 16))
def test_passes_preserve_the_program(keys: dict[str, Any], seed: int) -> None:
    torch.set_num_threads(1)
    loaded = load_text(to_yaml(keys), Path("random.yaml"))
    todo = script(loaded.config, seed)
    found = stages(loaded)
    base = interpret_script(found.pop("infer-types"), loaded.config, todo)
    for name, module in found.items():
        trace = interpret_script(module, loaded.config, todo)
        assert_same(base, trace, f"after {name}")
    live = set(module.carries)
    assert {"bonus", "topk_index"} <= live <= {"bonus", "topk_index", "topk_p", "hidden", "seq_lens"}
    assert ("topk_p" in live) == (not loaded.config.chain)
    draft_forwards = loaded.config.num_steps - 1
    assert ("hidden" in live) == (loaded.config.algorithm == "EAGLE" and draft_forwards > 0)


TREE = {"topk": 2, "num_draft_tokens": 6, "page_size": 4, "num_steps": 3, "mask": "qlen"}


@pytest.mark.parametrize("algorithm", ["STANDALONE", "EAGLE"])
@pytest.mark.parametrize("shape", [{"num_steps": 4}, TREE], ids=["chain", "tree"])
def test_the_scenarios_are_not_trivial(algorithm: str, shape: dict[str, Any]) -> None:
    """Drafts are accepted and rejected, padding rows occur, and health bits are raised."""
    loaded = load(algorithm, max_requests=6, **shape)
    module = stages(loaded)["canonicalize"]
    lengths, bits, padded = set[int](), set[int](), 0
    for seed in range(12):
        todo = script(loaded.config, seed)
        padded += sum(0 in batch for batch in todo.batches)
        for outputs in interpret_script(module, loaded.config, todo).outputs:
            lengths |= set(outputs.get("accept_lens", torch.tensor([0])).tolist())
            bits |= {bit for word in outputs["health"].tolist() for bit in range(32) if word >> bit & 1}
    assert {0, 1, 2, 3} <= lengths
    assert bits == {0, 1, 2, 3}
    assert padded


MUTANTS = [
    ("offset = 1, stride = 1", "offset = 0, stride = 1"),
    ('axis = "A", offset = 1}', 'axis = "A", offset = 0}'),
    ("column = 2", "column = 1"),
    ("bit = 0", "bit = 1"),
    ("relay.publish(%req_pool_indices, %new_seq_lens)", "relay.publish(%req_pool_indices, %lens)"),
    ("carry.store(%req_pool_indices, %bonus)", "carry.store(%req_pool_indices, %root)"),
    ("commit.extend_ids(%node_predict", "commit.extend_ids(%accept_index"),
]


TREE_MUTANTS = [
    ("offset = 1, page = 4, room = 3} : i64", "offset = 0, page = 4, room = 3} : i64"),
    ("offset = 1, page = 4, room = 3} : i64", "offset = 1, page = 4, room = 5} : i64"),
    ("offset = 1, page = 4, room = 3} : !kv", "offset = 0, page = 4, room = 3} : !kv"),
    ("offset = 1, page = 4, room = 3} : !kv", "offset = 1, page = 1, room = 3} : !kv"),
    ("kv.move(%verify_slots,", "kv.move(%tokens,"),
    ("tree.mask(%lens, %parent)", "tree.mask(%lens, %depth)"),
    ("tree.positions(%lens, %depth)", "tree.positions(%lens, %parent)"),
    ("tree.grow(%scores1, %p1, %index1)", "tree.grow(%topk_p, %p1, %index1)"),
    ("%candidates1, %candidates2,", "%candidates2, %candidates1,"),
    ("%index0, %index1, %kept1", "%index1, %index0, %kept1"),
    ("%index1, %kept1) {steps", "%index1, %kept2) {steps"),
    ("verify.greedy(%tokens, %target_argmax, %req_pool_indices, %parent)",
     "verify.greedy(%tokens, %target_argmax, %req_pool_indices, %depth)"),
    ("carry.store(%req_pool_indices, %next_topk_p)", "carry.store(%req_pool_indices, %topk_p)"),
    ("commit.extend_ids(%predict", "commit.extend_ids(%accept_index"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("old", "new", "shape"),
    [*[(old, new, {}) for old, new in MUTANTS], *[(old, new, TREE) for old, new in TREE_MUTANTS]],
)
def test_a_pass_that_changes_the_program_is_noticed(old: str, new: str, shape: dict[str, Any]) -> None:
    """The test itself: a program that is wrong in one place must show."""
    loaded = load("STANDALONE", **shape)
    module = stages(loaded)["canonicalize"]
    text = print_module(module)
    assert old in text
    broken = parse_module(text.replace(old, new))
    scripts = [script(loaded.config, seed) for seed in range(4)]
    pairs = [[interpret_script(which, loaded.config, todo) for which in (module, broken)] for todo in scripts]
    assert any(differ(one, other) for one, other in pairs)


def differ(one: Trace, other: Trace) -> bool:
    """Whether two runs can be told apart."""
    try:
        assert_same(one, other, "mutant")
    except AssertionError:
        return True
    return False
