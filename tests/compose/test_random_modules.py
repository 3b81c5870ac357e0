"""Modules composed at random: they are legal, the same for the same seed, and every op occurs in them."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator

import pytest
import torch

from specc.compiler.driver.build import Build
from specc.compiler.ir.ops import OPS, add_forward, budget, head
from specc.compiler.ir.text.parser import parse_module
from specc.compiler.ir.text.printer import print_module
from specc.compiler.kernels import LONE
from specc.compiler.kernels.writing.family import in_order
from specc.compiler.passes.invariants import check_now
from specc.runtime.entry.frame import Frame
from specc.runtime.plan.nodes import Launch

from .compiled import compile_planned, interpreted
from .flow import Flow
from .perturbed import CPU, front, small
from .random_modules import ESTABLISHED, compose
from .random_values import SOURCE

MODULES = 300
SUMMED = {"vocab.topk_part", "vocab.topk_merge", "vocab.logprob_merge", *(op.name for op in head.OPS)}
"""Ops of records with sums, and of products, whose last bits are each side's own: tests/kernels/test_shards.py and
test_head.py have them."""
TOGETHER = {"state.select", "state.fold", "state.point", *(op.name for op in budget.OPS)}
"""Ops that read what only others of their kind leave, tables of states, pending states, and rows that
are shared out over a batch: test_state_select.py, test_state_fold.py, test_state_point.py and test_budget.py of
tests/kernels have them."""


@pytest.fixture(autouse=True)
def source() -> Iterator[None]:
    """The forward of these modules, for one test."""
    add_forward(SOURCE)
    yield
    del OPS[SOURCE.name]


def test_they_are_legal_and_have_every_op() -> None:
    seen, read, kept = Counter[str](), Counter[int](), 0
    for seed in range(MODULES):
        module = compose(random.Random(seed)).module
        check_now(module)
        clusters = [cluster for family in LONE.values() for cluster in family.candidates(module)]
        assert clusters == [in_order(module, cluster) for cluster in clusters]
        if seed % 5 == 0:
            text = print_module(module)
            assert print_module(parse_module(text)) == text
            assert print_module(compose(random.Random(seed)).module) == text
        seen.update(op.opcode for op in module.ops())
        read.update(len(module.users(value)) for value in module.values())
        kept += sum(1 for value in module.outputs.values() if module.users(value))
    built_in = {name: op for name, op in OPS.items() if op.reference is None}  # others are a plugin's
    legal = {name for name, op in built_in.items() if op.until not in ESTABLISHED and op.until != "expanded"}
    computed = {name for name in legal if OPS[name].effect not in ("external", "host", "given", "collective")}
    assert computed - SUMMED - TOGETHER == seen.keys() - {SOURCE.name}
    assert min(seen.values()) >= 3, seen
    assert all(read[readers] > MODULES for readers in range(4)), read
    assert kept > MODULES


class Lazy:
    """A backend that leaves out one launch."""

    def __init__(self, backend: object, left_out: str) -> None:
        self.backend, self.left_out = backend, left_out

    def launch(self, node: Launch, frame: Frame) -> None:
        """Launch, or not."""
        if node.name != self.left_out:
            self.backend.launch(node, frame)


def run_often(build: Build, backend: Lazy, entry: str) -> None:
    """Run an entry a few times: a path may have nothing to move."""
    for seed in range(5):
        flow = Flow(build.plan, backend, CPU, seed)
        flow.run(build.module, entry, torch.tensor([3, 0, 5, 1]), torch.tensor([4, 0, 7, 2]))


@pytest.mark.parametrize("name", ["eagle-chain", "standalone-tree"])
def test_a_launch_that_does_nothing_is_noticed(name: str) -> None:
    build = compile_planned(front(small(name)), small(name))
    plan = build.plan
    with interpreted(build) as backend:
        for entry in ("prefill", "step"):
            for node in (node for node in plan.nodes(entry) if isinstance(node, Launch)):
                with pytest.raises(AssertionError, match=rf"^{node.name}, "):
                    run_often(build, Lazy(backend, node.name), entry)
