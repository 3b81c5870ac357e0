"""Every kernel of the example programs, launched from its machine code, against the reference ops."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from specc.runtime.backends.cuda import CudaBackend
from specc.runtime.manifest import Manifest
from specc.runtime.plan_json import load_plan

from .conftest import Built
from .nodes import Pair, check_program

EXAMPLES = ("standalone-chain", "eagle-chain", "llama-8b-eagle", "qwen3-standalone")


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_launch_equals_its_ops(name: str, example: Callable[[str], Built], device: torch.device) -> None:
    """On poisoned memory: full and padded batches of every bucket leave the same bytes, counters of zero among them."""
    built = example(name)
    root = built.site / built.name
    plan = load_plan(root)
    check_program(Pair(plan, CudaBackend(plan, Manifest.read(root), root, device), device, seed=len(name)))
