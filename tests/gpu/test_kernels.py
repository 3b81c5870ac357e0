"""Every kernel of the example programs, launched from its machine code, against the reference ops."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from fakes.toys import LAUNCHED, TOYS, Toy

from specc.runtime.backends.cuda import CudaBackend
from specc.runtime.plan.files.manifest import Manifest
from specc.runtime.plan.files.plan_json import load_plan

from .conftest import RUNNABLE, Built
from .nodes import Pair, check_program

NAMES = (*RUNNABLE, "llama-8b-eagle", "qwen3-standalone", "standalone-tree-paged", "eagle-tree-wide")


@pytest.mark.parametrize("name", NAMES)
def test_every_launch_equals_its_ops(name: str, example: Callable[[str], Built], device: torch.device) -> None:
    """On poisoned memory: full and padded batches of every bucket leave the same bytes, counters of zero among them."""
    check(example(name), device)


@pytest.mark.parametrize("toy", [*TOYS, LAUNCHED], ids=lambda toy: toy.name)
def test_every_launch_of_the_toys(toy: Toy, build: Callable[..., Built], arch: str, device: torch.device) -> None:
    check(build(toy.text, (arch,)), device)


def check(built: Built, device: torch.device) -> None:
    """Compare every launch of a program, from its machine code, with its ops."""
    root = built.site / built.name
    plan = load_plan(root)
    check_program(Pair(plan, CudaBackend([plan], Manifest.read(root), root, device), device, seed=len(built.name)))
