"""Machine code of what follows a draft's forward, as real configurations declare it: no spills, wide accesses."""

from collections import Counter
from typing import Any

import pytest
from compiled import MODEL, TREE, compiled, kernels_of, opcodes
from programs import load

from specc.compiler.codegen.artifact import KernelBinary

PROGRAMS: dict[str, dict[str, Any]] = {
    "assisted": {"algorithm": "FROZEN_KV_MTP"},
    "assisted_tree": {"algorithm": "FROZEN_KV_MTP", **TREE},
    "modules": {"algorithm": "MULTI_LAYER_EAGLE"},
    "block": {"algorithm": "DFLASH", "num_steps": 15},
}


@pytest.fixture(scope="module", params=PROGRAMS)
def artifacts(request: pytest.FixtureRequest) -> list[KernelBinary]:
    """All kernels of a program that follow its draft's forwards in a step."""
    return build(request.param)


def build(program: str) -> list[KernelBinary]:
    """Compile them; what builds a tree besides has tests of its own."""
    loaded = load(**PROGRAMS[program], target=MODEL, draft=MODEL)
    sources = kernels_of(loaded, "argmax", "topk", phases=("draft", "extend"))
    return list(compiled([source for source in sources if "tree_select(" not in source.text], "sm_90").values())


def test_no_spills(artifacts: list[KernelBinary]) -> None:
    """And few enough registers for seven blocks of 128 threads on a multiprocessor; with a top-k four, whose last block
    holds the frontier besides.
    """
    assert artifacts
    for artifact in artifacts:
        assert artifact.spills == 0, artifact.kernel
        assert artifact.shared <= 4096
        assert artifact.registers <= (128 if artifact.entry == "topk" else 72), artifact.kernel


def test_logits_are_read_by_128_bit_loads_only(artifacts: list[KernelBinary]) -> None:
    """One row or a block. The rest is a scalar each, or in a top-k the columns of winners, twice, and the frontier."""
    for artifact in artifacts:
        loads = Counter(op for op in opcodes(artifact) if op.startswith("LDG") and ".STRONG" not in op)
        assert loads["LDG.E.128"] >= 2, artifact.kernel
        narrow = sum(loads.values()) - loads["LDG.E.128"]
        assert narrow <= (13 if artifact.entry == "topk" else 4), (artifact.kernel, loads)


@pytest.mark.parametrize(
    ("program", "kernel", "branches"), [("assisted", "draft_argmax_0", 1), ("assisted_tree", "draft_topk_0", 8)]
)
def test_hidden_rows_are_copied_by_128_bits(program: str, kernel: str, branches: int) -> None:
    """One load for the copies of all branches: nothing else is stored that wide."""
    (made,) = (artifact for artifact in build(program) if artifact.kernel == kernel)
    assert len([op for op in opcodes(made) if op.startswith("STG") and ".128" in op]) == branches
