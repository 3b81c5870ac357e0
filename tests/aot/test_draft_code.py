"""Machine code of what follows a draft's forward, as real configurations declare it: no spills, wide accesses."""

from collections import Counter
from typing import Any

import pytest
from compiled import candidates, compiled, opcodes
from programs import load

from specc.codegen.aot import Artifact

MODEL = {"vocab_size": 128256, "hidden_size": 4096, "dtype": "bfloat16"}
TREE = {"topk": 8, "num_draft_tokens": 64, "num_steps": 5}
PROGRAMS: dict[str, dict[str, Any]] = {
    "assisted": {"algorithm": "FROZEN_KV_MTP"},
    "assisted_tree": {"algorithm": "FROZEN_KV_MTP", **TREE},
    "modules": {"algorithm": "MULTI_LAYER_EAGLE"},
    "block": {"algorithm": "DFLASH", "num_steps": 15},
}
STEMS = ("draft_step", "row_argmax", "row_topk")


@pytest.fixture(scope="module", params=PROGRAMS)
def artifacts(request: pytest.FixtureRequest) -> list[Artifact]:
    """All kernels of a program that follow its draft's forwards in a step."""
    return build(request.param)


def build(program: str) -> list[Artifact]:
    """Compile what every family offers."""
    loaded = load(**PROGRAMS[program], target=MODEL, draft=MODEL)
    sources = [source for stem in STEMS for source in candidates(loaded, stem, ("draft", "extend"))]
    return list(compiled(sources, "sm_90").values())


def test_no_spills(artifacts: list[Artifact]) -> None:
    """And few enough registers for seven blocks of 128 threads on a multiprocessor, with a top-k five."""
    assert artifacts
    for artifact in artifacts:
        assert artifact.spills == 0, artifact.kernel
        assert artifact.shared <= 4096
        assert artifact.registers <= (96 if artifact.entry == "row_topk" else 72), artifact.kernel


def test_logits_are_read_by_128_bit_loads_only(artifacts: list[Artifact]) -> None:
    """One row or a block. The rest is a scalar each, or in a top-k the columns of winners."""
    for artifact in artifacts:
        loads = Counter(op for op in opcodes(artifact) if op.startswith("LDG") and ".STRONG" not in op)
        assert loads["LDG.E.128"] >= 2, artifact.kernel
        narrow = sum(loads.values()) - loads["LDG.E.128"]
        assert narrow <= (8 if artifact.entry == "row_topk" else 4), (artifact.kernel, loads)


@pytest.mark.parametrize(("program", "branches"), [("assisted", 1), ("assisted_tree", 8)])
def test_hidden_rows_are_copied_by_128_bits(program: str, branches: int) -> None:
    """One load for the copies of all branches: nothing else is stored that wide."""
    stores = [[op for op in opcodes(made) if op.startswith("STG") and ".128" in op] for made in build(program)]
    assert [len(found) for found in stores if found] == [branches]
