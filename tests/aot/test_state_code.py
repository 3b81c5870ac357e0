"""Machine code of the launch that advances recurrent states, at the sizes of models: no spills, and wide accesses."""

from typing import Any

import pytest
from compiled import ARCHS, compiled, kernels_of, opcodes
from programs import load

from specc.compiler.codegen.aot import KernelSource

STATES: dict[str, dict[str, Any]] = {
    "Qwen3-Next": {"kind": "GDN", "heads": 32, "rows": 128, "columns": 128, "groups": 16, "kernel": 4},
    "Kimi-Linear": {"kind": "KDA", "heads": 32, "rows": 128, "columns": 128, "groups": 32, "kernel": 4},
    "Nemotron-H": {"kind": "Mamba-2", "heads": 128, "rows": 64, "columns": 128, "groups": 8, "kernel": 4},
    "bf16": {
        "kind": "KDA", "heads": 8, "rows": 96, "columns": 256, "groups": 8, "kernel": 3, "dtype": "bfloat16",
        "keys": "bfloat16",
    },
    "odd": {"kind": "GDN", "heads": 6, "rows": 7, "columns": 3, "groups": 2, "kernel": 2},
}  # fmt: skip


def source(name: str) -> KernelSource:
    """The launch of a tree of 64 nodes."""
    tree = {"topk": 8, "num_steps": 5, "num_draft_tokens": 64, "buckets": [1, 8, 64]}
    target = {"state_layers": 36, "state_form": "fold", "state": STATES[name], "dtype": "bfloat16"}
    (found,) = kernels_of(load("EAGLE", **tree, target=target, draft={"dtype": "bfloat16"}), "state_fold")
    return found


@pytest.mark.parametrize("name", STATES)
def test_no_spills(name: str) -> None:
    for artifact in compiled([source(name)], *ARCHS).values():
        assert artifact.spills == 0, artifact
        assert artifact.registers <= 128, artifact
        assert artifact.shared <= 4096, artifact


def test_matrices_go_by_128_bits() -> None:
    """What is stored is a matrix or a window; of the first every access is as wide as there are."""
    (artifact,) = compiled([source("Qwen3-Next")], "sm_90").values()
    stores = [name for name in opcodes(artifact) if name.startswith("STG")]
    assert sum(name.endswith(".128") for name in stores) == 8  # 4 of a thread, to either row
    assert all(".U16" in name or name.endswith(".128") for name in stores)
