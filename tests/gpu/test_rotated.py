"""Programs whose target the engine runs: replays == eager launches == the CPU reference, in tables of the engine's."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from fakes.toys import ROTATED, Toy

from specc.runtime.backends.cuda import CudaBackend
from specc.runtime.plan.files.manifest import Manifest
from specc.runtime.plan.files.plan_json import load_plan

from .conftest import Built
from .nodes import Pair, check_program
from .rotated import RotatedVariant
from .serving import Serving


@pytest.mark.parametrize("toy", ROTATED, ids=lambda toy: toy.name)
def test_halves_captured_and_eager_equal_the_reference(
    toy: Toy, build: Callable[..., Built], arch: str, device: torch.device
) -> None:
    package = build(toy.text, (arch,)).load_module()
    ways = {"eager": {"capture": False}, "captured": {"capture": True}, "segments": {"capture": "segments"}}
    variants = {"cpu": RotatedVariant(package, "cpu")}
    variants |= {name: RotatedVariant(package, device, **how) for name, how in ways.items()}
    variants["padded"] = RotatedVariant(package, device, capture=False, padded=True)
    variants["makes"] = RotatedVariant(package, device, capture=True, makes=True)
    variants["makes eagerly"] = RotatedVariant(package, device, capture=False, makes=True)
    serving = Serving(variants, seed=1)
    serving.run(30)
    assert sum(count * times for count, times in serving.accepted.items()) > 1.5 * serving.accepted.total()
    assert len(serving.sizes) > 3
    assert variants["captured"].step.replays.moved
    assert not variants["makes"].step.replays.moved


@pytest.mark.parametrize("toy", ROTATED, ids=lambda toy: toy.name)
def test_every_node_equals_its_ops(toy: Toy, build: Callable[..., Built], arch: str, device: torch.device) -> None:
    """Bit by bit, so none that samples: a GPU divides by a temperature otherwise than the CPU."""
    built = build(toy.text, (arch,))
    root = built.site / built.name
    plan = load_plan(root)
    check_program(Pair(plan, CudaBackend([plan], Manifest.read(root), root, device), device, seed=len(toy.name)))
