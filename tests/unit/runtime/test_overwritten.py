"""Forwards that overwrite the hidden rows which they are given, and hand them back in the same memory."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from fakes.drafts import Engine
from programs import brought
from returned import Overwriting
from test_segments import same_kv
from test_step import CPU
from test_transfer import CASES, CHAIN, IDS, TREE, Machine, machine, plugin, text

from specc.runtime.backends.cpu import ReferenceBackend
from specc.runtime.entry.frame import Frame
from specc.runtime.plan.nodes import Computed, Launch
from specc.runtime.plan.plan import Plan
from specc.runtime.step import Step

__all__ = ["plugin"]
DEEP: dict[str, dict[str, Any]] = {
    "chain": {"num_steps": 5},
    "tree": {"num_steps": 5, "topk": 2, "num_draft_tokens": 8},
}
RECURRENT = ("EAGLE", "EAGLE3", "FROZEN_KV_MTP")
MORE = [pytest.param(name, DEEP[form], id=f"{name}-deep-{form}") for name in RECURRENT for form in DEEP]
USUAL = [pytest.param(*case, id=name) for case, name in zip(CASES, IDS, strict=True)]


class Scribbling(ReferenceBackend):
    """Before a launch all that it uses as scratch holds other things: a kernel writes there before it has read all."""

    def launch(self, node: Computed, frame: Frame) -> None:
        """Spoil the scratch, then run the node."""
        for name in scratch_of(frame.plan, node):
            frame.buffer(name).view(torch.uint8).fill_(0xA5)
        super().launch(node, frame)


def scratch_of(plan: Plan, node: Computed) -> list[str]:
    """Buffers that are a node's alone, counters apart."""
    named = {arg.target for arg in node.args if arg.kind == "buffer"} if isinstance(node, Launch) else set()
    return sorted(name for name in named if name.startswith(f"{node.name}.") and plan.buffers[name].init == "none")


def overwriting(plain: Machine, seed: int) -> tuple[Machine, Overwriting]:
    """The same machine, whose forwards overwrite what they are given."""
    engine = Engine.of_plan(plain.plan, seed=seed)
    callbacks = Overwriting(engine)
    step = Step(plain.plan, Scribbling(brought()), CPU, callbacks, engine.table, engine.kv, poison=0xFF)
    return Machine(plain.plan, engine, step), callbacks


@pytest.mark.parametrize(("algorithm", "keys"), [*USUAL, *MORE])
def test_hidden_rows_may_be_overwritten_and_handed_back(algorithm: str, keys: dict[str, Any]) -> None:
    """Tokens, lengths, health, carried state and KV rows of a machine whose forwards keep what they are given."""
    plain = machine(algorithm, 11, **keys)
    other, callbacks = overwriting(plain, 11)
    rng = random.Random(len(algorithm))
    prompts = {row: text(rng) for row in (2, 4, 1)}
    for runner in (plain, other):
        runner.prefill(prompts)
    for rows in ([4, 1], [2, 1, 4], [2], [1, 4, 2]):
        for padded in (True, False):
            assert other.decode(rows, padded=padded) == plain.decode(rows, padded=padded)
            mine, expected = (runner.step.read_carry([1, 2, 4]).fields for runner in (plain, other))
            assert all(torch.equal(mine[name], expected[name]) for name in mine)
            assert same_kv(plain, other)
    assert bool(callbacks.overwritten) == (algorithm in RECURRENT)


def test_scratch_is_spoilt() -> None:
    """Of chains and of trees: there is some, in the launch that reads what the first draft handed over."""
    for keys in (CHAIN, TREE):
        plan = machine("EAGLE3", 1, **keys).plan
        assert any(scratch_of(plan, node) for node in plan.nodes("step") if isinstance(node, Launch))
