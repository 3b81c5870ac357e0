"""Ops without a kernel on a GPU: torch computes them in the graph, and nothing waits for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from fakes.toys import TOYS
from returned import Static

from specc.compiler.kernels import groups
from specc.compiler.passes import form_kernels
from specc.runtime.backends.cuda import CudaBackend
from specc.runtime.entry.frame import Frame, Progress
from specc.runtime.plan.files.manifest import Manifest
from specc.runtime.plan.files.plan_json import load_plan
from specc.runtime.plan.nodes import Computed, Reference

from .conftest import Built
from .nodes import Pair, check_program
from .serving import Serving, Variant

DIALECTS = ("carry.", "kv.", "health.")
"""The ops that keep their kernels; all others of these programs are references."""


@pytest.fixture(params=TOYS, ids=lambda program: program.name)
def toy(
    request: pytest.FixtureRequest, build: Callable[..., Built], arch: str, monkeypatch: pytest.MonkeyPatch
) -> Built:
    """A toy program most of whose ops have no kernel."""
    has_tile = form_kernels.has_tile
    monkeypatch.setattr(groups, "LONE", {})
    monkeypatch.setattr(groups, "REDUCTIONS", {})
    monkeypatch.setattr(
        form_kernels, "has_tile", lambda module, op: op.opcode.startswith(DIALECTS) and has_tile(module, op)
    )
    return build(replace(request.param, name=f"{request.param.name}_by_torch").text, (arch,))


class Unsynchronised(CudaBackend):
    """Launches nodes where who waits for the device is an error."""

    def launch(self, node: Computed, frame: Frame) -> None:
        """See the class."""
        torch.cuda.set_sync_debug_mode("error")
        try:
            super().launch(node, frame)
        finally:
            torch.cuda.set_sync_debug_mode("default")


def test_every_node_equals_its_ops_and_waits_for_nothing(toy: Built, device: torch.device) -> None:
    root = toy.site / toy.name
    plan = load_plan(root)
    assert any(isinstance(node, Reference) for node in plan.nodes("step"))
    check_program(Pair(plan, Unsynchronised([plan], Manifest.read(root), root, device), device, seed=len(toy.name)))


def test_replays_equal_the_reference(toy: Built, device: torch.device) -> None:
    package = toy.load_module()
    variants = {
        "cpu": Variant(package, "cpu"),
        "eager": Variant(package, device, capture=False),
        "captured": Variant(package, device, capture=True),
        "segments": Variant(package, device, capture="segments", returns=Static),
    }
    Serving(variants, seed=9).run(20)


def test_replays_neither_allocate_nor_wait(toy: Built, device: torch.device) -> None:
    variant = Variant(toy.load_module(), device, capture=True)
    variant.prefill([1, 2], [[3, 4], [5]])
    variant.decode([1, 2], [2, 1])
    graphs = variant.step._graphs
    torch.cuda.synchronize(device)
    before = torch.cuda.memory_stats(device)["allocation.all.allocated"]
    torch.cuda.set_sync_debug_mode("error")
    try:
        for bucket in variant.plan.buckets:
            graphs.replay(bucket, Progress())
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.cuda.synchronize(device)
    assert torch.cuda.memory_stats(device)["allocation.all.allocated"] == before
