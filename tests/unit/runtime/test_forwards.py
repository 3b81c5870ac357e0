"""What becomes of one forward's logits: the health bit that a bad row raises, and the draft that a module makes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from test_transfer import CASES, IDS, Machine, machine, plugin
from torch import Tensor

from specc.runtime.batch import Batch
from specc.runtime.capabilities.sampling import Sampling
from specc.runtime.plan.nodes import External
from specc.runtime.plan.plan import Plan

__all__ = ["plugin"]
BITS = {
    **dict.fromkeys(("draft", "assist", "block", "anchored"), 0),
    **dict.fromkeys(("target", "prefill_target"), 1),
    **dict.fromkeys(("extend", "extend_module"), 2),
    **dict.fromkeys(("prefill_draft", "prefill_module"), 3),
}
"""The bit of the health word by forward, as docs/kernels.md lists them."""


def scoring(plan: Plan, entry: str) -> list[External]:
    """The forwards of an entry that hand over logits."""
    return [node for node in plan.nodes(entry) if isinstance(node, External) and "logits" in node.results]


def after(machine: Machine, name: str, change: Callable[[Tensor, int | None], object]) -> None:
    """Change the logits of a forward, given its step, before the program gets them."""
    forward = getattr(machine.engine, name)

    def changed(**operands: Any) -> Any:
        result = forward(**operands)
        change(result.logits, operands.get("step"))
        return result

    setattr(machine.engine, name, changed)


@pytest.mark.parametrize(("algorithm", "keys"), CASES, ids=IDS)
def test_a_bad_row_raises_the_bit_of_its_forward(algorithm: str, keys: dict[str, Any]) -> None:
    """A NaN of the second request, in each forward alone."""
    bad: set[tuple[str, int | None]] = set()

    def spoil(name: str) -> Callable[[Tensor, int | None], object]:
        return lambda logits, step: logits[1].view(-1)[:1].fill_(math.nan) if (name, step) in bad else None

    decoder = machine(algorithm, 3, **keys)
    forwards = {entry: scoring(decoder.plan, entry) for entry in ("prefill", "step")}
    for name in {node.callback for nodes in forwards.values() for node in nodes}:
        after(decoder, name, spoil(name))
    prompts = {2: [4, 9, 2], 1: [7, 1]}
    for node in forwards["prefill"]:
        bad = {(node.callback, node.step)}
        tokens = [token for prompt in prompts.values() for token in prompt] if algorithm == "NGRAM" else None
        if decoder.plan.samples:
            decoder.step.set_sampling(list(prompts), [Sampling(1.0, 5)] * len(prompts))
        health = decoder.step.prefill(Batch(list(prompts), [3, 2], tokens)).to_host().health
        assert health == [0, 1 << BITS[node.callback]], node.name
    bad = set()
    decoder.prefill(prompts)
    for node in forwards["step"]:
        bad = {(node.callback, node.step)}
        assert [health for *_, health in decoder.decode([2, 1])] == [0, 1 << BITS[node.callback]], node.name


@pytest.mark.parametrize("steps", [1, 2, 4])
def test_every_module_makes_the_draft_of_its_place(steps: int) -> None:
    decoder = machine("MULTI_LAYER_EAGLE", 3, num_steps=steps)

    def choose(first: int) -> Callable[[Tensor, int | None], object]:
        return lambda logits, step: logits.zero_()[..., first + (step or 0)].fill_(1.0)

    after(decoder, "prefill_module", choose(20))
    after(decoder, "extend_module", choose(40))
    decoder.prefill({2: [4, 9, 2], 1: [7, 1]})
    for first in (20, 40):
        drafts = decoder.step.read_carry([1, 2]).fields["topk_index"]
        assert drafts.tolist() == [list(range(first, first + steps))] * 2
        decoder.decode([2, 1])
