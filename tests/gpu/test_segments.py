"""Graphs between forwards that are not captured: replays == eager launches == the CPU reference."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
from fakes.toys import TOYS, TREES
from returned import Fresh, Static

from .conftest import Built
from .serving import Serving, Variant


@pytest.fixture(params=TOYS, ids=lambda program: program.name)
def toy(request: pytest.FixtureRequest, build: Callable[..., Built], arch: str) -> Built:
    """A toy program for this GPU."""
    return build(request.param.text, (arch,))


def test_replay_equals_eager_equals_the_reference(toy: Built, device: torch.device) -> None:
    """Results in static memory are replayed, results in fresh memory are launched; batches are padded in both."""
    package = toy.load_module()
    static = Variant(package, device, capture="segments", returns=Static)
    fresh = Variant(package, device, capture="segments", returns=Fresh)
    everything = {"cpu": Variant(package, "cpu"), "eager": Variant(package, device, capture=False)}
    serving = Serving(everything | {"static": static, "fresh": fresh}, seed=5)
    serving.run(30)
    assert len(serving.accepted) > 1
    assert len(serving.sizes) > 3
    segments = len(static.plan.segments)
    assert (static.step.replays.replayed, static.step.replays.moved) == (30 * segments, {})
    moved = fresh.step.replays.moved
    assert fresh.step.replays.replayed + moved.total() == 30 * segments
    assert moved["budget_rows" if "G" in static.plan.dims else "verify_argmax"] == 30
    assert set(moved.values()) == {30}


def test_segments_are_the_default_for_other_forwards(toy: Built, device: torch.device) -> None:
    package = toy.load_module()
    default = Variant(package, device, returns=Static)
    Serving({"default": default, "whole": Variant(package, device, capture=True)}, seed=6).run(5)
    assert default.step.replays.replayed == 5 * len(default.plan.segments)


@pytest.mark.parametrize("capture", [True, "segments"])
def test_graphs_outlive_the_requests_they_served(capture: bool | str, toy: Built, device: torch.device) -> None:
    """Requests are retracted and come back on other rows with all of their text, and others take their rows."""
    package, pick = toy.load_module(), random.Random(8)
    captured = Variant(package, device, capture=capture, returns=Static if capture == "segments" else None)
    serving = Serving({"cpu": Variant(package, "cpu"), "captured": captured}, seed=8)
    for _ in range(8):
        serving.run(2)
        free = [row for row in range(1, serving.pool) if row not in serving.lengths]
        if free:
            serving.readmit(pick.choice(sorted(serving.lengths)), pick.choice(free))
    parts = len(captured.plan.segments) if capture == "segments" else 1
    assert (captured.step.replays.replayed, captured.step.replays.moved) == (16 * parts, {})


def test_a_table_that_moves_is_refused(toy: Built, device: torch.device) -> None:
    package = toy.load_module()
    variant = Variant(package, device, returns=Static)
    variant.prefill([1], [[3, 4]])
    variant.table.set_(variant.table.clone())
    with pytest.raises(package.BindError, match="moved"):
        variant.decode([1], [2])


def test_kv_buffers_that_move_are_refused(build: Callable[..., Built], arch: str, device: torch.device) -> None:
    package = build(TREES[0].text, (arch,)).load_module()
    variant = Variant(package, device, returns=Static)
    variant.prefill([1], [[3, 4]])
    variant.decode([1], [2])
    buffer = variant.engine.kv["target"][1]
    buffer.set_(buffer.clone())
    with pytest.raises(package.BindError, match="moved"):
        variant.decode([1], [2])


def test_an_idle_step_of_padding_rows_changes_nothing(toy: Built, device: torch.device) -> None:
    package = toy.load_module()
    variant = Variant(package, device, returns=Static)
    variant.prefill([2, 5], [[1, 2, 3], [7]])
    before = variant.carried([2, 5])
    result = variant.step.decode(package.Batch([], []), at_least=1)
    assert {len(values) for values in result.outputs.values()} == {0}
    after = variant.carried([2, 5])
    assert all(torch.equal(after[name], values) for name, values in before.items())


def test_memory_is_what_the_plan_says(toy: Built, device: torch.device) -> None:
    package = toy.load_module()
    for capture, returns in ((True, None), ("segments", Static)):
        variant = Variant(package, device, capture=capture, returns=returns)
        memory = variant.step.memory
        assert {"arena": memory.arena, "relay": memory.relay, "scratch": memory.scratch} == vars(variant.plan.memory)
        assert set(memory.graphs) == set(variant.plan.buckets)
        assert all(size >= 0 for size in memory.graphs.values())
