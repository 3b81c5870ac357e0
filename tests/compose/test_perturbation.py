"""Any internal value of any example may be an output more: it compiles, it runs, and nothing else changes."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch
from session import script

from specc.runtime.plan.nodes import Launch
from specc.runtime.plan.plan import Plan

from .compiled import compile_planned, interpreted
from .flow import Flow, assert_equal
from .perturbed import CPU, EXAMPLES, PROBE, Probe, front, handing_out, meaning, probes, run, small

RUN, INTERPRETED = 5, 1
"""Values of each example that are handed out of programs that run: by the reference ops, and by the kernels."""


ALWAYS = ("draft_slots", "prefill_target_hidden", "full")
"""Values that are handed out of every program that has them: two that have no row per request, and one bit."""


def some(name: str, count: int) -> list[Probe]:
    """Values of an example, always the same."""
    of_example = probes(small(name))
    odd = [probe for probe in of_example if probe.name in ALWAYS]
    return odd + random.Random(name).sample(of_example, min(count, len(of_example)))


@pytest.mark.parametrize("name", EXAMPLES)
def test_it_compiles(name: str) -> None:
    """Every value of every example: passes with their invariants, sources and plan."""
    loaded = EXAMPLES[name]()
    of_example = probes(loaded)
    assert len(of_example) > 20
    for probe in of_example:
        compile_planned(handing_out(loaded, probe), loaded)


@pytest.mark.parametrize("name", [name for name in EXAMPLES if not name.endswith("rotated")])
def test_it_runs(name: str, every: bool) -> None:
    """On the CPU backend: all other outputs are what they were, and the value is what the ops say.

    An engine that runs the target by itself is in tests/unit/runtime/test_rotated.py.
    """
    loaded = small(name)
    todo = script(loaded.config, seed=len(name), steps=2)
    plain = compile_planned(front(loaded), loaded)
    before = run(plain, todo)
    for probe in probes(loaded) if every else some(name, RUN):
        build = compile_planned(handing_out(loaded, probe), loaded)
        wanted = meaning(handing_out(loaded, probe), loaded.config, todo)
        handed = 0
        for index, outputs in enumerate(run(build, todo)):
            assert outputs.keys() == wanted[index].keys()
            for output, tensor in outputs.items():
                assert_equal(tensor, wanted[index][output], f"{output} of run {index}, with %{probe.name}")
                if output != PROBE:
                    assert_equal(tensor, before[index][output], f"{output} of run {index}, with %{probe.name}")
            handed += PROBE in outputs
        assert handed, probe


@pytest.mark.parametrize("name", EXAMPLES)
def test_its_kernels(name: str, every: bool) -> None:
    """In Triton's interpreter: launches that no program before had leave what their ops say."""
    loaded = small(name)
    seen = set[str]()
    plain = compile_planned(front(loaded), loaded)
    seen |= set(launches(plain.plan).values())
    for probe in probes(loaded) if every else some(name, INTERPRETED):
        build = compile_planned(handing_out(loaded, probe), loaded)
        plan, module = build.plan, build.module
        fresh = {node: what for node, what in launches(plan).items() if what not in seen}
        if fresh:
            seen |= set(fresh.values())
            with interpreted(build) as backend:
                flow = Flow(plan, backend, CPU, seed=len(name))
                for entry in ("prefill", "step"):
                    flow.run(module, entry, torch.tensor([3, 0, 5, 1]), torch.tensor([4, 0, 7, 2]), fresh)


def launches(plan: Plan) -> dict[str, str]:
    """By node, all that a launch is, but for names of kernels; and which of its results are in memory."""
    return {
        node.name: repr(
            (
                replace(plan.kernels[node.kernel], source=""),
                (node.ops, node.args, node.grid),
                [name for call in node.ops for name in call.results if name in plan.values],
            )
        )
        for entry in ("prefill", "step")
        for node in plan.nodes(entry)
        if isinstance(node, Launch)
    }
